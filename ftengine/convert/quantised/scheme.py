"""Scheme and QuantPlan: how each module's weight is stored, whatever the release calls it.

Only these five kinds exist for the rest of the converter: fp8_block, fp8_tensor, mxfp4, nvfp4,
int4_group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ftengine.errors import LoadError
from ftengine.loader.stored import FP8_BLOCK, FP8_TENSOR, INT4, MXFP4, NVFP4

BUILT = (
    "fp8 in 128x128 blocks, per channel or per tensor; mxfp4; nvfp4; symmetric int4 "
    "(quant_method fp8, mxfp4, compressed-tensors, modelopt)"
)
_NAME_LIMIT = 1 << 20
_TEXT_LIMIT = 512

Matches = Callable[[str], bool]
"""Module name -> whether it is meant."""


@dataclass(frozen=True)
class Scheme:
    """How one weight is stored. codes: the safetensors dtypes its codes may have."""

    kind: str
    codes: tuple[str, ...]


FP8_BLOCKS = Scheme(FP8_BLOCK, ("F8_E4M3",))
FP8_WHOLE = Scheme(FP8_TENSOR, ("F8_E4M3",))
MXFP4_PACKED = Scheme(MXFP4, ("U8", "I8"))
NVFP4_PACKED = Scheme(NVFP4, ("U8",))
INT4_PACKED = Scheme(INT4, ("I32",))


@dataclass(frozen=True)
class QuantPlan:
    """Which scheme each module has. The first rule that matches module and dtype decides.

    stacked: that of tensors that hold all experts as blocks and scales, of whatever module.
    """

    rules: tuple[tuple[Matches, Scheme], ...] = ()
    is_ignored: Matches = lambda module: False
    stacked: Scheme | None = None

    def scheme_of(self, module: str, dtype: str) -> Scheme | None:
        """The scheme of a weight whose codes have this dtype; None if the config excludes it."""
        if self.is_ignored(module):
            return None
        for matches, scheme in self.rules:
            if dtype in scheme.codes and matches(module):
                return scheme
        return None


def refused(what: str) -> LoadError:
    """The error for a quantisation that is not built."""
    return LoadError(
        f"{what}, which is not built yet; built: {BUILT}; use the bf16 release or a GGUF file",
        code="unsupported_format",
    )


def everything(_: str) -> bool:
    """Matches every module."""
    return True


def texts(value: Any, key: str) -> tuple[str, ...]:
    """A list of names, or nothing. Raises: LoadError naming the key."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _NAME_LIMIT:
        raise LoadError(f"quantization_config: {key} must be a list of module names")
    if not all(isinstance(item, str) and len(item) <= _TEXT_LIMIT for item in value):
        raise LoadError(
            f"quantization_config: {key} must hold names of at most {_TEXT_LIMIT} letters"
        )
    return tuple(value)


def parents(names: Iterable[str]) -> Matches:
    """A name means itself, everything below it, and a module that ends in it.

    Stars are wildcards. "lm_head" means model.lm_head too, but "mlp.gate" is not "mlp.gate_proj".
    """
    listed = frozenset(names)
    plain = frozenset(name for name in listed if "*" not in name)
    globs = tuple(sorted(listed - plain))

    def matches(module: str) -> bool:
        at = module.find(".")
        while at >= 0:
            if module[:at] in plain or module[at + 1 :] in plain:
                return True
            at = module.find(".", at + 1)
        if module in plain:
            return True
        return any(fnmatchcase(module, g) or fnmatchcase(module, g + ".*") for g in globs)

    return matches


def names_or_patterns(names: Iterable[str], key: str) -> Matches:
    """compressed-tensors: exact names, and "re:" patterns that match from the start.

    Raises: LoadError for a pattern that is none.
    """
    listed = tuple(names)
    exact = frozenset(name for name in listed if not name.startswith("re:"))
    patterns = []
    for name in listed:
        if name.startswith("re:"):
            try:
                patterns.append(re.compile(name[3:]))
            except (re.error, OverflowError, RecursionError) as error:
                raise LoadError(
                    f"quantization_config: {key} {name!r} is no pattern: {error}"
                ) from None

    def matches(module: str) -> bool:
        return module in exact or any(pattern.match(module) for pattern in patterns)

    return matches
