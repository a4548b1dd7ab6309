"""`python -m ftengine serve ...`: start one engine process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from ftengine.config import fault_plan, parse_serve_arguments
from ftengine.errors import EngineError
from ftengine.log import set_up_logging
from ftman import faults

USAGE = "usage: python -m ftengine serve --ftw DIR --address unix:PATH|tcp:HOST:PORT [options]\n"


def main(arguments: Sequence[str]) -> int:
    """Run a verb. Returns the exit code: 2 for a bad command line, 1 for a failed engine."""
    if not arguments or arguments[0] != "serve":
        sys.stderr.write(USAGE)
        return 2
    set_up_logging()
    faults.arm(fault_plan())
    try:
        engine_config, server_config = parse_serve_arguments(arguments[1:])
    except EngineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2
    # The collector finds nothing in 1,500 modules being loaded and takes a quarter of a second.
    gc.disable()
    # late, so that a bad command line is refused before torch is loaded
    from ftengine.server.serve import serve

    gc.freeze()
    gc.enable()
    try:
        return serve(engine_config, server_config)
    except EngineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
