"""The `ft` command, thin over the manager's HTTP API. Read main.py first."""
