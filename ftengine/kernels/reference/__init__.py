"""Every kernel in plain torch, float32: the truth of the parity tests and the slow way out."""
