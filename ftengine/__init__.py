"""The inference engine: token ids in, token ids out. Empty on purpose; read protocol.py first."""
