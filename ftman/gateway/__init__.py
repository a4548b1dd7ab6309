"""HTTP in: one file or package per dialect. Read app.py first, then routes.py."""
