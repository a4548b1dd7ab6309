"""Every kernel compiles for every target, within shared memory and registers."""

from __future__ import annotations

import re
import subprocess
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ftengine.gpu.compile_kernel import compile_in_triton
from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_table import Build
from ftengine.gpu.ship import TARGETS
from ftengine.kernels.operands import RouteSpec
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.builds import TABLE

triton = pytest.importorskip("triton", reason="Triton is for Linux only")

SHARED_BYTES = {"cuda": 99 << 10, "hip": 64 << 10}
"""The least of each kind: 99 KiB on compute capability 8.6, 8.9 and 12.0."""
SPILLING = {
    "cuda": ("delta_chunk.delta_chunk",),
    "hip": (
        "delta_chunk.delta_chunk",
        "attention.attention_split.bf16",
        "attention.attention_chunk.bf16",
        "latent.latent_split.bf16",
        "latent.latent_chunk.bf16",
    ),
}
"""Known to keep part of their numbers in local memory, at large heads."""
FEW = 96
"""Bytes in local memory that are let pass: sm_80 puts 20 of admission's there, by Triton 3.6 80."""
SMALL = (
    builds.gate_up("bf16"),
    builds.gate_up("bf16", "relu2", gated=False),
    builds.down("bf16"),
    builds.merge(True),
    builds.arrange("bf16", "bf16"),
    builds.gate_up_gemm("bf16", "bf16", "bf16"),
    builds.gate_up_gemm("bf16", "bf16", "bf16", "relu2", gated=False),
    builds.down_gemm("bf16", "bf16"),
    builds.admission(16, 256),
    builds.copy_rows(),
    builds.embed_rows("bf16"),
    builds.add_rows(True, False),
    builds.count_pairs(),
    builds.group_pairs(16),
    builds.route(RouteSpec("softmax", True, 1.0), 32, 4),
    builds.route(RouteSpec("sqrt_softplus", True, 1.0, 1e-20, 8, 4), 32, 4, True, True),
    builds.rms_norm(128, True),
    builds.linear("bf16", False, False),
    builds.rope_store("bf16", 64, True, True),
    builds.attention_split("bf16", 64, 4, "bf16"),
    builds.attention_merge(64, True),
    builds.attention_chunk("bf16", 64, 4, "bf16", True),
    builds.attention_split("bf16", 72, 4, "bf16"),
    builds.latent_store("bf16", 32, 16, 8, True),
    builds.head_product("bf16", 16, 32, 1, "bf16"),
    builds.latent_split(builds.Look("bf16", 32, 16, 8, True, True, True, "bf16")),
    builds.latent_chunk(builds.Look("bf16", 32, 16, 8, False, False, False, "bf16")),
    builds.index_store("bf16", 32, 8, True),
    builds.index_scores("bf16", 16, 32, 8, True, "bf16"),
    builds.index_choose(),
    builds.best_of_block(2),
    builds.merge_blocks(2, 4),
    builds.embed_rows("q4_1"),
    builds.add_rows(True, True),
    builds.gate_rows("silu"),
    builds.move_heads(128),
    builds.squash_rows("tanh"),
    builds.centre_rows(128),
    builds.causal_conv(3, False, False, True),
    builds.delta_rule(16),
    builds.delta_chunk(16),
    builds.gated_norm(128),
    builds.mamba2_scan(16),
)
SEEN_ON = list(zip(SMALL, cycle(TARGETS), strict=False))
EVERY = [(build, target) for target in TARGETS for build in TABLE.builds]


def spilled(compiled: Any, target: Target, folder: Path) -> int:
    """Bytes (CUDA) or registers (HIP) in local memory."""
    if target.backend == "hip":
        found = re.findall(r"\.vgpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])
        return sum(map(int, found))
    image = folder / "kernel.cubin"
    image.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    told = subprocess.run(
        [tool, "-res-usage", image], capture_output=True, text=True, check=True
    ).stdout
    return sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", told)))


def check(build: Build, target: Target, folder: Path) -> None:
    compiled = compile_in_triton(TABLE.kernel(build.kernel), build, target)
    assert compiled.metadata.shared <= SHARED_BYTES[target.backend]
    assert not getattr(compiled.metadata, "global_scratch_size", 0)
    if build.kernel not in SPILLING[target.backend]:
        assert spilled(compiled, target, folder) <= FEW


def label(value: Build | Target) -> str:
    return value.label if isinstance(value, Target) else value.kernel


@pytest.mark.parametrize(("build", "target"), SEEN_ON, ids=label)
def test_each_kernel_compiles(build: Build, target: Target, tmp_path: Path) -> None:
    check(build, target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "target"), EVERY, ids=label)
def test_each_build_compiles_for_each_target(build: Build, target: Target, tmp_path: Path) -> None:
    check(build, target, tmp_path)


def test_no_kernel_is_left_out() -> None:
    functions = {(kernel.module, kernel.function) for kernel in TABLE.kernels}
    for which in (SMALL, TABLE.builds):
        kernels = [TABLE.kernel(build.kernel) for build in which]
        assert {(kernel.module, kernel.function) for kernel in kernels} == functions
