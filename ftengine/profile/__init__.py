"""Where the time of a step goes: `python -m ftengine.profile`. Read measure.py first."""
