"""A decode step as a list of recorded native calls. Read record.py first."""
