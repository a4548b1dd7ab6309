"""Routed experts of a real GPU: tables, decode steps, layers streamed, the wide CPU branch."""
