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

from ftengine.device.torch_device import page_aligned
from ftengine.errors import EngineError
from ftengine.kernels import abi, biased_experts
from ftengine.kernels.abi import NativeInfo
from ftengine.kernels.call_work import TimedCall, work_of
from ftengine.kernels.native_checks import (
    POOL_FORMATS,
    bad_shape,
    check_index,
    check_pools,
    check_qkv,
    check_routing,
    check_rows,
    vector_address,
)
from ftengine.kernels.native_states import NativeStates
from ftengine.kernels.operands import (
    ACTIVATIONS,
    SCORES,
    ExpertBank,
    HeadLayout,
    KvScales,
    PackedWeight,
    RouteSpec,
)
from ftengine.kernels.reference.latent import TorchLatents
from ftengine.kernels.reference.route import route_in_steps
from ftengine.kernels.reference.rows import TorchRows
from ftengine.kernels.row_copies import native_copy_rows
from ftengine.quant import format_named
from ftman.clock import SYSTEM

__all__ = ["ExpertBank", "HeadLayout", "NativeKernels", "PackedWeight"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TapedCall:
    """A call as it was made: its function's name and struct, and the scratch it may point at."""

    name: str
    packed: bytes
    scratch: torch.Tensor


class NativeKernels(TorchRows, TorchLatents):
    """The loaded library. All activations are float32; the last dimension is contiguous."""

    name = "native"

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.path = path
        self._library = library
        self._calls = {name: getattr(library, "ft_" + name) for name in abi.OP_NAMES}
        self._run_ops = library.ft_run_ops
        self._expert_ffn_scratch = library.ft_expert_ffn_scratch
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self.tape: list[TapedCall] | None = None
        self.state_ops = NativeStates(self._call)
        self.copy_rows = native_copy_rows(library)
        self.timed: list[TimedCall] | None = None

    @classmethod
    def load(
        cls,
        library_path: Path | str | None = None,
        num_threads: int = 0,
        cpu_target: str | None = None,
    ) -> NativeKernels:
        """Load the library and start its threads (0 = one per usable CPU, the caller included).

        Threads, target and activations belong to the process: a second load changes them for the
        first too.

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

    def set_activations(self, name: str) -> None:
        """One of abi.ACTIVATIONS, for this process; it stays when target or threads change."""
        status = int(self._library.ft_set_activations(abi.ACTIVATIONS.index(name)))
        abi.check(self._library, status, "ft_set_activations")

    def activation_bits(self, fmt: str) -> int:
        """Of an activation in products with this format: 8, 15 (integers), 16 (bfloat16) or 32."""
        return int(self._library.ft_activation_bits(format_named(fmt).native_id))

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
            raise bad_shape(
                "linear",
                f"x {tuple(x.shape)}, out {tuple(out.shape)}, weight {weight.rows} x {weight.cols}",
            )
        check_rows("linear", x, out)
        packed = abi.LINEAR.pack(
            88,
            weight.native_id,
            x.data_ptr(),
            x.stride(0),
            tokens,
            weight.address,
            weight.rows,
            weight.cols,
            0 if bias is None else vector_address("linear bias", bias, weight.rows),
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
            raise bad_shape(
                "expert_ffn",
                f"x {tuple(x.shape)}, ids {tuple(expert_ids.shape)}, hidden {bank.hidden}",
            )
        check_rows("expert_ffn", x, out)
        check_routing("expert_ffn", expert_ids, weights)
        if bank.in_products:
            found = biased_experts.expert_ffn(self.linear, x, expert_ids, weights, bank)
            return out.add_(found) if accumulate else out.copy_(found)
        packed = self._pack_experts(x, expert_ids, weights, bank, out, accumulate, rows)
        scratch_bytes = self._expert_ffn_scratch(packed)
        if scratch_bytes < 0:
            abi.check(self._library, 2, "expert_ffn")
        if scratch_bytes > self._scratch.numel():
            self._scratch = page_aligned(scratch_bytes + scratch_bytes // 4)
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
            raise bad_shape("rms_norm", f"x {tuple(x.shape)}, out {tuple(out.shape)}")
        check_rows("rms_norm", x, out)
        if residual is not None:
            check_rows("rms_norm", residual, out)
        packed = abi.RMS_NORM.pack(
            88,
            abi.ADD_ONE if add_one else 0,
            x.data_ptr(),
            x.stride(0),
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            vector_address("rms_norm weight", weight, cols),
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
        check_qkv("rope_store", qkv, heads)
        check_pools("rope_store", keys, values, scales, heads)
        check_index("rope_store positions", positions, torch.int32, tokens)
        check_index("rope_store slots", slots, torch.int64, tokens)
        if cos.shape != sin.shape or not (cos.is_contiguous() and sin.is_contiguous()):
            raise bad_shape("rope_store", f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}")
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
            0 if q_norm is None else vector_address("q_norm", q_norm, dim),
            0 if k_norm is None else vector_address("k_norm", k_norm, dim),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[0],
            positions.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            keys.shape[0],
            POOL_FORMATS[keys.dtype],
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
        check_qkv("attention", qkv, heads)
        check_pools("attention", keys, values, scales, heads)
        check_rows("attention", qkv, out)
        check_index("attention query_start", query_start, torch.int32, sequences + 1)
        check_index("attention context_len", context_len, torch.int32, sequences)
        if out.shape != (qkv.shape[0], width) or not page_table.is_contiguous():
            raise bad_shape("attention", f"out {tuple(out.shape)}, pages {tuple(page_table.shape)}")
        if page_table.dtype != torch.int32 or page_table.shape[0] != sequences:
            raise bad_shape("attention", f"page_table {page_table.dtype} {tuple(page_table.shape)}")
        packed = abi.ATTENTION.pack(
            168,
            POOL_FORMATS[keys.dtype],
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
            0 if sinks is None else vector_address("sinks", sinks, heads.heads),
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
        check_index("embed_rows ids", ids, torch.int64, count)
        if table.dtype != torch.uint8 or not table.is_contiguous():
            raise bad_shape("embed_rows", f"table {table.dtype} {tuple(table.shape)}")
        if table.shape[1] != quant.row_bytes(cols) or out.shape != (count, cols):
            raise bad_shape("embed_rows", f"table {tuple(table.shape)}, out {tuple(out.shape)}")
        check_rows("embed_rows", out, out)
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
        expert_scale: torch.Tensor | None = None,
    ) -> None:
        """The best experts of each token, as reference/route.py."""
        if expert_scale is not None or spec.divides_late or not spec.chooses_plainly:
            route_in_steps(self.route, logits, spec, expert_ids, weights, bias, expert_scale)
            return
        tokens, experts = logits.shape
        slots = expert_ids.shape[1]
        if expert_ids.shape[0] != tokens or slots > experts:
            raise bad_shape("route", f"logits {tuple(logits.shape)}, ids {tuple(expert_ids.shape)}")
        check_rows("route", logits, logits)
        check_routing("route", expert_ids, weights)
        packed = abi.ROUTE.pack(
            80,
            SCORES[spec.score],
            logits.data_ptr(),
            logits.stride(0),
            tokens,
            experts,
            slots,
            0 if bias is None else vector_address("route bias", bias, experts),
            expert_ids.data_ptr(),
            weights.data_ptr(),
            abi.NORMALIZE if spec.normalize else 0,
            spec.scale,
        )
        self._call("route", packed)
