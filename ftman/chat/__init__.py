"""Text to tokens to events. Read types.py first, then render.py."""
