"""NativeKernels: the C++ kernels behind typed methods on torch tensors.

Every method checks dtype and shape, fills one struct and calls; results go to `out` where given.
Shapes are those of kernels/reference/, the truth these kernels are tested against. Not for two
threads at once on one object: expert_ffn keeps its scratch tensor. While `tape` is a list, calls
are noted on it too, and ftengine/plan makes them again; while `timed` is one, how long they took.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ftengine.errors import EngineError
from ftengine.kernels import abi, biased_experts
from ftengine.kernels.abi import NativeInfo
from ftengine.kernels.call_work import TimedCall, work_of
from ftengine.kernels.native_states import NativeStates
from ftengine.kernels.operands import (
    ACTIVATIONS,
    KV_GROUP,
    PAGE_TOKENS,
    SCORES,
    ExpertBank,
    HeadLayout,
    KvScales,
    PackedWeight,
    RouteSpec,
)
from ftengine.kernels.reference import recurrent
from ftengine.quant import format_named
from ftman.clock import SYSTEM

__all__ = ["ExpertBank", "HeadLayout", "NativeKernels", "PackedWeight"]

_log = logging.getLogger(__name__)
_POOL_FORMATS = {torch.float32: 0, torch.bfloat16: 30, torch.int8: 8}


@dataclass(frozen=True)
class TapedCall:
    """A call as it was made: its function's name and struct, and the scratch it may point at."""

    name: str
    packed: bytes
    scratch: torch.Tensor


class NativeKernels:
    """The loaded library. All activations are float32; the last dimension is contiguous."""

    name = "native"
    # no native form yet: the reference computes
    causal_conv = staticmethod(recurrent.causal_conv)
    delta_rule = staticmethod(recurrent.delta_rule)
    mamba2_scan = staticmethod(recurrent.mamba2_scan)

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.path = path
        self._library = library
        self._calls = {name: getattr(library, "ft_" + name) for name in abi.OP_NAMES}
        self._run_ops = library.ft_run_ops
        self._expert_ffn_scratch = library.ft_expert_ffn_scratch
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self.tape: list[TapedCall] | None = None
        self.state_ops = NativeStates(self._call)
        self.timed: list[TimedCall] | None = None

    @classmethod
    def load(
        cls,
        library_path: Path | str | None = None,
        num_threads: int = 0,
        cpu_target: str | None = None,
    ) -> NativeKernels:
        """Load the library and start its threads (0 = one per usable CPU, the caller included).

        Threads and target belong to the process: a second load changes them for the first too.

        Raises: EngineError("native_missing") naming how to build it; ("native_call") where the
        target is unknown.
        """
        path = abi.find_library(None if library_path is None else Path(library_path))
        library = abi.load_library(path)
        kernels = cls(library, path)
        abi.check(library, int(library.ft_init(num_threads)), "ft_init")
        if cpu_target:
            kernels.set_target(cpu_target)
        info = kernels.info()
        _log.info("native kernels: %s, %d threads, %s", info.target, info.threads, path)
        return kernels

    def info(self) -> NativeInfo:
        """Target, threads and CPU features in use."""
        return abi.read_info(self._library)

    def set_target(self, name: str) -> None:
        """Use another instruction set. Raises: EngineError("native_call") if it is not usable."""
        status = int(self._library.ft_set_target(name.encode()))
        if status:
            targets = ", ".join(self.info().targets)
            raise EngineError(
                f"cpu_target {name!r} is not usable here; usable: {targets}", code="native_call"
            )

    def set_threads(self, num_threads: int) -> None:
        """Restart the pool with another number of threads, the target stays."""
        target = self.info().target
        abi.check(self._library, int(self._library.ft_init(num_threads)), "ft_init")
        self.set_target(target)

    def stream_read(self, data: torch.Tensor) -> int:
        """Read a tensor with every thread: the bandwidth probe. Returns the sum of its words."""
        total = ctypes.c_uint64()
        size = data.numel() * data.element_size()
        status = self._library.ft_stream_read(data.data_ptr(), size, ctypes.byref(total))
        abi.check(self._library, int(status), "ft_stream_read")
        return total.value

    def hand_over_ns(self, rounds: int = 20000) -> float:
        """Nanoseconds from the first worker's CPU to the second's; 0 = could not be measured."""
        found = ctypes.c_double()
        status = self._library.ft_hand_over(rounds, ctypes.byref(found))
        abi.check(self._library, int(status), "ft_hand_over")
        return found.value

    def products(self, fmt: str, rounds: int) -> int:
        """The arithmetic probe: multiply-adds that all threads made, nothing but their instruction.

        fmt: the weight format whose products they are like.
        """
        made = ctypes.c_int64()
        native_id = format_named(fmt).native_id
        status = self._library.ft_products(native_id, rounds, ctypes.byref(made))
        abi.check(self._library, int(status), "ft_products")
        return made.value

    def run_calls(
        self, ops: ctypes.Array[ctypes.c_char], calls: Sequence[tuple[str, bytes]]
    ) -> None:
        """Make recorded calls, abi.OP one behind the other. What they point at must live.

        calls: their names and structs once more. Raises: EngineError("native_call").
        """
        count = len(calls)
        took = None if self.timed is None else (ctypes.c_int64 * count)()
        at = 0 if took is None else ctypes.addressof(took)
        packed = abi.RUN_OPS.pack(abi.RUN_OPS.size, 0, ctypes.addressof(ops), count, at)
        status = self._run_ops(packed)
        if status:
            abi.check(self._library, status, "a recorded step")
        if self.timed is not None and took is not None:
            for (name, struct), nanoseconds in zip(calls, took, strict=True):
                self.timed.append(TimedCall(work_of(name, struct), 1e-9 * nanoseconds))

    def _call(self, name: str, packed: bytes) -> None:
        if self.tape is not None:
            self.tape.append(TapedCall(name, packed, self._scratch))
        started = 0.0 if self.timed is None else SYSTEM.monotonic()
        status = self._calls[name](packed)
        if self.timed is not None:
            took = SYSTEM.monotonic() - started
            self.timed.append(TimedCall(work_of(name, packed), took))
        if status:
            abi.check(self._library, status, name)

    def linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        accumulate: bool = False,
    ) -> torch.Tensor:
        """out (+)= x @ weight^T + bias. Shape: x [n, cols]; out [n, rows]; bias [rows]."""
        tokens = x.shape[0]
        if out is None:
            out = (
                torch.zeros(tokens, weight.rows) if accumulate else x.new_empty(tokens, weight.rows)
            )
        if x.shape[1] != weight.cols or out.shape[1] != weight.rows or out.shape[0] != tokens:
            raise _shape(
                "linear",
                f"x {tuple(x.shape)}, out {tuple(out.shape)}, weight {weight.rows} x {weight.cols}",
            )
        _check_rows("linear", x, out)
        packed = abi.LINEAR.pack(
            88,
            weight.native_id,
            x.data_ptr(),
            x.stride(0),
            tokens,
            weight.address,
            weight.rows,
            weight.cols,
            0 if bias is None else _vector("linear bias", bias, weight.rows),
            out.data_ptr(),
            out.stride(0),
            1 if accumulate else 0,
            0,
        )
        self._call("linear", packed)
        return out

    def expert_ffn(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Weighted sum of each token's experts, slots in order.

        Shape: x, out [n, hidden]; expert_ids int32 and weights float32 [n, k], contiguous; rows
        int64 [num_experts], addresses that replace the bank's own rows.
        Raises: EngineError("native_call") for an expert id out of range.
        """
        tokens = expert_ids.shape[0]
        if out is None:
            out = torch.zeros_like(x) if accumulate else torch.empty_like(x)
        if x.shape != (tokens, bank.hidden) or out.shape != x.shape:
            raise _shape(
                "expert_ffn",
                f"x {tuple(x.shape)}, ids {tuple(expert_ids.shape)}, hidden {bank.hidden}",
            )
        _check_rows("expert_ffn", x, out)
        _check_routing("expert_ffn", expert_ids, weights)
        if bank.in_products:
            found = biased_experts.expert_ffn(self.linear, x, expert_ids, weights, bank)
            return out.add_(found) if accumulate else out.copy_(found)
        packed = self._pack_experts(x, expert_ids, weights, bank, out, accumulate, rows)
        scratch_bytes = self._expert_ffn_scratch(packed)
        if scratch_bytes < 0:
            abi.check(self._library, 2, "expert_ffn")
        if scratch_bytes > self._scratch.numel():
            self._scratch = torch.empty(scratch_bytes + scratch_bytes // 4, dtype=torch.uint8)
            packed = self._pack_experts(x, expert_ids, weights, bank, out, accumulate, rows)
        self._call("expert_ffn", packed)
        return out

    def _pack_experts(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        out: torch.Tensor,
        accumulate: bool,
        rows: torch.Tensor | None,
    ) -> bytes:
        scratch = self._scratch
        return abi.EXPERT_FFN.pack(
            176,
            ACTIVATIONS[bank.activation],
            bank.native_id_gate_up,
            bank.native_id_down,
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            expert_ids.data_ptr(),
            weights.data_ptr(),
            expert_ids.shape[1],
            bank.num_experts,
            bank.hidden,
            bank.inter,
            bank.address,
            bank.row_bytes,
            0 if rows is None else rows.data_ptr(),
            bank.layout.gate_up_offset,
            bank.layout.down_offset,
            out.data_ptr(),
            out.stride(0),
            scratch.data_ptr(),
            scratch.numel(),
            bank.alpha,
            bank.limit,
            1 if accumulate else 0,
            0,
        )

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        add_one: bool = False,
    ) -> torch.Tensor:
        """Normalise rows; with residual, residual += x first and is what is normalised.

        Shape: x, residual, out [n, size]; weight [size].
        """
        tokens, cols = x.shape
        if out is None:
            out = torch.empty_like(x)
        if out.shape != x.shape or (residual is not None and residual.shape != x.shape):
            raise _shape("rms_norm", f"x {tuple(x.shape)}, out {tuple(out.shape)}")
        _check_rows("rms_norm", x, out)
        if residual is not None:
            _check_rows("rms_norm", residual, out)
        packed = abi.RMS_NORM.pack(
            88,
            abi.ADD_ONE if add_one else 0,
            x.data_ptr(),
            x.stride(0),
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            _vector("rms_norm weight", weight, cols),
            out.data_ptr(),
            out.stride(0),
            tokens,
            cols,
            eps,
            0,
        )
        self._call("rms_norm", packed)
        return out

    def rope_store(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 1e-6,
        interleaved: bool = False,
        scales: KvScales | None = None,
    ) -> None:
        """Normalise (optional) and rotate q and k of qkv; q stays, k and v go to the pools.

        Shape: qkv [n, heads.qkv_cols]; cos, sin [max_positions, rotary_dim / 2]; positions int32
        [n]; slots int64 [n], page * 16 + place, -1 stores nothing; keys, values [num_pages,
        kv_heads, 16, head_dim] float32 or bfloat16, or int8 with scales.
        """
        tokens, dim = qkv.shape[0], heads.head_dim
        _check_qkv("rope_store", qkv, heads)
        _check_pools("rope_store", keys, values, scales, heads)
        _check_index("rope_store positions", positions, torch.int32, tokens)
        _check_index("rope_store slots", slots, torch.int64, tokens)
        if cos.shape != sin.shape or not (cos.is_contiguous() and sin.is_contiguous()):
            raise _shape("rope_store", f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}")
        q = qkv.data_ptr()
        k = q + 4 * heads.heads * dim
        packed = abi.ROPE_STORE.pack(
            184,
            abi.INTERLEAVED if interleaved else 0,
            q,
            k,
            k + 4 * heads.kv_heads * dim,
            qkv.stride(0),
            tokens,
            heads.heads,
            heads.kv_heads,
            dim,
            2 * cos.shape[1],
            0 if q_norm is None else _vector("q_norm", q_norm, dim),
            0 if k_norm is None else _vector("k_norm", k_norm, dim),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[0],
            positions.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            keys.shape[0],
            _POOL_FORMATS[keys.dtype],
            eps,
            0 if scales is None else scales.keys.data_ptr(),
            0 if scales is None else scales.values.data_ptr(),
        )
        self._call("rope_store", packed)

    def attention(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        keys: torch.Tensor,
        values: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        page_table: torch.Tensor,
        scale: float,
        window: int = 0,
        sinks: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        scales: KvScales | None = None,
    ) -> torch.Tensor:
        """Causal attention over paged keys; query i stands at context_len - count + i.

        Shape: qkv [n, heads.qkv_cols], q is its first part; query_start int32 [s + 1]; context_len
        int32 [s], new tokens included; page_table int32 [s, max_pages]; sinks [heads];
        out [n, heads * head_dim]. Pools and scales as in rope_store.
        """
        sequences = context_len.shape[0]
        width = heads.heads * heads.head_dim
        if out is None:
            out = torch.empty(qkv.shape[0], width)
        _check_qkv("attention", qkv, heads)
        _check_pools("attention", keys, values, scales, heads)
        _check_rows("attention", qkv, out)
        _check_index("attention query_start", query_start, torch.int32, sequences + 1)
        _check_index("attention context_len", context_len, torch.int32, sequences)
        if out.shape != (qkv.shape[0], width) or not page_table.is_contiguous():
            raise _shape("attention", f"out {tuple(out.shape)}, pages {tuple(page_table.shape)}")
        if page_table.dtype != torch.int32 or page_table.shape[0] != sequences:
            raise _shape("attention", f"page_table {page_table.dtype} {tuple(page_table.shape)}")
        packed = abi.ATTENTION.pack(
            168,
            _POOL_FORMATS[keys.dtype],
            qkv.data_ptr(),
            qkv.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            keys.shape[0],
            query_start.data_ptr(),
            context_len.data_ptr(),
            page_table.data_ptr(),
            sequences,
            page_table.shape[1],
            heads.heads,
            heads.kv_heads,
            heads.head_dim,
            window,
            0 if sinks is None else _vector("sinks", sinks, heads.heads),
            out.data_ptr(),
            out.stride(0),
            scale,
            0,
            0 if scales is None else scales.keys.data_ptr(),
            0 if scales is None else scales.values.data_ptr(),
        )
        self._call("attention", packed)
        return out

    def embed_rows(
        self,
        table: torch.Tensor,
        fmt: str,
        cols: int,
        ids: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows of a matrix in its checkpoint format.

        Shape: table uint8 [rows, row_bytes]; ids int64 [n]; out [n, cols].
        Raises: EngineError("native_call") for an id out of range.
        """
        quant = format_named(fmt)
        count = ids.shape[0]
        if out is None:
            out = torch.empty(count, cols)
        _check_index("embed_rows ids", ids, torch.int64, count)
        if table.dtype != torch.uint8 or not table.is_contiguous():
            raise _shape("embed_rows", f"table {table.dtype} {tuple(table.shape)}")
        if table.shape[1] != quant.row_bytes(cols) or out.shape != (count, cols):
            raise _shape("embed_rows", f"table {tuple(table.shape)}, out {tuple(out.shape)}")
        _check_rows("embed_rows", out, out)
        packed = abi.EMBED_ROWS.pack(
            64,
            quant.native_id,
            table.data_ptr(),
            table.shape[0],
            cols,
            ids.data_ptr(),
            count,
            out.data_ptr(),
            out.stride(0),
        )
        self._call("embed_rows", packed)
        return out

    def route(
        self,
        logits: torch.Tensor,
        spec: RouteSpec,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """The best experts of each token, best first, the lower id where two are equal.

        Shape: logits [n, experts]; expert_ids int32 and weights float32 [n, k], contiguous,
        written; bias [experts], added to the scores for the choice only.
        """
        tokens, experts = logits.shape
        slots = expert_ids.shape[1]
        if expert_ids.shape[0] != tokens or slots > experts:
            raise _shape("route", f"logits {tuple(logits.shape)}, ids {tuple(expert_ids.shape)}")
        _check_rows("route", logits, logits)
        _check_routing("route", expert_ids, weights)
        packed = abi.ROUTE.pack(
            80,
            SCORES[spec.score],
            logits.data_ptr(),
            logits.stride(0),
            tokens,
            experts,
            slots,
            0 if bias is None else _vector("route bias", bias, experts),
            expert_ids.data_ptr(),
            weights.data_ptr(),
            abi.NORMALIZE if spec.normalize else 0,
            spec.scale,
        )
        self._call("route", packed)


def _shape(call: str, what: str) -> EngineError:
    return EngineError(f"{call}: shapes do not fit: {what}", code="bad_operand")


def _check_rows(call: str, x: torch.Tensor, out: torch.Tensor) -> None:
    """Float32 rows with a contiguous last dimension."""
    good = x.dtype == torch.float32 and out.dtype == torch.float32
    if not good or x.stride(-1) != 1 or out.stride(-1) != 1:
        raise EngineError(
            f"{call}: need float32 rows with a contiguous last dimension, got {x.dtype} "
            f"{x.stride()} and {out.dtype} {out.stride()}",
            code="bad_operand",
        )


def _check_index(what: str, ids: torch.Tensor, dtype: torch.dtype, count: int) -> None:
    if ids.dtype != dtype or ids.shape != (count,) or not ids.is_contiguous():
        raise EngineError(
            f"{what}: need {count} contiguous {dtype}, got {ids.dtype} {tuple(ids.shape)}",
            code="bad_operand",
        )


def _check_routing(call: str, ids: torch.Tensor, weights: torch.Tensor) -> None:
    if (
        ids.dtype != torch.int32
        or weights.dtype != torch.float32
        or weights.shape != ids.shape
        or not (ids.is_contiguous() and weights.is_contiguous())
    ):
        raise EngineError(
            f"{call}: need contiguous int32 ids and float32 weights of one shape, got "
            f"{ids.dtype} {tuple(ids.shape)} and {weights.dtype} {tuple(weights.shape)}",
            code="bad_operand",
        )


def _check_qkv(call: str, qkv: torch.Tensor, heads: HeadLayout) -> None:
    if qkv.dtype != torch.float32 or qkv.stride(1) != 1 or qkv.shape[1] != heads.qkv_cols:
        raise _shape(call, f"qkv {qkv.dtype} {tuple(qkv.shape)}, {heads}")


def _check_pools(
    call: str,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: KvScales | None,
    heads: HeadLayout,
) -> None:
    shape = (keys.shape[0], heads.kv_heads, PAGE_TOKENS, heads.head_dim)
    good = keys.shape == shape and values.shape == shape and keys.dtype == values.dtype
    if not good or keys.dtype not in _POOL_FORMATS:
        raise _shape(call, f"keys {keys.dtype} {tuple(keys.shape)}, {heads}")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise _shape(call, "the KV pools must be contiguous")
    if (scales is None) == (keys.dtype == torch.int8):
        raise _shape(call, f"{keys.dtype} KV pools and scales {scales is not None}")
    if scales is not None:
        _check_scales(call, scales, shape)


def _check_scales(call: str, scales: KvScales, shape: tuple[int, ...]) -> None:
    """Shape: of the pools the scales belong to."""
    wanted = (*shape[:3], shape[3] // KV_GROUP)
    for part in (scales.keys, scales.values):
        good = part.dtype == torch.float16 and part.is_contiguous() and part.shape == wanted
        if not good or shape[3] % KV_GROUP:
            raise _shape(call, f"scales {part.dtype} {tuple(part.shape)}, KV pools {shape}")


def _vector(what: str, x: torch.Tensor, size: int) -> int:
    if x.dtype != torch.float32 or x.shape != (size,) or not x.is_contiguous():
        raise EngineError(
            f"{what}: need {size} contiguous float32, got {x.dtype} {tuple(x.shape)}",
            code="bad_operand",
        )
    return x.data_ptr()
