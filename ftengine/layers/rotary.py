"""Tables of cosines and sines for rotary position embedding, with the usual scalings.

The rotation itself happens where keys are stored (kernels: rope_store), for most families.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftengine.errors import LoadError
from ftengine.kernels.reference.rope import rotate

Wide = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies to make. scaling "none", "linear", "llama3", "yarn" or another; factors as
    configured. "proportional": the slowest pairs do not turn, all but `partial` of them.

    Units: dims = rotated dimensions of a head.
    """

    dims: int
    theta: float
    scaling: str = "none"
    factors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class RopeTables:
    """Shape: cos and sin float32 [max_positions, dims / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def turn_first(
    x: torch.Tensor, tables: RopeTables, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotate the first dimensions of every head. Shape: x [n, heads, dim]; positions [n]."""
    at = positions.long()
    return rotate(x, tables.cos[at], tables.sin[at], interleaved)


def turn_last(
    x: torch.Tensor,
    tables: RopeTables,
    positions: torch.Tensor,
    interleaved: bool,
    *,
    back: bool = False,
) -> torch.Tensor:
    """Rotate the last dimensions of every head; `back` undoes it. Shape: as turn_first."""
    at = positions.long()
    sin = -tables.sin[at] if back else tables.sin[at]
    kept = x.shape[-1] - 2 * tables.cos.shape[1]
    turned = rotate(x[..., kept:], tables.cos[at], sin, interleaved)
    return torch.cat([x[..., :kept], turned], dim=-1)


def make_tables(spec: RopeScaling, max_positions: int) -> RopeTables:
    """Compute the tables in float64. Raises: LoadError for an unknown scaling."""
    inverse, factor = _inverse_frequencies(spec, max_positions)
    angles = np.arange(max_positions, dtype=np.float64)[:, None] * inverse[None, :]
    return RopeTables(
        torch.from_numpy((np.cos(angles) * factor).astype(np.float32)),
        torch.from_numpy((np.sin(angles) * factor).astype(np.float32)),
    )


def _inverse_frequencies(spec: RopeScaling, max_positions: int) -> tuple[Wide, float]:
    """theta^(-2j/d) after scaling, and the factor on cosines and sines."""
    steps = np.arange(spec.dims // 2, dtype=np.float64)
    plain: Wide = spec.theta ** (-2.0 * steps / spec.dims)
    numbers = dict(spec.factors)
    if spec.scaling == "none":
        return plain, 1.0
    if spec.scaling == "linear":
        return plain / numbers["factor"], 1.0
    if spec.scaling == "proportional":
        turning = int(numbers["partial"] * spec.dims / 2)
        return np.where(steps < turning, plain, 0.0), 1.0
    if spec.scaling == "llama3":
        return _llama3(plain, numbers), 1.0
    if spec.scaling == "longrope":
        return _longrope(plain, numbers, max_positions)
    if spec.scaling == "yarn":
        return _yarn(plain, spec, numbers), _yarn_attention_factor(numbers)
    raise LoadError(f"rope scaling {spec.scaling!r} is not built; built: linear, llama3, yarn")


def _longrope(plain: Wide, numbers: dict[str, float], max_positions: int) -> tuple[Wide, float]:
    """A divisor for every frequency; another list of them where the context is longer than trained.

    Keys that are stored stay as they were turned, so the list depends on the longest context.
    """
    old, long = numbers["original_max_position_embeddings"], numbers["max_position_embeddings"]
    kind = "long" if max_positions > old else "short"
    divisors = np.array([numbers[f"{kind}_{j}"] for j in range(plain.shape[0])])
    factor = numbers.get(f"{kind}_mscale") or numbers.get("attention_factor")
    if not factor:
        factor = math.sqrt(1 + math.log(long / old) / math.log(old)) if long > old else 1.0
    result: Wide = plain / divisors
    return result, factor


def _llama3(plain: Wide, numbers: dict[str, float]) -> Wide:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    factor, low = numbers["factor"], numbers["low_freq_factor"]
    high, old = numbers["high_freq_factor"], numbers["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / plain
    smooth = np.clip((old / wavelengths - low) / (high - low), 0.0, 1.0)
    result: Wide = (1 - smooth) * plain / factor + smooth * plain
    return result


def _yarn(plain: Wide, spec: RopeScaling, numbers: dict[str, float]) -> Wide:
    """Source: Peng et al., YaRN, 2023, with the truncation switch of later checkpoints."""
    old = numbers["original_max_position_embeddings"]

    def rotations_to_dim(rotations: float) -> float:
        return spec.dims * math.log(old / (2 * math.pi * rotations)) / (2 * math.log(spec.theta))

    low = rotations_to_dim(numbers.get("beta_fast", 32.0))
    high = rotations_to_dim(numbers.get("beta_slow", 1.0))
    if numbers.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, spec.dims - 1.0)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(plain.shape[0]) - low) / (high - low), 0.0, 1.0)
    result: Wide = ramp * plain / numbers["factor"] + (1 - ramp) * plain
    return result


def _yarn_attention_factor(numbers: dict[str, float]) -> float:
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    factor = numbers["factor"]

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return scale(numbers["mscale"]) / scale(numbers["mscale_all_dim"])
    return scale(1.0)
