"""Start `ft serve` at login: one interface, one file per system. Read base.py first."""
