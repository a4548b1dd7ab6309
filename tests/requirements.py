"""Print the requirements that pyproject.toml states, with the test extras and the build tools.

`make test` runs the checkout itself, so it installs what ft needs without installing ft.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # the pip inside the new environment carries one
    from pip._vendor import tomli as tomllib


def main() -> None:
    """Write one requirement a line to standard output."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    wanted += ["cmake>=3.20", "ninja", "scikit-build-core>=0.10"]
    sys.stdout.write("\n".join(wanted) + "\n")


if __name__ == "__main__":
    main()
