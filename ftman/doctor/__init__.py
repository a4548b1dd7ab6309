"""What `ft doctor` looks at and what it makes of it. Reads only. Start with checks.py."""
