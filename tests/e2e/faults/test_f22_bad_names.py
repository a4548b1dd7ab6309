"""F22: malicious names on every route and verb: grammar errors, clean logs, no file elsewhere."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import httpx

from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import FAKE, ManagerProcess, Rig, runs
from tests.e2e.processes import ROOT
from tests.ftman.gateway.serving import Tiny, install

NAMES = (
    "../evil",
    "../../../../etc/passwd",
    "a/../../evil",
    "..%2f..%2fevil",
    "..\\..\\evil",
    "x:../../evil",
    "x:..",
    "evil\n2026-01-01 INFO forged: line",
    "evil\r\x1b[2Jgone",
    "-rf",
    "--help",
    "$(touch evil)",
    "`touch evil`",
    "a;touch evil",
    "\u202eevil",
    "\u0430dmin",
    "ti\u200bny",
    "a" * 4096,
    "a/" * 300 + "b",
    "evil.",
    ".evil",
    "a//b",
    "a b",
    "",
    ":",
    "/",
    "hf.co/../../evil",
    "@sha256:" + "0" * 64,
    "tiny@sha256:../../evil",
    "TINY:LATEST/../evil",
)
NUL_NAMES = ("evil\0.txt", "\0")
ROUTES = (
    ("POST", "/api/show", ("model",)),
    ("POST", "/api/chat", ("model",)),
    ("POST", "/api/generate", ("model",)),
    ("POST", "/api/embed", ("model",)),
    ("POST", "/api/create", ("model",)),
    ("POST", "/api/create", ("from",)),
    ("POST", "/api/copy", ("source",)),
    ("POST", "/api/copy", ("destination",)),
    ("DELETE", "/api/delete", ("model",)),
    ("POST", "/api/pull", ("model",)),
    ("POST", "/api/push", ("model",)),
    ("POST", "/v1/chat/completions", ("model",)),
    ("POST", "/v1/completions", ("model",)),
)
VERBS = (("show",), ("rm",), ("cp", "tiny"), ("stop",), ("pull",), ("run",), ("create",))
DEFAULTS = {"model": "tiny", "source": "tiny", "destination": "copy", "from": "tiny"}


def test_every_route_refuses_every_name(rig: Rig) -> None:
    """All names on all routes: short enough not to choose."""
    _install_and_check(rig, [(r, name) for r in ROUTES for name in (*NAMES, *NUL_NAMES)], [])


@runs
def test_the_command_line_refuses_them_too(rig: Rig, num_points: int) -> None:
    chosen = [(rig.rng.choice(VERBS), rig.rng.choice(NAMES)) for _ in range(num_points)]
    _install_and_check(rig, [], chosen)


def _install_and_check(
    rig: Rig,
    requests: list[tuple[tuple[str, str, tuple[str, ...]], str]],
    commands: list[tuple[tuple[str, ...], str]],
) -> None:
    install(Paths(rig.home, rig.home / "models"))
    install(Paths(rig.home, rig.home / "models"), Tiny("other:latest", seed=1))
    rig.rng.shuffle(requests)
    models = rig.check_store()
    sources = invariants.snapshot(ROOT / "ftman")
    with rig.manager(FAKE) as manager:
        with httpx.Client(base_url=manager.url, trust_env=False, timeout=60) as client:
            for (method, path, keys), name in requests:
                _refused(client, method, path, keys, name)
        for verb, name in commands:
            _refused_by_verb(rig, manager, verb, name)
        invariants.answers_when_healthy(manager.url)
        _clean(manager.log)
    assert rig.check_store() == models
    assert not list(rig.root.rglob("*evil*"))
    assert {p for p in invariants.snapshot(ROOT / "ftman") if "evil" in p} <= set(sources)
    assert not Path("evil").exists()


def _refused(
    client: httpx.Client, method: str, path: str, keys: tuple[str, ...], name: str
) -> None:
    body: dict[str, object] = dict.fromkeys(keys, name)
    if path == "/api/copy":
        body = {"source": "tiny", "destination": "copy"} | body
    if path == "/api/create":
        body = {"model": "copy", "from": "tiny"} | body
    body |= {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]}
    body |= {"stream": False}
    reply = client.request(method, path, json=body)
    # A create without `from` and files is refused for that; a name nobody has is not found.
    assert reply.status_code in (400, 404, 501) or _is_known_500(reply), (path, name, reply.text)
    assert "Traceback" not in reply.text
    assert "internal error" not in reply.text
    assert "\x1b" not in reply.text


def _is_known_500(reply: httpx.Response) -> bool:
    """What Ollama answers with 500 for a pull of a name that nobody has."""
    return reply.status_code == 500 and "file does not exist" in reply.text


def _refused_by_verb(rig: Rig, manager: ManagerProcess, verb: tuple[str, ...], name: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FT_", "OLLAMA_"))}
    environment |= {"FT_HOME": str(rig.home), "FT_HOST": manager.url.removeprefix("http://")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(rig.root / "user" / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "ftman", *verb, name],
        cwd=rig.root / "user" / "tmpdir",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode in (0, 1, 2, 5), (verb, name, done.stderr)
    assert done.returncode or name == "--help", (verb, name, done.stdout)
    assert "Traceback" not in done.stderr
    assert "ft itself failed" not in done.stderr
    assert not set(done.stderr) & {"\x1b", "\r", "\u202e"}, (verb, name, done.stderr)


def _clean(log: str) -> None:
    """No control byte, and every line begins with a time of the log's own."""
    for line in log.splitlines():
        assert not line.startswith("2026-01-01"), line
        assert line.isprintable(), repr(line)


def random_name(rng: random.Random) -> str:
    """A name of hostile characters."""
    return "".join(rng.choice("a./\\:%~$@\0\n\x1b\u202e-") for _ in range(rng.randrange(1, 30)))


@runs
def test_random_names_are_refused_or_not_found(rig: Rig, num_points: int) -> None:
    names = [random_name(rig.rng) for _ in range(4 * num_points)]
    _install_and_check(rig, [(rig.rng.choice(ROUTES), name) for name in names], [])
