"""Accelerators without a toolkit: driver by dlopen, compiled kernels, graphs. Read driver.py."""
