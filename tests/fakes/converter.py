"""A converter child without an engine: speaks the real lines and makes a small, valid FTW folder.

The "FTW" holds the source files' bytes one after another. The first argument is a JSON object of
knobs, the second the verb (run, plan, families):

  families   list answered to `families` (absent: the verb fails)
  chunk      bytes per need (default 65536)
  head       bytes of each file that a plan reads (default 64)
  die_after  SIGKILL itself after that many chunks
  exit_after exit with status 3 and a message on stderr after that many chunks
  error      {"code", "message"} instead of a result
  garbage    a line that is not JSON instead of a result
  ftw_bytes  disk_bytes of the plan (default: the sum of the files)
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import xxhash

HEADER_BYTES = 64
BLOCK_BYTES = 16 << 20


def main(knobs: dict[str, Any], verb: str) -> int:
    """Answer one verb."""
    if verb == "families":
        if "families" not in knobs:
            return 2
        say({"families": knobs["families"]})
        return 0
    job = json.loads(sys.stdin.readline())["job"]
    if "error" in knobs:
        say({"error": knobs["error"]})
        return 1
    if verb in ("plan", "outline"):
        return plan(knobs, job)
    return run(knobs, job)


def plan(knobs: dict[str, Any], job: dict[str, Any]) -> int:
    """Read a header of each file, then say what it would cost."""
    for file in job["files"]:
        fetch(file["name"], 0, min(int(knobs.get("head", HEADER_BYTES)), file["bytes"]))
    total = sum(file["bytes"] for file in job["files"])
    made = int(knobs.get("ftw_bytes", total))
    say({"plan": {"disk_bytes": made, "peak_disk_bytes": made, "family": "llama"}})
    return 0


def run(knobs: dict[str, Any], job: dict[str, Any]) -> int:
    """Copy all files into one shard, with a journal, and write the index."""
    target = Path(job["target"])
    target.mkdir(parents=True, exist_ok=True)
    total = sum(file["bytes"] for file in job["files"])
    if (target / "index.json").exists():
        for file in job["files"]:
            say({"done": {"file": file["name"], "start": 0, "end": file["bytes"]}})
        finish(knobs, job, target, total)
        return 0
    journal = target / "journal.ndjson"
    done = (
        [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    )
    for item in done:
        say({"done": item})
    copied = sum(item["end"] - item["start"] for item in done)
    position, chunks = 0, 0
    with (target / "weights-00000.ftw").open("r+b" if done else "w+b") as shard:
        for file in job["files"]:
            at = 0
            while at < file["bytes"]:
                end = min(at + int(knobs.get("chunk", 65536)), file["bytes"])
                item = {"file": file["name"], "start": at, "end": end}
                if item not in done:
                    data = fetch(file["name"], at, end)
                    shard.seek(position)
                    shard.write(data)
                    shard.flush()
                    os.fsync(shard.fileno())
                    with journal.open("a") as log:
                        log.write(json.dumps(item) + "\n")
                        log.flush()
                        os.fsync(log.fileno())
                    copied += end - at
                    say({"done": item})
                    say({"progress": {"phase": "converting", "completed": copied, "total": total}})
                    chunks += 1
                    fail(knobs, chunks)
                position += end - at
                at = end
    finish(knobs, job, target, total)
    return 0


def finish(knobs: dict[str, Any], job: dict[str, Any], target: Path, total: int) -> None:
    """Write the small files and the index, and say the result."""
    if "garbage" in knobs:
        write("this is not JSON")
        return
    (target / "config.json").write_text(json.dumps({"derive": job["derive"]}))
    listed = []
    for name in ("config.json",):
        data = (target / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        listed.append({"name": name, "bytes": len(data), "sha256": digest})
    shard = (target / "weights-00000.ftw").read_bytes()
    cuts = range(0, len(shard), BLOCK_BYTES)
    blocks = [xxhash.xxh3_128_hexdigest(shard[cut : cut + BLOCK_BYTES]) for cut in cuts]
    index = {
        "format": "ftw",
        "version": 1,
        "family": "llama",
        "shards": [{"file": "weights-00000.ftw", "bytes": total, "blocks": blocks}],
        "files": listed,
        "tensors": [],
        "banks": [],
    }
    text = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
    (target / "index.json").write_bytes(text)
    (target / "journal.ndjson").unlink(missing_ok=True)
    details = {
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "1K",
        "quantization_level": "F32",
        "context_length": 64,
        "embedding_length": 8,
        "parameter_count": 1000,
        "active_parameter_count": 1000,
    }
    say(
        {
            "result": {
                "ftw_id": hashlib.sha256(text).hexdigest(),
                "bytes": total,
                "family": "llama",
                "details": details,
                "model_info": {"general.architecture": "llama"},
                "capabilities": ["completion"],
                "eos_ids": [2],
                "load_bytes": total,
                "kv_bytes_per_token": 32,
                "notes": [],
            }
        }
    )


def fail(knobs: dict[str, Any], chunks: int) -> None:
    """Die as told."""
    if chunks == knobs.get("die_after"):
        os.kill(os.getpid(), signal.SIGKILL)
    if chunks == knobs.get("exit_after"):
        sys.stderr.write("the converter lost its way\n")
        sys.stderr.flush()
        os._exit(3)


_have: dict[str, list[dict[str, Any]]] = {}


def fetch(name: str, start: int, end: int) -> bytes:
    """Ask for bytes and wait for them; what came earlier is used again while it is there."""
    found = known(name, start, end)
    if found is not None:
        return found
    say({"need": {"file": name, "start": start, "end": end}})
    while True:
        line = sys.stdin.readline()
        message = json.loads(line) if line else {"cancel": True}
        if "cancel" in message:
            sys.exit(1)
        have = message["have"]
        _have.setdefault(have["file"], []).append(have)
        found = known(name, start, end)
        if found is not None:
            return found


def known(name: str, start: int, end: int) -> bytes | None:
    """The bytes, put together from what lies on disk; None if a part is missing."""
    parts = []
    while start < end:
        for have in _have.get(name, ()):
            if have["start"] <= start < have["end"] and Path(have["path"]).exists():
                stop = min(end, have["end"])
                with Path(have["path"]).open("rb") as reader:
                    reader.seek(have["path_offset"] + start - have["start"])
                    parts.append(reader.read(stop - start))
                start = stop
                break
        else:
            return None
    return b"".join(parts)


def say(message: dict[str, Any]) -> None:
    """One line to the manager."""
    write(json.dumps(message))


def write(line: str) -> None:
    """Out at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2]))
