"""The CPU's share of a device's MoE layer as a hand-off task: buffers and arguments in C's layout.

The computing is native/src/cpu_pairs.cpp, or pair_callback.py for experts that no fused kernel
knows; when it happens is hand_off.py's business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ftengine.errors import EngineError
from ftengine.gpu.driver import Driver
from ftengine.gpu.hand_off import Task
from ftengine.gpu.memory import LINE_BYTES, PinnedBlock
from ftengine.gpu.pair_callback import ExpertKernel, PairCallback, PairPlaces
from ftengine.kernels import abi
from ftengine.kernels.operands import ACTIVATIONS, ExpertBank


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
        ("ffn", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("places", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
        ("work", ctypes.c_void_p),
        ("chosen", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class PairSizes:
    """A decode step at most: tokens, experts of a token, numbers of a row."""

    tokens: int
    places: int
    hidden: int

    @property
    def pairs(self) -> int:
        """(token, place) pairs."""
        return self.tokens * self.places


class CpuPairs:
    """Pinned buffers that every layer of a step uses in turn, and tasks over them.

    Shape: x f32 [tokens, hidden]; ids and rows i32 [pairs]; parts f32 [pairs, hidden].
    kernel: for experts that no fused kernel knows.
    """

    def __init__(
        self, driver: Driver, library: Any, sizes: PairSizes, kernel: ExpertKernel | None = None
    ) -> None:
        self.sizes = sizes
        self._kernel = kernel
        self._library = library
        row_bytes, pairs = 4 * sizes.hidden, sizes.pairs
        wanted = (sizes.tokens * row_bytes, 4 * pairs, 4 * pairs, pairs * row_bytes)
        self._block = PinnedBlock(driver, sum(wanted) + len(wanted) * LINE_BYTES)
        self.x, self.ids, self.rows, self.parts = (self._block.take(size) for size in wanted)
        self._work = torch.zeros(pairs * (2 * sizes.hidden + 1))
        self._chosen = torch.zeros(2 * pairs, dtype=torch.int32)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._keep: list[Any] = []

    def tasks(self, banks: Sequence[ExpertBank], tokens: int) -> list[Task]:
        """One task per layer for steps of so many tokens.

        Raises: EngineError for experts that only `kernel` could compute, where there is none.
        """
        self._grow([bank for bank in banks if not bank.in_products])
        return [self._task(f"layer {idx}", bank, tokens) for idx, bank in enumerate(banks)]

    def close(self) -> None:
        """Give the pinned memory back; may be called twice. Not while a step runs."""
        self._block.close()

    def _task(self, name: str, bank: ExpertBank, tokens: int) -> Task:
        if not bank.in_products:
            function = ctypes.cast(self._library.ft_cpu_pairs, ctypes.c_void_p).value or 0
            return Task(name, function, self._arguments(bank, tokens))
        if self._kernel is None:
            raise EngineError(
                "experts with biases, clamps or without gates need the CPU's kernels for the CPU "
                "branch; use the strategy fetch or resident",
                code="bad_operand",
            )
        places = PairPlaces(self.x, self.ids, self.rows, self.parts)
        task = PairCallback(self._kernel, bank, places, tokens, self.sizes.places)
        self._keep.append(task)
        return Task(name, ctypes.cast(task.function, ctypes.c_void_p).value or 0, self.x)

    def _grow(self, banks: Sequence[ExpertBank]) -> None:
        """Scratch for the largest call; only ever made once, before tasks point to it."""
        self._library.ft_expert_ffn_scratch.argtypes = (ctypes.c_char_p,)
        self._library.ft_expert_ffn_scratch.restype = ctypes.c_int64
        need = max(
            (
                int(self._library.ft_expert_ffn_scratch(self._ffn(bank, self.sizes.pairs)))
                for bank in banks
            ),
            default=0,
        )
        if self._scratch.numel() < need + LINE_BYTES:
            assert not self._keep, "tasks point to the old scratch"
            self._scratch = torch.empty(need + LINE_BYTES, dtype=torch.uint8)

    def _arguments(self, bank: ExpertBank, tokens: int) -> int:
        ffn = ctypes.create_string_buffer(self._ffn(bank, tokens * self.sizes.places))
        arguments = _Arguments(
            size=ctypes.sizeof(_Arguments),
            ffn=ctypes.addressof(ffn),
            x=self.x,
            ids=self.ids,
            rows=self.rows,
            tokens=tokens,
            places=self.sizes.places,
            parts=self.parts,
            work=self._work.data_ptr(),
            chosen=self._chosen.data_ptr(),
        )
        self._keep += [ffn, arguments, bank]
        return ctypes.addressof(arguments)

    def _ffn(self, bank: ExpertBank, tokens: int) -> bytes:
        """Everything but what a call fills in. Order as in abi.h."""
        scratch = -(-self._scratch.data_ptr() // LINE_BYTES) * LINE_BYTES
        return abi.EXPERT_FFN.pack(
            abi.EXPERT_FFN.size,
            ACTIVATIONS[bank.activation],
            bank.native_id_gate_up,
            bank.native_id_down,
            self.x,
            bank.hidden,
            tokens,
            self.ids,
            self._work.data_ptr(),
            1,
            bank.num_experts,
            bank.hidden,
            bank.inter,
            bank.address,
            bank.row_bytes,
            0,
            bank.layout.gate_up_offset,
            bank.layout.down_offset,
            self.parts,
            bank.hidden,
            scratch,
            max(self._scratch.numel() - LINE_BYTES, 0),
            bank.alpha,
            bank.limit,
            0,
            0,
        )
