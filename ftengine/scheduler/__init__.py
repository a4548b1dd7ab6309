"""Which tokens the next step computes; pure. Read scheduler.py, then sequence.py and batch.py."""
