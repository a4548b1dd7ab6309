"""The tokenizer inside a GGUF file, rebuilt as tokenizer.json and tokenizer_config.json.

Built: byte-level BPE (tokenizer.ggml.model "gpt2") with the rules of split_rules.py, and
SentencePiece BPE, with merges that follow from scores ("llama") or its own ("gemma4"). The split
rule is named by tokenizer.ggml.pre; an unknown one is refused, because a wrong split gives
plausible text and wrong tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftengine.convert.source import dump_json
from ftengine.convert.split_rules import PRE_TOKENIZERS, PreTokenizer
from ftengine.convert.tokenizer_json import BYTE_LEVEL, added_token, bpe, split_by
from ftengine.errors import FormatError, LoadError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SCORED, _MERGED = "llama", "gemma4"


@dataclass(frozen=True)
class _Tokens:
    """The token list of a GGUF file. Units: types as tokenizer.ggml.token_type."""

    texts: list[str]
    types: list[int]
    values: Mapping[str, Any]

    def key(self, name: str) -> Any:
        return self.values.get(f"tokenizer.ggml.{name}")

    def text_of(self, key: str) -> str | None:
        number = self.key(key)
        if type(number) is int and 0 <= number < len(self.texts):
            return self.texts[number]
        return None


def tokenizer_files(values: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja from GGUF key-values.

    Raises: LoadError naming the tokenizer kind that is not built, FormatError if lists do not fit.
    """
    tokens = _read_tokens(values, where)
    model = tokens.key("model")
    if model == "gpt2":
        tokenizer = _byte_level(tokens, where)
    elif model in (_SCORED, _MERGED):
        tokenizer = _sentence_piece(tokens, where)
    else:
        built = f"gpt2, {_SCORED}, {_MERGED}"
        raise LoadError(
            f"{where}: tokenizer.ggml.model {model!r} is not built yet; built: {built}",
            code="unsupported_tokenizer",
        )
    out = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode(),
        "tokenizer_config.json": dump_json(_settings(tokens, model)),
    }
    template = values.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        out["chat_template.jinja"] = template.encode("utf-8", "replace")
    return out


def _read_tokens(values: Mapping[str, Any], where: str) -> _Tokens:
    texts = values.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise LoadError(f"{where} holds no tokenizer (tokenizer.ggml.tokens is missing)")
    types = values.get("tokenizer.ggml.token_type")
    if types is None:
        types = [1] * len(texts)
    if not isinstance(types, list) or len(types) != len(texts):
        raise FormatError(f"{where}: tokenizer.ggml.token_type must have {len(texts)} entries")
    clean = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    return _Tokens(clean, types, values)


def _byte_level(tokens: _Tokens, where: str) -> dict[str, Any]:
    pre = _pre_tokenizer(str(tokens.key("pre") or ""), where)
    steps: list[dict[str, Any]] = []
    if pre.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    steps += [split_by(regex) for regex in pre.splits]
    steps.append({**BYTE_LEVEL, "use_regex": not pre.splits})
    vocab = {
        text: number
        for number, (text, kind) in enumerate(zip(tokens.texts, tokens.types, strict=True))
        if kind != _UNUSED
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens),
        "normalizer": {"type": "NFC"} if pre.is_nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _post_processor(tokens, BYTE_LEVEL),
        "decoder": {**BYTE_LEVEL, "use_regex": True},
        "model": bpe(vocab, _merges(tokens, vocab, where), ignore_merges=pre.ignore_merges),
    }


def _pre_tokenizer(name: str, where: str) -> PreTokenizer:
    for candidate in PRE_TOKENIZERS:
        if name in candidate.names:
            return candidate
    known = ", ".join(filter(None, (n for pre in PRE_TOKENIZERS for n in pre.names)))
    raise LoadError(
        f"{where}: tokenizer.ggml.pre {name!r} is not built yet; built: {known}",
        code="unsupported_tokenizer",
    )


def _sentence_piece(tokens: _Tokens, where: str) -> dict[str, Any]:
    """SentencePiece BPE: bytes stand in for unknown characters."""
    space = "\u2581"
    vocab = {text: number for number, text in enumerate(tokens.texts)}
    if tokens.key("model") == _MERGED:
        merges, prefix = _merges(tokens, vocab, where), False
    else:
        merges, prefix = _merges_of_scores(tokens, vocab), tokens.key("add_space_prefix")
    normalizers: list[dict[str, Any]] = []
    if prefix is None or prefix:
        normalizers.append({"type": "Prepend", "prepend": space})
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": space})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": space}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix is None or prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = tokens.text_of("unknown_token_id")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(tokens, None),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            **bpe(vocab, merges, ignore_merges=False),
            "unk_token": unknown or (tokens.texts[0] if tokens.types[0] == 2 else None),
            "fuse_unk": True,
            "byte_fallback": _BYTE in tokens.types,
        },
    }


def _merges_of_scores(tokens: _Tokens, vocab: dict[str, int]) -> list[list[str]]:
    """Every way to build a piece from two pieces, best score first, then the lower ids."""
    scores = tokens.key("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens.texts):
        raise LoadError("tokenizer.ggml.scores is missing: the merge order is unknown")
    normal = {
        text for text, kind in zip(tokens.texts, tokens.types, strict=True) if kind == _NORMAL
    }
    found: list[tuple[float, int, int, str, str]] = []
    for text in normal:
        score = -float(scores[vocab[text]])
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                found.append((score, vocab[left], vocab[right], left, right))
    found.sort()
    return [[left, right] for *_, left, right in found]


def _merges(tokens: _Tokens, vocab: dict[str, int], where: str) -> list[list[str]]:
    lines = tokens.key("merges")
    if not isinstance(lines, list):
        raise FormatError(f"{where}: tokenizer.ggml.merges is missing")
    pairs = []
    for line in lines:
        left, gap, right = str(line).partition(" ")
        if not gap or left not in vocab or right not in vocab or left + right not in vocab:
            raise FormatError(f"{where}: merge {str(line)[:60]!r} does not fit the token list")
        pairs.append([left, right])
    return pairs


def _added(tokens: _Tokens) -> list[dict[str, Any]]:
    """Control and user-defined tokens, matched in text before anything else."""
    return [
        added_token(number, text, is_special=kind in (_CONTROL, _UNKNOWN))
        for number, (text, kind) in enumerate(zip(tokens.texts, tokens.types, strict=True))
        if kind in (_CONTROL, _USER, _UNKNOWN) and text
    ]


def _post_processor(tokens: _Tokens, byte_level: dict[str, Any] | None) -> dict[str, Any] | None:
    """Adds bos where the file says that every text starts with it."""
    steps: list[dict[str, Any]] = []
    if byte_level is not None:
        steps.append({**byte_level, "trim_offsets": False, "use_regex": True})
    bos = tokens.text_of("bos_token_id")
    if bos is not None and _adds_bos(tokens):
        first = {"SpecialToken": {"id": bos, "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        second = {"Sequence": {"id": "B", "type_id": 1}}
        bos_again = {"SpecialToken": {"id": bos, "type_id": 1}}
        ids = {bos: {"id": bos, "ids": [tokens.key("bos_token_id")], "tokens": [bos]}}
        steps.append(
            {
                "type": "TemplateProcessing",
                "single": [first, text],
                "pair": [first, text, bos_again, second],
                "special_tokens": ids,
            }
        )
    return {"type": "Sequence", "processors": steps} if steps else None


def _adds_bos(tokens: _Tokens) -> bool:
    """The file's own word; without it, SentencePiece files and some others start with bos."""
    said = tokens.key("add_bos_token")
    if tokens.key("model") == _MERGED:
        return True  # some files say no, and are wrong
    if isinstance(said, bool):
        return said
    if tokens.key("model") == _SCORED:
        return True
    return any(pre.adds_bos and tokens.key("pre") in pre.names for pre in PRE_TOKENIZERS)


def _settings(tokens: _Tokens, model: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(tokens),
        "add_eos_token": bool(tokens.key("add_eos_token")),
        "clean_up_tokenization_spaces": False,
        "ggml_model": model,
    }
    for name, key in (
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("pad_token", "padding_token_id"),
        ("unk_token", "unknown_token_id"),
    ):
        text = tokens.text_of(key)
        if text is not None:
            settings[name] = text
    return settings
