"""Reference of one routed layer: per expert gate, up, activation, down; slots summed in order."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftengine.errors import EngineError
from ftengine.kernels.operands import ExpertBank
from ftengine.quant import format_named
from ftengine.quant.panel32 import packed_bytes, unpack, unpack_pair

ONE = torch.ones(())
"""What stands for up where experts have no gate and up is what is activated."""


def activate(bank: ExpertBank, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """act(gate) * up, as the bank's activation has it."""
    if bank.activation == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    if bank.activation == "relu2":
        return F.relu(gate).square() * up
    if bank.activation == "swiglu_clamp":
        gate = gate.clamp(max=bank.limit)
        return (up.clamp(-bank.limit, bank.limit) + 1) * gate * torch.sigmoid(bank.alpha * gate)
    if bank.activation == "silu_clamp":
        return F.silu(gate.clamp(max=bank.limit)) * up.clamp(-bank.limit, bank.limit)
    return F.silu(gate) * up


def expert_weights(
    bank: ExpertBank, expert: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gate and up [inter, hidden] and down [hidden, inter] of one expert as float32.

    Where there is no gate both are up.
    """
    row = bank.data[expert].numpy()
    start = bank.layout.down_offset
    size = packed_bytes(bank.fmt_down, bank.hidden, bank.inter)
    raw_down = unpack(bank.fmt_down, row[start : start + size], bank.hidden, bank.inter)
    down = torch.from_numpy(format_named(bank.fmt_down).dequantize(raw_down))
    start = bank.layout.gate_up_offset
    gate_up = format_named(bank.fmt_gate_up)
    if not bank.gated:
        size = packed_bytes(bank.fmt_gate_up, bank.inter, bank.hidden)
        raw = unpack(bank.fmt_gate_up, row[start : start + size], bank.inter, bank.hidden)
        up = torch.from_numpy(gate_up.dequantize(raw))
        return up, up, down
    size = packed_bytes(bank.fmt_gate_up, bank.inter, bank.hidden, paired=True)
    pair = unpack_pair(bank.fmt_gate_up, row[start : start + size], bank.inter, bank.hidden)
    return (
        torch.from_numpy(gate_up.dequantize(pair[0])),
        torch.from_numpy(gate_up.dequantize(pair[1])),
        down,
    )


def expert_biases(bank: ExpertBank, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape: float32 [2 * inter], gate's before up's, and [hidden]; zeros where there are none."""
    if not bank.fmt_bias:
        return torch.zeros(2 * bank.inter), torch.zeros(bank.hidden)
    row, fmt = bank.data[expert].numpy(), format_named(bank.fmt_bias)
    found = []
    for start, count in (
        (bank.layout.gate_up_bias_offset, 2 * bank.inter),
        (bank.layout.down_bias_offset, bank.hidden),
    ):
        raw = row[start : start + fmt.row_bytes(count)].reshape(1, -1)
        found.append(torch.from_numpy(fmt.dequantize(raw).reshape(-1)))
    return found[0], found[1]


def expert_ffn(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bank: ExpertBank,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """Weighted sum of each token's experts, slots in order.

    Shape: x, out [n, hidden]; expert_ids int32 and weights float32 [n, k].
    Raises: EngineError("native_call") for an expert id out of range.
    """
    if expert_ids.numel() and not 0 <= int(expert_ids.min()) <= int(expert_ids.max()) < (
        bank.num_experts
    ):
        raise EngineError("expert_ffn: an expert id is out of range", code="native_call")
    parts = torch.zeros(*expert_ids.shape, bank.hidden)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        token, slot = torch.where(expert_ids == expert)
        gate, up, down = expert_weights(bank, expert)
        first, last = expert_biases(bank, expert)
        rows = x[token]
        other = rows @ up.T + first[bank.inter :] if bank.gated else ONE
        inner = activate(bank, rows @ gate.T + first[: bank.inter], other)
        parts[token, slot] = inner @ down.T + last
    result = torch.zeros(x.shape[0], bank.hidden)
    for place in range(expert_ids.shape[1]):
        result += weights[:, place, None] * parts[:, place]
    if out is None:
        return result
    return out.add_(result) if accumulate else out.copy_(result)
