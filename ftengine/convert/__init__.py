"""Checkpoint to FTW, as a child process of the manager. Read convert.py first; no torch here.

protocol.py speaks with the manager, window.py holds the bytes it hands over, source.py reads the
headers, layout.py decides where every byte goes, writer.py puts it there, journal.py remembers.
"""
