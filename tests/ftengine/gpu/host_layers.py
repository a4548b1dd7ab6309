"""Every kernel that a plain decoder launches, played on the host by the references.

A launch's build decides what its body does, so entry names carry a number for each build and the
compiler registers the body with the build's constants.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ftengine.gpu.kernel_cache import CompiledKernel
from ftengine.gpu.kernel_table import Build, Kernel
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import KV_GROUP, HeadLayout, KvScales, PackedWeight, RouteSpec
from ftengine.kernels.reference import attention as reference_attention
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.reference import norm, rope
from ftengine.kernels.reference.expert_ffn import ONE, activate
from ftengine.kernels.reference.rows import TorchRows
from ftengine.kernels.reference.states import (
    ReferenceStates,
    convolved,
    delta_spans,
    scan_spans,
)
from ftengine.kernels.state_operands import DeltaWeights, Mamba2Weights, SpanIndex, StateRows
from ftengine.quant import format_named
from ftengine.quant.panel32 import PAIR_ROWS, packed_bytes
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.host_experts import PlayedStore
from tests.ftengine.gpu.host_kernels import Values, array
from tests.ftengine.gpu.host_latent import PlayedLatents

_CODES = {"i32": "<i", "i64": "<q", "fp32": "<f", "fp64": "<d"}
PAGE = 16
ROWS, STATES = TorchRows(), ReferenceStates()


def floats(address: int, *shape: int) -> torch.Tensor:
    """float32 memory as a tensor."""
    return torch.from_numpy(array(address, np.float32, *shape))


def rows_of(address: int, rows: int, stride: int, width: int) -> torch.Tensor:
    """Rows that are `stride` numbers apart."""
    if rows == 0:
        return torch.zeros(0, width)
    whole = floats(address, (rows - 1) * stride + width)
    return whole.as_strided((rows, width), (stride, 1))


class PlayedEngine(PlayedLatents, PlayedStore):
    """Bodies by kernel; `compiler` is a KernelCache's."""

    def __init__(self, gpu: FakeGpu, kernels: NativeKernels) -> None:
        super().__init__(gpu, kernels, None)  # type: ignore[arg-type]
        self._split: Values = {}
        self._names = 0

    def install(self) -> None:
        """Nothing: the compiler does it, build by build."""

    def compiler(self, kernel: Kernel, build: Build, target: object) -> CompiledKernel:
        """An image with a name of its own, whose launches run the kernel's body."""
        self._names += 1
        entry = f"{kernel.function}_{self._names}"
        body = self._body(kernel.name)
        self._register(kernel, entry, {**build.values}, body)
        image = f"FAKE {entry}\0".encode()
        return CompiledKernel(image, entry, build.num_warps, 32, 0, "3.9.9")

    def _body(self, name: str) -> Callable[[Values], None]:
        plain = name.removesuffix(".odd").removesuffix(".f32").removesuffix(".q8_0")
        found = getattr(self, "_" + plain.partition(".")[2].replace(".", "_"), None)
        assert found is not None, f"nobody plays {name}"
        return found  # type: ignore[no-any-return]

    def _register(
        self, kernel: Kernel, entry: str, constants: Values, body: Callable[[Values], None]
    ) -> None:
        codes = ["<Q" if item.is_pointer else _CODES[item.type] for item in kernel.arguments]
        sizes = [struct.calcsize(code) for code in codes]
        self.gpu.describe(entry, [*sizes, 8, 8])

        def handler(pointers: Any, grid: tuple[int, int, int]) -> None:
            values: Values = {**constants, "grid": grid}
            for idx, (item, code) in enumerate(zip(kernel.arguments, codes, strict=True)):
                raw = ctypes.string_at(pointers[idx], sizes[idx])
                values[item.name] = struct.unpack(code, raw)[0]
            with torch.inference_mode():
                body(values)

        self.gpu.handle(entry, handler)

    def _embed_rows(self, v: Values) -> None:
        ids = torch.from_numpy(array(v["ids"], np.int64, v["num_rows"]).copy())
        table = array(v["table"], np.uint8, int(ids.max()) + 1, v["row_bytes"])
        out = floats(v["out"], v["num_rows"], v["cols"])
        reference_linear.embed_rows(torch.from_numpy(table), v["FORMAT"], v["cols"], ids, out)

    def _add_rows(self, v: Values) -> None:
        rows, width = v["num_rows"], v["width"]
        source = rows_of(v["source"], rows, v["source_stride"], width)
        target = rows_of(v["target"], rows, v["target_stride"], width)
        found = source * v["factor"]
        if v["BIAS"]:
            found = found + floats(v["bias"], width)
        if v["ACCUMULATE"]:
            found = found + target
        target.copy_(found)

    def _gate_rows(self, v: Values) -> None:
        rows, width, stride = v["num_rows"], v["width"], v["gate_stride"]
        count, index = rows if stride else 1, None
        if v["INDEXED"]:
            index = torch.from_numpy(array(v["index"], np.int32, rows))
            count = int(index.max()) + 1
        gate = rows_of(v["gate"], count, stride, v["part"])
        out = rows_of(v["out"], rows, v["out_stride"], width)
        ROWS.gate_rows(rows_of(v["x"], rows, v["x_stride"], width), gate, out, v["KIND"], index)

    def _move_heads(self, v: Values) -> None:
        rows, heads, before, after = v["num_rows"], v["heads"], v["from_dim"], v["to_dim"]
        x = rows_of(v["x"], rows, v["x_stride"], heads * before)
        out = rows_of(v["out"], rows, v["out_stride"], heads * after)
        ROWS.move_heads(x, out, heads, before, after, v["turns"])

    def _squash_rows(self, v: Values) -> None:
        rows, width = v["num_rows"], v["width"]
        out = rows_of(v["out"], rows, v["out_stride"], width)
        if v["KIND"] == "fill":
            ROWS.fill_rows(out, v["limit"])
            return
        x = rows_of(v["x"], rows, v["x_stride"], width)
        ROWS.squash_rows(x, out, v["KIND"], v["limit"])

    def _centre_rows(self, v: Values) -> None:
        rows, size = v["num_rows"], v["size"]
        x = rows_of(v["x"], rows, v["x_stride"], size)
        ROWS.centre_rows(x, rows_of(v["out"], rows, v["out_stride"], size))

    def _rms_norm(self, v: Values) -> None:
        rows, width = v["num_rows"], v["size"] * v["groups"]
        x = rows_of(v["x"], rows, v["x_stride"], width)
        out = rows_of(v["out"], rows, v["out_stride"], width)
        weight = floats(v["weight"], width)
        if v["groups"] > 1:
            ROWS.group_norm(x, weight, v["groups"], v["eps"], out)
            return
        residual = floats(v["residual"], rows, width) if v["RESIDUAL"] else None
        norm.rms_norm(x, weight, v["eps"], residual, out, v["ADD_ONE"])

    def _linear(self, v: Values) -> None:
        weight = self._weight(v["matrix"], v["FORMAT"], v["rows"], v["cols"])
        x = rows_of(v["x"], v["num_tokens"], v["x_stride"], v["cols"])
        out = rows_of(v["out"], v["num_tokens"], v["out_stride"], v["rows"])
        bias = floats(v["bias"], v["rows"]) if v["BIAS"] else None
        found = self.kernels.linear(x, weight)
        found = found if bias is None else found + bias
        out.copy_(out + found if v["ACCUMULATE"] else found)

    def _weight(self, address: int, fmt: str, rows: int, cols: int) -> PackedWeight:
        data = array(address, np.uint8, packed_bytes(fmt, rows, cols))
        return PackedWeight(torch.from_numpy(data), fmt, rows, cols)

    def _inner(self, v: Values, x: torch.Tensor, row: int) -> torch.Tensor:
        """act(gate x) * up x of one expert. Shape: x [n, hidden] -> [n, inter]."""
        inter, panels = v["inter"], -(-v["inter"] // PAIR_ROWS)
        address = v["bank"] + row * v["row_bytes"] + v["offset"]
        kind = SimpleNamespace(activation=v["ACTIVATION"], alpha=v["alpha"], limit=v["limit"])
        if not v["GATED"]:
            up = self.kernels.linear(x, self._weight(address, v["FORMAT"], inter, v["hidden"]))
            return activate(kind, up, ONE)  # type: ignore[arg-type]
        pair = self._weight(address, v["FORMAT"], 2 * panels * PAIR_ROWS, v["hidden"])
        both = self.kernels.linear(x.contiguous(), pair).view(-1, panels, 2, PAIR_ROWS)
        gate = both[:, :, 0].reshape(-1, panels * PAIR_ROWS)[:, :inter]
        up = both[:, :, 1].reshape(-1, panels * PAIR_ROWS)[:, :inter]
        bias = self._bias(v, row, 2 * inter)
        gate, up = gate + bias[:inter], up + bias[inter:]
        return activate(kind, gate, up).contiguous()  # type: ignore[arg-type]

    def _bias(self, v: Values, row: int, count: int) -> torch.Tensor:
        """What an expert's row adds; zeros where it has none."""
        if not v["BIAS"]:
            return torch.zeros(count)
        fmt = format_named(v["BIAS"])
        at = v["bank"] + row * v["row_bytes"] + v["bias_offset"]
        return torch.from_numpy(fmt.dequantize(array(at, np.uint8, fmt.row_bytes(count))))

    def _gate_up(self, v: Values) -> None:
        pairs = v["num_pairs"]
        x = floats(v["x"], pairs // v["num_places"], v["hidden"])
        inner = floats(v["inner"], pairs, v["inter"])
        for pair, row in enumerate(array(v["rows"], np.int32, pairs).tolist()):
            if row >= 0:
                token = pair // v["num_places"]
                inner[pair] = self._inner(v, x[token : token + 1], row)[0]

    def _down(self, v: Values) -> None:
        pairs, hidden, inter = v["num_pairs"], v["hidden"], v["inter"]
        inner, parts = floats(v["inner"], pairs, inter), floats(v["parts"], pairs, hidden)
        for pair, row in enumerate(array(v["rows"], np.int32, pairs).tolist()):
            if row >= 0:
                address = v["bank"] + row * v["row_bytes"] + v["offset"]
                weight = self._weight(address, v["FORMAT"], hidden, inter)
                found = self.kernels.linear(inner[pair : pair + 1].contiguous(), weight)[0]
                parts[pair] = found + self._bias(v, row, hidden)

    def _gate_up_gemm(self, v: Values) -> None:
        for row, first, pairs in self._tiles(v):
            tokens = torch.from_numpy(pairs // v["num_places"]).long()
            x = floats(v["x"], int(tokens.max()) + 1, v["hidden"])[tokens]
            count = len(pairs)
            at = v["inner"] + 4 * first * v["inter"]
            floats(at, count, v["inter"]).copy_(self._inner(v, x, row))

    def _down_gemm(self, v: Values) -> None:
        for row, first, pairs in self._tiles(v):
            address = v["bank"] + row * v["row_bytes"] + v["offset"]
            weight = self._weight(address, v["FORMAT"], v["rows"], v["cols"])
            x = floats(v["x"] + 4 * first * v["cols"], len(pairs), v["cols"])
            out = floats(v["out"], int(pairs.max()) + 1, v["rows"])
            # a spare row of a whole tile holds anything, NaN too
            found = self.kernels.linear(x.contiguous(), weight) + self._bias(v, row, v["rows"])
            out[torch.from_numpy(pairs).long()] = found

    def _tiles(self, v: Values) -> list[tuple[int, int, np.ndarray]]:
        tiles = array(v["tiles"], np.int32, v["num_tiles"], 3)
        return [
            (int(row), int(first), array(v["pairs"] + 4 * int(first), np.int32, int(count)))
            for row, first, count in tiles[tiles[:, 2] > 0]
        ]

    def _merge(self, v: Values) -> None:
        shape = v["num_tokens"], v["hidden"]
        before = array(v["out"], np.float32, *shape).copy()
        super(PlayedStore, self)._merge(v)
        if v["ACCUMULATE"]:
            out = array(v["out"], np.float32, *shape)
            out += before

    def _rope_store(self, v: Values) -> None:
        tokens = v["num_tokens"]
        heads = HeadLayout(v["heads"], v["kv_heads"], v["head_dim"])
        qkv = rows_of(v["qkv"], tokens, v["qkv_stride"], heads.qkv_cols)
        positions = torch.from_numpy(array(v["positions"], np.int32, tokens).copy())
        slots = torch.from_numpy(array(v["slots"], np.int64, tokens).copy())
        most = int(positions.max()) + 1
        pages = int(slots.max()) // PAGE + 1
        copied = qkv.contiguous()
        rope.rope_store(
            copied,
            heads,
            floats(v["cos"], most, v["half"]),
            floats(v["sin"], most, v["half"]),
            positions,
            slots,
            self._pool(v["keys"], pages, heads, v["KV"]),
            self._pool(v["values"], pages, heads, v["KV"]),
            floats(v["q_norm"], v["head_dim"]) if v["Q_NORM"] else None,
            floats(v["k_norm"], v["head_dim"]) if v["K_NORM"] else None,
            v["eps"],
            v["INTERLEAVED"],
            self._scales(v, pages, heads),
        )
        qkv.copy_(copied)

    def _pool(self, address: int, pages: int, heads: HeadLayout, kv: str) -> torch.Tensor:
        shape = pages, heads.kv_heads, PAGE, heads.head_dim
        kind = np.int8 if kv == "q8_0" else np.float32
        return torch.from_numpy(array(address, kind, *shape))

    def _scales(self, v: Values, pages: int, heads: HeadLayout) -> KvScales | None:
        if v["KV"] != "q8_0":
            return None
        shape = pages, heads.kv_heads, PAGE, heads.head_dim // KV_GROUP
        keys, values = (
            torch.from_numpy(array(v[name], np.float16, *shape))
            for name in ("key_scales", "value_scales")
        )
        return KvScales(keys, values)

    def _attention_split(self, v: Values) -> None:
        """Remembers what is asked; merge computes it whole."""
        self._split = v

    def _attention_merge(self, v: Values) -> None:
        if "RANK" in self._split:
            self._merge_latents({**self._split, "out": v["out"]})
            return
        count = v["num_sequences"]
        starts = torch.arange(count + 1, dtype=torch.int32)
        self._attend({**self._split, "sinks": v["sinks"], "SINKS": v["SINKS"]}, starts, v["out"])

    def _attention_chunk(self, v: Values) -> None:
        starts = torch.from_numpy(array(v["query_start"], np.int32, v["num_sequences"] + 1).copy())
        self._attend(v, starts, v["out"])

    def _attend(self, v: Values, starts: torch.Tensor, out: int) -> None:
        heads = HeadLayout(v["heads"], v["kv_heads"], v["head_dim"])
        count, tokens = v["num_sequences"], int(starts[-1])
        lengths = torch.from_numpy(array(v["context_len"], np.int32, count).copy())
        width = -(-int(lengths.max()) // PAGE)
        assert width <= v["table_stride"]
        last = array(v["page_table"], np.int32, (count - 1) * v["table_stride"] + width)
        table = torch.from_numpy(last).as_strided((count, width), (v["table_stride"], 1))
        pages = int(table.max()) + 1
        reference_attention.attention(
            rows_of(v["qkv"], tokens, v["qkv_stride"], heads.qkv_cols),
            heads,
            self._pool(v["keys"], pages, heads, v["KV"]),
            self._pool(v["values"], pages, heads, v["KV"]),
            starts,
            lengths,
            table,
            v["scale"],
            v["window"],
            floats(v["sinks"], v["heads"]) if v["SINKS"] else None,
            floats(out, tokens, heads.heads * heads.head_dim),
            self._scales(v, pages, heads),
        )

    def _route(self, v: Values) -> None:
        shape, experts = (v["num_tokens"], v["num_chosen"]), v["num_experts"]
        sparse = v["SCORE"] == "sparse"
        spec = RouteSpec(
            "softmax" if sparse else v["SCORE"],
            v["NORMALIZE"],
            v["scale"],
            v["epsilon"],
            v["groups"],
            v["kept_groups"],
            v["GROUP_BY"],
            v["jitter"],
        )
        assert bool(spec.jitter) == sparse
        assert spec.grouped == (v["GROUPS"] > 1)
        # the CPU's own kernel where it has one: a sum in another order would be another weight
        self.kernels.route(
            floats(v["logits"], v["num_tokens"], experts),
            spec,
            torch.from_numpy(array(v["expert_ids"], np.int32, *shape)),
            floats(v["weights"], *shape),
            floats(v["bias"], experts) if v["BIAS"] else None,
            floats(v["expert_scale"], experts) if v["SCALED"] else None,
        )

    def _spans(self, v: Values, *shape: int) -> tuple[StateRows, SpanIndex, int]:
        """States of all slots that are named, the spans, and their tokens."""
        count, stride = v["num_spans"], v["slot_stride"]
        slots, keeps = (array(v[name], np.int64, count) for name in ("slots", "keeps"))
        most = max(int(slots.max()), int(keeps.max())) + 1
        whole = floats(v["states"], (most - 1) * stride + math.prod(shape))
        first = whole[: math.prod(shape)].view(shape)
        starts = torch.from_numpy(array(v["starts"], np.int32, count + 1))
        index = SpanIndex(starts, torch.from_numpy(slots), torch.from_numpy(keeps), starts, count)
        return StateRows((first,), stride, most), index, int(starts[-1])

    def _causal_conv(self, v: Values) -> None:
        taps, channels = v["TAPS"], v["channels"]
        states, spans, tokens = self._spans(v, taps - 1, channels)
        bias = floats(v["bias"], channels) if v["BIAS"] else None
        weight = floats(v["weight"], taps, channels)
        out = rows_of(v["out"], tokens, v["out_stride"], channels)
        if v["GATED"]:
            wide = rows_of(v["x"], tokens, v["x_stride"], 3 * channels)
            STATES.short_conv(wide, weight, bias, states, spans, out)
            return
        x = rows_of(v["x"], tokens, v["x_stride"], channels)
        found = convolved(x, weight, bias, states, spans)
        out.copy_(torch.nn.functional.silu(found) if v["SILU"] else found)

    def _delta_rule(self, v: Values) -> None:
        heads, keys, dim, values = v["heads"], v["key_heads"], v["key_dim"], v["value_dim"]
        states, spans, tokens = self._spans(v, heads, dim, values)
        width = 2 * keys * dim + heads * values
        weights = DeltaWeights(
            keys,
            heads,
            dim,
            values,
            torch.zeros(1, width),
            torch.from_numpy(array(v["decay_rate"], np.float64, heads)),
            torch.from_numpy(array(v["dt_bias"], np.float64, heads)),
            floats(v["q_weight"], dim),
            floats(v["k_weight"], dim),
            torch.zeros(values),
            v["eps"],
            0.0,
        )
        b, a = rows_of(v["gates"], tokens, v["gates_stride"], 2 * heads).chunk(2, dim=1)
        mixed = floats(v["mixed"], tokens, width)
        found = delta_spans(mixed, b, a, weights, states, spans)
        floats(v["out"], tokens, heads, values).copy_(found)

    def _delta_chunk(self, v: Values) -> None:
        count = v["num_spans"]
        assert (array(v["positions"], np.int32, count) >= 0).all()
        self._delta_rule(v)

    def _gated_norm(self, v: Values) -> None:
        tokens, heads, dim = v["num_tokens"], v["heads"], v["dim"]
        found = floats(v["found"], tokens, heads, dim)
        normed = norm.rms_norm(found, floats(v["weight"], dim), v["eps"]).flatten(1)
        gate = rows_of(v["gate"], tokens, v["gate_stride"], heads * dim)
        out = rows_of(v["out"], tokens, v["out_stride"], heads * dim)
        ROWS.gate_rows(normed, gate, out, "silu")

    def _mamba2_scan(self, v: Values) -> None:
        heads, dim, groups, width = v["heads"], v["head_dim"], v["groups"], v["state_dim"]
        states, spans, tokens = self._spans(v, heads, dim, width)
        mixed_width = heads * dim + 2 * groups * width
        weights = Mamba2Weights(
            heads,
            dim,
            groups,
            width,
            (v["dt_least"], v["dt_most"]),
            torch.zeros(1, mixed_width),
            None,
            torch.from_numpy(array(v["decay_rate"], np.float64, heads)),
            torch.from_numpy(array(v["dt_bias"], np.float64, heads)),
            floats(v["skip"], heads),
        )
        wide = rows_of(v["wide"], tokens, v["wide_stride"], heads * dim + mixed_width + heads)
        z, _, dt = wide.split_with_sizes([heads * dim, mixed_width, heads], dim=1)
        found = scan_spans(floats(v["mixed"], tokens, mixed_width), dt, weights, states, spans)
        out = rows_of(v["out"], tokens, v["out_stride"], heads * dim)
        ROWS.gate_rows(found.flatten(1), z, out, "silu")

    def _best_of_block(self, v: Values) -> None:
        """merge_blocks reads the logits themselves."""

    def _merge_blocks(self, v: Values) -> None:
        rows, wanted = v["num_rows"], v["num_wanted"]
        logits = floats(v["logits"], rows, v["vocab_size"])
        order = logits.sort(dim=1, descending=True, stable=True)
        array(v["ids"], np.int32, rows, wanted)[:] = order.indices[:, :wanted].numpy()
        floats(v["values"], rows, wanted).copy_(order.values[:, :wanted])
        floats(v["log_sums"], rows).copy_(logits.logsumexp(dim=1))
