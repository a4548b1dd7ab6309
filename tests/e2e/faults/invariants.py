"""The invariants I1 to I8, checked from outside: by files, by /proc, by what clients were told.

The product's own checks are not used: what a manifest names is hashed again here. Each check notes
in the ledger that it was made, and whether it held.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import xxhash

from tests.e2e.faults import ledger
from tests.e2e.faults.ledger import checks

if TYPE_CHECKING:
    from tests.e2e.faults.manager_process import Answer

BLOCK_BYTES = 16 << 20
FTW_TYPE = "application/vnd.ft.model.ftw.v1+json"
STOP_LIMIT_S = 5.0
PROBE_LIMIT_S = 20.0
_STAYS_IN_RUN = {"manager.lock", "engines"}


@checks("I1")
def sound_models(models: Path) -> dict[str, str]:
    """I1: every visible model is whole, byte for byte. Returns name -> FTW id."""
    found = {}
    folder = models / "manifests"
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        name = "/".join(path.relative_to(folder).parts[-2:])
        manifest = json.loads(path.read_bytes())
        problems = list(problems_of(models, manifest))
        assert not problems, (name, problems)
        layers = manifest["layers"]
        found[name] = next(i["digest"] for i in layers if i["mediaType"] == FTW_TYPE)
    return found


def problems_of(models: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the bytes behind a manifest."""
    for layer in (manifest["config"], *manifest["layers"]):
        digest = layer["digest"].partition(":")[2]
        if layer["mediaType"] == FTW_TYPE:
            yield from ftw_problems(models / "ftw" / digest, digest)
            continue
        path = models / "blobs" / f"sha256-{digest}"
        if not path.is_file():
            yield f"{path.name} is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{path.name} has other bytes"


def ftw_problems(folder: Path, ftw_id: str) -> Iterator[str]:
    """What is wrong with a folder of weights."""
    if not (folder / "index.json").is_file():
        yield f"{folder.name}/index.json is missing"
        return
    text = (folder / "index.json").read_bytes()
    if hashlib.sha256(text).hexdigest() != ftw_id:
        yield "index.json is not what its name says"
    index = json.loads(text)
    for item in index["files"]:
        data = (folder / item["name"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != item["sha256"]:
            yield f"{item['name']} has other bytes"
    for shard in index["shards"]:
        data = (folder / shard["file"]).read_bytes()
        cuts = range(0, len(data), BLOCK_BYTES)
        digests = [xxhash.xxh3_128_hexdigest(data[cut : cut + BLOCK_BYTES]) for cut in cuts]
        if digests != shard["blocks"]:
            yield f"{shard['file']} has other bytes"


def orphans(models: Path) -> list[str]:
    """For I2: blobs and weights that no manifest names, and unfinished files."""
    needed = set()
    for path in (models / "manifests").rglob("*"):
        if path.is_file():
            manifest = json.loads(path.read_bytes())
            needed |= {item["digest"] for item in (manifest["config"], *manifest["layers"])}
    blobs = (path.name.replace("-", ":", 1) for path in (models / "blobs").glob("*"))
    weights = (f"sha256:{path.name}" for path in (models / "ftw").glob("*"))
    partial = [f"partial {path.name}" for path in (models / "partial").glob("*")]
    return sorted({*blobs, *weights} - needed) + partial


@checks("I2")
def no_orphans(models: Path, *, partials: bool = False) -> None:
    """I2: nothing that nobody owns; partials: unfinished files may be there."""
    found = [item for item in orphans(models) if not partials or not item.startswith("partial ")]
    assert found == []


@checks("I3")
def acknowledged(
    present: Mapping[str, str], kept: Mapping[str, str], possible: Collection[str]
) -> None:
    """I3: what was acknowledged is there, and beside it only what was under way."""
    assert kept.items() <= present.items(), ("acknowledged work is gone", kept, present)
    assert set(present) <= set(possible), ("nobody asked for this", present, possible)


@checks("I3")
def one_of(present: Mapping[str, str], states: Collection[Mapping[str, str]]) -> None:
    """I3: the catalog equals the state before, or after, the work that was cut off."""
    assert present in states, (present, states)


@checks("I4")
def ended_once(answer: Answer, *, may_break: bool = False) -> None:
    """I4: one end, of one kind: complete, or an error; broken only where the manager was killed.

    It may be killed between the last line of an answer and the end of the connection.
    """
    ends = sum(bool(value.get("done")) for value in answer.values if "done" in value)
    ends += sum(value.get("status") == "success" for value in answer.values)
    ends += answer.lines.count("data: [DONE]")
    errors = sum("error" in value for value in answer.values)
    unsaid = answer.broken and not (ends or errors)
    assert ends + errors == (0 if unsaid else 1), (ends, errors, answer.lines[-3:])
    assert may_break or not answer.broken, answer.lines[-3:]
    if errors:
        assert "error" in answer.values[-1]
        assert answer.error


@checks("I4")
def told_why(reply: httpx.Response) -> None:
    """I4, R7: a refusal has a code or a known text, and says when to come again if that helps."""
    assert reply.status_code >= 400, reply.text
    told = reply.json()["error"]
    assert told, reply.text
    unhandled = reply.status_code >= 500 and "internal error" in reply.text
    ledger.level("R7", "5xx without a cause", float(unhandled), 0)
    assert not unhandled, reply.text
    if reply.status_code == 503:
        assert int(reply.headers["retry-after"]) > 0


@checks("I5")
def nothing_is_left(home: Path, sockets: list[Path]) -> None:
    """I5: no process of this store, no socket and no private file, at most 5 s after the end."""
    deadline = time.monotonic() + STOP_LIMIT_S
    while left := processes_of(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not [path for path in sockets if path.exists()]
    run = home / "run"
    assert {path.name for path in run.iterdir()} <= _STAYS_IN_RUN, list(run.iterdir())
    assert not list(run.glob("engines/*"))
    assert not [path for path in home.rglob(".*.tmp") if path.is_file()]


@checks("I5")
def one_engine_per_key(home: Path) -> None:
    """I5: no two living engines of one model."""
    models = re.findall(r"serve --ftw (\S+)", "\n".join(processes_of(home)))
    assert len(models) == len(set(models)), models


def no_traceback(log: str) -> None:
    """R7: nothing went wrong that nobody had thought of."""
    at = log.find("Traceback")
    ledger.level("R7", "tracebacks in the log", log.count("Traceback"), 0)
    assert at < 0, log[max(0, at - 600) : at + 3000]


def processes_of(home: Path) -> list[str]:
    """Living processes that belong to a store, by their environment."""
    mark = b"FT_HOME=" + os.fsencode(home) + b"\0"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes():
                argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{entry.name} {argv[:200]}")
    return found


def engine_sockets(home: Path) -> list[Path]:
    """Sockets that the engines' records name."""
    found = []
    for path in (home / "run" / "engines").glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            address = json.loads(path.read_text())["run"]["address"]
            if address.startswith("unix:"):
                found.append(Path(address.removeprefix("unix:")))
    return found


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """For I6: everything below a folder, with size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        plain = not path.is_dir()
        found[str(path)] = (status.st_size, status.st_mtime_ns) if plain else (0, 0)
    return found


@checks("I6")
def nothing_outside(folder: Path, before: dict[str, tuple[int, int]]) -> None:
    """I6: a folder beside the store is as it was."""
    now = snapshot(folder)
    assert now == before, sorted(set(now.items()) ^ set(before.items()))


@checks("I7")
def answers_when_healthy(url: str, model: str = "tiny") -> None:
    """I7: healthy, and therefore able to make one token in time."""
    assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "ok"}
    body = {"model": model, "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    reply = httpx.post(f"{url}/api/generate", json=body, trust_env=False, timeout=PROBE_LIMIT_S)
    assert reply.status_code == 200, reply.text
    assert reply.json()["done"] is True


@dataclass(frozen=True)
class Vitals:
    """What a process holds. Units: bytes."""

    rss: int
    peak: int
    fds: int
    threads: int


def vitals(pid: int) -> Vitals:
    """Read it from /proc."""
    text = Path(f"/proc/{pid}/status").read_text()

    def field(name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+)", text, re.M)
        assert match
        return int(match.group(1))

    fds = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
    return Vitals(field("VmRSS") << 10, field("VmHWM") << 10, fds, field("Threads"))


@checks("I8")
def back_to(pid: int, before: Vitals, limit_s: float = 5.0) -> None:
    """I8: memory within 5 %, open files within 3 of the start level."""
    deadline = time.monotonic() + limit_s
    while True:
        now = vitals(pid)
        if now.rss <= before.rss * 1.05 and now.fds <= before.fds + 3:
            return
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.05)
