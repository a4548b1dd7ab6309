"""`python -m ftengine.profile --ftw DIR`: time per operator against its byte and product floor."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import torch

from ftengine.config import ComputeConfig, EngineConfig
from ftengine.errors import EngineError
from ftengine.profile.measure import Asked, measure
from ftengine.profile.table import as_json, as_text


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; exit status 1 with one {"error"} line when it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m ftengine.profile")
    parser.add_argument("--ftw", type=Path, required=True, help="folder of a converted model")
    parser.add_argument("--prompt", type=_positive, default=512, help="tokens to prefill")
    parser.add_argument("--context", type=_positive, default=128, help="tokens before decoding")
    parser.add_argument("--steps", type=_positive, default=32, help="decode steps")
    parser.add_argument("--threads", type=int, default=0, help="0 = one per usable core")
    parser.add_argument("--compute", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", action="store_true", help="one JSON object, the table in it")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    torch.set_num_threads(1)
    asked = Asked(given.prompt, given.context, given.steps)
    config = EngineConfig(
        given.ftw,
        context_tokens=max(given.prompt, given.context + given.steps + 2),
        num_parallel=1,
        prefix_cache=False,
        compute=ComputeConfig(device="cpu", threads=given.threads, compute=given.compute),
    )
    try:
        profile = measure(config, asked)
    except EngineError as error:
        _say(json.dumps({"error": {"code": error.code, "message": error.message, "hint": ""}}))
        return 1
    text = as_text(profile)
    _say(json.dumps({"profile": as_json(profile), "text": text}) if given.json else text)
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
