"""HTTP in front of one engine. Read app.py (routes), then serve.py (process life)."""
