"""Small tokenizers of every kind we meet, made here, and the templates they are tried with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from ftman.chat.template import JinjaTemplates
from ftman.chat.tokenizer import Tokenizer

CORPUS = [
    "You are a helpful assistant. The quick brown fox jumps over the lazy dog, twice!",
    "user system assistant tool end start function name arguments json string number",
    "def main():\n    return {'a': 1, \"b\": [2, 3]}  # comment\n\n\tprint('hello world')",
    "Grüße aus Köln, crème brûlée, naïve café. 東京は日本の首都です。 Привет, мир! 😀🎉👩‍👩‍👧",
    "think tool_call INST im_start im_end eot_id header s unk pad mask 0 1 2 3 4 5 6 7 8 9",
] * 4
SPECIALS = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
MARKERS = ["<think>", "</think>", "<tool_call>"]


def _byte_level(name: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if name == "byte-level-post":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _sentence_piece(name: str) -> tokenizers.Tokenizer:
    words = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    words.train_from_iterator(CORPUS[:3], trainer)
    state = json.loads(words.to_str())
    vocab = dict(state["model"]["vocab"])
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    merges = [tuple(merge) for merge in state["model"]["merges"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    space = normalizers.Replace(" ", "▁")
    if name == "sentencepiece-legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIALS])
    return tokenizer


def _unigram(name: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_piece(name: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


BUILDERS: dict[str, Callable[[str], tokenizers.Tokenizer]] = {
    "byte-level": _byte_level,
    "byte-level-post": _byte_level,
    "sentencepiece-legacy": _sentence_piece,
    "sentencepiece-first": _sentence_piece,
    "unigram": _unigram,
    "wordpiece": _word_piece,
}


def save(tokenizer: tokenizers.Tokenizer, folder: Path, **config: object) -> Path:
    """Write what an FTW folder has of a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 4]}))
    return folder


def build(name: str) -> tokenizers.Tokenizer:
    """One of BUILDERS, with markers and a token that swallows white space."""
    tokenizer = BUILDERS[name](name)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in MARKERS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("    ", "<td>", "</h1>")])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer name -> folder as the converter writes it."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: save(build(name), root / name) for name in BUILDERS}


@pytest.fixture(params=list(BUILDERS))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture
def byte_level(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(folders["byte-level"])


@pytest.fixture
def bos_adding(tmp_path: Path) -> Tokenizer:
    """A byte-level tokenizer that puts <s> in front, as its post-processor says."""
    tokenizer = build("byte-level")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return Tokenizer.load(save(tokenizer, tmp_path / "bos"))


@pytest.fixture(scope="session")
def with_templates() -> Iterator[Callable[..., Any]]:
    """Run `work(templates)`; one helper process and one loop serve all tests."""
    loop = asyncio.new_event_loop()
    helper = JinjaTemplates()

    def call(work: Callable[[JinjaTemplates], Awaitable[Any]]) -> Any:
        return loop.run_until_complete(work(helper))

    yield call
    loop.run_until_complete(helper.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
