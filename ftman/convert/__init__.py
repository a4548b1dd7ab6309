"""Turning a source into FTW: the manager's side of `python -m ftengine.convert`."""
