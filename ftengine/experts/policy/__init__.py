"""Decisions about experts across memories, pure: no torch, no clocks. Read README.md first."""
