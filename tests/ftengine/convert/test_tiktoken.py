"""tiktoken.model as tokenizer.json: the ids are those of the ranks, whatever the text."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ftengine.convert.local import convert_folder
from ftengine.convert.tiktoken import RANKS_FILE, tokenizer_of_ranks
from ftengine.errors import FormatError, LoadError
from tests.fakes.tiny_models import build_tiny

WORDS = "the|he|th|in|ing|er|ther|at|cat| cat| the|123|12|ab|bc|abc|\n\n|  |月|月之|之"
NAMES = {"<|im_user|>": True, "<|im_middle|>": True, "<|tool_call_begin|>": False}
TEXTS = (
    "the cat in the hat",
    "gathering  other things\n\n\n at 1234567 o'clock, aren't we?",
    "abcab月之暗面abc123HTTPServer fooBar Żółw",
    "   indented\n\ttabs\r\n and emoji 🙂👍🏽 end  ",
    "def f(x):\n    return x**2  # 好的，世界",
)


def ranks() -> dict[bytes, int]:
    """All bytes, then tokens that merges of lower ranks lead to."""
    found = {bytes([byte]): byte for byte in range(256)}
    for word in WORDS.split("|"):
        whole = word.encode()
        for end in range(2, len(whole) + 1):
            found.setdefault(whole[:end], len(found))
    return found


def rank_file(table: dict[bytes, int]) -> bytes:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in table.items()]
    return b"".join(lines)


def settings(first: int) -> dict[str, Any]:
    named = enumerate(NAMES.items(), first)
    return {
        "added_tokens_decoder": {
            str(number): {"content": text, "special": special} for number, (text, special) in named
        }
    }


def pieces(text: str) -> list[str]:
    """The release's own rule, in the words of the standard library."""
    han = r"[\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff]"
    upper = rf"(?:(?!{han})(?=[^\W\d_])[^a-zżółćęąśźń])"
    lower = rf"(?:(?!{han})(?=[^\W\d_])[^A-ZŻÓŁĆĘĄŚŹŃ])"
    lead = r"(?:[^\r\n\w]|_)?"
    tail = r"(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL]{2}|[dD]))?"
    rule = "|".join(
        (
            rf"{han}+",
            rf"{lead}{upper}*{lower}+{tail}",
            rf"{lead}{upper}+{lower}*{tail}",
            r"\d{1,3}",
            r" ?(?:[^\s\w]|_)+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )
    return re.findall(rule, text)


def by_ranks(text: str, table: dict[bytes, int]) -> list[int]:
    """What the ranks mean: a piece that is a token, else its bytes merged, lowest rank first."""
    ids = []
    for piece in pieces(text):
        parts = [bytes([byte]) for byte in piece.encode()]
        if piece.encode() in table:
            parts = [piece.encode()]
        while len(parts) > 1:
            joined = [left + right for left, right in pairwise(parts)]
            best = min(joined, key=lambda token: table.get(token, 1 << 30))
            if best not in table:
                break
            at = joined.index(best)
            parts[at : at + 2] = [best]
        ids += [table[part] for part in parts]
    return ids


def test_ids_are_those_of_the_ranks() -> None:
    table = ranks()
    made = tokenizer_of_ranks(rank_file(table), settings(len(table)))
    tokenizer = Tokenizer.from_str(made.decode())
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert "".join(pieces(text)) == text
        assert ids == by_ranks(text, table), text
        assert tokenizer.decode(ids) == text
    assert max(len(tokenizer.encode(text).ids) for text in TEXTS) > 10


def test_control_tokens_follow_the_ranks_and_all_have_names() -> None:
    table = ranks()
    first = len(table)
    made = json.loads(tokenizer_of_ranks(rank_file(table), settings(first)))
    added = made["added_tokens"]
    assert [token["id"] for token in added] == list(range(first, first + 256))
    assert {token["content"]: token["special"] for token in added[:3]} == NAMES
    assert added[3]["content"] == f"<|reserved_token_{first + 3}|>"
    tokenizer = Tokenizer.from_str(json.dumps(made))
    assert tokenizer.encode("<|im_user|>the").ids == [first, table[b"the"]]


def test_a_release_whose_split_rule_is_not_known_is_refused() -> None:
    with pytest.raises(LoadError, match="not known"):
        tokenizer_of_ranks(rank_file(ranks()), {"added_tokens_decoder": {"900": {"content": "x"}}})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.replace(b" 260\n", b" 259\n"), "each once"),
        (lambda data: data[data.index(b"\n") + 1 :], "each once"),
        (lambda data: b"?? 1\n" + data, "line 1"),
        (lambda data: data + b"YQ\n", "is not a token"),
    ],
)
def test_broken_files_are_told(change: Any, says: str) -> None:
    table = ranks()
    with pytest.raises(FormatError, match=says):
        tokenizer_of_ranks(change(rank_file(table)), settings(len(table)))


def test_a_checkpoint_with_ranks_only_serves_text(tmp_path: Path) -> None:
    folder = build_tiny("qwen3", tmp_path / "hf")
    table = ranks()
    (folder / "tokenizer.json").unlink()
    (folder / RANKS_FILE).write_bytes(rank_file(table))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings(len(table))))
    result = convert_folder(folder, tmp_path / "ftw")
    assert any(RANKS_FILE in note for note in result["notes"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "ftw" / "tokenizer.json"))
    assert tokenizer.encode(TEXTS[0]).ids == by_ranks(TEXTS[0], table)
