"""Memory, copies and events of a device behind one interface. Read base.py, then emulated.py."""
