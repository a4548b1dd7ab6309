"""FTW -> Decoder: streams a model in, one tensor at a time, with its progress counted.

Peak memory is what stays plus the largest tensor two or three times (raw, widened, packed).
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ftengine.device.torch_device import PAGE_BYTES, WeightArena, page_aligned
from ftengine.errors import FormatError, LoadError
from ftengine.experts import repack
from ftengine.experts.banks import (
    BankBuilder,
    BankShape,
    PackedExpert,
    bank_in_place,
    pack_gate_up,
    pack_plain,
)
from ftengine.experts.repack import Rows
from ftengine.kernels.dispatch import ExpertBank, PackedWeight
from ftengine.loader.bank_parts import BankParts, bank_parts, bank_shape
from ftengine.loader.ftw import FtwBank, FtwModel, FtwTensor
from ftengine.loader.ftw_index import PLAIN_FORMATS
from ftengine.loader.joined import Scales, joined_rows
from ftengine.loader.sizes import bank_bytes, check_tensor, tensor_bytes
from ftengine.loader.stored import SCALE_FORMATS, row_format, scale_shapes
from ftengine.models.families import family_named
from ftengine.models.spec import Activation, ModelConfig
from ftengine.models.weight_names import (
    BIAS_PARTS,
    UP_ALONE,
    RowPick,
    number_bytes,
    wanted_banks,
    wanted_tensors,
)
from ftengine.quant import format_named, panel32
from ftengine.quant.base import Bytes
from ftman import files

log = logging.getLogger(__name__)

WIDE = {"bfloat16": "bf16", "float32": "f32"}
"""compute setting -> format of weights that have no kernel form of their own."""


def read_model_config(model: FtwModel) -> ModelConfig:
    """The model's config, with the stop ids of generation_config.json added.

    Raises: LoadError for a family that is not built.
    """
    config = family_named(model.index.family).read_config(model.config)
    path = model.path / "generation_config.json"
    if not path.exists():
        return config
    try:
        found = json.loads(files.read_bytes(path, limit=1 << 20))["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return config
    more = found if isinstance(found, list) else [found]
    ids = dict.fromkeys((*config.eos_ids, *(item for item in more if type(item) is int)))
    return dataclasses.replace(config, eos_ids=tuple(ids))


def check_complete(model: FtwModel, config: ModelConfig) -> None:
    """Compare the index with what the config asks for. Raises: LoadError naming the weight."""
    tensors = {item.name: item.shape for item in model.index.tensors}
    for name, wanted in wanted_tensors(config).items():
        if name not in tensors:
            raise LoadError(f"{model.path} has no tensor {name}; pull the model again")
        if tensors[name] != wanted.shape:
            raise LoadError(f"{name} has shape {tensors[name]}; the config asks for {wanted.shape}")
    banks = {item.name: item for item in model.index.banks}
    for name, bank in wanted_banks(config).items():
        if name not in banks:
            raise LoadError(f"{model.path} has no bank {name}; pull the model again")
        found_sizes = (banks[name].num_experts, banks[name].part("down").shape)
        if found_sizes != (bank.num_experts, (bank.hidden, bank.inter)):
            raise LoadError(f"{name} holds {found_sizes}; the config asks for {bank}")
        if bank.gated != all(part.name != UP_ALONE for part in banks[name].parts):
            raise LoadError(f"{name}: the config says otherwise about a gate; pull the model again")
        if bank.bias != any(part.name in BIAS_PARTS for part in banks[name].parts):
            said = "the config asks for" if bank.bias else "the config knows no"
            raise LoadError(f"{name}: {said} biases of experts; pull the model again")


def kernel_bytes(model: FtwModel, compute: str) -> int:
    """Bytes the weights take in memory, from the index alone.

    The embedding stays as stored; a tied head is packed beside it.
    """
    wide = WIDE[compute]
    beside = {name for item in model.index.tensors for name in (item.scales, item.factor)}
    total = sum(tensor_bytes(t, wide) for t in model.index.tensors if t.name not in beside)
    total += sum(bank_bytes(item, wide) for item in model.index.banks)
    embed = model.index.tensor("embed")
    if embed is not None:
        total += embed.bytes
        if model.index.tensor("head") is not None:
            total -= tensor_bytes(embed, wide)
    return total


class FtwWeights:
    """The weights of an open FTW as models.build wants them (build.Weights).

    on_bytes is told of every byte read; it may raise to stop the load.
    """

    def __init__(self, model: FtwModel, compute: str, on_bytes: Callable[[int], None]) -> None:
        self._model = model
        self._wide = WIDE[compute]
        self._on_bytes = on_bytes
        self._arena = WeightArena()
        self._tensors = {item.name: item for item in model.index.tensors}
        self._banks = {item.name: item for item in model.index.banks}
        self._widened: set[str] = set()
        self._shared: dict[str, Rows] = {}
        self._apart: tuple[str, Rows] | None = None
        self._counted: set[str] = set()
        self._number_bytes = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the weights are held."""
        return tuple(
            f"reference path: {name} dequantised at load to {self._wide}"
            for name in sorted(self._widened)
        )

    @property
    def held_bytes(self) -> int:
        """Bytes taken so far for weights that stay."""
        return self._arena.taken_bytes + self._number_bytes

    def has(self, name: str) -> bool:
        """Whether the model holds a tensor of this name."""
        return name in self._tensors

    def vector(self, name: str) -> torch.Tensor:
        """All values in storage order. Shape: float32 [n]. Raises: LoadError."""
        entry = self._tensor(name)
        if entry.format not in PLAIN_FORMATS:
            raise FormatError(f"{name} has format {entry.format}; a plain vector was expected")
        raw = self._read(entry).reshape(1, -1)
        values = format_named(entry.format).dequantize(raw)
        return torch.from_numpy(values.reshape(-1).copy())

    def matrix(self, name: str) -> torch.Tensor:
        """A matrix as numbers. Shape: float32 [rows, cols]. Raises: LoadError."""
        rows = self._whole(name)
        values = format_named(rows.fmt).dequantize(rows.data)
        self._number_bytes += number_bytes(name) * values.size
        return torch.from_numpy(values.reshape(-1, rows.cols).copy())

    def table(self, name: str) -> tuple[torch.Tensor, str]:
        """Rows as stored, and their format. Shape: uint8 [rows, row_bytes]. Raises: LoadError."""
        entry = self._tensor(name)
        rows = self._rows(RowPick(name))
        held = self._keep(entry, rows.data)
        self._shared[name] = Rows(held.numpy(), rows.fmt, rows.cols)
        return held, entry.format

    def _keep(self, entry: FtwTensor, data: Bytes) -> torch.Tensor:
        """Bytes of a tensor in memory that stays. Shape: as data."""
        del entry
        held = self._arena.take(data.size)
        held.numpy()[:] = data.reshape(-1)
        return held.view(data.shape)

    def packed(self, picks: Sequence[RowPick]) -> list[PackedWeight]:
        """Matrices one below the other, neighbours of one format joined. Raises: LoadError."""
        groups: list[list[Rows]] = []
        for pick in picks:
            rows = self._widen(self._rows(pick))
            if groups and _may_join(groups[-1][-1], rows):
                groups[-1].append(rows)
            else:
                groups.append([rows])
        return [self._pack(group) for group in groups]

    def dense_bank(
        self, gate: RowPick | None, up: RowPick, down: RowPick, activation: Activation
    ) -> ExpertBank:
        """A dense MLP as a bank of one expert. Raises: LoadError."""
        first = None if gate is None else self._rows(gate)
        second, third = self._rows(up), self._rows(down)
        shape = BankShape(1, second.cols, second.data.shape[0], activation)
        gate_up, fmt_gate_up = self._first_part(first, second)
        packed_down, fmt_down = pack_plain(third, self._wide)
        self._note(third.fmt, fmt_down)
        builder = BankBuilder(shape, self._arena.take)
        builder.put(0, PackedExpert(gate_up, fmt_gate_up, packed_down, fmt_down))
        return builder.finish()

    def _first_part(self, gate: Rows | None, up: Rows) -> tuple[Bytes, str]:
        """gate and up, or up alone, as the kernels read them, and their format."""
        if gate is None:
            packed, fmt = pack_plain(up, self._wide)
        else:
            packed, fmt = pack_gate_up(gate, up, self._wide)
            self._note(gate.fmt, fmt)
        self._note(up.fmt, fmt)
        return packed, fmt

    def bank(self, name: str, activation: Activation) -> ExpertBank:
        """All experts of one layer, in place where their layout allows. Raises: LoadError."""
        entry = self._banks.get(name)
        if entry is None:
            raise LoadError(f"{self._model.path} has no bank {name}; pull the model again")
        parts = bank_parts(entry)
        return self._read_bank(entry, parts, bank_shape(entry, parts, activation))

    def _read_bank(self, entry: FtwBank, parts: BankParts, shape: BankShape) -> ExpertBank:
        take = self._arena.take if parts.in_place else page_aligned
        data = take(entry.bytes)
        self._model.read(entry, data.numpy().data)
        self._on_bytes(entry.bytes)
        rows = data.view(entry.num_experts, entry.row_bytes)
        if parts.in_place:
            return bank_in_place(rows, parts.layout(entry.row_bytes), parts.formats, shape)
        builder = BankBuilder(shape, self._arena.take)
        for expert in range(entry.num_experts):
            builder.put(expert, self._repack(rows[expert].numpy(), parts, shape))
        return builder.finish()

    def _repack(self, row: Bytes, parts: BankParts, shape: BankShape) -> PackedExpert:
        gate_up, down = parts.gate_up, parts.down
        first = row[gate_up.offset : gate_up.offset + gate_up.bytes]
        second = row[down.offset : down.offset + down.bytes]
        packed_first, fmt_first = first, gate_up.format
        if gate_up.layout == "rows":
            halves = first.reshape(-1, shape.inter, first.size // gate_up.shape[0])
            rows = [Rows(half, gate_up.format, shape.hidden) for half in halves]
            packed_first, fmt_first = self._first_part(
                rows[0] if shape.activation.gated else None, rows[-1]
            )
        packed_second, fmt_second = second, down.format
        if down.layout == "rows":
            last = Rows(second.reshape(shape.hidden, -1), down.format, shape.inter)
            packed_second, fmt_second = pack_plain(last, self._wide)
            self._note(down.format, fmt_second)
        return PackedExpert(packed_first, fmt_first, packed_second, fmt_second)

    def _tensor(self, name: str) -> FtwTensor:
        entry = self._tensors.get(name)
        if entry is None:
            raise LoadError(f"{self._model.path} has no tensor {name}; pull the model again")
        return entry

    def _rows(self, pick: RowPick) -> Rows:
        """A matrix, or some of its rows; the last one taken apart is kept until the next is."""
        if not pick.groups:
            return self._whole(pick.name)
        if self._apart is None or self._apart[0] != pick.name:
            self._apart = (pick.name, self._whole(pick.name))
        rows = self._apart[1]
        if repack.shares_rows(rows.fmt) and not _keeps_panels(pick, rows):
            rows = repack.dequantized(rows, self._wide)
            self._note(self._apart[1].fmt, rows.fmt)
        return repack.picked(rows, pick.groups, pick.start, pick.stop)

    def _whole(self, name: str) -> Rows:
        if name in self._shared:
            return self._shared[name]
        entry = self._tensor(name)
        if len(entry.shape) != 2 or entry.format not in (*PLAIN_FORMATS, *SCALE_FORMATS):
            raise FormatError(
                f"{name} is {entry.format} of shape {entry.shape}; a matrix of weights was expected"
            )
        raw = self._read(entry)
        if entry.format in SCALE_FORMATS:
            raw = self._joined(entry, raw)
        return Rows(raw.reshape(entry.shape[0], -1), row_format(entry.format), entry.shape[1])

    def _joined(self, entry: FtwTensor, codes: Bytes) -> Bytes:
        """A quantised matrix with its scales in its rows. Shape: uint8 [rows, row_bytes]."""
        scales = self._tensor(entry.scales)
        factor = self._read(self._tensor(entry.factor)) if entry.factor else None
        found = Scales(self._read(scales), scales.format)
        shape = (entry.shape[0], entry.shape[1])
        try:
            if scales.shape not in scale_shapes(entry.format, *shape):
                raise ValueError(f"scales of shape {scales.shape} do not fit {shape}")
            return joined_rows(entry.format, shape, codes, found, factor)
        except ValueError as error:
            raise FormatError(f"{self._model.path}: {entry.name}: {error}") from None

    def _read(self, entry: FtwTensor) -> Bytes:
        check_tensor(entry)
        if entry.name not in self._counted:
            self._counted.add(entry.name)
            self._on_bytes(entry.bytes)
        cached = self._model.cached(entry)
        if cached is not None:
            view = cached.span(entry.offset, entry.offset + entry.bytes)
            return np.frombuffer(view.toreadonly(), np.uint8)
        padded = -(-entry.bytes // PAGE_BYTES) * PAGE_BYTES
        data = page_aligned(padded).numpy()
        self._model.read(entry, data.data)
        result: Bytes = data[: entry.bytes]
        return result

    def _widen(self, rows: Rows) -> Rows:
        wide = repack.widen(rows, self._wide)
        self._note(rows.fmt, wide.fmt)
        return wide

    def _pack(self, group: list[Rows]) -> PackedWeight:
        fmt, cols = group[0].fmt, group[0].cols
        count = sum(item.data.shape[0] for item in group)
        try:
            held = self._arena.take(panel32.packed_bytes(fmt, count, cols))
            left = held.numpy()
            for data in _stacked(group):
                size = panel32.packed_bytes(fmt, data.shape[0], cols)
                panel32.pack(fmt, data, left[:size])
                left = left[size:]
        except ValueError as error:
            raise LoadError(f"a weight cannot be laid out for the kernels: {error}") from None
        return PackedWeight(held, fmt, count, cols)

    def _note(self, stored: str, used: str) -> None:
        if stored != used and stored not in ("f32", "f16", "bf16"):
            self._widened.add(stored)


def _keeps_panels(pick: RowPick, rows: Rows) -> bool:
    """Whether rows that share block scales, 16 at a time, stay together."""
    size = rows.data.shape[0] // pick.groups
    return not any(item % panel32.PAIR_ROWS for item in (size, pick.start, pick.stop))


def _stacked(group: list[Rows]) -> list[Bytes]:
    """Rows one below the other: as they are where each ends with its panel, else copied."""
    parts = [item.data for item in group]
    if any(part.shape[0] % panel32.PANEL_ROWS for part in parts[:-1]):
        return [np.concatenate(parts)]
    return parts


def _may_join(last: Rows, rows: Rows) -> bool:
    """Whether two matrices may be one: panels of 16 rows share their block scales."""
    same = (last.fmt, last.cols) == (rows.fmt, rows.cols)
    return same and (
        not repack.shares_rows(rows.fmt) or last.data.shape[0] % panel32.PAIR_ROWS == 0
    )
