"""What a model will do on a machine, before it is fetched. Read forecast.py first. No torch."""
