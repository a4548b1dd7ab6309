"""One conversion from job to finished FTW folder: resumable, lossless, bounded in memory.

Order of every commit: data fsynced, journal line fsynced, then `done` to the manager. So whatever
the manager has deleted is durable here, and a kill at any point costs at most one commit.
"""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from ftengine.convert.derive import derive_checkpoint, derived_origin, generated_bytes
from ftengine.convert.finished import (
    check_target,
    finished_result,
    remove_strays,
    result_of,
    source_json,
)
from ftengine.convert.gguf_source import read_gguf
from ftengine.convert.journal import Journal
from ftengine.convert.layout import Layout, plan_layout
from ftengine.convert.pieces import covers_of, groups_of
from ftengine.convert.protocol import Job, Link, StoppedError
from ftengine.convert.safetensors_source import read_safetensors
from ftengine.convert.source import Checkpoint, dump_json
from ftengine.convert.window import ASK_BYTES, KeptRanges, Windows
from ftengine.convert.writer import WORK_DIR, FtwWriter
from ftengine.errors import CapacityError
from ftman import clock, faults, files

COMMIT_BYTES = 256 << 20
PROGRESS_S = 0.1
SPARE_BYTES = 16 << 20
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_job(job: Job, link: Link) -> dict[str, Any]:
    """Convert, resume, or recognise a finished folder; returns the result line's content.

    Raises: EngineError, StoppedError when told to stop, OSError as the disk gives it.
    """
    finished = finished_result(job)
    if finished is not None:
        remove_strays(job.target)
        return finished
    check_target(job.target)
    journal = Journal(job.target, job.fingerprint())
    windows = Windows(link, job.files)
    try:
        kept = KeptRanges(windows, files.make_dir(job.target / WORK_DIR))
        source, layout = read_plan(job, kept)
        conversion = _Conversion(job, link, windows, journal, source, layout)
        try:
            conversion.run()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            need = conversion.writer.missing_bytes() + SPARE_BYTES
            raise disk_full(need, files.free_bytes(job.target)) from error
        finally:
            conversion.writer.close()
        faults.hit("convert.before_rename")
        journal.remove()
    finally:
        journal.close()
        windows.close()
    remove_strays(job.target)
    return result_of(job.target)


def read_plan(job: Job, kept: KeptRanges) -> tuple[Checkpoint, Layout]:
    """Headers and small files to a complete plan. Raises: LoadError, FormatError."""
    read = read_gguf if job.source == "gguf" else read_safetensors
    source = read(job, kept)
    if job.derive is not None:
        source = derive_checkpoint(source, job.derive)
    layout = plan_layout(source, job.derive)
    config = {**source.config, "tie_word_embeddings": layout.tied}
    return replace(source, config=config), layout


class _Conversion:
    """The state of one run: which pieces are done, which wait to be committed."""

    def __init__(
        self,
        job: Job,
        link: Link,
        windows: Windows,
        journal: Journal,
        source: Checkpoint,
        layout: Layout,
    ):
        self.job = job
        self.link = link
        self.windows = windows
        self.journal = journal
        self.source = source
        self.layout = layout
        self.writer = FtwWriter(job.target, layout)
        self.groups = groups_of(layout.pieces)
        self.missing = Counter(
            piece.name
            for number, piece in enumerate(layout.pieces)
            if piece.part and number not in journal.done
        )
        self.covers = list(covers_of(layout.pieces, [item.bytes for item in job.files]))
        self.done: set[int] = set()
        self.staged: set[int] = set()
        self.pending_bytes = 0
        self.progress = Progress(link, sum(p.end - p.start for p in layout.pieces))
        windows.before_wait = self.commit

    def run(self) -> None:
        """All pieces, then the finishing files."""
        self._check_disk()
        self._report_known()
        try:
            for number in range(len(self.layout.pieces)):
                if not self._is_taken(number):
                    self._convert(number)
                    faults.hit("convert.after_tensor")
                if self.pending_bytes >= COMMIT_BYTES:
                    self.commit()
        except StoppedError:
            self.commit()
            raise
        self.commit()
        self._finish()

    def commit(self) -> None:
        """Data, journal, then the manager is told."""
        if not self.done and not self.staged:
            return
        self.writer.sync()
        fresh = (self.done | self.staged) - self.journal.done - self.journal.staged
        finished = self._finished_banks(self.done - self.journal.done)
        self.journal.commit(self.done, self.staged)
        self.done, self.staged, self.pending_bytes = set(), set(), 0
        for name in finished:
            self.writer.drop_stage(name)
        self._report(fresh)

    def _convert(self, number: int) -> None:
        piece = self.layout.pieces[number]
        data = self._fetch(number)
        if piece.part:
            self._convert_member(number, data)
            return
        self.writer.write_dense(piece, data)
        self.done.add(number)

    def _convert_member(self, number: int, data: bytearray) -> None:
        """A piece of a part: write the part if all its pieces are at hand, else let it wait."""
        group = self.groups[number]
        if not all(other == number or self._is_at_hand(other) for other in group):
            self.writer.stage(self.layout.pieces[number], data)
            self.staged.add(number)
            return
        members = []
        for other in group:
            piece = self.layout.pieces[other]
            if other == number:
                members.append((piece, data))
            elif self._is_staged(other):
                members.append((piece, self.writer.staged(piece)))
            else:
                members.append((piece, self._fetch(other)))
        self.writer.write_part(members)
        self.done.update(group)

    def _is_staged(self, number: int) -> bool:
        return number in self.staged or number in self.journal.staged

    def _is_at_hand(self, number: int) -> bool:
        piece = self.layout.pieces[number]
        return self._is_staged(number) or self.windows.has(piece.file, piece.start, piece.end)

    def _fetch(self, number: int) -> bytearray:
        piece = self.layout.pieces[number]
        data = self.windows.fetch(
            piece.file, piece.start, piece.end, lambda: self._wanted_end(number)
        )
        self.pending_bytes += len(data)
        self.progress.add(len(data))
        return data

    def _wanted_end(self, number: int) -> int:
        """Where the run of pieces that are still wanted ends; what is done may be gone."""
        pieces = self.layout.pieces
        first, end = pieces[number], pieces[number].end
        for later in range(number + 1, len(pieces)):
            piece = pieces[later]
            if piece.file != first.file or self._is_taken(later) or end - first.start > ASK_BYTES:
                break
            end = piece.end
        return end

    def _is_taken(self, number: int) -> bool:
        return (
            number in self.done
            or number in self.staged
            or number in self.journal.done
            or number in self.journal.staged
        )

    def _report(self, numbers: set[int]) -> None:
        """One `done` line per run of neighbouring ranges."""
        ranges = sorted(self.covers[number] for number in numbers)
        merged: list[list[int]] = []
        for file, start, end in ranges:
            if merged and merged[-1][0] == file and merged[-1][2] == start:
                merged[-1][2] = end
            else:
                merged.append([file, start, end])
        for file, start, end in merged:
            self.windows.finish(file, start, end)

    def _report_known(self) -> None:
        """After a restart: what was durable before. Files without pieces are done at once."""
        known = self.journal.done | self.journal.staged
        pieces = self.layout.pieces
        self.progress.add(sum(pieces[n].end - pieces[n].start for n in known))
        self._report(known)
        used = {piece.file for piece in pieces}
        for number, item in enumerate(self.job.files):
            if number not in used:
                self.windows.finish(number, 0, item.bytes)

    def _finished_banks(self, fresh: set[int]) -> list[str]:
        """Banks that these pieces complete."""
        names = Counter(p.name for p in (self.layout.pieces[n] for n in fresh) if p.part)
        self.missing -= names
        return [name for name in names if not self.missing[name]]

    def _check_disk(self) -> None:
        need = self.writer.missing_bytes() + SPARE_BYTES
        have = files.free_bytes(self.job.target)
        if need > have:
            raise disk_full(need, have)

    def _finish(self) -> None:
        hidden = self.layout.model.hidden_size
        for name in self.layout.generated:
            self.writer.write_generated(name, generated_bytes(name, self.job.derive, hidden))
        self.writer.sync()
        small = {**self.source.small, "config.json": dump_json(self.source.config)}
        small["source.json"] = source_json(self.source, self.job)
        for name, data in small.items():
            files.write_atomic(self.job.target / name, data)
        checking = Progress(self.link, self.layout.total_bytes, "checking")

        def on_bytes(count: int) -> None:
            self.windows.poll()
            checking.add(count)

        faults.hit("convert.before_index")
        self.writer.write_index(self.source.family.name, self._origins(), list(small), on_bytes)

    def _origins(self) -> dict[str, Any]:
        """Source ranges of every region, neighbours joined."""
        ranges: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for piece in self.layout.pieces:
            known = ranges[piece.name]
            if known and known[-1]["file"] == piece.file and known[-1]["end"] == piece.start:
                known[-1]["end"] = piece.end
            else:
                known.append({"file": piece.file, "start": piece.start, "end": piece.end})
        origins: dict[str, Any] = {name: [] for name in self.layout.generated} | ranges
        derive = self.job.derive
        if derive is not None:
            for bank in self.layout.banks:
                origins[bank.name] = derived_origin(derive, ranges[bank.name])
            for name in self.layout.generated:
                if name.endswith(".router"):
                    origins[name] = derived_origin(derive, [])
        return origins


class Progress:
    """Progress lines, at most ten a second."""

    def __init__(self, link: Link, total: int, phase: str = "converting"):
        self._link = link
        self._total = total
        self._phase = phase
        self._completed = 0
        self._sent_s = float("-inf")

    def add(self, count: int) -> None:
        """Count bytes; says so when it is time."""
        self._completed += count
        now = clock.SYSTEM.monotonic()
        if now - self._sent_s >= PROGRESS_S or self._completed == self._total:
            self._sent_s = now
            counts = {"completed": self._completed, "total": self._total}
            self._link.send({"progress": {"phase": self._phase, **counts}})


def disk_full(need: int, have: int) -> CapacityError:
    """The error for a disk that cannot hold the rest of the conversion."""
    return CapacityError(
        f"converting needs {need} more bytes on disk, {have} are free", code="disk_full"
    )
