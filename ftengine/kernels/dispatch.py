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
from ftengine.kernels.latent_operands import (
    Chosen,
    IndexHeads,
    LatentHeads,
    LatentWeights,
    StepPages,
    Turn,
)
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank, HeadLayout, KvScales, PackedWeight, RouteSpec
from ftengine.kernels.reference import attention as reference_attention
from ftengine.kernels.reference import expert_ffn as reference_expert_ffn
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.reference import norm as reference_norm
from ftengine.kernels.reference import rope as reference_rope
from ftengine.kernels.reference import route as reference_route
from ftengine.kernels.reference.latent import TorchLatents
from ftengine.kernels.reference.rows import TorchRows
from ftengine.kernels.reference.states import ReferenceStates
from ftengine.kernels.state_operands import StateOps

__all__ = [
    "EMBED_FORMATS",
    "HOST_EMBED_FORMATS",
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
"""Row formats that embed_rows gathers on every device."""
HOST_EMBED_FORMATS = (*EMBED_FORMATS, "q4_k", "q5_k", "q6_k")
"""Those that it gathers on a CPU."""


class Kernels(Protocol):
    """Everything a layer may ask for. Shapes and meanings: kernels/native.py."""

    @property
    def state_ops(self) -> StateOps:
        """Whole mixers with a state, as one call each."""

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
        expert_scale: torch.Tensor | None = None,
    ) -> None:
        """The best experts of each token and their weights. Meaning: reference/route.py."""

    def add_rows(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        factor: float = 1.0,
        accumulate: bool = True,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out (+)= factor * source + bias. Shapes, also below: reference/rows.py."""

    def fill_rows(self, out: torch.Tensor, value: float) -> None:
        """out = value."""

    def gate_rows(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        out: torch.Tensor,
        kind: str = "plain",
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out = x * kind(gate): "plain", "sigmoid" or "silu"."""

    def move_heads(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        heads: int,
        from_dim: int,
        to_dim: int,
        turns: int = 1,
    ) -> torch.Tensor:
        """Make heads longer or shorter, or put them in another order."""

    def squash_rows(
        self, x: torch.Tensor, out: torch.Tensor, kind: str, limit: float = 1.0
    ) -> torch.Tensor:
        """out = kind(x): "sigmoid", "tanh" or "clamp"."""

    def centre_rows(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Take off the mean of each row."""

    def group_norm(
        self, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """Normalise equal parts of rows."""

    def latent_store(
        self,
        latent: torch.Tensor,
        key: torch.Tensor,
        weights: LatentWeights,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm the latent, rotate the key, store both. Meaning, also below: reference/latent.py."""

    def latent_attention(
        self,
        q: torch.Tensor,
        heads: LatentHeads,
        weights: LatentWeights,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
        out: torch.Tensor,
        chosen: Chosen | None = None,
    ) -> None:
        """Attend over latents, of all tokens before or of the chosen ones."""

    def index_store(
        self,
        key: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm, rotate and store the keys that an indexer compares."""

    def sees_all(self, step: StepPages, top_k: int) -> bool:
        """Whether no token of the step can be kept from a key; False is always right."""

    def index_choose(
        self,
        q: torch.Tensor,
        factors: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
    ) -> Chosen:
        """The keys that each token is to see, valid until the next call."""


class ReferenceKernels(TorchRows, TorchLatents):
    """The plain torch functions as one set."""

    state_ops = ReferenceStates()
    linear = staticmethod(reference_linear.linear)
    embed_rows = staticmethod(reference_linear.embed_rows)
    expert_ffn = staticmethod(reference_expert_ffn.expert_ffn)
    rms_norm = staticmethod(reference_norm.rms_norm)
    rope_store = staticmethod(reference_rope.rope_store)
    attention = staticmethod(reference_attention.attention)
    route = staticmethod(reference_route.route)


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
    activations: str = "auto",
) -> KernelChoice:
    """Choose the kernels of an engine: "native", or "reference" where asked or where it is missing.

    exact: activations stay float32 in products; else the fastest target may round them.
    activations: int8 = rounded to 8 bits in products with integer codes, by every native target.

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
    native.set_activations(activations)
    info = native.info()
    described = {
        "set": "native",
        "target": info.target,
        "activations": info.activations,
        "threads": str(info.threads),
        "targets": ",".join(info.targets),
    }
    log.info("kernels: native, %s, %d threads, %s", info.target, info.threads, activations)
    return KernelChoice(native, described, (), torch_threads=1)


def _reference(num_threads: int, notes: tuple[str, ...]) -> KernelChoice:
    log.info("kernels: reference (torch), %d threads", num_threads)
    described = {"set": "reference", "threads": str(num_threads)}
    return KernelChoice(ReferenceKernels(), described, notes, torch_threads=num_threads)
