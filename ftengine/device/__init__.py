"""Memory of a device behind one interface. Read torch_device.py."""
