"""The only chooser of kernels: one set per engine, native or reference, decided once and logged.

What the layers call is the Kernels protocol; native.py and reference/ do the work.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.native_states import NativeStates
from ftengine.kernels.operands import ExpertBank, HeadLayout, KvScales, PackedWeight, RouteSpec
from ftengine.kernels.reference import attention as reference_attention
from ftengine.kernels.reference import expert_ffn as reference_expert_ffn
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.reference import norm as reference_norm
from ftengine.kernels.reference import recurrent as reference_recurrent
from ftengine.kernels.reference import rope as reference_rope
from ftengine.kernels.reference import route as reference_route

__all__ = [
    "EMBED_FORMATS",
    "ExpertBank",
    "HeadLayout",
    "KernelChoice",
    "Kernels",
    "KvScales",
    "PackedWeight",
    "RouteSpec",
    "choose_kernels",
]

log = logging.getLogger(__name__)

EMBED_FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
"""Row formats that embed_rows gathers."""


class Kernels(Protocol):
    """Everything a layer may ask for. Shapes and meanings: kernels/native.py.

    state_ops: whole mixers with a state as one call each, None where these kernels have none.
    """

    @property
    def state_ops(self) -> NativeStates | None:
        """What layers with a state use where it is there."""

    def linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        accumulate: bool = False,
    ) -> torch.Tensor:
        """out (+)= x @ weight^T + bias."""

    def expert_ffn(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
    ) -> torch.Tensor:
        """Weighted sum of each token's experts."""

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalise rows."""

    def rope_store(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 1e-6,
        interleaved: bool = False,
        scales: KvScales | None = None,
    ) -> None:
        """Norm and rotate q and k; store k and v in their pages."""

    def attention(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        keys: torch.Tensor,
        values: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        page_table: torch.Tensor,
        scale: float,
        window: int = 0,
        sinks: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        scales: KvScales | None = None,
    ) -> torch.Tensor:
        """Causal attention over paged keys."""

    def embed_rows(
        self,
        table: torch.Tensor,
        fmt: str,
        cols: int,
        ids: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows of a table in its checkpoint format."""

    def route(
        self,
        logits: torch.Tensor,
        spec: RouteSpec,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """The best experts of each token and their weights."""

    def causal_conv(
        self,
        x: torch.Tensor,
        state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Depthwise convolution over the past of one sequence. Meaning: reference/recurrent.py."""

    def delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The gated delta rule over new tokens of one sequence."""

    def mamba2_scan(
        self,
        x: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        decay: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The Mamba-2 recurrence over new tokens of one sequence."""


class ReferenceKernels:
    """The plain torch functions as one set."""

    state_ops = None
    linear = staticmethod(reference_linear.linear)
    embed_rows = staticmethod(reference_linear.embed_rows)
    expert_ffn = staticmethod(reference_expert_ffn.expert_ffn)
    rms_norm = staticmethod(reference_norm.rms_norm)
    rope_store = staticmethod(reference_rope.rope_store)
    attention = staticmethod(reference_attention.attention)
    route = staticmethod(reference_route.route)
    causal_conv = staticmethod(reference_recurrent.causal_conv)
    delta_rule = staticmethod(reference_recurrent.delta_rule)
    mamba2_scan = staticmethod(reference_recurrent.mamba2_scan)


@dataclass(frozen=True)
class KernelChoice:
    """The set in use, for /info: described = what computes, notes = what the user should know.

    torch_threads: threads for torch's own operators on the engine thread. The native pool owns the
    cores, so torch gets one there.
    """

    kernels: Kernels
    described: dict[str, str]
    notes: tuple[str, ...]
    torch_threads: int


def choose_kernels(
    kind: str,
    library: Path | None,
    num_threads: int,
    cpu_target: str = "",
    exact: bool = True,
) -> KernelChoice:
    """Choose the kernels of an engine: "native", or "reference" where asked or where it is missing.

    exact: activations stay float32 in products; else the fastest target may round them.

    Raises: EngineError when a target is asked for that this machine or library lacks.
    """
    if kind == "reference":
        return _reference(num_threads, ())
    try:
        native = NativeKernels.load(library, num_threads, cpu_target or None)
    except EngineError as error:
        if error.code != "native_missing":
            raise
        log.warning("%s", error.message)
        note = f"native kernels are missing, slow reference kernels compute: {error.message}"
        return _reference(num_threads, (note,))
    if not exact and not cpu_target:
        native.set_target(native.info().targets[0])
    info = native.info()
    described = {
        "set": "native",
        "target": info.target,
        "threads": str(info.threads),
        "targets": ",".join(info.targets),
    }
    log.info("kernels: native, %s, %d threads", info.target, info.threads)
    return KernelChoice(native, described, (), torch_threads=1)


def _reference(num_threads: int, notes: tuple[str, ...]) -> KernelChoice:
    log.info("kernels: reference (torch), %d threads", num_threads)
    described = {"set": "reference", "threads": str(num_threads)}
    return KernelChoice(ReferenceKernels(), described, notes, torch_threads=num_threads)
