"""Expert banks that are not read into memory at load: rows of the weight files mapped read-only.

On disk: the system keeps in memory what fits and drops it again when memory is short, but for the
rows that are read most often (experts/hot.py). In the page cache: borrowed until they are moved
(borrowed.py), and the embedding with them. Everything else of a model is read as load.py does.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from ftengine.experts.banks import BankShape, bank_in_place
from ftengine.experts.host import Readahead
from ftengine.experts.hot import LockedRows
from ftengine.kernels.dispatch import ExpertBank
from ftengine.loader.bank_parts import BankParts
from ftengine.loader.borrowed import BorrowedBanks
from ftengine.loader.cached_file import CachedFile
from ftengine.loader.ftw import ALIGN_BYTES, FtwBank, FtwModel, FtwTensor
from ftengine.loader.load import FtwWeights
from ftengine.loader.stored import SCALE_FORMATS
from ftengine.quant.base import Bytes

_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
_RANDOM: int | None = getattr(mmap, "MADV_RANDOM", None)


def can_map(bank: FtwBank) -> bool:
    """Whether the kernels can read this bank's rows as they lie in the file."""
    return all(part.layout != "rows" for part in bank.parts)


def mappable_bytes(model: FtwModel) -> int:
    """Bytes of the banks that may stay on disk."""
    return sum(bank.bytes for bank in model.index.banks if can_map(bank))


class TieredWeights(FtwWeights):
    """FtwWeights whose expert banks are mapped where their layout allows.

    on_disk: all of them, and they stay there; else those in files that the model has mapped.
    lock_bytes: memory that may be locked for the rows read most often.
    """

    def __init__(
        self,
        model: FtwModel,
        compute: str,
        on_bytes: Callable[[int], None],
        on_disk: bool,
        lock_bytes: int = 0,
    ) -> None:
        super().__init__(model, compute, on_bytes)
        self._on_disk = on_disk
        self._mapped: dict[str, MappedRows] = {}
        self._reads: dict[str, Callable[[Iterable[int]], None]] = {}
        self.locked = LockedRows(lock_bytes)
        self.borrowed = BorrowedBanks()

    @property
    def held_bytes(self) -> int:
        """Bytes taken so far for weights that stay, and to be taken for those that are borrowed."""
        return super().held_bytes + self.borrowed.total_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """As FtwWeights.notes, and what is locked."""
        return (*super().notes, *filter(None, [self.locked.note]))

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the banks left on disk."""
        return sum(item.num_bytes for item in self._mapped.values())

    def readahead(self, name: str) -> Readahead | None:
        """How to ask for a bank's rows ahead of time; None where they are in memory."""
        found = self._mapped.get(name)
        if found is None:
            return None
        rows, counted = found, self._reads[name]

        def will_read(experts: Iterable[int]) -> None:
            wanted = tuple(experts)
            rows.will_read(wanted)
            counted(wanted)

        return will_read

    def _read_bank(self, entry: FtwBank, parts: BankParts, shape: BankShape) -> ExpertBank:
        if not can_map(entry):
            return super()._read_bank(entry, parts, shape)
        if not self._on_disk:
            return self._borrow(entry, parts, shape) or super()._read_bank(entry, parts, shape)
        path = self._model.path / self._model.index.shards[entry.shard].file
        rows = map_rows(path, entry)
        self._mapped[entry.name] = rows
        self._on_bytes(entry.bytes)
        data = rows.tensor().view(entry.num_experts, entry.row_bytes)
        self._reads[entry.name] = self.locked.add_bank(data.data_ptr(), entry.row_bytes)
        return bank_in_place(data, parts.layout(entry.row_bytes), parts.formats, shape)

    def _keep(self, entry: FtwTensor, data: Bytes) -> torch.Tensor:
        file = self._model.cached(entry)
        if file is None or entry.format in SCALE_FORMATS:
            return super()._keep(entry, data)
        padded = -(-entry.bytes // ALIGN_BYTES) * ALIGN_BYTES
        return self._borrowed(file, entry.offset, padded)[: entry.bytes].view(data.shape)

    def _borrow(self, entry: FtwBank, parts: BankParts, shape: BankShape) -> ExpertBank | None:
        file = self._model.cached(entry)
        if file is None:
            return None
        self._on_bytes(entry.bytes)
        held = self._borrowed(file, entry.offset, entry.bytes)
        data = held.view(entry.num_experts, entry.row_bytes)
        return bank_in_place(data, parts.layout(entry.row_bytes), parts.formats, shape)

    def _borrowed(self, file: CachedFile, start: int, num_bytes: int) -> torch.Tensor:
        """Whole pages of a file, used there until they are moved. Shape: uint8 [num_bytes]."""
        self.borrowed.add(file, start, num_bytes)
        return torch.frombuffer(file.view, dtype=torch.uint8, count=num_bytes, offset=start)


@dataclass(frozen=True)
class MappedRows:
    """One bank of a mapped file. Units: bytes; start = first row from the mapping's beginning."""

    mapping: mmap.mmap
    start: int
    row_bytes: int
    num_rows: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * self.num_rows

    def tensor(self) -> torch.Tensor:
        """The rows, read-only: writing would end the process. Shape: uint8 [num_bytes]."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has no read-only tensors and says so
            return torch.frombuffer(
                self.mapping, dtype=torch.uint8, count=self.num_bytes, offset=self.start
            )

    def will_read(self, experts: Iterable[int]) -> None:
        """Start reading rows from disk, each in one piece."""
        if _WILL_NEED is None:
            return
        for expert in experts:
            self.mapping.madvise(_WILL_NEED, self.start + expert * self.row_bytes, self.row_bytes)


def map_rows(path: Path, bank: FtwBank) -> MappedRows:
    """Map a bank's rows, whose readahead is then asked for row by row."""
    first = bank.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    start = bank.offset - first
    with path.open("rb") as file:
        mapping = mmap.mmap(
            file.fileno(), start + bank.bytes, access=mmap.ACCESS_READ, offset=first
        )
    if _RANDOM is not None:
        mapping.madvise(_RANDOM)
    return MappedRows(mapping, start, bank.row_bytes, bank.num_experts)
