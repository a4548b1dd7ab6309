"""Pieces of a tokenizer.json that every rebuilt tokenizer has; which go where is its maker's."""

from __future__ import annotations

from typing import Any

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
"""To be copied, with use_regex beside it."""


def split_by(regex: str) -> dict[str, Any]:
    """The step that cuts text at the matches, which are pieces of their own."""
    return {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }


def bpe(vocab: dict[str, int], merges: list[list[str]], *, ignore_merges: bool) -> dict[str, Any]:
    """The model. ignore_merges: a whole piece that is a token is taken without merging."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def added_token(number: int, text: str, *, is_special: bool) -> dict[str, Any]:
    """A token that is matched in text before anything else. is_special: left out of text."""
    return {
        "id": number,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }
