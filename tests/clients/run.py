"""`make clients`: install the pinned clients, try each against both managers, print a table.

`python -m tests.clients.run [--record] [--model M] [--only NAME ...] [--with NAME ...]`.
Exit status 1 when a case failed or the manager failed a client in a way no case expects.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.clients.install import (
    InstallError,
    Places,
    install_node,
    install_python,
    node_environment,
)
from tests.clients.pins import SUITES, Suite
from tests.clients.recorder import Exchange, Recording, save
from tests.clients.stand import Stand, standing

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "data" / "clients"
OPTIONAL = ("open-webui",)
_TAP = re.compile(r"^# (pass|fail|skipped) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """How one suite went. `words` is what it printed when it failed."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    words: str = ""
    requests: int = 0

    @property
    def fine(self) -> bool:
        """Whether something ran and nothing failed."""
        return self.passed > 0 and not self.failed and not self.words

    @property
    def cases(self) -> str:
        """Passed of all that ran."""
        skipped = f" ({self.skipped} skipped)" if self.skipped else ""
        return f"{self.passed}/{self.passed + self.failed}{skipped}"


def try_suite(suite: Suite, places: Places, stand: Stand, record: bool) -> Result:
    """Run one suite behind recorders of its own."""
    with stand.recorded() as (where, recorders):
        started = time.monotonic()
        result = _run(suite, places, where)
        seconds = time.monotonic() - started
        exchanges = [exchange for recorder in recorders for exchange in recorder.exchanges]
    wrong = [exchange for exchange in exchanges if is_unexpected(exchange)]
    words = result.words + "".join(
        f"{one.method} {one.target} was answered {one.status}: {one.answer[:200]}\n"
        for one in wrong
    )
    if record and not words:
        save(Recording(suite.client, suite.version, exchanges), FIXTURES)
    return Result(
        result.passed, result.failed, result.skipped, seconds, words, requests=len(exchanges)
    )


def is_unexpected(exchange: Exchange) -> bool:
    """Whether no suite means to cause such an answer: our own failures, routes we do not have."""
    unknown = exchange.status == 404 and "page not found" in exchange.answer
    return exchange.status >= 500 or exchange.status == 405 or unknown


def _run(suite: Suite, places: Places, where: dict[str, str]) -> Result:
    report = places.node / f"report-{suite.client}.xml"
    report.unlink(missing_ok=True)
    if suite.environment == "node":
        env = node_environment(places) | where
        command = [str(places.node_bin / "node"), "--test", "--test-reporter=tap", suite.file]
        folder = places.node_suites
    else:
        env = os.environ | where | {"PYTHONPATH": str(ROOT)}
        command = [str(places.interpreter(suite.environment)), "-m", "pytest", "-q", "--tb=short"]
        command += ["-p", "no:cacheprovider", "-W", "ignore", f"--junitxml={report}"]
        command += [f"tests/clients/suites/{suite.file}"]
        folder = ROOT
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=suite.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Result(0, 1, 0, suite.limit_s, f"no end after {error.timeout:.0f} s\n")
    words = "" if done.returncode == 0 else (done.stdout + done.stderr)[-4000:]
    passed, failed, skipped = (
        tap_counts(done.stdout) if suite.environment == "node" else junit_counts(report)
    )
    return Result(passed, failed, skipped, 0.0, words)


def tap_counts(text: str) -> tuple[int, int, int]:
    """Passed, failed and skipped, of the last lines of Node's runner."""
    found = {name: int(number) for name, number in _TAP.findall(text)}
    return found.get("pass", 0), found.get("fail", 0), found.get("skipped", 0)


def junit_counts(report: Path) -> tuple[int, int, int]:
    """The same of pytest's report; one failure when there is none."""
    if not report.exists():
        return 0, 1, 0
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return total - failed - skipped, failed, skipped


def chosen(only: Sequence[str], extra: Sequence[str]) -> list[Suite]:
    """The suites to run: those named, else all but the optional ones that were not asked for."""
    known = {suite.client for suite in SUITES}
    for name in (*only, *extra):
        if name not in known:
            sys.exit(f"no client {name!r}; there are: {', '.join(sorted(known))}")
    if only:
        return [suite for suite in SUITES if suite.client in only]
    return [s for s in SUITES if s.client not in OPTIONAL or s.client in extra]


def say(line: str) -> None:
    """One line of the report."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Install, run, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make clients")
    parser.add_argument("--record", action="store_true", help="write tests/data/clients anew")
    parser.add_argument("--model", default="smollm2", help="what the real engine runs, '' for none")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--with", nargs="*", default=[], dest="extra")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-clients")
    parser.add_argument("--node", type=Path, default=ROOT / "build" / "clients")
    options = parser.parse_args(arguments)
    suites = chosen(options.only, options.extra)
    places = Places(options.python.absolute(), options.node.absolute())
    try:
        for environment in dict.fromkeys(suite.environment for suite in suites):
            say(f"clients: installing {environment}")
            if environment == "node":
                install_node(places)
            else:
                install_python(places, environment)
    except InstallError as error:
        say(f"clients: {error}")
        return 1
    with standing(places.node / "home", options.model) as stand:
        results = [(suite, try_suite(suite, places, stand, options.record)) for suite in suites]
    for suite, result in results:
        if not result.fine:
            say(f"\n{suite.client}:\n{result.words}")
    say(f"{'client':<18} {'version':<10} {'cases':<18} {'requests':>8} {'s':>5}  result")
    for suite, result in results:
        verdict = "ok" if result.fine else "FAILED"
        row = f"{suite.client:<18} {suite.version:<10} {result.cases:<18} {result.requests:>8}"
        say(f"{row} {result.seconds:>5.0f}  {verdict}")
    passed = sum(result.passed for _, result in results)
    failed = sum(result.failed for _, result in results)
    say(f"{passed} passed, {failed} failed")
    return 0 if all(result.fine for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
