"""States of recurrent layers: one slot per running sequence, and copies of slots as checkpoints.

A slot is one row of float32: the parts of every layer side by side. So clearing or copying a
sequence's state is one copy of a row. Slots of checkpoints follow those of running
sequences. Unlike pages a state cannot be cut back to an earlier token: only a checkpoint taken
there leads back. Who holds which slot is the scheduler's business; which checkpoints are kept is
the prefix cache's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ftengine.kernels.row_copies import CopyRows, torch_copy_rows
from ftengine.kernels.state_operands import StateRows

StateShapes = tuple[tuple[int, ...], ...]
"""The parts of one layer's state of one sequence."""

_ALIGN_ITEMS = 16
"""Parts start on a cache line, whatever the slot, so that no kernel sees another alignment."""


class StatePool:
    """num_slots states of the layers given, all zero at first, and num_checkpoints to copy to.

    layers: shapes of the recurrent layers only, in layer order. allocate: as KvPool has it.
    """

    def __init__(
        self,
        layers: Sequence[StateShapes],
        num_slots: int,
        allocate: Callable[[int], torch.Tensor],
        num_checkpoints: int = 0,
    ) -> None:
        self.num_slots = num_slots
        self.num_checkpoints = num_checkpoints
        self._places, self._width = _places(layers)
        count = num_slots + num_checkpoints
        rows = allocate(4 * count * self._width).view(torch.float32)
        self._rows = rows.view(count, self._width)
        self._rows[:num_slots].zero_()
        self._layer_rows: dict[int, StateRows] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self._rows.numel() * self._rows.element_size()

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one slot, or of one checkpoint."""
        return 4 * self._width

    def parts(self, layer: int, slot: int) -> tuple[torch.Tensor, ...]:
        """One layer's state of one slot, as views to be changed in place."""
        row = self._rows[slot]
        return tuple(row[at:end].view(shape) for at, end, shape in self._places[layer])

    def layer_rows(self, layer: int) -> StateRows:
        """One layer's states of all slots, as kernels find them."""
        found = self._layer_rows.get(layer)
        if found is None:
            found = StateRows(self.parts(layer, 0), self._width, self._rows.shape[0])
            self._layer_rows[layer] = found
        return found

    def keep(self, layer: int, slot: int, checkpoint: int) -> None:
        """Copy one layer's state of a slot to a checkpoint's, in the middle of a step."""
        parts = zip(self.parts(layer, slot), self.parts(layer, checkpoint), strict=True)
        for mine, kept in parts:
            kept.copy_(mine)

    def reset(self, slot: int) -> None:
        """The state before the first token."""
        with torch.inference_mode():
            self._rows[slot].zero_()

    def copy(self, source: int, target: int, copy_rows: CopyRows = torch_copy_rows) -> None:
        """Give one slot's state to another, for a branch of a conversation."""
        rows = self._rows.unsqueeze(0)
        copy_rows(rows, (source,), rows, (target,))

    def rows(self) -> torch.Tensor:
        """The bytes of all slots, as a view. Shape: uint8 [slots, bytes_per_slot]."""
        return self._rows.view(torch.uint8)


def slot_bytes(layers: Sequence[StateShapes]) -> int:
    """Bytes of one slot, filling included."""
    return 4 * _places(layers)[1]


def _places(
    layers: Sequence[StateShapes],
) -> tuple[list[list[tuple[int, int, tuple[int, ...]]]], int]:
    """(start, end, shape) of every part of every layer, and the width of a row."""
    found: list[list[tuple[int, int, tuple[int, ...]]]] = []
    at = 0
    for shapes in layers:
        parts = []
        for shape in shapes:
            end = at + math.prod(shape)
            parts.append((at, end, shape))
            at = -(-end // _ALIGN_ITEMS) * _ALIGN_ITEMS
        found.append(parts)
    return found, at
