"""Decisions about pages, pure: no torch, no clocks. Read pages.py."""
