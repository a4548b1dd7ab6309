"""How models arrive: index, sources, download, jobs. Read `pull.py` first."""
