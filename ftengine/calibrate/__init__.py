"""Measures this machine for the planner: read cpu.py, then __main__.py for the child process."""
