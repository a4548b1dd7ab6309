"""How fast are the CPU kernels against the memory and arithmetic of this machine?

One question per script: decode products as a share of the streaming read measured in the same run,
and prefill products in GFLOP/s. Every number is the median of several interleaved rounds; the last
line is one JSON object. Usage: python benchmarks/cpu_kernels.py [--threads N] [--rounds N].
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from ftengine.kernels.native import ExpertBank, HeadLayout, NativeKernels, PackedWeight
from ftengine.quant.panel32 import expert_layout, packed_bytes

FORMATS = ("q4_1", "q8_0", "bf16", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block")
BANKS = ("q4_1", "mxfp4", "nvfp4", "fp8_block")
ROWS, COLS = 8192, 2048
BATCHES = (1, 8, 64, 512)
HIDDEN, INTER, EXPERTS, SLOTS = 2048, 768, 64, 8
PROBE_BYTES = 512 << 20


def filled(num_bytes: int) -> torch.Tensor:
    """Bytes that are small finite numbers in every format, as codes and as scales."""
    return torch.full((num_bytes,), 0x2C, dtype=torch.uint8)


def seconds(call: Callable[[], object], at_least: float = 0.05) -> float:
    """Seconds of one call, repeated until `at_least` seconds have passed."""
    call()
    count, started = 0, time.perf_counter()
    while True:
        call()
        count += 1
        passed = time.perf_counter() - started
        if passed >= at_least:
            return passed / count


class Weights:
    """Matrices of one format, several of them, so that none comes from the cache."""

    def __init__(self, fmt: str) -> None:
        self.size = packed_bytes(fmt, ROWS, COLS)
        count = max(2, (256 << 20) // self.size)
        self.items = [PackedWeight(filled(self.size), fmt, ROWS, COLS) for _ in range(count)]
        self._next = 0

    def next(self) -> PackedWeight:
        """The matrix that was used longest ago."""
        self._next = (self._next + 1) % len(self.items)
        return self.items[self._next]


def make_bank(fmt: str) -> ExpertBank:
    """A layer of experts in the shape of a 30B-A3B model."""
    layout = expert_layout(fmt, fmt, HIDDEN, INTER)
    data = filled(EXPERTS * layout.row_bytes).view(EXPERTS, layout.row_bytes)
    return ExpertBank(data, layout, fmt, fmt, HIDDEN, INTER)


def route(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct random experts per token."""
    ids = torch.rand(tokens, EXPERTS).topk(SLOTS, dim=1).indices.int().contiguous()
    return ids, torch.full((tokens, SLOTS), 1.0 / SLOTS)


def linear_round(
    kernels: NativeKernels, weights: dict[str, Weights], into: dict[str, float]
) -> None:
    """GB/s of one token and GFLOP/s of batches, per format."""
    for fmt, items in weights.items():
        for tokens in BATCHES:
            x, out = torch.randn(tokens, COLS), torch.empty(tokens, ROWS)
            took = seconds(lambda x=x, out=out, items=items: kernels.linear(x, items.next(), out))
            into[f"linear {fmt} T={tokens} GFLOP/s"] = 2e-9 * tokens * ROWS * COLS / took
            if tokens == 1:
                into[f"linear {fmt} T=1 GB/s"] = 1e-9 * items.size / took


def expert_round(kernels: NativeKernels, bank: ExpertBank, into: dict[str, float]) -> None:
    """The routed layer: GB/s for one token, GFLOP/s for 512."""
    used = packed_bytes(bank.fmt_gate_up, INTER, HIDDEN, paired=True)
    used += packed_bytes(bank.fmt_down, HIDDEN, INTER)
    x = torch.randn(1, HIDDEN)
    routes = [route(1) for _ in range(64)]
    place = iter(range(1 << 30))

    def one() -> None:
        kernels.expert_ffn(x, *routes[next(place) % 64], bank)

    into[f"experts {bank.fmt_down} T=1 GB/s"] = 1e-9 * used * SLOTS / seconds(one)
    many, routing = torch.randn(512, HIDDEN), route(512)
    took = seconds(lambda: kernels.expert_ffn(many, *routing, bank))
    work = 2e-9 * 512 * SLOTS * 3 * HIDDEN * INTER
    into[f"experts {bank.fmt_down} T=512 GFLOP/s"] = work / took


def attention_round(kernels: NativeKernels, into: dict[str, float]) -> None:
    """Decode over 4096 keys in GB/s of bf16 keys and values; prefill of 512 in GFLOP/s."""
    heads, pages = HeadLayout(32, 4, 128), 256
    keys = torch.randn(pages, 4, 16, 128).bfloat16()
    values = torch.randn(pages, 4, 16, 128).bfloat16()
    table = torch.arange(pages, dtype=torch.int32)[None, :]
    for tokens, context in ((1, 4096), (512, 512)):
        qkv = torch.randn(tokens, heads.qkv_cols)
        start = torch.tensor([0, tokens], dtype=torch.int32)
        length = torch.tensor([context], dtype=torch.int32)
        took = seconds(
            lambda q=qkv, s=start, n=length: kernels.attention(
                q, heads, keys, values, s, n, table, 128**-0.5
            )
        )
        if tokens == 1:
            into["attention 4096 keys us"] = 1e6 * took
        else:
            into["attention prefill 512 GFLOP/s"] = 2e-9 * 512 * 512 * 32 * 128 / took


def overhead_round(kernels: NativeKernels, into: dict[str, float]) -> None:
    """Microseconds of a call that computes next to nothing."""
    weight = PackedWeight(filled(packed_bytes("f32", 32, 32)), "f32", 32, 32)
    x, out, norm = torch.randn(1, 32), torch.empty(1, 32), torch.ones(32)
    into["call linear us"] = 1e6 * seconds(lambda: kernels.linear(x, weight, out))
    into["call rms_norm us"] = 1e6 * seconds(lambda: kernels.rms_norm(x, norm, 1e-6, out=out))


def commit() -> str:
    """The checkout's commit, or "unknown"."""
    root = Path(__file__).resolve().parents[1]
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target", default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kernels = NativeKernels.load(num_threads=given.threads, cpu_target=given.target)
    info = kernels.info()
    probe = filled(PROBE_BYTES)
    weights = {fmt: Weights(fmt) for fmt in FORMATS}
    banks = [make_bank(fmt) for fmt in BANKS]
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        numbers: dict[str, float] = {}
        numbers["probe GB/s"] = 1e-9 * PROBE_BYTES / seconds(lambda: kernels.stream_read(probe))
        linear_round(kernels, weights, numbers)
        for bank in banks:
            expert_round(kernels, bank, numbers)
        attention_round(kernels, numbers)
        overhead_round(kernels, numbers)
        for name, value in numbers.items():
            samples[name].append(value)
            if name.endswith("T=1 GB/s"):
                samples[f"{name} / probe"].append(value / numbers["probe GB/s"])
    medians = {name: round(statistics.median(values), 3) for name, values in samples.items()}
    for name, value in medians.items():
        print(f"{name:44} {value:9.2f}   ({min(samples[name]):.2f} .. {max(samples[name]):.2f})")
    ratios = {name: medians.pop(name) for name in list(medians) if name.endswith("/ probe")}
    result = {
        "name": "cpu_kernels",
        "ratios": ratios,
        "measured": {**medians, "target": info.target, "threads": info.threads},
        "commit": commit(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
