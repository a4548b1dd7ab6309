"""Experts that no fused kernel knows, of plain matrix products: with biases, without gates.

The bank is read in place: the panels of gate and up are one packed matrix whose rows come 16 of
gate, 16 of up in turn. Without a gate the first part is a plain matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftengine.errors import EngineError
from ftengine.kernels.operands import ExpertBank, PackedWeight
from ftengine.kernels.reference.expert_ffn import ONE, activate, expert_biases
from ftengine.quant.panel32 import PAIR_ROWS, packed_bytes

LinearKernel = Callable[[torch.Tensor, PackedWeight], torch.Tensor]
"""x [n, cols], weight [rows, cols] -> [n, rows]."""


def expert_ffn(
    linear: LinearKernel,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bank: ExpertBank,
) -> torch.Tensor:
    """Weighted sum of each token's experts, slots in order. Shape: as reference/expert_ffn.py.

    Raises: EngineError("native_call") for an expert id out of range.
    """
    ids = expert_ids.flatten().tolist()
    if ids and not 0 <= min(ids) <= max(ids) < bank.num_experts:
        raise EngineError("expert_ffn: an expert id is out of range", code="native_call")
    parts = torch.zeros(*expert_ids.shape, bank.hidden)
    for expert in sorted(set(ids)):
        token, slot = torch.where(expert_ids == expert)
        parts[token, slot] = _one_expert(linear, x[token], bank, expert)
    result = torch.zeros(x.shape[0], bank.hidden)
    for place in range(expert_ids.shape[1]):
        result += weights[:, place, None] * parts[:, place]
    return result


def _one_expert(
    linear: LinearKernel, x: torch.Tensor, bank: ExpertBank, expert: int
) -> torch.Tensor:
    row, layout, inter = bank.data[expert], bank.layout, bank.inter
    down = _weight(row, layout.down_offset, bank.fmt_down, bank.hidden, inter)
    if not bank.gated:
        up = linear(x, _weight(row, layout.gate_up_offset, bank.fmt_gate_up, inter, bank.hidden))
        return linear(activate(bank, up, ONE), down)
    first, last = expert_biases(bank, expert)
    panels = -(-inter // PAIR_ROWS)
    pair_rows = 2 * panels * PAIR_ROWS
    pair = _weight(row, layout.gate_up_offset, bank.fmt_gate_up, pair_rows, bank.hidden)
    both = linear(x, pair).view(-1, panels, 2, PAIR_ROWS)
    gate = both[:, :, 0].reshape(-1, panels * PAIR_ROWS)[:, :inter] + first[:inter]
    up = both[:, :, 1].reshape(-1, panels * PAIR_ROWS)[:, :inter] + first[inter:]
    inner = activate(bank, gate, up).contiguous()
    return linear(inner, down).add_(last)


def _weight(row: torch.Tensor, start: int, fmt: str, rows: int, cols: int) -> PackedWeight:
    return PackedWeight(row[start : start + packed_bytes(fmt, rows, cols)], fmt, rows, cols)
