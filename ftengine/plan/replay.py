"""Decode steps from their record: one native call for all that is covered, Python for the rest."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from ftengine.experts.counters import LayerCounters
from ftengine.kernels import abi
from ftengine.kernels.native import NativeKernels, TapedCall
from ftengine.layers.context import StepContext
from ftengine.models.decoder import Decoder
from ftengine.plan.record import Piece, Recorded, record

_IDS_AT = {"route": 56, "expert_ffn": 40}
"""Where the pointer to the expert ids stands in a call's struct."""
MAX_TOKENS = 64
"""Widest step that is recorded: with more, Python's share of the time is small."""


@dataclass(frozen=True)
class _Routing:
    """Expert ids of one layer, kept apart from the other layers' until they are counted."""

    ids: torch.Tensor
    counters: LayerCounters

    def count(self) -> None:
        """As CountedCpuExperts.add_to counts. The experts of one token are distinct."""
        tokens, slots = self.ids.shape
        distinct = slots if tokens == 1 else len(set(self.ids.flatten().tolist()))
        self.counters.misses += distinct
        self.counters.on_cpu += distinct


class _Calls:
    """Covered pieces that follow each other."""

    def __init__(self, kernels: NativeKernels, calls: Sequence[tuple[str, bytes]], keep: object):
        self._kernels = kernels
        self._keep = keep
        self._named = calls
        starts, structs = [], bytearray()
        for _, packed in calls:
            starts.append(len(structs))
            structs += packed + bytes(-len(packed) % 8)  # each starts at a multiple of 8
        self._structs = ctypes.create_string_buffer(bytes(structs))
        self._ops = ctypes.create_string_buffer(abi.OP.size * len(calls) + 1)
        base = ctypes.addressof(self._structs)
        for index, (start, (name, _)) in enumerate(zip(starts, calls, strict=True)):
            kind = abi.OP_NAMES.index(name)
            abi.OP.pack_into(self._ops, abi.OP.size * index, kind, 0, base + start)

    def run(self) -> None:
        """Make the calls."""
        self._kernels.run_calls(self._ops, self._named)


class StepPlan:
    """Replays steps of one number of tokens, one token for each sequence."""

    def __init__(
        self, kernels: NativeKernels, recorded: Sequence[Recorded], ids: torch.Tensor
    ) -> None:
        self._parts: list[_Calls | Piece] = []
        self._routings: list[_Routing] = []
        self.python = tuple(item.piece.name for item in recorded if item.calls is None)
        for covered, group in groupby(recorded, key=lambda item: item.calls is not None):
            items = list(group)
            if covered:
                self._parts.append(self._join(kernels, items, ids))
            else:
                self._parts += [item.piece for item in items]

    def _join(self, kernels: NativeKernels, items: Sequence[Recorded], ids: torch.Tensor) -> _Calls:
        calls: list[tuple[str, bytes]] = []
        keep: list[object] = []
        for item in items:
            assert item.calls is not None
            own = ids
            routed = item.piece.routed
            if routed is not None:
                own = torch.zeros(ids.shape[0], routed.slots, dtype=torch.int32)
                self._routings.append(_Routing(own, routed.counters))
            for call in item.calls:
                keep.append(call.scratch)
                calls.append((call.name, _with_ids(call, ids.data_ptr(), own.data_ptr())))
        return _Calls(kernels, calls, keep)

    def run(self, token_ids: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Compute a step. Shape: as Decoder.forward."""
        for part in self._parts:
            if isinstance(part, _Calls):
                part.run()
            else:
                part.run(token_ids, context)
        for routing in self._routings:
            routing.count()
        return context.buffers.normed


class StepPlans:
    """The plans of one decoder, recorded when a step of a new size comes."""

    def __init__(self, decoder: Decoder, kernels: NativeKernels) -> None:
        self._decoder = decoder
        self._kernels = kernels
        self._plans: dict[int, StepPlan] = {}

    def forget(self) -> None:
        """To be called when buffers or pools are others than before."""
        self._plans.clear()

    def covers(self, context: StepContext) -> bool:
        """Whether this is a step for a plan: one token for each sequence, all rows wanted."""
        tokens = context.positions.shape[0]
        alone = tokens == context.context_len.shape[0]
        return alone and context.wanted is None and 0 < tokens <= MAX_TOKENS

    def forward(self, token_ids: torch.Tensor, context: StepContext) -> torch.Tensor:
        """As Decoder.forward; the first step of a size is recorded while it is computed."""
        tokens = context.positions.shape[0]
        plan = self._plans.get(tokens)
        if plan is not None:
            return plan.run(token_ids, context)
        recorded = record(self._decoder, self._kernels, token_ids, context)
        self._plans[tokens] = StepPlan(self._kernels, recorded, context.buffers.expert_ids)
        return context.buffers.normed

    def described(self) -> str:
        """What of a decode step is native, in words."""
        plan = next(iter(self._plans.values()), None)
        if plan is None:
            return "recorded at the first token"
        if not plan.python:
            return "native"
        return "native but for " + ", ".join(_ranges(plan.python))


def _with_ids(call: TapedCall, shared: int, own: int) -> bytes:
    """The call's struct with the layer's own expert ids instead of the shared ones."""
    at = _IDS_AT.get(call.name)
    if at is None or struct.unpack_from("=Q", call.packed, at)[0] != shared:
        return call.packed
    return call.packed[:at] + struct.pack("=Q", own) + call.packed[at + 8 :]


def _ranges(names: Sequence[str]) -> Iterator[str]:
    """'mixer 0', 'mixer 1', 'norm' -> '2 mixers', 'norm'."""
    counts: dict[str, int] = {}
    for name in names:
        kind = name.split(" ")[0]
        counts[kind] = counts.get(kind, 0) + 1
    for kind, count in counts.items():
        yield kind if count == 1 else f"{count} {kind}s"
