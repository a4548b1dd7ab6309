"""`ft show MODEL`: what a model is, in sections; or one part of it as raw text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftman.cli.commands import show_engine
from ftman.cli.output import GAP, table
from ftman.cli.session import Session
from ftman.cli.units import human_number
from ftman.errors import UsageError

PARTS = ("license", "modelfile", "parameters", "system", "template")
_WITHOUT_NEWLINE = ("system", "template")
_FLAGS = "'--license', '--modelfile', '--parameters', '--system', or '--template'"
_TEXT_LINES = 2
_ARRAY_ITEMS = 3


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the sections or the part asked for."""
    wanted = [part for part in PARTS if getattr(args, part)]
    if len(wanted) > 1:
        raise UsageError(f"only one of {_FLAGS} can be specified")
    if len(wanted) + args.engine + args.effective > 1:
        raise UsageError("--engine and --effective go with no other part")
    if args.engine:
        return show_engine.run(args.model, session)
    with session.manager() as manager:
        reply = manager.post("/api/show", {"name": args.model, "verbose": args.verbose})
    if session.out.as_json:
        session.out.json_line(reply)
    elif args.effective:
        session.out.data(effective_table(reply))
    elif wanted:
        part = wanted[0]
        session.out.data(reply.get(part) or "", end="" if part in _WITHOUT_NEWLINE else "\n")
    else:
        session.out.data(sections_text(reply, verbose=args.verbose), end="")
    return 0


def effective_table(reply: Mapping[str, Any]) -> str:
    """Each setting that counts for the model, and who says so."""
    rows = [
        (str(item["name"]), _setting_text(item["value"]), str(item["origin"]))
        for item in _own(reply).get("effective") or ()
    ]
    return table(("SETTING", "VALUE", "FROM"), rows)


def _setting_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(json.dumps(item, ensure_ascii=False) for item in value) or "-"
    return _shown(value) or "-"


def sections_text(reply: Mapping[str, Any], *, verbose: bool = False) -> str:
    """All sections, each followed by a blank line."""
    parts = [_section("Model", _model_rows(reply))]
    parts.append(_section("Capabilities", [(c,) for c in reply.get("capabilities") or ()]))
    parameters = [tuple(line.split(None, 1)) for line in _lines(reply.get("parameters"))]
    parts.append(_section("Parameters", parameters))
    if verbose:
        parts.append(_section("Metadata", list(_metadata_rows(reply.get("model_info") or {}))))
        parts.append(_section("Tensors", list(_tensor_rows(reply.get("tensors") or ()))))
    parts.append(_section("System", _text_rows(reply.get("system"))))
    parts.append(_section("License", _text_rows(reply.get("license"))))
    parts.append(_section("Notes", [(note,) for note in _own(reply).get("notes") or ()]))
    return "".join(parts)


def _model_rows(reply: Mapping[str, Any]) -> list[Sequence[str]]:
    info, details = reply.get("model_info") or {}, reply.get("details") or {}
    architecture = info.get("general.architecture") or details.get("family") or ""
    count = info.get("general.parameter_count")
    size = human_number(count) if count else details.get("parameter_size", "")
    rows = [
        ("architecture", architecture),
        ("parameters", size),
        ("context length", _shown(info.get(f"{architecture}.context_length"))),
        ("embedding length", _shown(info.get(f"{architecture}.embedding_length"))),
        ("quantization", details.get("quantization_level", "")),
        ("requires", reply.get("requires", "")),
        ("chat format", _own(reply).get("chat_format", "")),
        ("reference path", ", ".join(_own(reply).get("reference_path") or ())),
        ("damaged", _own(reply).get("damaged", "")),
    ]
    return [row for row in rows if row[1]]


def _own(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    own = reply.get("ft")
    return own if isinstance(own, dict) else {}


def _metadata_rows(info: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for key in sorted(info):
        value = info[key]
        if isinstance(value, list):
            more = f" ...+{len(value) - _ARRAY_ITEMS} more" if len(value) > _ARRAY_ITEMS else ""
            shown = "[" + " ".join(_shown(item) for item in value[:_ARRAY_ITEMS]) + more + "]"
        else:
            shown = _shown(value)
        yield key, shown


def _tensor_rows(tensors: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for tensor in tensors:
        shape = "[" + " ".join(str(n) for n in tensor.get("shape") or ()) + "]"
        yield str(tensor.get("name", "")), str(tensor.get("type", "")), shape


def _text_rows(text: Any) -> list[Sequence[str]]:
    lines = _lines(text)
    rows: list[Sequence[str]] = [(line,) for line in lines[:_TEXT_LINES]]
    return [*rows, ("...",)] if len(lines) > _TEXT_LINES else rows


def _lines(text: Any) -> list[str]:
    lines = text.splitlines() if isinstance(text, str) else []
    return [line.strip() for line in lines if line.strip()]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    count = max(len(row) for row in rows)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    lines = [f"  {title}"]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append((GAP + GAP.join(cells)).rstrip())
    return "\n".join(lines) + "\n\n"
