"""What a model is, as data: read spec.py first, then families/."""
