"""Device kernels played on the host for the stand-in driver: same arguments, simple bodies.

What admission decides is the real kernel's business; here it follows a script, so that a test
chooses who computes what.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ftengine.gpu.kernel_cache import CompiledKernel
from ftengine.gpu.kernel_table import Build, Kernel
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton.builds import TABLE
from tests.ftengine.gpu.fake_driver import FakeGpu

_CODES = {"i32": "<i", "i64": "<q", "fp32": "<f", "fp64": "<d"}
Values = dict[str, Any]


def fake_compiler(kernel: Kernel, build: Build, target: object) -> CompiledKernel:
    """An image that the stand-in loads; a name per kernel."""
    return CompiledKernel(
        f"FAKE {kernel.function}\0".encode(), kernel.function, build.num_warps, 32, 0, "3.9.9"
    )


def play(gpu: FakeGpu, name: str, body: Callable[[Values], None]) -> None:
    """Run `body` with the launch's arguments by name."""
    kernel = TABLE.kernel(name)
    codes = ["<Q" if item.is_pointer else _CODES[item.type] for item in kernel.arguments]
    sizes = [struct.calcsize(code) for code in codes]
    gpu.describe(kernel.function, [*sizes, 8, 8])

    def handler(pointers: Any, grid: tuple[int, int, int]) -> None:
        values: Values = {"grid": grid}
        for idx, (item, code) in enumerate(zip(kernel.arguments, codes, strict=True)):
            values[item.name] = struct.unpack(code, ctypes.string_at(pointers[idx], sizes[idx]))[0]
        body(values)

    gpu.handle(kernel.function, handler)


def array(address: int, kind: type, *shape: int) -> np.ndarray:
    """Memory as an array."""
    count = max(int(np.prod(shape)), 0)
    buffer = (ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address)
    return np.frombuffer(buffer, kind).reshape(shape)


@dataclass
class Played:
    """The kernels of a MoE layer. script: per layer (expert -> slot); fills: experts to copy."""

    gpu: FakeGpu
    kernels: NativeKernels
    bank: ExpertBank
    script: list[dict[int, int]] = field(default_factory=list)
    fills: list[list[int]] = field(default_factory=list)
    _places: int = 0
    _x_address: int = 0

    def install(self) -> None:
        """Play them all."""
        play(self.gpu, "admission.admission", self._admission)
        play(self.gpu, "row_copy.copy_rows", self._copy_rows)
        play(self.gpu, "expert_ffn.gate_up", self._gate_up)
        play(self.gpu, "expert_ffn.down", self._down)
        play(self.gpu, "expert_ffn.merge", self._merge)

    def _admission(self, v: Values) -> None:
        where, pairs = self.script[v["layer"]], v["num_pairs"]
        ids = array(v["ids"], np.int32, pairs)
        array(v["rows"], np.int32, pairs)[:] = [where.get(int(item), -1) for item in ids]
        fills = self.fills[v["layer"]]
        for place, expert in enumerate(fills):
            array(v["fills"], np.int32, len(fills), 2)[place] = (expert, where[expert])
        array(v["found"], np.int32, 4)[0] = len(fills)

    def _copy_rows(self, v: Values) -> None:
        count = int(array(v["num_tasks"], np.int32, 1)[0])
        if count == 0:
            return
        for source, target in array(v["tasks"], np.int32, count, 2):
            ctypes.memmove(
                v["target"] + int(target) * v["target_words"] * 4,
                v["source"] + int(source) * v["source_words"] * 4,
                v["row_words"] * 4,
            )

    def _gate_up(self, v: Values) -> None:
        """Remembers where x is; down computes both halves."""
        self._x_address, self._places = v["x"], v["num_places"]

    def _down(self, v: Values) -> None:
        pairs, hidden, places = v["num_pairs"], v["hidden"], self._places
        rows = array(v["rows"], np.int32, pairs)
        x = torch.from_numpy(array(self._x_address, np.float32, pairs // places, hidden).copy())
        parts = array(v["parts"], np.float32, pairs, hidden)
        slots = int(rows.max()) + 1
        if slots == 0:
            return
        data = torch.from_numpy(array(v["bank"], np.uint8, slots, v["row_bytes"]))
        bank = replace(self.bank, data=data)
        for pair in np.flatnonzero(rows >= 0):
            token = pair // places
            ids = torch.tensor([[int(rows[pair])]], dtype=torch.int32)
            one = self.kernels.expert_ffn(x[token : token + 1], ids, torch.ones(1, 1), bank)
            parts[pair] = one[0].numpy()

    def _merge(self, v: Values) -> None:
        tokens, places, hidden = v["num_tokens"], v["num_places"], v["hidden"]
        rows = array(v["rows"], np.int32, tokens * places)
        weights = array(v["weights"], np.float32, tokens * places)
        here = array(v["parts"], np.float32, tokens * places, hidden)
        there = array(v["cpu_parts"], np.float32, tokens * places, hidden)
        out = array(v["out"], np.float32, tokens, hidden)
        out[:] = 0
        for pair in range(tokens * places):
            out[pair // places] += weights[pair] * (here if rows[pair] >= 0 else there)[pair]


@dataclass
class Admitting(Played):
    """With a simple admission of its own: misses are filled in turn, unless the mode says cpu."""

    _slot_of: dict[tuple[int, int], int] = field(default_factory=dict)
    _next: int = 0

    def _admission(self, v: Values) -> None:
        ids = [int(item) for item in array(v["ids"], np.int32, v["num_pairs"])]
        if array(v["clock"], np.int64, 1)[0] == 0:
            self._slot_of, self._next = {}, 0
        array(v["clock"], np.int64, 1)[0] += 1
        mode = int(array(v["rates"], np.float64, 11)[9])
        misses = [item for item in ids if (v["layer"], item) not in self._slot_of]
        fills = misses[: {0: (len(misses) + 1) // 2, 2: len(misses), 3: 0}[mode]]
        for place, expert in enumerate(fills):
            slot = self._take({self._slot_of.get((v["layer"], item)) for item in ids}, v)
            self._slot_of[v["layer"], expert] = slot
            array(v["fills"], np.int32, len(fills), 2)[place] = (expert, slot)
        array(v["rows"], np.int32, len(ids))[:] = [
            self._slot_of.get((v["layer"], item), -1) for item in ids
        ]
        array(v["found"], np.int32, 4)[0] = len(fills)

    def _take(self, used: set[int | None], v: Values) -> int:
        while self._next % v["num_slots"] in used:
            self._next += 1
        slot = self._next % v["num_slots"]
        self._next += 1
        self._slot_of = {key: at for key, at in self._slot_of.items() if at != slot}
        return slot
