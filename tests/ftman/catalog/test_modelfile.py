"""The Modelfile grammar, its error texts, and printing that parses back."""

from __future__ import annotations

import codecs
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftman.catalog.catalog import Catalog
from ftman.catalog.modelfile import ModelfileError, parse_modelfile, print_modelfile
from ftman.chat.types import Message
from tests.ftman.catalog.samples import make_ftw, name_of, new_model

COMMANDS = (
    '(line {}): command must be one of "from", "license", "template", "system", "adapter", '
    '"draft", "renderer", "parser", "parameter", "message", or "requires"'
)


def parsed(text: str | bytes) -> list[tuple[str, str, str]]:
    return [(i.command, i.key, i.value) for i in parse_modelfile(text).instructions]


def test_every_instruction_is_read() -> None:
    text = (
        "# a comment\n\n  FROM ./a.gguf\nfrom base\nPARAMETER temperature 0.7\n"
        "PARAMETER stop <|end|>\nTemplate {{ .Prompt }}\nSYSTEM be kind # not a comment\n"
        "ADAPTER ./l\nDRAFT d\nRENDERER r\nPARSER p\nREQUIRES v0.14.0\nLICENSE MIT\n"
        "MESSAGE user hi there\nMESSAGE\tassistant\tyo\n"
    )
    model = parse_modelfile(text)
    assert model.sources == ("./a.gguf", "base")
    assert model.parameters == {"temperature": 0.7, "stop": ["<|end|>"]}
    assert model.last("template") == "{{ .Prompt }}"
    assert model.last("system") == "be kind # not a comment"
    assert (model.adapters, model.drafts) == (("./l",), ("d",))
    assert (model.last("renderer"), model.last("parser")) == ("r", "p")
    assert model.last("requires") == "v0.14.0"
    assert model.licenses == ("MIT",)
    assert model.messages == (Message("user", "hi there"), Message("assistant", "yo"))
    assert model.last("nothing") is None


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ('"""a\nb"""', "a\nb"),
        ('"""\n  a "quoted" word\n"""', '\n  a "quoted" word\n'),
        ('"one\ntwo"', "one\ntwo"),
        ('" padded "', " padded "),
        ('""', ""),
        ('""""""', ""),
        ("'single'", "'single'"),
        ('say "hi"', 'say "hi"'),
        ('"a" and\nb"', 'a" and\nb'),
        ('""" x """ y\nz"""', ' x """ y\nz'),
        ("  trimmed\t ", "trimmed"),
        ("a\\nb", "a\\nb"),
        ("a\u200db\u00a0c", "abc"),
        ('"a\u200db\nc"', "ab\nc"),
        ("tab\there", "tab\there"),
        ('"""# no comment\nFROM y"""', "# no comment\nFROM y"),
    ],
)
def test_values_and_quotes(value: str, meaning: str) -> None:
    assert parsed(f"FROM x\nSYSTEM {value}\nLICENSE z")[1:] == [
        ("system", "", meaning),
        ("license", "", "z"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"FROM x\r\nSYSTEM y\r\n",
        codecs.BOM_UTF8 + b"FROM x\nSYSTEM y",
        codecs.BOM_UTF16_LE + "FROM x\nSYSTEM y".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "FROM x\r\nSYSTEM y".encode("utf-16-be"),
        b"FROM x\rSYSTEM y\r",
    ],
)
def test_line_ends_and_byte_order_marks(data: bytes) -> None:
    assert parsed(data) == [("from", "", "x"), ("system", "", "y")]


def test_line_ends_inside_quotes_are_kept_as_written() -> None:
    assert parsed('FROM x\r\nSYSTEM "a\r\nb"')[1][2] == "a\r\nb"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("FORM x", COMMANDS.format(1), 1),
        ("FROM x\r\n\r\n  HELLO you", COMMANDS.format(3), 3),
        ("FROM x\nSYSTEM\nLICENSE y", COMMANDS.format(2), 2),
        ("FROM x\nMESSAGE robot hi", "(line 2): " + "message role must be one of "
         '"system", "user", or "assistant"', 2),
        ("FROM x\nMESSAGE User hi", "(line 2): " + "message role must be one of "
         '"system", "user", or "assistant"', 2),
        ("FROM x\nPARAMETER a-b 1", "(line 2): parameter name must be letters, digits and '_'", 2),
        ("FROM x\nPARAMETER seed", "(line 2): PARAMETER seed has no value", 2),
        ("FROM x\nPARAMETER foo 1", "unknown parameter 'foo'", 2),
        ("FROM x\nPARAMETER num_ctx 4k", "invalid int value [4k]", 2),
        ("FROM x\nREQUIRES soon", "requires must be a valid semver (e.g. 0.14.0)", 2),
        ("SYSTEM x", "no FROM line", 0),
        ("", "no FROM line", 0),
        ("# FROM x", "no FROM line", 0),
        ("FROM ", "(line 1): FROM has no value", 1),
        ('FROM x\nSYSTEM "abc', "unexpected EOF", 2),
        ('FROM x\nSYSTEM """abc"\n""', "unexpected EOF", 2),
        ('FROM x\nSYSTEM "', "unexpected EOF", 2),
        ("\0\1\2", "no FROM line", 0),
    ],
)  # fmt: skip
def test_errors_have_ollamas_text_and_our_place(text: str, message: str, line: int) -> None:
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile(text)
    assert caught.value.message == message
    assert caught.value.line == line
    assert caught.value.hint


def test_the_column_is_named() -> None:
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile("FROM x\n   HELLO you")
    assert (caught.value.line, caught.value.column) == (2, 4)
    assert caught.value.hint == "Column 4 says 'HELLO'."
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile("FROM x\nMESSAGE  robot hi")
    assert caught.value.column == 10


def test_binary_files_are_told_with_their_place() -> None:
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile(b"FROM x\nSYSTEM \xff\xfe", "My.Modelfile")
    assert (caught.value.line, caught.value.column) == (2, 8)
    assert "My.Modelfile is not utf-8 text" in caught.value.message


def test_deprecated_parameters_are_warned_about_and_dropped() -> None:
    model = parse_modelfile("FROM x\nPARAMETER mirostat 1\nPARAMETER low_vram true")
    assert model.parameters == {}
    assert model.warnings == (
        "warning: parameter mirostat is deprecated",
        "warning: parameter low_vram is deprecated",
    )


def test_huge_lines_and_many_parameters_are_quick() -> None:
    text = "FROM x\nSYSTEM " + "a" * 10_000_000 + "\n" + "PARAMETER stop x\n" * 10_000
    model = parse_modelfile(text)
    assert len(model.parameters["stop"]) == 10_000
    assert len(model.last("system") or "") == 10_000_000


def test_printing_parses_back(catalog: Catalog) -> None:
    system = ' starts with a space\nand has "quotes"'
    model = catalog.commit(
        name_of("m", "135m"),
        new_model(
            make_ftw(catalog.paths),
            system=system,
            template='{{ if .System }}<s>{{ .System }}{{ end }}\n"{{ .Prompt }}"',
            parameters={"stop": ["<|a|>", " b", '"q"'], "temperature": 0.7, "num_ctx": 4096},
            licenses=("MIT\nline", "Apache"),
            messages=(Message("user", "multi\nline"), Message("assistant", '"hi"')),
            renderer="r",
        ),
    )
    text = print_modelfile(model)
    again = parse_modelfile(text)
    assert text.startswith("# Modelfile generated by")
    assert again.sources == ("m:135m",)
    assert again.last("template") == model.template
    assert again.last("system") == system
    assert again.parameters == dict(model.parameters)
    assert again.licenses == model.licenses
    assert again.messages == model.messages
    assert again.last("renderer") == "r"


def test_a_model_without_any_template_prints_the_plain_one(catalog: Catalog) -> None:
    model = catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths), template=""))
    plain = replace(model, jinja_path=None)
    assert "\nTEMPLATE {{ .Prompt }}\n" in print_modelfile(plain)


def test_the_checkpoints_own_template_survives_a_round_trip(catalog: Catalog) -> None:
    model = catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths), template=""))
    assert model.jinja_path is not None
    assert parse_modelfile(print_modelfile(model)).last("template") is None


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "Zs")) | st.just("\n"))
)
def test_any_ordinary_system_text_survives_printing(text: str) -> None:
    from ftman.catalog.modelfile import _quoted

    if '"""' in text or not text:
        return
    assert parsed(f"FROM x\nSYSTEM {_quoted(text)}\n")[1] == ("system", "", text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_input_escapes_the_error_type(text: str | bytes) -> None:
    with contextlib.suppress(ModelfileError):
        assert parse_modelfile(text).sources


def test_unclosed_quote_in_a_file_is_found_fast(tmp_path: Path) -> None:
    with pytest.raises(ModelfileError):
        parse_modelfile('FROM x\nSYSTEM """' + 'a"\n' * 200_000)
