"""What a native call must read and multiply, read off its struct: the floor of its time.

Weights, keys and values, and states count; activations do not, since they come from the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from ftengine.kernels import abi
from ftengine.quant import FORMATS
from ftengine.quant.panel32 import packed_bytes

_NAMES = {item.native_id: item.name for item in reversed(FORMATS)}
_KEY_BYTES = {0: 4.0, 30: 2.0, 8: 1.0 + 2.0 / 32}
"""Bytes of a number in a KV pool of that format, its share of a scale included."""


@dataclass(frozen=True)
class CallWork:
    """label: what is computed, with its shape; fmt: the weight format, "" without weights."""

    label: str
    fmt: str = ""
    num_bytes: int = 0
    multiply_adds: int = 0


@dataclass(frozen=True)
class TimedCall:
    """A call that was made, and how long it took. Units: seconds."""

    work: CallWork
    seconds: float


def work_of(name: str, packed: bytes) -> CallWork:
    """To be asked right after the call, while what its struct points at is unchanged."""
    found = _WORK.get(name)
    return CallWork(name) if found is None else found(packed)


def _linear(packed: bytes) -> CallWork:
    _, native_id, _, _, tokens, _, rows, cols, *_ = abi.LINEAR.unpack(packed)
    fmt = _NAMES[native_id]
    return CallWork(
        f"linear {rows} x {cols} {fmt}", fmt, packed_bytes(fmt, rows, cols), tokens * rows * cols
    )


def _experts(packed: bytes) -> CallWork:
    values = abi.EXPERT_FFN.unpack(packed)
    gate_up, down = _NAMES[values[2]], _NAMES[values[3]]
    tokens, ids, slots, hidden, inter = values[6], values[7], values[9], values[11], values[12]
    pairs = tokens * slots
    distinct = len(set((ctypes.c_int32 * pairs).from_address(ids))) if pairs else 0
    size = packed_bytes(gate_up, inter, hidden, paired=True) + packed_bytes(down, hidden, inter)
    kinds = gate_up if gate_up == down else f"{gate_up}/{down}"
    label = f"experts {hidden} x {inter} {kinds}"
    return CallWork(label, gate_up, distinct * size, 3 * pairs * hidden * inter)


def _attention(packed: bytes) -> CallWork:
    values = abi.ATTENTION.unpack(packed)
    start, lengths, sequences = values[7], values[8], values[10]
    heads, kv_heads, head_dim, window = values[12:16]
    starts = (ctypes.c_int32 * (sequences + 1)).from_address(start)
    keys = (ctypes.c_int32 * sequences).from_address(lengths)
    read = pairs = 0
    for index in range(sequences):
        tokens, length = starts[index + 1] - starts[index], keys[index]
        seen = min(length, window + tokens) if window else length
        read += seen
        first = length - tokens  # query i sees first + i + 1 keys, at most the window
        counts = range(first + 1, length + 1)
        pairs += sum(min(n, window) for n in counts) if window else sum(counts)
    num_bytes = int(2 * read * kv_heads * head_dim * _KEY_BYTES[values[1]])
    return CallWork("attention", "f32", num_bytes, 2 * pairs * heads * head_dim)


def _gated_delta(packed: bytes) -> CallWork:
    values = abi.GATED_DELTA.unpack(packed)
    tokens, value_heads, key_dim, value_dim = values[4], values[6], values[7], values[8]
    state = value_heads * key_dim * value_dim
    start = ctypes.cast(values[16], ctypes.POINTER(ctypes.c_int32))
    spans = 0
    while start[spans] < tokens:
        spans += 1
    return CallWork("gated delta", "f32", 2 * 4 * spans * state, 3 * tokens * state)


_WORK: dict[str, Callable[[bytes], CallWork]] = {
    "linear": _linear,
    "expert_ffn": _experts,
    "attention": _attention,
    "gated_delta": _gated_delta,
}
