"""The manager and the `ft` command. It never imports torch; read service.py first."""

__version__ = "0.1.0"
