"""Launches of routed experts: admission, the row gather, decoding, grouped products.

The tables of admission are made here, with the values of an empty pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall

MODES = ("split", "pure", "fetch", "cpu")
"""Planner modes by their number in `rates`; "resident" is "fetch" with a slot for everyone."""
_REMEMBERED_STEPS = 1024
"""Steps of the model after which a demand count no longer fades: 0.96^1024 is nothing."""
_FADE = 0.96
"""As in experts/policy/demand.py, power for power, so that equal counts stay equal: a test sees."""
_FREE = -(1 << 40)
_PRIOR = 32.0


@dataclass(frozen=True)
class AdmissionTables:
    """What a device keeps for all layers: the tables of residency, demand and planner.

    Shape: slot_of, last, counted int32 and counts float64 [layers * experts]; owner_of int32 and
    stamp_of int64 [slots]; powers float64 [n]; clock int64 [3]; rates float64 [11]; reuse float64
    [5]; since_fill int32 [layers]; totals int64 [5] (hits, misses, fills, on the CPU, owed), or
    [layers, at least 5] where each layer is counted by itself.
    A slot of lower stamp goes first; free slots lie below all others, lent ones above.
    """

    slot_of: torch.Tensor
    owner_of: torch.Tensor
    stamp_of: torch.Tensor
    last: torch.Tensor
    counts: torch.Tensor
    counted: torch.Tensor
    powers: torch.Tensor
    clock: torch.Tensor
    rates: torch.Tensor
    reuse: torch.Tensor
    since_fill: torch.Tensor
    totals: torch.Tensor


@dataclass(frozen=True)
class AdmissionResult:
    """Shape: rows int32 [pairs]; fills int32 [64, 2]; on_cpu int32 [64]; found int32 [4]."""

    rows: torch.Tensor
    fills: torch.Tensor
    on_cpu: torch.Tensor
    found: torch.Tensor


class MachineRates(Protocol):
    """experts/policy/rates.py's Rates, as far as the kernel reads them."""

    @property
    def link_bytes_per_s(self) -> float: ...
    @property
    def host_bytes_per_s(self) -> float: ...
    @property
    def host_left_bytes_per_s(self) -> float: ...
    @property
    def link_latency_s(self) -> float: ...
    @property
    def copy_latency_s(self) -> float: ...
    @property
    def cpu_latency_s(self) -> float: ...
    @property
    def device_bytes_per_s(self) -> float: ...
    @property
    def cpu_free_tokens(self) -> int: ...
    @property
    def fill_period(self) -> int: ...


def rate_numbers(rates: MachineRates, mode: str, min_fill: int = 0) -> list[float]:
    """Rates as the kernel reads them; the host writes them anew when the planner corrects them."""
    return [
        rates.link_bytes_per_s,
        rates.host_bytes_per_s,
        rates.host_left_bytes_per_s,
        rates.link_latency_s,
        rates.copy_latency_s,
        rates.cpu_latency_s,
        rates.device_bytes_per_s,
        float(rates.cpu_free_tokens),
        float(rates.fill_period),
        float(MODES.index(mode)),
        float(min_fill),
    ]


def empty_tables(
    num_layers: int, num_experts: int, num_slots: int, rates: Sequence[float], device: str = "cpu"
) -> AdmissionTables:
    """Tables of a pool in which nothing is resident."""
    every = num_layers * num_experts
    fade = _FADE ** (1.0 / num_layers)
    powers = [fade**lookup for lookup in range(num_layers * _REMEMBERED_STEPS)]
    wide, plain = torch.float64, torch.int32
    return AdmissionTables(
        slot_of=torch.full((every,), -1, dtype=plain, device=device),
        owner_of=torch.full((num_slots,), -1, dtype=plain, device=device),
        stamp_of=torch.arange(num_slots, dtype=torch.int64, device=device) + _FREE,
        last=torch.zeros(every, dtype=plain, device=device),
        counts=torch.zeros(every, dtype=wide, device=device),
        counted=torch.zeros(every, dtype=plain, device=device),
        powers=torch.tensor(powers, dtype=wide, device=device),
        clock=torch.zeros(3, dtype=torch.int64, device=device),
        rates=torch.tensor(rates, dtype=wide, device=device),
        reuse=torch.tensor([_PRIOR / 2, _PRIOR, 0.0, _PRIOR, 0.0], dtype=wide, device=device),
        since_fill=torch.zeros(num_layers, dtype=plain, device=device),
        totals=torch.zeros(5, dtype=torch.int64, device=device),
    )


def empty_result(num_pairs: int, device: str = "cpu") -> AdmissionResult:
    """Buffers of one step size; values are written by the kernel."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    width = builds.power_of_two(num_pairs, 16)
    return AdmissionResult(numbers(num_pairs), numbers(width, 2), numbers(width), numbers(4))


def admission(
    tables: AdmissionTables,
    result: AdmissionResult,
    layer: int,
    expert_ids: torch.Tensor,
    row_bytes: int,
) -> KernelCall:
    """Look up, divide and admit one layer's pairs. Shape: expert_ids int32 [tokens, k]."""
    num_slots, pairs = tables.owner_of.numel(), expert_ids.numel()
    return KernelCall(
        builds.admission(pairs, num_slots),
        {
            "ids": expert_ids,
            **{item.name: getattr(tables, item.name) for item in fields(tables)},
            "totals": tables.totals if tables.totals.ndim == 1 else tables.totals[layer],
            **{item.name: getattr(result, item.name) for item in fields(result)},
            "layer": layer,
            "num_experts": tables.slot_of.numel() // tables.since_fill.numel(),
            "num_pairs": pairs,
            "num_tokens": expert_ids.shape[0],
            "num_slots": num_slots,
            "num_powers": tables.powers.numel(),
            "row_bytes": row_bytes,
        },
    )


def copy_rows(
    source: torch.Tensor,
    target: torch.Tensor,
    tasks: torch.Tensor,
    num_tasks: torch.Tensor,
    source_address: int | None = None,
) -> KernelCall:
    """Rows of a bank into slots. Shape: source, target uint8 [rows, stride], the smaller is copied;
    tasks int32 [most, 2]; num_tasks int32, its first number.

    source_address: where the device sees source, if not where the host does.
    """
    return KernelCall(
        builds.copy_rows(),
        {
            "source": source.view(torch.int32) if source_address is None else source_address,
            "target": target.view(torch.int32),
            "tasks": tasks,
            "num_tasks": num_tasks,
            "row_words": min(source.shape[1], target.shape[1]) // 4,
            "source_words": source.stride(0) // 4,
            "target_words": target.stride(0) // 4,
            "most": tasks.shape[0],
        },
    )


def gate_up(
    x: torch.Tensor, rows: torch.Tensor, bank: ExpertBank, inner: torch.Tensor
) -> KernelCall:
    """Shape: x [tokens, hidden]; rows int32 [tokens, k], slots or -1; inner [pairs, inter]."""
    return KernelCall(
        builds.gate_up(bank.fmt_gate_up, bank.activation, bank.fmt_bias, bank.gated),
        {
            "x": x,
            "rows": rows,
            "bank": bank.data,
            "inner": inner,
            "num_places": rows.numel() // x.shape[0],
            "hidden": bank.hidden,
            "inter": bank.inter,
            "row_bytes": bank.row_bytes,
            "offset": bank.layout.gate_up_offset,
            "bias_offset": bank.layout.gate_up_bias_offset,
            "alpha": bank.alpha,
            "limit": bank.limit,
            "num_pairs": rows.numel(),
        },
    )


def down(
    inner: torch.Tensor, rows: torch.Tensor, bank: ExpertBank, parts: torch.Tensor
) -> KernelCall:
    """Shape: inner [pairs, inter]; parts [pairs, hidden]."""
    return KernelCall(
        builds.down(bank.fmt_down, bank.fmt_bias),
        {
            "inner": inner,
            "rows": rows,
            "bank": bank.data,
            "parts": parts,
            "hidden": bank.hidden,
            "inter": bank.inter,
            "row_bytes": bank.row_bytes,
            "offset": bank.layout.down_offset,
            "bias_offset": bank.layout.down_bias_offset,
            "num_pairs": rows.numel(),
        },
    )


def merge(
    parts: torch.Tensor,
    cpu_parts: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    accumulate: bool,
) -> KernelCall:
    """Shape: parts, cpu_parts [pairs, hidden]; weights [tokens, k]; out [tokens, hidden]."""
    return KernelCall(
        builds.merge(accumulate),
        {
            "parts": parts,
            "cpu_parts": cpu_parts,
            "rows": rows,
            "weights": weights,
            "out": out,
            "num_places": weights.shape[1],
            "hidden": out.shape[1],
            "num_tokens": out.shape[0],
        },
    )


@dataclass(frozen=True)
class Grouping:
    """Pairs sorted by expert, cut in tiles of at most builds.GEMM_ROWS.

    Shape: pairs int32 [pairs]; tiles int32 [n, 3]: bank row, first of pairs, how many.
    """

    pairs: torch.Tensor
    tiles: torch.Tensor


def group_pairs(rows: torch.Tensor) -> Grouping:
    """Group the pairs of a chunk by their bank row, on the host; rows below 0 are left out."""
    flat = rows.reshape(-1).cpu()
    order = torch.argsort(flat, stable=True)
    order = order[flat[order] >= 0]
    found, counts = torch.unique_consecutive(flat[order], return_counts=True)
    tiles, at, step = [], 0, builds.GEMM_ROWS
    for row, count in zip(found.tolist(), counts.tolist(), strict=True):
        tiles += [(row, at + i, min(step, count - i)) for i in range(0, count, step)]
        at += count
    return Grouping(
        order.to(torch.int32).to(rows.device),
        torch.tensor(tiles, dtype=torch.int32).reshape(-1, 3).to(rows.device),
    )


def group_on_device(
    expert_ids: torch.Tensor, row_of: torch.Tensor, counts: torch.Tensor, grouping: Grouping
) -> tuple[KernelCall, KernelCall]:
    """Fill a grouping without the host: first the one call, then the other.

    Shape: expert_ids int32 [tokens, k]; row_of int32 [experts], bank rows, below 0 = left out;
    counts int32 [experts]; pairs [tokens * k]; tiles [n, 3], n at least what tiles_of says.
    """
    common = {"ids": expert_ids, "row_of": row_of, "counts": counts}
    sizes = {"num_pairs": expert_ids.numel(), "num_experts": counts.numel()}
    lists = {"pairs": grouping.pairs, "tiles": grouping.tiles}
    return (
        KernelCall(builds.count_pairs(), {**common, **sizes}),
        KernelCall(
            builds.group_pairs(counts.numel()),
            {**common, **lists, **sizes, "num_tiles": grouping.tiles.shape[0]},
        ),
    )


def tiles_of(num_pairs: int, num_experts: int) -> int:
    """Most tiles that so many pairs can make."""
    return min(num_pairs, num_experts) + num_pairs // builds.GEMM_ROWS


def one_group(tokens: int, device: str = "cpu") -> Grouping:
    """A dense layer: every row, one matrix."""
    return group_pairs(torch.zeros(tokens, dtype=torch.int32, device=device))


def arrange(x: torch.Tensor, fmt: str, out: torch.Tensor) -> KernelCall:
    """x in the order of a format's words. Shape: x, out (float32 or bfloat16) [rows, cols]."""
    return KernelCall(
        builds.arrange(fmt, _item(out)),
        {"x": x, "out": out, "cols": x.shape[1], "num_rows": x.shape[0]},
    )


def gate_up_gemm(
    x: torch.Tensor,
    grouping: Grouping,
    num_places: int,
    bank: ExpertBank,
    inner: torch.Tensor,
    dot: str,
) -> KernelCall:
    """Shape: x [tokens, hidden], arranged; inner [pairs, inter], in grouped order and arranged."""
    return KernelCall(
        builds.gate_up_gemm(
            bank.fmt_gate_up,
            bank.fmt_down,
            dot,
            bank.activation,
            bank.fmt_bias,
            _item(x),
            bank.gated,
        ),
        {
            "x": x,
            "tiles": grouping.tiles,
            "pairs": grouping.pairs,
            "bank": bank.data,
            "inner": inner,
            "num_places": num_places,
            "hidden": bank.hidden,
            "inter": bank.inter,
            "row_bytes": bank.row_bytes,
            "offset": bank.layout.gate_up_offset,
            "bias_offset": bank.layout.gate_up_bias_offset,
            "alpha": bank.alpha,
            "limit": bank.limit,
            "num_tiles": grouping.tiles.shape[0],
        },
    )


def down_gemm(
    inner: torch.Tensor, grouping: Grouping, bank: ExpertBank, parts: torch.Tensor, dot: str
) -> KernelCall:
    """Shape: inner as gate_up_gemm leaves it; parts [pairs, hidden], in routing order."""
    return KernelCall(
        builds.down_gemm(bank.fmt_down, dot, bank.fmt_bias, _item(inner)),
        {
            "x": inner,
            "tiles": grouping.tiles,
            "pairs": grouping.pairs,
            "bank": bank.data,
            "out": parts,
            "rows": bank.hidden,
            "cols": bank.inter,
            "row_bytes": bank.row_bytes,
            "offset": bank.layout.down_offset,
            "bias_offset": bank.layout.down_bias_offset,
            "num_tiles": grouping.tiles.shape[0],
        },
    )


def _item(x: torch.Tensor) -> str:
    return "bf16" if x.dtype == torch.bfloat16 else "f32"
