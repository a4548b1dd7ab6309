"""Random packed weights, expert banks and paged sequences for kernel tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ftengine.kernels.operands import PAGE_TOKENS, ExpertBank, HeadLayout, PackedWeight
from ftengine.quant import format_named, fp8, mxfp4, nvfp4, panel32

PLAIN = ("f32", "f16", "bf16")
TABLES = (*PLAIN, "q8_0", "q4_0", "q4_1")
RELEASED = (
    "mxfp4",
    "mxfp4_gguf",
    "nvfp4",
    "nvfp4_div",
    "fp8_tensor",
    "fp8_block",
    "fp8_block_e8m0",
)
BLOCKS = {"q5_0": (0,), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Formats that are only read, and where the float16 fields of a block stand."""
FORMATS = (*TABLES, *RELEASED, *BLOCKS)


def random_rows(fmt: str, rows: int, cols: int, seed: int) -> np.ndarray:
    """Encoded rows of about 0.05: Gaussian, or random codes. Shape: uint8 [rows, row_bytes]."""
    rng = np.random.default_rng(seed)
    if fmt in RELEASED:
        return _released_rows(fmt, rows, cols, rng)
    if fmt in BLOCKS:
        return _block_rows(fmt, rows, cols, rng)
    values = rng.standard_normal((rows, cols)).astype(np.float32)
    return format_named(fmt).quantize(values * np.float32(0.05))


def _released_rows(fmt: str, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Any code that is a number, with scales that differ widely and are numbers too."""
    if fmt.startswith("mxfp4"):
        quants = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
        return mxfp4.join_rows(quants, rng.integers(118, 124, (rows, cols // 32), dtype=np.uint8))
    if fmt.startswith("nvfp4"):
        quants = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
        scales = rng.integers(0, 127, (rows, cols // 16), dtype=np.uint8)
        scales |= rng.integers(0, 2, scales.shape, dtype=np.uint8) << 7
        factor = rng.uniform(1e-4, 2e-4, rows).astype(np.float32)
        return nvfp4.join_rows(quants, scales, 1 / factor if fmt == "nvfp4_div" else factor)
    codes = rng.integers(0, 127, (rows, cols), dtype=np.uint8)
    codes |= rng.integers(0, 2, codes.shape, dtype=np.uint8) << 7
    if fmt == "fp8_tensor":
        return fp8.join_tensor_rows(codes, rng.uniform(2e-4, 4e-4, rows).astype(np.float32))
    grid = (-(-rows // 128), -(-cols // 128))
    if fmt == "fp8_block":
        return fp8.join_block_rows(codes, rng.uniform(2e-4, 4e-4, grid).astype(np.float32))
    return fp8.join_block_rows(codes, rng.integers(113, 117, grid, dtype=np.uint8))


def _block_rows(fmt: str, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Any codes, under float16 scales that keep the weights small."""
    quant = format_named(fmt)
    blocks = rng.integers(0, 256, (rows * cols // quant.block_elements, quant.block_bytes))
    raw = blocks.astype(np.uint8)
    largest = {"q5_0": 3e-3, "q5_1": 3e-3, "q6_k": 3e-5}.get(fmt, 1e-4)
    for at in BLOCKS[fmt]:
        fields = rng.uniform(-largest, largest, (len(raw), 1)).astype(np.float16)
        raw[:, at : at + 2] = fields.view(np.uint8)
    return raw.reshape(rows, -1)


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
