"""Building blocks of a decoder, no model names; x is [num_tokens, ...]. Read context.py first."""
