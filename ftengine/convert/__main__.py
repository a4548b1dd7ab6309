"""python -m ftengine.convert run | plan | outline | repair | remake | families
python -m ftengine.convert local SRC DST [--derive upcycle:8:2]

All but the last two speak the line protocol of protocol.py on stdin and stdout; stderr is the log.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftengine.config import fault_plan
from ftengine.convert.convert import FULL_ERRNOS, SPARE_BYTES, disk_full, run_job
from ftengine.convert.local import convert_folder
from ftengine.convert.plan import outline_job, plan_job
from ftengine.convert.protocol import Derive, Job, Link, PipeLink, parse_derive, parse_job
from ftengine.convert.remake import RemakeJob, parse_remake, run_remake
from ftengine.convert.repair import parse_damage, repair_job
from ftengine.errors import EngineError, LoadError
from ftengine.models.families import FAMILIES
from ftman import faults, files

_HINTS = {
    "disk_full": "Free some space, or move the store with FT_MODELS; the conversion resumes.",
    "cancelled": "Start the same pull again to go on.",
    "unsupported_family": "Choose a model of a built family.",
    "unsupported_format": "Choose another release of the model: bf16, or a GGUF with built types.",
    "unsupported_tokenizer": "Choose a safetensors release, which brings its tokenizer.json.",
    "bad_format": "Fetch the file again; if it stays, the upload is damaged.",
}
_log = logging.getLogger("ftengine.convert")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ftengine.convert")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="convert, over the line protocol")
    commands.add_parser("plan", help="read headers only and tell what a conversion costs")
    commands.add_parser("outline", help="plan, or the sizes of a model that is not built yet")
    commands.add_parser("repair", help="make damaged blocks of a converted folder anew")
    commands.add_parser("remake", help="quantise a converted model, or merge an adapter into it")
    commands.add_parser("families", help="print the built model families as JSON")
    local = commands.add_parser("local", help="convert a folder or a GGUF file of this machine")
    local.add_argument("source", type=Path)
    local.add_argument("target", type=Path)
    local.add_argument("--derive", type=_derive, help="upcycle:EXPERTS:TOP_K[:SEED[:SCALE]]")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    faults.arm(fault_plan())
    if options.command == "families":
        return _emit({"families": [family.name for family in FAMILIES]})
    if options.command == "local":
        return _guarded(
            lambda: {"result": _convert_local(options)},
            _emit,
            lambda: options.target,
        )
    return _speak(options.command)


def _convert_local(options: argparse.Namespace) -> dict[str, Any]:
    return convert_folder(options.source, options.target, derive=options.derive)


def _speak(command: str) -> int:
    link = PipeLink(0, sys.stdout.buffer)
    signal.signal(signal.SIGTERM, lambda *_: link.stop())
    signal.signal(signal.SIGINT, lambda *_: link.stop())
    seen: list[Job | RemakeJob] = []

    def work() -> dict[str, Any]:
        if command == "remake":
            remake = parse_remake(link.receive_first("remake"))
            seen.append(remake)
            return {"result": run_remake(remake, link)}
        first = link.receive_first("job")
        job = parse_job(first)
        seen.append(job)
        if command == "repair":
            return {"repair": repair_job(job, parse_damage(first.get("damage")), link)}
        handlers: dict[str, Callable[[Job, Link], dict[str, Any]]] = {
            "run": run_job,
            "plan": plan_job,
            "outline": outline_job,
        }
        key = "result" if command == "run" else "plan"
        return {key: handlers[command](job, link)}

    return _guarded(work, link.send, lambda: seen[0].target if seen else Path())


def _guarded(
    work: Callable[[], Mapping[str, Any]],
    send: Callable[[Mapping[str, Any]], object],
    target: Callable[[], Path],
) -> int:
    """The process root: every failure becomes one error line and exit status 1."""
    try:
        answer = work()
    except EngineError as error:
        failure: EngineError = error
    except OSError as error:
        failure = _disk_error(error, target())
    except Exception as error:
        _log.exception("the conversion failed")
        failure = EngineError(f"the conversion failed: {type(error).__name__}: {error}")
    else:
        send(answer)
        return 0
    hint = _HINTS.get(failure.code, "")
    try:
        send({"error": {"code": failure.code, "message": failure.message, "hint": hint}})
    except EngineError:
        _log.info("nobody is left to tell: %s", failure.message)
    return 1


def _disk_error(error: OSError, target: Path) -> EngineError:
    if error.errno in FULL_ERRNOS:
        return disk_full(SPARE_BYTES, files.free_bytes(target))
    return LoadError(f"input or output failed: {error}", code="io_error")


def _emit(message: Mapping[str, Any]) -> int:
    sys.stdout.write(json.dumps(message) + "\n")
    return 0


def _derive(text: str) -> Derive:
    kind, *numbers = text.split(":")
    names = ("num_experts", "top_k", "seed")
    try:
        value: dict[str, Any] = dict(zip(names, map(int, numbers[:3]), strict=False))
        if len(numbers) > 3:
            value["router_scale"] = float(numbers[3])
        return parse_derive({"kind": kind, **value})
    except (ValueError, EngineError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
