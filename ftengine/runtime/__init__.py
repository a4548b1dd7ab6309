"""The engine itself. Read engine.py first: load, submit, step."""
