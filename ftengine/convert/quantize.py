"""Which weights of a float model become which format, and an encoder for MXFP4.

Numpy only and exact element by element, so that every machine makes the same bytes. Formats
themselves are ftengine/quant's; walking a model is remake.py's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ftengine.errors import LoadError
from ftengine.quant import format_named, mxfp4, panel32, q4_0, q8_0
from ftengine.quant.base import Bytes, Floats, QuantFormat, join_nibbles
from ftengine.quant.small_floats import E2M1

FLOAT_FORMATS = ("f32", "f16", "bf16")
_E2M1_TOP_EXPONENT = 2
_E2M1_EDGES = (E2M1[:7].astype(np.float64) + E2M1[1:8]) / 2
_MIN_ROWS = 32
_LOOKED_UP = ("embed", "head")


def _encode_mxfp4(values: Floats) -> Bytes:
    """Blocks of GGUF's order. The scale is 2^(exponent of the largest - 2); ties go to even codes.

    Shape: float32 [n, 32] -> uint8 [n, 17].
    """
    largest = np.abs(values).max(axis=-1, keepdims=True)
    exponent = np.frexp(largest)[1].astype(np.int64) - 1 - _E2M1_TOP_EXPONENT
    code = np.where(largest == 0, 0, np.clip(exponent + 127, 0, 254))
    scaled = np.ldexp(np.abs(values).astype(np.float64), (127 - code).astype(np.int32))
    below = np.searchsorted(_E2M1_EDGES, scaled, side="left")
    # Exactly on an edge, `left` gives the lower code; the even one of the two is wanted.
    on_edge = (below < len(_E2M1_EDGES)) & (
        scaled == _E2M1_EDGES[np.minimum(below, len(_E2M1_EDGES) - 1)]
    )
    level = below + (on_edge & (below % 2 == 1))
    nibble = (level | np.where(np.signbit(values), 8, 0)).astype(np.uint8)
    return np.concatenate([code.astype(np.uint8), join_nibbles(nibble)], axis=-1)


_MXFP4 = replace(mxfp4.GGUF_FORMAT, encode_blocks=_encode_mxfp4)
TARGETS: dict[str, QuantFormat] = {"q8_0": q8_0.FORMAT, "q4_0": q4_0.FORMAT, "mxfp4": _MXFP4}
"""What can be asked for, and the format the matrices get."""

FILE_TYPES = {"q8_0": 7, "q4_0": 2, "mxfp4": 38}
"""general.file_type of the results, as GGUF counts them."""


def writable(name: str) -> QuantFormat:
    """The format called `name`, able to encode."""
    return _MXFP4 if name == _MXFP4.name else format_named(name)


def target_format(quantize: str, name: str, shape: tuple[int, ...], fmt: str) -> str:
    """The format a matrix gets: its own where it is to stay as it is.

    Norms, biases, routers and small or odd matrices stay. Embedding and head are looked up and
    decide single tokens: they get 8 bits at least.
    Raises: LoadError if a matrix to be quantised is quantised already.
    """
    if not quantize or len(shape) != 2 or shape[0] < _MIN_ROWS or name.endswith(".router"):
        return fmt
    target = q8_0.FORMAT if name in _LOOKED_UP else TARGETS[quantize]
    if fmt not in FLOAT_FORMATS:
        raise LoadError(
            f"quantization is only supported for F16, BF16 and F32 models; {name} is {fmt}",
            code="unsupported_format",
        )
    return target.name if panel32.fits(target, shape[1]) else fmt
