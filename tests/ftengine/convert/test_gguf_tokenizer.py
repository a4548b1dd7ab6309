"""Tokenizers rebuilt from GGUF give the ids of the reference tokenizers on odd texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ftengine.convert.gguf_tokenizer import tokenizer_files
from ftengine.errors import FormatError, LoadError
from tests.fakes import tiny_models as tiny

TEXTS = [
    "Why is the sky blue?",
    "a  1 b   22  \t333\n\n4444 12345 x1y2",
    "don't DON'T we'LL I'm they'd",
    " leading and trailing  ",
    "emoji 😀👩‍👩‍👧 flags 🇩🇪 zero\u200bwidth",
    "cafe\u0301 café \u212b ﬁ ½ ² ٣ 五",
    "日本語のテキスト and кириллица",
    "line\r\nbreak\n \n\n  indented\n\ttab",
    "punct!!! ...((())) <html> a_b-c/d\\e",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\u0000\u0001\x7f control",
    "",
    " ",
    "\n",
]


def values(pre: str, **changes: Any) -> dict[str, Any]:
    tokens, merges = tiny.tiny_vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def rebuilt(settings: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(settings, "t.gguf")["tokenizer.json"].decode())


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokens, merges = tiny.tiny_vocabulary()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    return {token: n for n, token in enumerate(tokens)}, pairs  # type: ignore[return-value]


def with_specials(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens(list(tiny.SPECIALS))
    return tokenizer


def reference_smollm() -> Any:
    vocab, merges = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return with_specials(tokenizer)


def reference_gpt2() -> Any:
    from transformers import GPT2Tokenizer

    vocab, merges = vocabulary()
    return GPT2Tokenizer(vocab=vocab, merges=merges)._tokenizer


def reference_qwen2() -> Any:
    from transformers import Qwen2Tokenizer

    vocab, merges = vocabulary()
    return Qwen2Tokenizer(vocab=vocab, merges=merges)._tokenizer


def reference_qwen35() -> Any:
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    vocab, merges = vocabulary()
    return Qwen3_5Tokenizer(vocab=vocab, merges=merges)._tokenizer


def reference_glm4() -> Any:
    """The same rule, with merges for every piece."""
    return reference_llama3(ignore_merges=False)


def reference_llama3(ignore_merges: bool = True) -> Any:
    """The rule as transformers' own tiktoken conversion writes it."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocab, merges = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    pattern = Regex(TikTokenConverter(vocab_file="unused").pattern)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize(
    ("pre", "reference"),
    [
        ("smollm", reference_smollm),
        ("gpt-2", reference_gpt2),
        ("default", reference_gpt2),
        ("qwen2", reference_qwen2),
        ("qwen35", reference_qwen35),
        ("llama-bpe", reference_llama3),
        ("glm4", reference_glm4),
    ],
)
def test_ids_equal_the_reference(pre: str, reference: Any) -> None:
    tokenizer = rebuilt(values(pre, **{"tokenizer.ggml.add_bos_token": False}))
    expected = with_specials(reference())
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == expected.encode(text, add_special_tokens=False).ids, repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected.decode(
            ids, skip_special_tokens=False
        )


CUTS = [
    # where capitals begin; slashes stay with line ends
    (
        "gpt-4o",
        "FooBar HTTPServer's 12345 a//\n/b",
        ["Foo", "Bar", " HTTPServer's", " ", "123", "45", " a", "//\n/", "b"],
    ),
    (
        "tekken",
        "FooBar it's 12 a//\n/b",
        ["Foo", "Bar", " it", "'s", " ", "1", "2", " a", "//\n/", "b"],
    ),
    # marks with their letters
    ("qwen35", "e\u0301a 12", ["e\u0301a", " ", "1", "2"]),
    # numbers by thousands where a word ends with them
    (
        "cohere2moe",
        "FooBar 1234567 it's a1234b",
        ["Foo", "Bar", " ", "1", "234", "567", " it's", " a", "123", "4", "b"],
    ),
    # a sign that begins a word; Chinese and kana together
    (
        "deepseek-v3",
        "a.bc 12345 日本の x!!\n",
        ["a", ".bc", " ", "123", "45", " ", "日本の", " x", "!!\n"],
    ),
    (
        "deepseek-llm",
        "ab cd 12\n日本 ა.",
        ["ab", " cd", " ", "1", "2", "\n", "日本", " ", "ა", "."],
    ),
    # Chinese apart from kana, which are letters
    ("kimi-k2", "日本の it's 1234", ["日本", "の", " it's", " ", "123", "4"]),
    ("bailingmoe2", "it's I'LL 12\nx", ["it", "'s", " I", "'LL", " ", "1", "2", "\n", "x"]),
    # words that letters alone part stay together
    ("exaone-moe", "new york is 12.\n\n", ["new york is", " ", "1", "2", ".\n", "\n"]),
    # numbers by thousands; scripts without spaces together
    (
        "afmoe",
        "a.bc 1234567 日本のไ x!!\n",
        ["a", ".bc", " ", "1", "234", "567", " ", "日本のไ", " x", "!!\n"],
    ),
    ("refact", "def f(a1)", ["def", " f", "(", "a", "1", ")"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), CUTS)
def test_a_rule_cuts_where_its_models_do(pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = rebuilt(values(pre))
    ends = [end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    found = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert found == pieces


def test_the_split_rules_differ_where_they_must() -> None:
    """A test of the tests: digits tell the four rules apart."""
    text = "a 12345  67"
    pres = ("smollm", "gpt-2", "qwen2", "llama-bpe")
    pieces = {
        pre: tuple(p for p, _ in rebuilt(values(pre)).pre_tokenizer.pre_tokenize_str(text))
        for pre in pres
    }
    assert len(set(pieces.values())) == len(pres)


def test_special_tokens_and_bos() -> None:
    tokenizer = rebuilt(values("smollm", **{"tokenizer.ggml.add_bos_token": True}))
    assert tokenizer.encode("<|im_end|>hi").ids[:2] == [1, 2]
    tokenizer = rebuilt(values("smollm"))
    assert tokenizer.encode("<|im_end|>").ids == [2]
    files = tokenizer_files(values("smollm"), "t.gguf")
    settings = json.loads(files["tokenizer_config.json"])
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert settings["add_bos_token"] is False
    assert "chat_template" not in settings


def test_unused_tokens_are_no_words() -> None:
    settings = values("qwen2")
    settings["tokenizer.ggml.tokens"] = [*settings["tokenizer.ggml.tokens"], "[PAD300]"]
    settings["tokenizer.ggml.token_type"] = [*settings["tokenizer.ggml.token_type"], 5]
    assert rebuilt(settings).token_to_id("[PAD300]") is None


def test_the_template_is_kept() -> None:
    files = tokenizer_files(values("smollm", **{"tokenizer.chat_template": "{{ x }}"}), "t.gguf")
    assert files["chat_template.jinja"] == b"{{ x }}"


@pytest.mark.parametrize("pre", ["deepseek-coder", "laguna", "superbpe"])
def test_an_unknown_split_rule_is_refused_by_name(pre: str) -> None:
    with pytest.raises(LoadError, match=pre):
        tokenizer_files(values(pre), "t.gguf")


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(LoadError, match="'t5' is not built"):
        tokenizer_files(values("smollm", **{"tokenizer.ggml.model": "t5"}), "t.gguf")


def test_lists_that_do_not_fit_are_refused() -> None:
    for key, wrong in (("merges", ["zz yy"]), ("token_type", [1]), ("merges", None)):
        with pytest.raises(FormatError):
            tokenizer_files(values("smollm", **{f"tokenizer.ggml.{key}": wrong}), "t.gguf")


def sentence_piece_values() -> dict[str, Any]:
    """A SentencePiece-like vocabulary: unk, bos, eos, bytes, letters, then scored pieces."""
    space = "\u2581"
    letters = sorted({*"abcdefghijklmnopqrstuvwxyzTW.,1234", space, "é"})
    pieces = [
        *(space + w for w in ("t", "a", "th", "the", "w", "wo", "wor", "world", "he", "hel")),
        *("th", "he", "the", "in", "ing", "er", "or", "ld", "ll", "lo", "llo", "hello", "rl"),
        space + "hello",
        space * 2,
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters, *pieces]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(letters) + len(pieces))
    scores = [0.0] * 259 + [-1000.0 - n for n in range(len(letters))]
    scores += [-float(n) for n in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def naive_sentence_piece(settings: dict[str, Any], text: str) -> list[int]:
    """Repeatedly join the adjacent pair whose piece scores best, leftmost first."""
    tokens = settings["tokenizer.ggml.tokens"]
    ids = {token: n for n, token in enumerate(tokens)}
    scores = settings["tokenizer.ggml.scores"]
    types = settings["tokenizer.ggml.token_type"]
    parts = list(("\u2581" + text).replace(" ", "\u2581"))
    while True:
        best = None
        for n in range(len(parts) - 1):
            joined = ids.get(parts[n] + parts[n + 1])
            if (
                joined is not None
                and types[joined] == 1
                and (best is None or scores[joined] > best[0])
            ):
                best = (scores[joined], n)
        if best is None:
            break
        n = best[1]
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    out = []
    for part in parts:
        if part in ids:
            out.append(ids[part])
        else:
            out += [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return out


@pytest.mark.parametrize(
    "text",
    [
        "hello world",
        "the  the   thing",
        "Where is llollo?",
        "wörld é 😀",
        " x",
        "a",
        "theworldhello",
    ],
)
def test_sentence_piece_ids_equal_the_naive_algorithm(text: str) -> None:
    settings = sentence_piece_values()
    tokenizer = rebuilt(settings)
    assert tokenizer.encode(text, add_special_tokens=False).ids == naive_sentence_piece(
        settings, text
    )
    encoded = tokenizer.encode(text)
    assert encoded.ids[0] == 1
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == text


def test_merged_pieces_are_those_of_gemmas_own_tokenizer() -> None:
    from transformers import GemmaTokenizer

    settings = sentence_piece_values()
    scored = json.loads(tokenizer_files(settings, "t.gguf")["tokenizer.json"])["model"]
    merges = [" ".join(pair) for pair in scored["merges"]]
    settings |= {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.scores": [-1000.0] * len(settings["tokenizer.ggml.tokens"]),
        "tokenizer.ggml.add_bos_token": False,
    }
    made = rebuilt(settings)
    theirs = GemmaTokenizer(
        vocab={text: n for n, text in enumerate(settings["tokenizer.ggml.tokens"])},
        merges=[tuple(merge.split(" ")) for merge in merges],
        bos_token="<s>",
        eos_token="</s>",
    )
    for text in [*TEXTS, "the  the   thing", "hello\n\nworld", " x", "theworldhello"]:
        ids = made.encode(text, add_special_tokens=False).ids
        assert ids == theirs._tokenizer.encode(text, add_special_tokens=False).ids, repr(text)
        assert made.decode(ids) == text
    assert made.encode("the").ids[0] == 1, "a text begins with bos whatever the file says"


def test_a_merged_tokenizer_without_merges_is_refused() -> None:
    settings = sentence_piece_values() | {"tokenizer.ggml.model": "gemma4"}
    with pytest.raises(FormatError, match="merges"):
        tokenizer_files(settings, "t.gguf")


def test_the_normalizer_of_qwen2_composes() -> None:
    tokenizer = rebuilt(values("qwen2"))
    assert isinstance(tokenizer.normalizer, normalizers.NFC)
