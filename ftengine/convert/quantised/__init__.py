"""Quantised safetensors releases: what their configs say and how their tensors belong together.

scheme.py has the words, config.py chooses the dialect, companions.py joins weights and scales.
"""
