"""GLM-5.2's layers at their real sizes, few of them and random, the whole way to a tool call.

`nice python -m benchmarks.glm_end_to_end --work DIR`: a checkpoint in NVFP4 is written and served
by a hub of this machine; `ft pull` plans, fetches and converts it; it is calibrated, loaded with
`FT_DEVICE=emulated` and the strategy split, and asked for a forced tool call and for an answer
after it. What the disk and the memory of every process reach is held against the plan that
`ft pull` prints; a figure above it is an error. Linux only: figures come from /proc. Nothing is
timed. With two layers, one of experts: 14 GB of disk, 9 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import report
from tests.e2e.processes import REAL, ROOT, ManagerProcess, manager_process
from tests.fakes.glm_shaped import build_shaped
from tests.fakes.hub import BadHub

SAMPLE_S = 0.05
SLOTS = 48
CONTEXT, PARALLEL = 8192, 4
"""Together what the plan reckons with: 32768 tokens."""
REPO = "org/glm-shaped"
MODEL = f"hf.co/{REPO}"
CITIES = ("Oslo", "Quito")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(CITIES)}},
            "required": ["city"],
        },
    },
}


@dataclass
class Peaks:
    """The largest values seen. Units: bytes; memory by kind of process, without mapped files."""

    disk: int = 0
    memory: dict[str, int] = field(default_factory=dict)

    def see(self, home: Path, root: int) -> None:
        """Look once at everything below `home` and at all processes below `root`."""
        self.disk = max(self.disk, _disk_bytes(home))
        for pid in _family(root):
            kind, size = _kind(pid), _memory_bytes(pid)
            self.memory[kind] = max(self.memory.get(kind, 0), size)


@contextmanager
def watched(home: Path, root: int) -> Iterator[Peaks]:
    """Look again and again while the body runs."""
    peaks, done = Peaks(), threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE_S):
            peaks.see(home, root)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()
        peaks.see(home, root)


def _disk_bytes(home: Path) -> int:
    total = 0
    for path in home.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue  # gone meanwhile
    return total


def _family(root: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "other"
    names = ("ftengine.convert", "ftengine.calibrate", "ftengine.forecast", "ftengine", "ftman")
    return next((name for name in names if name.encode() in words), "other")


def _memory_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    wanted = ("RssAnon:", "RssShmem:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(wanted))


def follow(client: httpx.Client, route: str, body: dict[str, Any]) -> dict[str, Any]:
    """The last line of a job. Raises: RuntimeError with the error's text."""
    last: dict[str, Any] = {}
    with client.stream("POST", route, json=body) as reply:
        for line in reply.iter_lines():
            last = json.loads(line)
    if "error" in last:
        raise RuntimeError(f"{route}: {last['error']}")
    return last


def ask(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One message of the model."""
    body = {"model": MODEL, "messages": messages, "tools": [TOOL], "temperature": 0.7, "seed": 7}
    reply = client.post("/v1/chat/completions", json=body | more)
    if reply.status_code != 200:
        raise RuntimeError(reply.text)
    answer = reply.json()
    found: dict[str, Any] = answer["choices"][0]
    return found | {"tokens": answer["usage"]["completion_tokens"]}


def chat(client: httpx.Client) -> dict[str, Any]:
    """A forced call, and an answer after its result."""
    question = {"role": "user", "content": "What is the weather in Oslo?"}
    forced = ask(client, [question], tool_choice="required", parallel_tool_calls=False)
    (call,) = forced["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "weather", call
    assert arguments["city"] in CITIES, call
    result = {"role": "tool", "tool_call_id": call["id"], "content": "3 degrees, rain"}
    after = ask(client, [question, forced["message"], result], tool_choice="none", max_tokens=16)
    assert after["finish_reason"] in ("stop", "length"), after
    # most ids of a random model have no text here: what counts is that they were generated
    assert after["tokens"] > 0, after
    return {"call": arguments, "call_tokens": forced["tokens"], "answer_tokens": after["tokens"]}


def pull(client: httpx.Client, manager: ManagerProcess) -> dict[str, Any]:
    """`ft pull`, which prints its plan, fetches and converts; the disk against the plan."""
    plan = client.post("/api/ft/plan", json={"model": MODEL}).raise_for_status().json()
    before = _disk_bytes(manager.home)
    env = os.environ | {
        "FT_HOME": str(manager.home),
        "FT_HOST": manager.url.partition("://")[2],
        "PYTHONPATH": str(ROOT),
    }
    with watched(manager.home, manager.process.pid) as peaks:
        subprocess.run([sys.executable, "-m", "ftman", "pull", MODEL], env=env, check=True)
    peak = peaks.disk - before
    assert peak <= plan["need_disk_bytes"], f"disk: {peak} of {plan['need_disk_bytes']} planned"
    return {
        "plan": {key: plan[key] for key in ("disk_bytes", "need_disk_bytes")},
        "ram_plan": plan["forecast"]["ram_bytes"],
        "disk_peak": peak,
        "memory_peak": peaks.memory,
    }


def run(client: httpx.Client, manager: ManagerProcess, planned_ram: int) -> dict[str, Any]:
    """Calibrate, load, chat; the engine's memory against the plan."""
    follow(client, "/api/ft/calibrate", {"model": MODEL})
    with watched(manager.home, manager.process.pid) as peaks:
        said = chat(client)
        (running,) = client.get("/api/ft/experts").json()["models"]
    stats = running["stats"]
    assert running["device"] == "emulated", running
    assert stats["strategy"] == "split", stats
    assert stats["fills"] > 0, stats
    assert stats["on_cpu"] > 0, stats
    device = stats["slots"] * stats["slot_bytes"]  # an emulated device's memory is the host's
    allowed = planned_ram + device
    peak = peaks.memory["ftengine"]
    assert peak <= allowed, f"memory: {peak} of {allowed}"
    counts = {key: stats[key] for key in ("slots", "hits", "misses", "fills", "on_cpu")}
    return {
        **said,
        "experts": counts,
        "device_bytes": device,
        "memory_allowed": allowed,
        "memory_peak": peaks.memory,
        "weights_bytes": running["weights_bytes"],
    }


def end_to_end(work: Path, layers: int, vocab_size: int) -> dict[str, Any]:
    """The whole way in `work`, which is empty before and after."""
    folder = build_shaped(work / "release", layers - 1, vocab_size)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"checkpoint: {size / 1e9:.1f} GB in {folder}", flush=True)
    settings = {
        "FT_DEVICE": "emulated",
        "FT_STRATEGY": "split",
        "FT_EXPERT_SLOTS": str(SLOTS),
        "FT_CONTEXT_LENGTH": str(CONTEXT),
        "FT_NUM_PARALLEL": str(PARALLEL),
        "FT_LOAD_TIMEOUT_S": "900",
    }
    with (
        BadHub() as hub,
        manager_process(work / "home", REAL, HF_ENDPOINT=hub.url, **settings) as manager,
        httpx.Client(base_url=manager.url, timeout=1800, trust_env=False) as client,
    ):
        hub.add_folder(REPO, folder)
        pulled = pull(client, manager)
        shutil.rmtree(folder)  # so that the disk holds it and its conversion at once only here
        ran = run(client, manager, pulled["ram_plan"])
    return {"checkpoint_bytes": size, "pull": pulled, "run": ran}


def main() -> None:
    """Measure, check and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="an empty or new folder")
    parser.add_argument(
        "--layers", type=int, default=2, help="one is dense, the others have experts"
    )
    parser.add_argument("--vocab-size", type=int, default=16384, help="154880 in the release")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if any(given.work.iterdir()):
        parser.error(f"{given.work} is not empty")
    if given.layers < 2:
        parser.error(f"--layers {given.layers}: one is dense, so 2 is the least")
    sizes = {"layers": given.layers, "vocab_size": given.vocab_size}
    try:
        measured = end_to_end(given.work.resolve(), given.layers, given.vocab_size)
    finally:
        shutil.rmtree(given.work)
    report("glm_end_to_end", {}, {**sizes, **measured})


if __name__ == "__main__":
    main()
