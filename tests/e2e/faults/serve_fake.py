"""`ft serve` with a scripted engine (JSON in the first argument) and nothing else that is ours.

tests/e2e/fake_manager.py makes its default script from test helpers; what they import (numpy among
it) would be measured as the manager's memory here.
"""

from __future__ import annotations

import sys

from ftman import log
from ftman.config import load_config
from ftman.gateway.app import serve
from tests.fakes.engine import FakeLauncher, FakeScript

if __name__ == "__main__":
    log.configure()
    sys.exit(serve(load_config(), launcher=FakeLauncher(FakeScript.from_json(sys.argv[1]))))
