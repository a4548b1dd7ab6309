"""The CPU's share of a layer whose experts no fused kernel knows: a hand-off task in Python.

Experts with biases, clamped ones, those without gates: they are computed of matrix products, as on
the device cpu. The hand-off's thread calls in here, which costs it the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ftengine.kernels.operands import ExpertBank

log = logging.getLogger(__name__)

OK, FAILED = 0, 1
TaskFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
ExpertKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, ExpertBank], torch.Tensor]
"""x [n, hidden], expert ids int32 [n, 1], weights [n, 1], bank -> [n, hidden]."""


@dataclass(frozen=True)
class PairPlaces:
    """Addresses of the pinned buffers. Shape: as CpuPairs says."""

    x: int
    ids: int
    rows: int
    parts: int


class PairCallback:
    """One task: the pairs without a row of so many tokens. function: what the hand-off calls."""

    def __init__(
        self,
        kernel: ExpertKernel,
        bank: ExpertBank,
        places: PairPlaces,
        tokens: int,
        experts_per_token: int,
    ) -> None:
        pairs, hidden = tokens * experts_per_token, bank.hidden
        self._kernel = kernel
        self._bank = bank
        self._experts_per_token = experts_per_token
        self._x = array_at(places.x, np.float32, (tokens, hidden))
        self._ids = array_at(places.ids, np.int32, (pairs,))
        self._rows = array_at(places.rows, np.int32, (pairs,))
        self._parts = array_at(places.parts, np.float32, (pairs, hidden))
        self.function = TaskFunction(self._run)

    def _run(self, _: Any) -> int:
        try:
            with torch.inference_mode():
                self._compute()
        except Exception:  # the root of this task: its status ends the step
            log.exception("the CPU branch of a layer failed")
            return FAILED
        return OK

    def _compute(self) -> None:
        compute_pairs(
            self._kernel,
            self._bank,
            self._x,
            self._ids.reshape(-1, self._experts_per_token),
            self._rows,
            self._parts,
        )


def compute_pairs(
    kernel: ExpertKernel,
    bank: ExpertBank,
    x: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    parts: npt.NDArray[np.float32],
) -> None:
    """Fill the parts of the pairs whose row is below 0.

    Shape: x [tokens, hidden]; ids [tokens, k]; rows [pairs]; parts [pairs, hidden].
    """
    pairs = np.flatnonzero(rows < 0)
    if pairs.size == 0:
        return
    wanted = torch.from_numpy(ids.reshape(-1)[pairs].reshape(-1, 1))
    given = torch.from_numpy(x[pairs // ids.shape[1]])
    found = kernel(given, wanted, torch.ones(wanted.shape), bank)
    parts[pairs] = found.numpy()


def array_at(address: int, kind: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Memory that somebody else owns, as an array."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    buffer = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(buffer, kind).reshape(shape)
