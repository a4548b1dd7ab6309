"""python -m ftengine.forecast --ftw DIR | --shape JSON --device PROFILE: one JSON object.

--table prints the comparison with published speeds instead; --list names the packaged profiles.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ftengine.device.machine import Machine, machine_of, profile_names, read_machine
from ftengine.errors import EngineError, LoadError
from ftengine.forecast.forecast import Question, forecast
from ftengine.forecast.published import table
from ftengine.forecast.shape import ModelShape, shape_of_ftw, shape_of_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one question; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ftengine.forecast")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--ftw", type=Path, metavar="DIR", help="a converted model")
    model.add_argument("--shape", metavar="JSON", help="a shape or plan: text, file, or - (stdin)")
    model.add_argument("--table", action="store_true", help="compare with published speeds")
    model.add_argument("--list", action="store_true", help="name the packaged device profiles")
    parser.add_argument("--device", metavar="PROFILE", help="a packaged name or a .toml file")
    parser.add_argument("--machine", metavar="JSON", help="a profile's values, instead of a name")
    parser.add_argument("--context", type=_count, metavar="N", help="default: 32768, or all it has")
    parser.add_argument("--prompt", type=_count, default=1024, metavar="N")
    options = parser.parse_args(arguments)
    if options.table or options.list:
        sys.stdout.write((table() if options.table else "\n".join(profile_names())) + "\n")
        return 0
    try:
        machine = _read_machine(options.device, options.machine)
        shape = shape_of_ftw(options.ftw) if options.ftw else _read_shape(options.shape)
        question = Question(options.context or _context(shape), options.prompt)
        answer = forecast(shape, machine, question)
    except EngineError as error:
        sys.stdout.write(json.dumps({"error": {"code": error.code, "message": error.message}}))
        sys.stdout.write("\n")
        return 1
    sys.stdout.write(json.dumps({"forecast": answer.to_json()}, sort_keys=True) + "\n")
    return 0


def _read_machine(device: str | None, values: str | None) -> Machine:
    if values is not None:
        try:
            given = json.loads(values)
        except ValueError as error:
            raise LoadError(f"--machine is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise LoadError("--machine is not a JSON object")
        return machine_of(given, "--machine")
    if not device:
        raise LoadError(f"--device is missing; packaged: {', '.join(profile_names())}")
    return read_machine(device)


def _context(shape: ModelShape) -> int:
    """The default context, no longer than the model was trained for."""
    usual = Question().context_tokens
    return min(usual, shape.context_tokens or usual)


def _read_shape(given: str) -> ModelShape:
    if given == "-":
        return shape_of_json(sys.stdin.read(), "stdin")
    if given.lstrip().startswith("{"):
        return shape_of_json(given, "--shape")
    try:
        text = Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"shape file {given} cannot be read: {error}") from None
    return shape_of_json(text, given)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
