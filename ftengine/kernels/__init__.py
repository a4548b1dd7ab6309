"""Compute kernels. Read operands.py, then native.py (C++ on the CPU) and reference/ (the truth)."""
