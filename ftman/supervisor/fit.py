"""Bytes needed against bytes free: fits now, fits after evicting, or never. Pure arithmetic.

Forecasting how many bytes a model needs is done elsewhere; here numbers are only compared.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from ftman.errors import CannotFitError
from ftman.supervisor.policy_events import EngineSpec, Memory

GB = 1e9


class Fit(enum.Enum):
    """The three answers."""

    FITS = "fits"
    EVICT = "evict"
    NEVER = "never"


def judge_fit(need_bytes: int, memory: Memory, loaded_bytes: Sequence[int]) -> Fit:
    """Compare one engine's need with what is free, given the needs of the engines now loaded.

    An engine fills its KV cache only as it is used, so what it was promised counts, not only what
    the system reports as taken: free = min(reported, total - promised).

    Units: bytes.
    """
    promised = sum(loaded_bytes)
    if need_bytes <= min(memory.available_bytes, memory.total_bytes - promised):
        return Fit.FITS
    if need_bytes > most_bytes(memory, loaded_bytes):
        return Fit.NEVER
    return Fit.EVICT


def most_bytes(memory: Memory, loaded_bytes: Sequence[int]) -> int:
    """The most one engine could have if all the others were ended. Units: bytes."""
    return min(memory.total_bytes, memory.available_bytes + sum(loaded_bytes))


def cannot_fit(spec: EngineSpec, memory: Memory, loaded_bytes: Sequence[int]) -> CannotFitError:
    """The error for Fit.NEVER, with both numbers and the next step."""
    have = most_bytes(memory, loaded_bytes)
    return CannotFitError(
        f"{spec.name} needs {spec.need_bytes / GB:.1f} GB of memory with a context of "
        f"{spec.context_tokens} tokens x {spec.num_parallel}; at most {have / GB:.1f} GB can be "
        f"freed on this machine ({memory.total_bytes / GB:.1f} GB in all)",
        hint="Close other programs, choose a smaller context (num_ctx) or a smaller build of "
        "the model.",
    )
