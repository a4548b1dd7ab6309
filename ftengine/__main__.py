"""`python -m ftengine serve ...`: start one engine process; `wait`: be told later what to serve."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

from ftengine.config import EngineConfig, ServerConfig, fault_plan, parse_serve_arguments
from ftengine.errors import EngineError
from ftengine.log import set_up_logging
from ftengine.waiting import wait_for_order
from ftman import faults

USAGE = (
    "usage: python -m ftengine serve --ftw DIR --address unix:PATH|tcp:HOST:PORT [options]\n"
    "       python -m ftengine wait\n"
)


def main(arguments: Sequence[str]) -> int:
    """Run a verb. Returns the exit code: 2 for a bad command line, 1 for a failed engine."""
    parent = os.getppid()
    set_up_logging()
    if list(arguments) == ["wait"]:
        arguments = wait_for_order(_load)
    if not arguments or arguments[0] != "serve":
        sys.stderr.write(USAGE)
        return 2
    faults.arm(fault_plan())
    try:
        engine_config, server_config = parse_serve_arguments(arguments[1:])
    except EngineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2
    serve = _load()
    try:
        return serve(engine_config, server_config, parent)
    except EngineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1


def _load() -> Callable[[EngineConfig, ServerConfig, int], int]:
    """The modules of an engine; late, so that a bad command line is refused before torch comes."""
    # The collector finds nothing in 1,500 modules being loaded and takes a quarter of a second.
    gc.disable()
    from ftengine.server.serve import serve

    gc.freeze()
    gc.enable()
    return serve


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
