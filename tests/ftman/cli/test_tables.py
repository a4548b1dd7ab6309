"""Tables, byte for byte."""

from __future__ import annotations

import io
import re

import pytest

from ftman.cli.commands.listing import models_table
from ftman.cli.commands.ps import processor, running_table
from ftman.cli.commands.show import sections_text
from ftman.cli.output import Output, table
from ftman.cli.units import wall_seconds
from tests.ftman.cli.gateway import SHOWN

NOW = wall_seconds("2026-08-22T12:00:00Z") or 0.0
DIGEST = "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72"


def test_list_is_ollamas_to_the_last_space() -> None:
    model = {
        "name": "llama3.2:latest",
        "digest": DIGEST,
        "size": 2019393189,
        "modified_at": "2026-08-19T12:00:00Z",
    }
    assert models_table([model], NOW) == (
        "NAME               ID              SIZE      MODIFIED   \n"
        "llama3.2:latest    a80c4f17acd5    2.0 GB    3 days ago    "
    )


def test_a_terminal_is_spared_the_blanks_that_end_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    Output(screen, io.StringIO()).data(table(("A", "B"), [("1", "2")]))
    assert screen.getvalue() == "A    B\n1    2\n"


def test_an_empty_list_is_the_header_alone() -> None:
    assert models_table([], NOW) == "NAME    ID    SIZE    MODIFIED "


def test_ps_has_processor_context_and_until() -> None:
    model = {
        "name": "m:a",
        "digest": DIGEST,
        "size": 3456789012,
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": "2026-08-22T12:04:30Z",
    }
    assert running_table([model], NOW) == (
        "NAME    ID              SIZE      PROCESSOR    CONTEXT    UNTIL              \n"
        "m:a     a80c4f17acd5    3.5 GB    100% CPU     4096       4 minutes from now    "
    )


def test_processor_column() -> None:
    assert processor(100, 100) == "100% GPU"
    assert processor(100, 66) == "34%/66% CPU/GPU"
    assert processor(100, 200) == processor(0, 1) == "Unknown"


def test_show_sections() -> None:
    assert sections_text(SHOWN) == (
        "  Model\n"
        "    architecture        llama\n"
        "    parameters          134.52M\n"
        "    context length      2048\n"
        "    embedding length    576\n"
        "    quantization        Q4_1\n"
        "    reference path      q6_k\n"
        "\n"
        "  Capabilities\n"
        "    completion\n"
        "\n"
        "  Parameters\n"
        '    stop           "<|im_end|>"\n'
        "    temperature    0.2\n"
        "\n"
        "  System\n"
        "    Be kind.\n"
        "\n"
        "  License\n"
        "    Apache License\n"
        "    Version 2.0\n"
        "    ...\n"
        "\n"
    )


def test_verbose_show_adds_metadata_and_tensors() -> None:
    text = sections_text(SHOWN, verbose=True)
    assert re.search(r"\n    tokenizer.ggml.tokens +\[a b c \.\.\.\+1 more\]\n", text)
    assert "    output_norm.weight    F32    [576]\n" in text


def test_show_tells_the_chat_format() -> None:
    shown = sections_text({**SHOWN, "ft": {"chat_format": "hermes (by its template)"}})
    assert "    chat format         hermes (by its template)\n" in shown
