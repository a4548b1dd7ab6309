"""Replies held to a grammar. Read compiler.py, then matcher.py; the grammars are llguidance's."""
