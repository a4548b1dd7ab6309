"""`python -m ftman` is `ft`."""

from __future__ import annotations

import sys

from ftman.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
