"""What is durably on disk of one download: segments, positions, and the mirrors that gave them.

An append-only file of JSON lines beside the data. A torn last line is ignored; a journal of another
file or another size starts afresh.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftman import files

VERSION = 1
LIMIT_BYTES = 64 << 20


@dataclass
class Segment:
    """A range of the file being fetched by one request at a time. pos = next byte to write."""

    start: int
    end: int
    pos: int
    durable: int

    @property
    def missing(self) -> int:
        """Bytes still to fetch."""
        return self.end - self.pos


class Journal:
    """Journal of one download; `open` reads what an earlier process left."""

    def __init__(self, path: Path, segments: list[Segment], etags: dict[str, str], fresh: bool):
        self.path = path
        self.segments = segments
        self.etags = etags
        self.fresh = fresh
        self._writer: files.Writer | None = None

    @classmethod
    def open(cls, path: Path, data: Path, identity: str, cuts: list[tuple[int, int]]) -> Journal:
        """Take up the journal at `path` if it fits `identity` and its data file is there.

        cuts are the ranges of a fresh start. Units: bytes.
        """
        lines = _read_lines(path) if data.is_file() else []
        segments = _segments_of(lines, identity)
        if segments is None:
            segments = [Segment(start, end, start, start) for start, end in cuts]
            journal = cls(path, segments, {}, True)
            journal._begin(identity)
            return journal
        etags = {str(line["url"]): str(line["etag"]) for line in lines[1:] if "url" in line}
        journal = cls(path, segments, etags, False)
        journal._compact(identity)
        return journal

    def note_mirror(self, url: str, etag: str) -> None:
        """Remember that `url` gave bytes under `etag`; written with the next `record`."""
        if self.etags.get(url) != etag:
            self.etags[url] = etag
            self._append({"url": url, "etag": etag})

    def record(self, positions: dict[int, int]) -> None:
        """Write positions (segment index -> next byte) whose data is already durable."""
        self._append({"pos": {str(index): pos for index, pos in positions.items()}})
        if self._writer is not None:
            self._writer.sync()
        for index, pos in positions.items():
            self.segments[index].durable = pos

    def close(self) -> None:
        """Close the file; it stays."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def remove(self) -> None:
        """Close and delete."""
        self.close()
        files.unlink(self.path)

    def _append(self, line: dict[str, Any]) -> None:
        if self._writer is None:
            self._writer = files.Writer(self.path)
        self._writer.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _begin(self, identity: str) -> None:
        cuts = [[segment.start, segment.end] for segment in self.segments]
        head = {"version": VERSION, "identity": identity, "segments": cuts}
        files.write_atomic(self.path, json.dumps(head, separators=(",", ":")).encode() + b"\n")

    def _compact(self, identity: str) -> None:
        """Write it anew: a torn last line must not swallow the next one."""
        positions = {str(i): s.pos for i, s in enumerate(self.segments) if s.pos > s.start}
        lines: list[dict[str, Any]] = [
            {
                "version": VERSION,
                "identity": identity,
                "segments": [[segment.start, segment.end] for segment in self.segments],
            },
            *({"url": url, "etag": etag} for url, etag in self.etags.items()),
            {"pos": positions},
        ]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        files.write_atomic(self.path, text.encode())


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = files.read_bytes(path, limit=LIMIT_BYTES)
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            break
        if not isinstance(value, dict):
            break
        lines.append(value)
    return lines


def _segments_of(lines: list[dict[str, Any]], identity: str) -> list[Segment] | None:
    if not lines or lines[0].get("version") != VERSION or lines[0].get("identity") != identity:
        return None
    try:
        segments = [Segment(int(a), int(b), int(a), int(a)) for a, b in lines[0]["segments"]]
        for line in lines[1:]:
            for index, pos in line.get("pos", {}).items():
                segment = segments[int(index)]
                if not segment.start <= int(pos) <= segment.end:
                    return None
                segment.pos = segment.durable = int(pos)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return segments
