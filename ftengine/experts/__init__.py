"""Where expert weights live and who computes them. Read host.py, cpu.py, then executor.py."""
