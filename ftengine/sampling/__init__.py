"""How the next token is chosen. Read sampler.py first."""
