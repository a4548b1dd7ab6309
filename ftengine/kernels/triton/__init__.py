"""Device kernels in Triton; names as in reference/. Read panel.py first, table.py for the list.

Only the kernel files import Triton; table.py and calls.py do not.
"""
