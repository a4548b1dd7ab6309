"""The paper's machines and models, its published speeds, and our forecast beside them.

Shapes are computed from the models' public configurations. A row's `cached_share` is set only where
the paper gives it; no other number is set per row.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from ftengine.device.machine import read_machine
from ftengine.forecast.forecast import (
    LAYER_S,
    MISS_POINTS,
    UTILISATION,
    Forecast,
    Question,
    forecast,
)
from ftengine.forecast.shape import ModelShape

_QWEN_DENSE = 2_450_000_000
_QWEN_EMBED = 248_320 * 2048
_QWEN_EXPERT = 3 * 2048 * 512
QWEN_BF16 = ModelShape(
    name="Qwen3.6-35B-A3B BF16",
    num_layers=40,
    dense_bytes=2 * _QWEN_DENSE,
    dense_read_bytes=2 * (_QWEN_DENSE - _QWEN_EMBED),
    dense_params=_QWEN_DENSE - _QWEN_EMBED,
    # 10 layers of full attention, 2 KV heads of 256, bf16.
    kv_bytes_per_token=10 * 2 * 2 * 256 * 2,
    # 30 recurrent layers, 32 heads of 128 x 128 in float32, four checkpoints.
    state_bytes=4 * 30 * 32 * 128 * 128 * 4,
    num_moe_layers=40,
    num_experts=256,
    num_experts_per_tok=8,
    expert_row_bytes=2 * _QWEN_EXPERT,
    expert_params=_QWEN_EXPERT,
)
# 4-bit elements with one byte of scale per 16; everything beside the experts taken as bf16.
QWEN_NVFP4 = replace(
    QWEN_BF16, name="Qwen3.6-35B-A3B NVFP4", expert_row_bytes=_QWEN_EXPERT * 9 // 16
)
_DEEPSEEK_EXPERT = 3 * 4096 * 2048
_DEEPSEEK_EMBED = 129_280 * 4096
_DEEPSEEK_DENSE = 284_000_000_000 - 43 * 256 * _DEEPSEEK_EXPERT
DEEPSEEK_MXFP4 = ModelShape(
    name="DeepSeek-V4-Flash MXFP4",
    num_layers=43,
    # fp8 beside the experts, embedding and head in bf16.
    dense_bytes=_DEEPSEEK_DENSE + 2 * _DEEPSEEK_EMBED,
    dense_read_bytes=_DEEPSEEK_DENSE,
    dense_params=_DEEPSEEK_DENSE - _DEEPSEEK_EMBED,
    kv_bytes_per_token=43 * 512 * 2,
    num_moe_layers=43,
    num_experts=256,
    num_experts_per_tok=6,
    expert_row_bytes=_DEEPSEEK_EXPERT * 17 // 32,
    expert_params=_DEEPSEEK_EXPERT,
)
_GLM_EXPERT = 3 * 6144 * 2048
_GLM_EMBED = 154_880 * 6144
_GLM_DENSE = 743_900_000_000 - 75 * 256 * _GLM_EXPERT
GLM_NVFP4 = ModelShape(
    name="GLM-5.2 NVFP4",
    num_layers=78,
    # The checkpoint's 433 GB less the experts of 75 layers and of the unused prediction layer.
    dense_bytes=433_000_000_000 - 76 * 256 * (_GLM_EXPERT * 9 // 16),
    dense_read_bytes=433_000_000_000 - 76 * 256 * (_GLM_EXPERT * 9 // 16) - 2 * _GLM_EMBED,
    dense_params=_GLM_DENSE - _GLM_EMBED,
    kv_bytes_per_token=78 * 576 * 2,
    num_moe_layers=75,
    num_experts=256,
    num_experts_per_tok=8,
    expert_row_bytes=_GLM_EXPERT * 9 // 16,
    expert_params=_GLM_EXPERT,
)


@dataclass(frozen=True)
class Row:
    """One published speed. published: tokens per second; note says how it follows from the text."""

    device: str
    shape: ModelShape
    published: float
    note: str
    cached_share: float | None = None


ROWS = (
    Row("rtx-5090-server", QWEN_BF16, 80.0, "77 to 83, its middle; share given", 0.37),
    Row("rtx-5090-desktop", QWEN_BF16, 76.8, "4 % below the server; share of the same GPU", 0.37),
    Row("rtx-4090-server", QWEN_BF16, 42.7, "the laptop's 39.3 is 92 % of it"),
    Row("rtx-4060-laptop", QWEN_NVFP4, 39.3, "given"),
    Row("rtx-5090-server", DEEPSEEK_MXFP4, 23.5, "22 to 25, its middle; share given", 0.11),
    Row("rtx-pro-6000-workstation", GLM_NVFP4, 14.9, "given"),
)


@dataclass(frozen=True)
class Comparison:
    """A row, our forecast for it, and the relative error."""

    row: Row
    answer: Forecast

    @property
    def error(self) -> float:
        """(ours - published) / published."""
        return self.answer.tokens_per_s / self.row.published - 1.0


def compare() -> tuple[Comparison, ...]:
    """Forecast every row with the same constants."""
    return tuple(
        Comparison(
            row,
            forecast(row.shape, read_machine(row.device), Question(cached_share=row.cached_share)),
        )
        for row in ROWS
    )


def errors(rows: tuple[Comparison, ...]) -> tuple[float, float]:
    """(median, worst) of the absolute relative errors."""
    sizes = [abs(row.error) for row in rows]
    return statistics.median(sizes), max(sizes)


def table() -> str:
    """The Markdown table of docs/forecast.md."""
    rows = compare()
    median, worst = errors(rows)
    lines = [
        "| machine | model | cached | miss | published | forecast | error | published value |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        answer = row.answer
        lines.append(
            f"| {row.row.device} | {row.row.shape.name} | {answer.cached_share:.0%} "
            f"| {answer.miss_rate:.0%} | {row.row.published:.1f} | {answer.tokens_per_s:.1f} "
            f"| {row.error:+.0%} | {row.row.note} |"
        )
    lines += [
        "",
        f"Tokens per second. Median error {median:.0%}, worst {worst:.0%}. Constants: "
        f"utilisation {UTILISATION}, {LAYER_S * 1e6:.0f} us per layer, miss rates {MISS_POINTS}.",
    ]
    return "\n".join(lines)
