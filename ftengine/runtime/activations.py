"""What activations of 8 bits do not reach, as notes for the user. Rounding is the kernels' work."""

from __future__ import annotations

from collections import Counter

from ftengine.config import EngineConfig
from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.native import NativeKernels
from ftengine.loader.ftw_index import FtwIndex
from ftengine.quant import FORMATS
from ftengine.runtime.gpu_open import GPUS

BITS = 8
_INTEGER_TARGETS = ("avx512bf16",)
"""Targets that multiply such activations as integers; the others compute in float32."""


def activation_notes(config: EngineConfig, index: FtwIndex, kernels: Kernels) -> tuple[str, ...]:
    """Nothing where --activations int8 was not asked for, or counts everywhere."""
    if config.compute.activations != "int8":
        return ()
    if not isinstance(kernels, NativeKernels):
        return ("activations int8 has no effect: reference kernels compute",)
    notes = []
    if config.compute.device in GPUS:
        notes.append("activations int8 counts for experts that the CPU computes, not on the GPU")
    target = kernels.info().target
    if target not in _INTEGER_TARGETS:
        notes.append(
            f"activations int8: the target {target} has no integer products, activations are "
            f"rounded all the same and nothing is faster"
        )
    return (*notes, *_left_out(index, kernels))


def _left_out(index: FtwIndex, kernels: NativeKernels) -> tuple[str, ...]:
    """Formats of matrices whose products take activations of more bits, with their share."""
    known = {item.name for item in FORMATS}
    sizes: Counter[str] = Counter()
    for tensor in index.tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.format] += tensor.bytes
    for bank in index.banks:
        for part in bank.parts:
            sizes[part.format] += bank.bytes // len(bank.parts)
    kept = [name for name in sizes if name in known and kernels.activation_bits(name) != BITS]
    if not kept:
        return ()
    share = 100 * sum(sizes[name] for name in kept) / sum(sizes.values())
    return (
        f"activations int8: {share:.0f} % of the weights ({', '.join(sorted(kept))}) have no such "
        f"products and are computed as without it",
    )
