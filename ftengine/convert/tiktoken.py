"""tiktoken.model, a list of byte strings and their ranks, as the tokenizer.json of the same tokens.

Such releases keep the split rule in Python code that is never fetched or run here. It is chosen by
the names of the control tokens; a release whose names are not known is refused, because a wrong
split gives plausible text and wrong tokens.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ftengine.convert.split_rules import KIMI_SPLIT
from ftengine.convert.tokenizer_json import BYTE_LEVEL, added_token, bpe, split_by
from ftengine.errors import FormatError, LoadError

RANKS_FILE = "tiktoken.model"
_MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class _Release:
    """A family of releases. signs: control tokens that only they have; reserved: ids of control
    tokens after the ranks, named by `spare` where the settings do not name them."""

    signs: tuple[str, ...]
    split: str
    reserved: int
    spare: str


_RELEASES = (
    _Release(("<|im_user|>", "<|im_middle|>"), KIMI_SPLIT, 256, "<|reserved_token_{id}|>"),
)
"""Kimi-K2 and those that came after it with the same tokens."""


def tokenizer_of_ranks(data: bytes, settings: Mapping[str, Any]) -> bytes:
    """tokenizer.json. settings: tokenizer_config.json, which names the control tokens.

    Raises: FormatError for a broken file, LoadError for a release whose split rule is not known.
    """
    ranks = _read(data)
    named = _named(settings)
    release = _release(named)
    letters = _byte_letters()
    vocab = {_text(token, letters): rank for token, rank in ranks.items()}
    first = len(ranks)
    added = []
    for number in range(first, max((first + release.reserved, *(n + 1 for n in named)))):
        token = named.get(number, _Named(release.spare.format(id=number), hidden=True))
        added.append(added_token(number, token.text, is_special=token.hidden))
    byte_level = {**BYTE_LEVEL, "use_regex": False}
    merges = [[_text(left, letters), _text(right, letters)] for left, right in _merges(ranks)]
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split_by(release.split), byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": bpe(vocab, merges, ignore_merges=True),
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _read(data: bytes) -> dict[bytes, int]:
    """Byte strings and ranks, which are 0, 1, 2 and so on and hold every byte."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise FormatError(f"{RANKS_FILE}: line {number} is not a token and its rank") from None
        if number > _MAX_RANKS:
            raise FormatError(f"{RANKS_FILE} has more than {_MAX_RANKS} lines")
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise FormatError(f"{RANKS_FILE}: ranks must be 0 to {len(ranks) - 1}, each once")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise FormatError(f"{RANKS_FILE} has no token for byte {missing[0]}")
    return ranks


@dataclass(frozen=True)
class _Named:
    """A control token. hidden: it is left out of text."""

    text: str
    hidden: bool


def _named(settings: Mapping[str, Any]) -> dict[int, _Named]:
    listed = settings.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return {}
    found = {}
    for key, entry in listed.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdigit() or int(key) >= 2 * _MAX_RANKS or not isinstance(content, str):
            raise FormatError(
                f"tokenizer_config.json: added_tokens_decoder {str(key)[:40]!r} is no token"
            )
        found[int(key)] = _Named(content, entry.get("special") is not False)
    return found


def _release(named: Mapping[int, _Named]) -> _Release:
    texts = frozenset(token.text for token in named.values())
    for release in _RELEASES:
        if texts.issuperset(release.signs):
            return release
    known = "; ".join(" ".join(release.signs) for release in _RELEASES)
    raise LoadError(
        f"the tokenizer is a {RANKS_FILE} of a release that is not known (no control tokens "
        f"{known}): its rule for splitting text is code; use a release with tokenizer.json",
        code="unsupported_tokenizer",
    )


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The last merge that makes each token of several bytes, in the order of ranks."""
    found = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = _merged(token, ranks, rank)
        # a token that its own bytes never lead to is only taken where a whole piece is equal to it
        if len(parts) == 2:
            found.append((parts[0], parts[1]))
    return found


def _merged(token: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """Bytes merged as long as something of a rank below this one comes of it, lowest rank first."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        options = [ranks.get(left + right, below) for left, right in pairwise(parts)]
        best = min(options)
        if best >= below:
            break
        at = options.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokens: printable ones for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _text(token: bytes, letters: list[str]) -> str:
    return "".join(letters[byte] for byte in token)
