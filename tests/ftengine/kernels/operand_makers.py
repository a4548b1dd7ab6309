"""Random packed weights, expert banks and paged sequences for kernel tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ftengine.kernels.operands import PAGE_TOKENS, ExpertBank, HeadLayout, PackedWeight
from ftengine.quant import format_named, panel32

PLAIN = ("f32", "f16", "bf16")
FORMATS = (*PLAIN, "q8_0", "q4_0", "q4_1")


def random_rows(fmt: str, rows: int, cols: int, seed: int) -> np.ndarray:
    """Encoded Gaussian rows. Shape: uint8 [rows, row_bytes]."""
    values = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    return format_named(fmt).quantize(values * np.float32(0.05))


def make_weight(fmt: str, rows: int, cols: int, seed: int = 0) -> PackedWeight:
    packed = panel32.pack(fmt, random_rows(fmt, rows, cols, seed))
    return PackedWeight(torch.from_numpy(packed).clone(), fmt, rows, cols)


def make_bank(
    gate_up: str, down: str, experts: int, hidden: int, inter: int, activation: str = "silu"
) -> ExpertBank:
    layout = panel32.expert_layout(gate_up, down, hidden, inter)
    data = torch.zeros(experts, layout.row_bytes, dtype=torch.uint8)
    for expert in range(experts):
        gate, up = (random_rows(gate_up, inter, hidden, 3 * expert + i) for i in (0, 1))
        pair = torch.from_numpy(panel32.pack_pair(gate_up, gate, up))
        last = torch.from_numpy(
            panel32.pack(down, random_rows(down, hidden, inter, 3 * expert + 2))
        )
        data[expert, layout.gate_up_offset : layout.gate_up_offset + len(pair)] = pair
        data[expert, layout.down_offset : layout.down_offset + len(last)] = last
    return ExpertBank(data, layout, gate_up, down, hidden, inter, activation=activation)


def route(tokens: int, slots: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.rand(tokens, experts).topk(slots, dim=1).indices.int().contiguous()
    return ids, torch.rand(tokens, slots)


@dataclass(frozen=True)
class Paged:
    """Sequences over pages in random order; new tokens are the last `new` of each `length`."""

    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    page_table: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def make_paged(
    heads: HeadLayout, sequences: list[tuple[int, int]], dtype: torch.dtype = torch.float32
) -> Paged:
    """Pools are filled up to each context; every other slot is NaN, so that a stray read shows."""
    counts = [-(-length // PAGE_TOKENS) for _, length in sequences]
    total = sum(counts) + 3
    order = torch.randperm(total).int()
    table = torch.zeros(len(sequences), max(counts), dtype=torch.int32)
    shape = (total, heads.kv_heads, PAGE_TOKENS, heads.head_dim)
    keys, values = (torch.full(shape, float("nan")).to(dtype) for _ in range(2))
    positions: list[int] = []
    slots: list[int] = []
    starts, used = [0], 0
    for index, (new, length) in enumerate(sequences):
        pages = order[used : used + counts[index]]
        used += counts[index]
        table[index, : len(pages)] = pages
        at = torch.arange(length)
        page, place = pages[at // PAGE_TOKENS].long(), at % PAGE_TOKENS
        keys[page, :, place] = torch.randn(length, heads.kv_heads, heads.head_dim).to(dtype)
        values[page, :, place] = torch.randn(length, heads.kv_heads, heads.head_dim).to(dtype)
        positions += at[length - new :].tolist()
        slots += (page * PAGE_TOKENS + place)[length - new :].tolist()
        starts.append(starts[-1] + new)
    return Paged(
        torch.tensor(positions, dtype=torch.int32),
        torch.tensor(slots, dtype=torch.int64),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([length for _, length in sequences], dtype=torch.int32),
        table,
        keys,
        values,
    )
