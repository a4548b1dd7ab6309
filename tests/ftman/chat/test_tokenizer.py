"""Encoding equals the reference for ordinary text; values never yield control ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftman.chat.tokenizer import Span, Tokenizer
from ftman.errors import IntegrityError

CONTROL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<mask>",
           "<think>", "</think>", "<tool_call>"]  # fmt: skip
BOUNDED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TEXTS = [
    "",
    "Hello world",
    "  leading and trailing  ",
    "Grüße aus Köln 東京 😀 👩‍👩‍👧 Привет",
    "def main():\n    return {'a': 1}\n\n\tprint('hi')\r\n",
    "a\u00a0b\u2028c e\u0301",
    "<table><td>x</td></h1>",
    "zzzz qqqq 12345 ~~~ \x00 \x7f",
]


def reference(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_ordinary_text_encodes_as_the_reference(
    folder: Path, tokenizer: Tokenizer, text: str
) -> None:
    expected = reference(folder).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text, special=True) == expected


def test_template_text_yields_the_control_ids_of_the_reference(
    folder: Path, tokenizer: Tokenizer
) -> None:
    text = (
        "<s><|im_start|>user\nHello <mask> there <think> x</think><|im_end|>\n</s>[INST] a [/INST]"
    )
    expected = reference(folder).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, special=True) == expected


@pytest.mark.parametrize("mark", CONTROL)
@pytest.mark.parametrize("around", ["{}", "a {} b", "{}{}", "a{}", "<|im_{}"])
def test_values_never_yield_control_ids(
    folder: Path, tokenizer: Tokenizer, mark: str, around: str
) -> None:
    text = around.format(mark, mark)
    forbidden = reference(folder).token_to_id(mark)
    ids = tokenizer.encode(text)
    known = reference(folder).encode("\U0010fffe", add_special_tokens=False).ids[-1:]
    assert forbidden not in ids or [forbidden] == known
    if "byte-level" in str(folder):
        assert tokenizer.decode(ids) == text
        assert not any(tokenizer.is_control(idx) for idx in ids)


@BOUNDED
@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([*CONTROL, "user\n", " hi", "é", "    ", "<|im_", "end|>", "<s"]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_control_ids_stand_only_in_template_spans(byte_level: Tokenizer, parts: list) -> None:
    spans = [Span(text, special) for text, special in parts]
    ids, offsets = byte_level.encode_spans(spans)
    text = "".join(span.text for span in spans)
    allowed = [span.special for span in spans for _ in span.text]
    for idx, (start, stop) in zip(ids, offsets, strict=True):
        if byte_level.is_control(idx):
            core = text[start:stop].strip()
            begin = text.index(core, start)
            assert all(allowed[begin : begin + len(core)])
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


@pytest.mark.parametrize(
    ("text", "control"),
    [
        ("<think>", True), ("</tool_call>", True), ("[TOOL_CALLS]", True), ("<arg_key>", True),
        ("<\uff5ctool\u2581sep\uff5c>", True), ("<|x|>", True), ("[/INST]", True),
        ("<td>", False), ("</h1>", False), ("[toxicity=0]", False), ("    ", False),
    ],
)  # fmt: skip
def test_added_tokens_that_steer_a_chat_are_control_tokens(
    tmp_path: Path, text: str, control: bool
) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    inner.add_tokens([tokenizers.AddedToken(text, normalized=False)])
    tokenizer = Tokenizer(inner, {}, [])
    assert tokenizer.is_control(1) is control
    assert tokenizer.encode(text, special=True) == [1]
    assert (1 in tokenizer.encode(text)) is not control


def test_a_control_token_cannot_be_put_together_from_template_and_value(
    byte_level: Tokenizer,
) -> None:
    ids, _ = byte_level.encode_spans([Span("<|im_", True), Span("end|>", False)])
    assert not any(byte_level.is_control(idx) for idx in ids)


def test_template_tokens_survive_beside_forged_ones(folder: Path, tokenizer: Tokenizer) -> None:
    spans = [Span("<|im_start|>user\n", True), Span("x <|im_end|> y"), Span("<|im_end|>\n", True)]
    ids, offsets = tokenizer.encode_spans(spans)
    text = "".join(span.text for span in spans)
    controls = [
        (idx, text[a:b]) for idx, (a, b) in zip(ids, offsets, strict=True)
        if tokenizer.is_control(idx) and text[a:b].strip() in CONTROL
    ]  # fmt: skip
    known = reference(folder)
    assert controls == [
        (known.token_to_id("<|im_start|>"), "<|im_start|>"),
        (known.token_to_id("<|im_end|>"), "<|im_end|>"),
    ]
    assert offsets[-1][1] <= len(text)


@pytest.mark.parametrize(
    "name", ["sentencepiece-legacy", "sentencepiece-first", "byte-level", "byte-level-post"]
)
def test_the_guarded_path_joins_pieces_as_the_reference(
    folders: dict[str, Path], name: str
) -> None:
    """The same text with the forged token spelt otherwise must give the same ids around it."""
    tokenizer = Tokenizer.load(folders[name])
    head, tail = Span("<s>[INST] ", True), Span("[/INST] done", True)
    forged = tokenizer.encode_spans([head, Span("Hello <s> world"), tail])[0]
    known = reference(folders[name]).encode(
        "<s>[INST] Hello world[/INST] done", add_special_tokens=False
    )
    mark = known.ids.index(reference(folders[name]).token_to_id("[/INST]"))
    assert forged[:3] == known.ids[:3]
    assert forged[-(len(known.ids) - mark) :] == known.ids[mark:]


def test_bos_is_added_once_and_only_where_the_tokenizer_adds_it(
    bos_adding: Tokenizer, byte_level: Tokenizer
) -> None:
    assert bos_adding.adds_bos
    assert bos_adding.encode("hi", bos=True)[0] == bos_adding.bos_id
    assert bos_adding.encode("<s>hi", special=True, bos=True).count(0) == 1
    assert bos_adding.encode("<s>hi", bos=True).count(0) == 1
    assert not byte_level.adds_bos
    assert byte_level.encode("hi", bos=True) == byte_level.encode("hi")


def test_end_ids_come_from_both_configs(byte_level: Tokenizer) -> None:
    assert byte_level.eos_ids == (1, 4)
    assert byte_level.bos_id == 0
    assert byte_level.special_tokens["bos_token"] == "<s>"


def test_special_tokens_are_left_out_of_text_unless_asked(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>hi<think>", special=True)
    assert byte_level.decode(ids) == "hi<think>"
    assert byte_level.decode(ids, special=True) == "<|im_start|>hi<think>"


def test_a_broken_folder_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
