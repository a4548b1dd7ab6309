"""Bytes to parameters: headers of foreign files and the FTW reader. Read ftw.py first."""
