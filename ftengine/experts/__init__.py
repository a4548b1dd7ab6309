"""Where expert weights live and who computes them. Read banks.py, then cpu.py."""
