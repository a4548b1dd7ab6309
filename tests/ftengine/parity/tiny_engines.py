"""Tiny models converted and loaded, for tests that need a real engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.protocol import GenerateRequest, Sampling
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result
from tests.fakes.tiny_hybrids import HYBRIDS, build_hybrid
from tests.fakes.tiny_models import TinySizes, build_tiny

FAMILIES = ("llama", "qwen3", "mixtral", "qwen3_moe")


def make_tiny(
    family: str, folder: Path, seed: int = 0, sizes: TinySizes | None = None
) -> tuple[Path, Path]:
    """A float32 checkpoint and its FTW; returns (checkpoint, ftw)."""
    if family in HYBRIDS:
        source = build_hybrid(family, folder / "hf", seed)
    else:
        source = build_tiny(family, folder / "hf", seed=seed, sizes=sizes)
    convert_folder(source, folder / "ftw")
    return source, folder / "ftw"


def load_engine(
    ftw: Path,
    *,
    compute: str = "float32",
    kernels: str = "native",
    target: str = "",
    threads: int = 2,
    parallel: int = 4,
    context: int = 256,
    step_tokens: int = 512,
    kv_bytes: int = 0,
    device: str = "cpu",
    strategy: str = "",
    expert_slots: int = 0,
    device_bytes: int = 0,
    tier: str = "auto",
    kv_format: str = "auto",
) -> Engine:
    """A loaded engine."""
    engine = Engine(
        EngineConfig(
            ftw,
            context_tokens=context,
            num_parallel=parallel,
            step_tokens=step_tokens,
            prefill_share=1.0,  # what runs together must not depend on the time steps take
            compute=ComputeConfig(
                device=device,
                strategy=strategy,
                compute=compute,
                kernels=kernels,
                cpu_target=target,
                threads=threads,
            ),
            memory=MemoryConfig(
                kv_bytes=kv_bytes,
                expert_slots=expert_slots,
                device_bytes=device_bytes,
                tier=tier,
                kv_format=kv_format,
            ),
        )
    )
    engine.load()
    return engine


def random_ids(count: int, seed: int = 0, vocab_size: int = 300) -> tuple[int, ...]:
    """Token ids above the specials."""
    drawn = np.random.default_rng(seed).integers(3, vocab_size, count)
    return tuple(int(token) for token in drawn)


def greedy(
    engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int, presence: float = 50.0
) -> list[Result]:
    """Continue all prompts in one go; specials are kept out so that nothing ends early.

    presence: penalty on every token seen so far, because tiny random models like to repeat one.
    """
    sampling = Sampling(
        logit_bias=((0, -100.0), (1, -100.0), (2, -100.0)),
        presence_penalty=presence,
        repeat_last_n=-1,
    )
    return engine.generate_sync(
        [
            GenerateRequest(f"r{index}", tuple(ids), sampling, max_tokens=max_tokens)
            for index, ids in enumerate(prompts)
        ]
    )
