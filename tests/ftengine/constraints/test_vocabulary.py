"""The vocabulary that grammars see: the same bytes and special tokens as the manager's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ftengine.constraints.vocabulary import load_vocabulary
from ftengine.errors import RequestError

BYTE_MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(left + right for left, right in BYTE_MERGES)]
    vocab = {text: number for number, text in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, BYTE_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "é", "a"]
    vocab = {text: number for number, text in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def written(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("</think>", "<br>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_tokens_stand_for_their_bytes(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    vocabulary = load_vocabulary(written(tokenizer, tmp_path), 600, (5,))
    assert vocabulary.size == 600
    for text, number in tokenizer.get_vocab().items():
        if text in ("Ġthe", "▁the"):
            assert vocabulary.inner.decode_bytes([number]) == b" the"
        if text in ("Ã", "<0xC3>"):
            assert vocabulary.inner.decode_bytes([number]) == b"\xc3"
        if text == "é" and make is sentence_piece:
            assert vocabulary.inner.decode_bytes([number]) == "é".encode()


def test_markers_are_special_though_the_file_does_not_say_so(tmp_path: Path) -> None:
    tokenizer = byte_level()
    vocabulary = load_vocabulary(written(tokenizer, tmp_path), 0, ())
    ids = {text: tokenizer.token_to_id(text) for text in ("<|end|>", "</think>", "<br>")}
    assert vocabulary.specials == {ids["<|end|>"]: "<|end|>", ids["</think>"]: "</think>"}
    assert vocabulary.inner.is_special_token(ids["</think>"])
    assert ids["<br>"] not in vocabulary.specials


def test_size_covers_the_larger_of_tokenizer_and_model(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = written(tokenizer, tmp_path)
    assert load_vocabulary(folder, 10, (1,)).size == tokenizer.get_vocab_size()
    assert load_vocabulary(folder, 1000, (1,)).size == 1000


@pytest.mark.parametrize("value", [{}, {"model": {"vocab": []}}, {"model": {"vocab": {"a": "x"}}}])
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(RequestError, match=r"tokenizer\.json") as caught:
        load_vocabulary(tmp_path, 10, (1,))
    assert caught.value.code == "constraint_unsupported"


def test_kind_that_cannot_be_bound_says_why(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(RequestError, match="WordPiece"):
        load_vocabulary(written(tokenizer, tmp_path), 10, (1,))
