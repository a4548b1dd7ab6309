"""F23: hostile model files: mutated headers, pickles under other names, templates with a payload.

The parsers run in a child with a memory limit, as the converter does; each mutant has two seconds.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, SHORT, Rig, runs
from tests.e2e.processes import ROOT
from tests.fakes.engine import FakeScript
from tests.fakes.tiny_models import build_tiny, build_tiny_gguf
from tests.ftman.gateway.serving import Tiny, ids_of

MEMORY_BYTES = 256 << 20
LIMIT_S = 2.0
SHORT_MUTANTS, LONG_MUTANTS = 60, 200
"""Of each format, for each point: ten thousand in the long form."""
PICKLE = b"\x80\x04\x95\x1f\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."

# Prints, as JSON: how many were refused, how many read, the slowest, and what else was raised.
CHILD = """
import json, random, resource, sys, time
from pathlib import Path
from ftengine.errors import FormatError
from ftengine.loader import gguf, safetensors_header
from tests.ftengine.loader.test_headers import mutants

def fetch_of(data, name):
    def fetch(start, end):
        assert 0 <= start <= end <= len(data), (name, start, end, len(data))
        return data[start:end]
    return fetch

def read(kind, data, name):
    module = gguf if kind == "gguf" else safetensors_header
    return module.read_header(fetch_of(data, name), len(data), name)

held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[2]),) * 2)
told = {"refused": 0, "read": 0, "slowest_s": 0.0, "other": []}
for number, (kind, path) in enumerate(json.loads(sys.argv[1])):
    data = Path(path).read_bytes()
    header_bytes = read(kind, data, "whole").header_bytes
    count, seed = int(sys.argv[4]), int(sys.argv[3]) + number
    # A few at a time: it is not the mutants' own memory that is limited.
    batches = (mutants(data, header_bytes, 20, seed + at) for at in range(0, count, 20))
    for mutant in (item for batch in batches for item in batch):
        begun = time.perf_counter()
        try:
            read(kind, mutant, "mutant")
            told["read"] += 1
        except FormatError:
            told["refused"] += 1
        except BaseException as error:
            told["other"].append(repr(error)[:200])
        told["slowest_s"] = max(told["slowest_s"], time.perf_counter() - begun)
print(json.dumps(told))
"""


@runs
def test_mutated_headers_are_refused_in_little_time_and_memory(
    tmp_path: Path, rng: random.Random, num_points: int
) -> None:
    gguf = build_tiny_gguf("qwen3moe", tmp_path / "t.gguf", types={"experts": "q4_1"})
    tensors = build_tiny("mixtral", tmp_path / "m") / "model.safetensors"
    count = num_points * (SHORT_MUTANTS if num_points <= SHORT else LONG_MUTANTS)
    kinds = json.dumps([["gguf", str(gguf)], ["safetensors", str(tensors)]])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            kinds,
            str(MEMORY_BYTES),
            str(rng.randrange(1 << 30)),
            str(count),
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["other"] == []
    assert told["slowest_s"] < LIMIT_S
    assert told["refused"] > count // 2, told
    assert told["refused"] + told["read"] == 2 * count


@runs
def test_files_that_are_no_models_are_not_installed(rig: Rig, num_points: int) -> None:
    contents = {
        "model.safetensors": (PICKLE + bytes(5000), b"PK\x03\x04" + bytes(5000), b"<html></html>"),
        "pytorch_model.bin": (PICKLE,),
        "x.gguf": (PICKLE, b"GGUF" + bytes(3000), b"GGUF\xff" * 900, b"\x1f\x8b" + bytes(9000)),
    }
    with rig.inside(FakeScript(tokens=ids_of("ok"))) as manager:
        before = rig.check_store()
        for number in range(num_points):
            name = rig.rng.choice(sorted(contents))
            folder = rig.root / f"source-{number}"
            folder.mkdir()
            (folder / name).write_bytes(rig.rng.choice(contents[name]))
            (folder / "config.json").write_text('{"model_type": "llama"}')
            source = folder / name if name.endswith(".gguf") else folder
            begun = time.monotonic()
            answer = rig.pull(manager.url, f"file://{source}")
            invariants.ended_once(answer)
            assert answer.error, answer.lines
            assert "internal error" not in answer.error
            assert time.monotonic() - begun < 30
            assert rig.check_store() == before
        assert manager.http.post("/api/ft/gc", json={"partials": True}).is_success
        invariants.answers_when_healthy(manager.url)


PAYLOADS = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{% for a in range(10**9) %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ raise_exception('not like this') }}",
    "{% if messages %}",
    "{{ messages[99].content.nosuch() }}",
    "{% include '/etc/passwd' %}",
)


@runs
def test_templates_with_a_payload_spoil_only_their_own_requests(rig: Rig, num_points: int) -> None:
    chosen = [
        PAYLOADS[n % len(PAYLOADS)] for n in rig.rng.sample(range(num_points * 8), num_points)
    ]
    bad = tuple(
        Tiny(f"bad{n}:latest", seed=n + 1, jinja=f"{{# {n} #}}{text}")
        for n, text in enumerate(dict.fromkeys(chosen))
    )
    with rig.inside(FakeScript(tokens=ids_of("ok")), (Tiny(), *bad)) as manager:
        for tiny in bad:
            body = CHAT | {"model": tiny.name, "stream": False}
            reply = manager.http.post("/api/chat", json=body)
            assert reply.status_code == 400, (tiny.jinja, reply.text)
            invariants.told_why(reply)
            assert "root:" not in reply.text
        invariants.answers_when_healthy(manager.url)
