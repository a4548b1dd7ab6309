"""Rows copied to rows: KV pages and states between where steps use them and where they are parked.

By the native library where both lie in the CPU's memory, else by torch.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Sequence

import torch

from ftengine.kernels import abi
from ftengine.kernels.native_checks import bad_shape

CopyRows = Callable[[torch.Tensor, Sequence[int], torch.Tensor, Sequence[int]], None]
"""source, rows of it, target, rows of it, none of which stands twice.

Shape: source, target [parts, any number of rows, width], the last dimension contiguous.
"""

_AT_ONCE = 64
"""Rows that torch copies together, since it keeps them once more in between."""


@torch.inference_mode()
def torch_copy_rows(
    source: torch.Tensor, source_ids: Sequence[int], target: torch.Tensor, target_ids: Sequence[int]
) -> None:
    """CopyRows on any device, and from one to another."""
    taken = torch.tensor(source_ids, dtype=torch.int64, device=source.device)
    into = torch.tensor(target_ids, dtype=torch.int64, device=target.device)
    for at in range(0, len(taken), _AT_ONCE):
        found = source.index_select(1, taken[at : at + _AT_ONCE])
        target[:, into[at : at + _AT_ONCE]] = found.to(target.device)


def native_copy_rows(library: ctypes.CDLL) -> CopyRows:
    """CopyRows by all threads of the library. It raises EngineError("native_call")."""
    call = library.ft_copy_rows

    def copy_rows(
        source: torch.Tensor,
        source_ids: Sequence[int],
        target: torch.Tensor,
        target_ids: Sequence[int],
    ) -> None:
        parts, _, width = source.shape
        same = source.dtype == target.dtype and target.shape[::2] == (parts, width)
        whole = source.stride(2) == target.stride(2) == 1 or width < 2
        on_host = source.is_cpu and target.is_cpu
        if not (same and whole and on_host and len(source_ids) == len(target_ids)):
            raise bad_shape("copy_rows", f"from {_described(source)}, to {_described(target)}")
        taken, into = array.array("q", source_ids), array.array("q", target_ids)
        size = source.itemsize
        packed = abi.COPY_ROWS.pack(
            abi.COPY_ROWS.size,
            0,
            source.data_ptr(),
            source.stride(1) * size,
            source.stride(0) * size,
            source.shape[1],
            target.data_ptr(),
            target.stride(1) * size,
            target.stride(0) * size,
            target.shape[1],
            parts,
            width * size,
            taken.buffer_info()[0],
            into.buffer_info()[0],
            len(taken),
        )
        status = call(packed)
        if status:
            abi.check(library, status, "copy_rows")

    return copy_rows


def _described(rows: torch.Tensor) -> str:
    return f"{rows.dtype} {tuple(rows.shape)} in steps of {rows.stride()}"
