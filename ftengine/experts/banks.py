"""Host banks: one row per expert, in the layout the kernels read in place.

Reading files is the loader's business; here rows become banks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ftengine.experts.repack import Rows, same_format, widen
from ftengine.kernels.dispatch import ExpertBank
from ftengine.models.spec import SILU, Activation
from ftengine.quant import panel32
from ftengine.quant.base import Bytes


@dataclass(frozen=True)
class BankShape:
    """Sizes of every expert of a bank. gate and up are [inter, hidden], down [hidden, inter].

    Whether there is a gate stands in the activation.
    """

    num_experts: int
    hidden: int
    inter: int
    activation: Activation = SILU


@dataclass(frozen=True)
class BankFormats:
    """Formats of a bank's parts; bias is "" where experts have none."""

    gate_up: str
    down: str
    bias: str = ""


@dataclass(frozen=True)
class PackedExpert:
    """One expert ready for the kernels. Shape: uint8, panel32 (gate_up in pair form).

    gate_up is up alone, in plain form, where there is no gate.
    """

    gate_up: Bytes
    fmt_gate_up: str
    down: Bytes
    fmt_down: str


def pack_gate_up(gate: Rows, up: Rows, wide: str) -> tuple[Bytes, str]:
    """The pair form of gate and up; both widened if their formats differ."""
    first, second = same_format([gate, up], wide)
    return panel32.pack_pair(first.fmt, first.data, second.data), first.fmt


def pack_plain(matrix: Rows, wide: str) -> tuple[Bytes, str]:
    """The plain form, of down, and of up where there is no gate."""
    rows = widen(matrix, wide)
    return panel32.pack(rows.fmt, rows.data), rows.fmt


class BankBuilder:
    """Fills a bank expert by expert. The first one decides the formats; all must agree.

    take: num_bytes -> uint8 [num_bytes] that stays, page-aligned.
    """

    def __init__(self, shape: BankShape, take: Callable[[int], torch.Tensor]) -> None:
        self._shape = shape
        self._take = take
        self._bank: ExpertBank | None = None

    def put(self, expert: int, packed: PackedExpert) -> None:
        """Store one expert's row."""
        bank = self._bank or self._make(packed)
        assert (packed.fmt_gate_up, packed.fmt_down) == (bank.fmt_gate_up, bank.fmt_down)
        row = bank.data[expert].numpy()
        _put(row, bank.layout.gate_up_offset, packed.gate_up)
        _put(row, bank.layout.down_offset, packed.down)

    def finish(self) -> ExpertBank:
        """The filled bank."""
        assert self._bank is not None, "a bank needs at least one expert"
        return self._bank

    def _make(self, packed: PackedExpert) -> ExpertBank:
        shape = self._shape
        layout = panel32.expert_layout(
            packed.fmt_gate_up,
            packed.fmt_down,
            shape.hidden,
            shape.inter,
            gated=shape.activation.gated,
        )
        data = self._take(shape.num_experts * layout.row_bytes)
        rows = data.view(shape.num_experts, layout.row_bytes)
        formats = BankFormats(packed.fmt_gate_up, packed.fmt_down)
        self._bank = bank_in_place(rows, layout, formats, shape)
        return self._bank


def bank_in_place(
    data: torch.Tensor, layout: panel32.ExpertLayout, formats: BankFormats, shape: BankShape
) -> ExpertBank:
    """A bank over rows that are in kernel form already. Shape: data uint8 [experts, row_bytes]."""
    activation = shape.activation
    return ExpertBank(
        data,
        layout,
        formats.gate_up,
        formats.down,
        shape.hidden,
        shape.inter,
        activation=activation.kind,
        alpha=activation.alpha,
        limit=activation.limit,
        fmt_bias=formats.bias,
        gated=activation.gated,
    )


def _put(row: Bytes, offset: int, part: Bytes) -> None:
    row[offset : offset + part.size] = np.ascontiguousarray(part).reshape(-1)
