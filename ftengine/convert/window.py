"""Source bytes as the manager hands them over: windows of files, asked for when missing.

A range may be stitched from several windows. Ranges that were kept (headers, small files) survive
a restart without being asked for again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ftengine.convert.protocol import Have, Link, SourceFile
from ftengine.errors import LoadError, RequestError
from ftman import files

ASK_BYTES = 256 << 20
"""A need names at most this much beyond what is wanted next."""


@dataclass
class _Window:
    start: int
    end: int
    path_offset: int
    reader: IO[bytes]


@dataclass
class _Opened:
    """State of one source file: its windows, ranges never read again, ranges on their way."""

    file: SourceFile
    windows: list[_Window] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)


class Windows:
    """All bytes at hand. `before_wait` runs before the converter blocks for more."""

    def __init__(self, link: Link, source_files: tuple[SourceFile, ...]):
        self._link = link
        self._by_name = {item.name: number for number, item in enumerate(source_files)}
        self._opened = [_Opened(item) for item in source_files]
        self.before_wait: Callable[[], None] = lambda: None

    def poll(self) -> None:
        """Take in every window that has arrived. Raises: StoppedError."""
        while (have := self._link.receive(block=False)) is not None:
            self._add(have)

    def has(self, number: int, start: int, end: int) -> bool:
        """Whether a range can be read now, without asking for it."""
        return self._missing(number, start, end) is None

    def fetch(
        self, number: int, start: int, end: int, ask_end: Callable[[], int] | None = None
    ) -> bytearray:
        """Read a range, asking the manager and waiting if need be.

        ask_end tells how far the file is wanted beyond `end`, so that a need is worth a request.

        Raises: LoadError if a window is shorter than it was said to be, StoppedError.
        """
        self.poll()
        opened = self._opened[number]
        while (gap := self._missing(number, start, end)) is not None:
            self.before_wait()
            # A need may be answered by several windows: what is on its way is not asked twice.
            if not any(a <= gap[0] < b for a, b in opened.asked):
                wanted = gap[1]
                if gap[1] == end and ask_end is not None:
                    wanted = max(end, min(ask_end(), gap[0] + ASK_BYTES))
                opened.asked.append((gap[0], wanted))
                need = {"file": opened.file.name, "start": gap[0], "end": wanted}
                self._link.send({"need": need})
            have = self._link.receive(block=True)
            if have is not None:
                self._add(have)
        return self._read(number, start, end)

    def finish(self, number: int, start: int, end: int) -> None:
        """Tell the manager that a range is durable here, and let go of windows fully finished."""
        opened = self._opened[number]
        name = opened.file.name
        self._link.send({"done": {"file": name, "start": start, "end": end}})
        opened.finished = _merge([*opened.finished, (start, end)])
        kept = []
        for window in opened.windows:
            if any(a <= window.start and window.end <= b for a, b in opened.finished):
                window.reader.close()
            else:
                kept.append(window)
        opened.windows = kept

    def close(self) -> None:
        """Close every window."""
        for opened in self._opened:
            for window in opened.windows:
                window.reader.close()
            opened.windows = []

    def _add(self, have: Have) -> None:
        number = self._by_name.get(have.file)
        if number is None:
            raise RequestError(f"have: {have.file!r} is not a file of this job")
        opened = self._opened[number]
        if not have.start <= have.end <= opened.file.bytes:
            raise RequestError(f"have: [{have.start}, {have.end}) is outside {have.file}")
        if have.start == have.end:
            return
        try:
            reader = files.open_read(have.path)
        except OSError as error:
            raise LoadError(f"cannot read {have.path} for {have.file}: {error.strerror}") from None
        opened.asked = [
            piece
            for a, b in opened.asked
            for piece in ((a, min(b, have.start)), (max(a, have.end), b))
            if piece[0] < piece[1]
        ]
        opened.windows.append(_Window(have.start, have.end, have.path_offset, reader))

    def _missing(self, number: int, start: int, end: int) -> tuple[int, int] | None:
        """The first part of a range that no window holds."""
        at = start
        while at < end:
            holder = self._holder(number, at)
            if holder is None:
                later = [w.start for w in self._opened[number].windows if at < w.start < end]
                return at, min(later, default=end)
            at = holder.end
        return None

    def _holder(self, number: int, at: int) -> _Window | None:
        windows = self._opened[number].windows
        return next((w for w in windows if w.start <= at < w.end), None)

    def _read(self, number: int, start: int, end: int) -> bytearray:
        out = bytearray(end - start)
        at = start
        while at < end:
            window = self._holder(number, at)
            assert window is not None
            stop = min(end, window.end)
            window.reader.seek(window.path_offset + at - window.start)
            view = memoryview(out)[at - start : stop - start]
            if _read_into(window.reader, view) != stop - at:
                name = self._opened[number].file.name
                raise LoadError(f"the window of {name} ends before byte {stop}; fetch it again")
            at = stop
        return out


class KeptRanges:
    """Small ranges that are needed again after a restart, stored in a folder of the target."""

    def __init__(self, windows: Windows, folder: Path | None):
        self._windows = windows
        self._folder = folder

    def fetch(self, number: int, start: int, end: int) -> bytes:
        """Read a range from the folder, else from the windows; keeps it."""
        path = None if self._folder is None else self._folder / f"kept-{number}-{start}-{end}"
        if path is not None:
            with contextlib.suppress(OSError):
                data = files.read_bytes(path, limit=end - start)
                if len(data) == end - start:
                    return data
        data = bytes(self._windows.fetch(number, start, end))
        if path is not None:
            files.write_atomic(path, data)
        return data


def _read_into(reader: IO[bytes], view: memoryview) -> int:
    done = 0
    while done < len(view):
        count = reader.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            break
        done += count
    return done


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges, touching ones joined."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
