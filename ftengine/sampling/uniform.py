"""Counter-based random numbers: (seed, counter) -> one uniform number, with no state between calls.

A request's n-th token depends on its seed and on n only, so the batch around it, a preemption and a
restart change nothing.
"""

from __future__ import annotations

import secrets

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def new_seed() -> int:
    """A seed from the system, for requests that name none."""
    return secrets.randbits(63)


def mix(value: int) -> int:
    """Scramble 64 bits: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    key = mix((seed & _MASK) ^ 0x5851F42D4C957F2D)
    return (mix((key + (counter + 1) * _STEP) & _MASK) >> 11) * 2.0**-53
