"""Which engines run: policy decides, processes obey, leases are granted. Read README.md first."""
