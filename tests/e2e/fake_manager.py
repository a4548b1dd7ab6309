"""`ft serve` with the scripted engine of tests/fakes: for tests of the process around it."""

from __future__ import annotations

import sys

from ftman import log
from ftman.config import load_config
from ftman.gateway.app import serve
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.gateway.serving import ids_of

if __name__ == "__main__":
    log.configure()
    script = FakeScript(tokens=ids_of("Hello world"), token_s=0.005)
    if len(sys.argv) > 1:
        script = FakeScript.from_json(sys.argv[1])
    sys.exit(serve(load_config(), launcher=FakeLauncher(script)))
