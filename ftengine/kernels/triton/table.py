"""The list of device kernels; their builds are builds.py's. No Triton, no torch.

Arguments are written "name:type", with ":16" where an integer is always a multiple of 16 and ":any"
where an address need not be one; the types are Triton's. The *_calls.py files fill the arguments.
"""

from __future__ import annotations

from ftengine.gpu.kernel_table import Argument, Grid, Kernel

PACKAGE = "ftengine.kernels.triton"
_ALIGNED = {"16": True, "any": False}


def _cdiv(value: int, by: int) -> int:
    return -(-value // by)


def _argument(text: str) -> Argument:
    name, kind, *aligned = text.split(":")
    return Argument(name, kind, _ALIGNED[aligned[0]] if aligned else None)


def _row(file: str, function: str, arguments: str, constants: str, grid: Grid) -> Kernel:
    return Kernel(
        name=f"{file}.{function}",
        module=f"{PACKAGE}.{file}",
        function=function,
        arguments=tuple(_argument(item) for item in arguments.split()),
        constants=tuple(constants.split()),
        grid=grid,
    )


_BANK = "row_bytes:i32:16 offset:i32:16 bias_offset:i32:16"
_KV = "keys:{kv} values:{kv} key_scales:*fp16 value_scales:*fp16"
_SPANS = "starts:*i32 slots:*i64 keeps:*i64"
_DELTA = (
    "mixed:*fp32 gates:*fp32:any decay_rate:*fp64 dt_bias:*fp64 q_weight:*fp32 k_weight:*fp32 "
    f"states:*fp32 out:*fp32 {_SPANS} positions:*i32 slot_stride:i64:16 gates_stride:i32 "
    "key_heads:i32 heads:i32 key_dim:i32 value_dim:i32 eps:fp32 num_spans:i32"
)

_EXPERTS = (
    _row(
        "expert_ffn",
        "gate_up",
        "x:*fp32 rows:*i32 bank:*u8 inner:*fp32 num_places:i32 hidden:i32:16 inter:i32 "
        f"{_BANK} alpha:fp32 limit:fp32 num_pairs:i32",
        "FORMAT ACTIVATION GATED BIAS BLOCK",
        lambda n: (_cdiv(n["inter"], 16 if n["GATED"] else 32), n["num_pairs"], 1),
    ),
    _row(
        "expert_ffn",
        "down",
        f"inner:*fp32 rows:*i32 bank:*u8 parts:*fp32 hidden:i32:16 inter:i32 {_BANK} num_pairs:i32",
        "FORMAT BIAS BLOCK",
        lambda n: (_cdiv(n["hidden"], 32), n["num_pairs"], 1),
    ),
    _row(
        "expert_ffn",
        "merge",
        "parts:*fp32 cpu_parts:*fp32 rows:*i32 weights:*fp32:any out:*fp32 num_places:i32 "
        "hidden:i32:16 num_tokens:i32",
        "ACCUMULATE BLOCK",
        lambda n: (_cdiv(n["hidden"], n["BLOCK"]), n["num_tokens"], 1),
    ),
    _row(
        "admission",
        "admission",
        "ids:*i32:any slot_of:*i32 owner_of:*i32 stamp_of:*i64 last:*i32 counts:*fp64 counted:*i32 "
        "powers:*fp64 clock:*i64 rates:*fp64 reuse:*fp64 since_fill:*i32 totals:*i64 rows:*i32 "
        "fills:*i32 on_cpu:*i32 found:*i32 layer:i32 num_experts:i32 num_pairs:i32 "
        "num_tokens:i32 num_slots:i32 num_powers:i32 row_bytes:i64",
        "PAIRS SLOTS",
        lambda n: (1, 1, 1),
    ),
    _row(
        "row_copy",
        "copy_rows",
        "source:*i32 target:*i32 tasks:*i32 num_tasks:*i32 row_words:i32:16 source_words:i64:16 "
        "target_words:i64:16 most:i32",
        "SHARE BLOCK",
        lambda n: (n["SHARE"], n["most"], 1),
    ),
    _row(
        "route",
        "route",
        "logits:*fp32 bias:*fp32 expert_scale:*fp32 expert_ids:*i32 weights:*fp32 num_experts:i32 "
        "num_chosen:i32 scale:fp32 epsilon:fp32 jitter:fp32 groups:i32 kept_groups:i32 "
        "num_tokens:i32",
        "SCORE BIAS SCALED NORMALIZE GROUPS GROUP_BY EXPERTS CHOSEN",
        lambda n: (n["num_tokens"], 1, 1),
    ),
    _row(
        "group",
        "count_pairs",
        "ids:*i32:any row_of:*i32 counts:*i32 num_pairs:i32 num_experts:i32",
        "BLOCK",
        lambda n: (n["num_experts"], 1, 1),
    ),
    _row(
        "group",
        "group_pairs",
        "ids:*i32:any row_of:*i32 counts:*i32 pairs:*i32 tiles:*i32 num_pairs:i32 num_experts:i32 "
        "num_tiles:i32",
        "BLOCK EXPERTS ROWS",
        lambda n: (n["num_experts"], 1, 1),
    ),
)


def _gemms(x: str, suffix: str) -> tuple[Kernel, ...]:
    rows = (
        _row(
            "grouped_gemm",
            "arrange",
            f"x:*fp32 out:{x} cols:i32:16 num_rows:i32",
            "FORMAT BLOCK",
            lambda n: (n["num_rows"], _cdiv(n["cols"], n["BLOCK"]), 1),
        ),
        _row(
            "grouped_gemm",
            "gate_up_gemm",
            f"x:{x} tiles:*i32 pairs:*i32 bank:*u8 inner:{x} num_places:i32 hidden:i32:16 "
            f"inter:i32 {_BANK} alpha:fp32 limit:fp32 num_tiles:i32",
            "FORMAT FORMAT_DOWN ACTIVATION GATED BIAS DOT ROWS PANELS WORDS",
            lambda n: (
                _cdiv(n["inter"], (16 if n["GATED"] else 32) * n["PANELS"]),
                n["num_tiles"],
                1,
            ),
        ),
        _row(
            "grouped_gemm",
            "down_gemm",
            f"x:{x} tiles:*i32 pairs:*i32 bank:*u8 out:*fp32 rows:i32 cols:i32 {_BANK} "
            "num_tiles:i32",
            "FORMAT BIAS DOT ROWS PANELS WORDS",
            lambda n: (_cdiv(n["rows"], 32 * n["PANELS"]), n["num_tiles"], 1),
        ),
    )
    return tuple(_renamed(row, f"{row.name}.{suffix}") for row in rows)


def _attention(kv: str, suffix: str, head_dim: str = "head_dim:i32:16") -> tuple[Kernel, ...]:
    pools = _KV.format(kv=kv)
    rows = (
        _row(
            "rope",
            "rope_store",
            f"qkv:*fp32 cos:*fp32 sin:*fp32 positions:*i32 slots:*i64 {pools} q_norm:*fp32 "
            "k_norm:*fp32 qkv_stride:i32 heads:i32 kv_heads:i32 head_dim:i32 half:i32 eps:fp32 "
            "num_tokens:i32",
            "DIM Q_NORM K_NORM INTERLEAVED KV",
            lambda n: (n["num_tokens"], n["heads"] + n["kv_heads"], 1),
        ),
        _row(
            "attention",
            "attention_split",
            f"qkv:*fp32 {pools} context_len:*i32 page_table:*i32 part_sums:*fp32 parts:*fp32 "
            f"qkv_stride:i32 table_stride:i32 heads:i32 kv_heads:i32 {head_dim} scale:fp32 "
            "window:i32 num_splits:i32 num_sequences:i32",
            "DIM ROWS KV DOT",
            lambda n: (n["num_splits"], n["num_sequences"], n["kv_heads"]),
        ),
        _row(
            "attention",
            "attention_chunk",
            f"qkv:*fp32 {pools} query_start:*i32 context_len:*i32 page_table:*i32 sinks:*fp32 "
            f"out:*fp32 qkv_stride:i32 table_stride:i32 heads:i32 kv_heads:i32 {head_dim} "
            "scale:fp32 window:i32 num_tiles:i32 num_sequences:i32",
            "DIM ROWS HEADS KV DOT SINKS",
            lambda n: (n["num_tiles"], n["num_sequences"], n["kv_heads"]),
        ),
    )
    return tuple(_renamed(row, f"{row.name}.{suffix}") for row in rows)


def _renamed(row: Kernel, name: str) -> Kernel:
    return Kernel(name, row.module, row.function, row.arguments, row.constants, row.grid)


def _odd(rows: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Those that rely on heads of a multiple of 16 numbers, for other heads."""
    return tuple(row for row in rows if row.function != "rope_store")


def _merge(head_dim: str) -> Kernel:
    return _row(
        "attention",
        "attention_merge",
        "part_sums:*fp32 parts:*fp32 context_len:*i32:any sinks:*fp32 out:*fp32 num_splits:i32 "
        f"heads:i32 {head_dim} window:i32 num_sequences:i32",
        "DIM SINKS",
        lambda n: (n["num_sequences"], n["heads"], 1),
    )


_LAYERS = (
    _row(
        "norm",
        "rms_norm",
        "x:*fp32:any weight:*fp32 residual:*fp32 out:*fp32:any x_stride:i64 out_stride:i64 "
        "size:i32 groups:i32 eps:fp32 num_rows:i32",
        "RESIDUAL ADD_ONE BLOCK",
        lambda n: (n["num_rows"], n["groups"], 1),
    ),
    _row(
        "norm",
        "centre_rows",
        "x:*fp32:any out:*fp32:any x_stride:i64 out_stride:i64 size:i32 num_rows:i32",
        "BLOCK",
        lambda n: (n["num_rows"], 1, 1),
    ),
    _row(
        "linear",
        "linear",
        "x:*fp32:any matrix:*u8 bias:*fp32 out:*fp32:any x_stride:i64 out_stride:i64 rows:i32 "
        "cols:i32 num_tokens:i32",
        "FORMAT BIAS ACCUMULATE BLOCK",
        lambda n: (_cdiv(n["rows"], 32), n["num_tokens"], 1),
    ),
    _merge("head_dim:i32:16"),
    _renamed(_merge("head_dim:i32"), "attention.attention_merge.odd"),
    _row(
        "top_k",
        "best_of_block",
        "logits:*fp32 keys:*i64 sums:*fp32 vocab_size:i32 num_rows:i32",
        "BLOCK KEEP",
        lambda n: (_cdiv(n["vocab_size"], n["BLOCK"]), n["num_rows"], 1),
    ),
    _row(
        "top_k",
        "merge_blocks",
        "logits:*fp32 keys:*i64 sums:*fp32 ids:*i32 values:*fp32 log_sums:*fp32 vocab_size:i32 "
        "num_blocks:i32 num_wanted:i32 num_rows:i32",
        "BLOCKS KEEP",
        lambda n: (n["num_rows"], 1, 1),
    ),
    _row(
        "rows",
        "embed_rows",
        "table:*u8 ids:*i64 out:*fp32 row_bytes:i64 cols:i32 num_rows:i32",
        "FORMAT BLOCK",
        lambda n: (n["num_rows"], _cdiv(n["cols"], n["BLOCK"]), 1),
    ),
    _row(
        "rows",
        "add_rows",
        "source:*fp32:any target:*fp32:any bias:*fp32:any source_stride:i64 target_stride:i64 "
        "width:i32 factor:fp32 num_rows:i32",
        "ACCUMULATE BIAS BLOCK",
        lambda n: (n["num_rows"], _cdiv(n["width"], n["BLOCK"]), 1),
    ),
    _row(
        "rows",
        "gate_rows",
        "x:*fp32:any gate:*fp32:any index:*i32 out:*fp32:any x_stride:i64 gate_stride:i64 "
        "out_stride:i64 width:i32 part:i32 num_rows:i32",
        "KIND INDEXED BLOCK",
        lambda n: (n["num_rows"], _cdiv(n["width"], n["BLOCK"]), 1),
    ),
    _row(
        "rows",
        "move_heads",
        "x:*fp32:any out:*fp32:any x_stride:i64 out_stride:i64 heads:i32 from_dim:i32 to_dim:i32 "
        "turns:i32 num_rows:i32",
        "BLOCK",
        lambda n: (n["num_rows"], 1, 1),
    ),
    _row(
        "rows",
        "squash_rows",
        "x:*fp32:any out:*fp32:any x_stride:i64 out_stride:i64 width:i32 limit:fp32 num_rows:i32",
        "KIND BLOCK",
        lambda n: (n["num_rows"], _cdiv(n["width"], n["BLOCK"]), 1),
    ),
)

_STATEFUL = (
    _row(
        "recurrent",
        "causal_conv",
        f"x:*fp32:any states:*fp32 weight:*fp32 bias:*fp32 out:*fp32 {_SPANS} slot_stride:i64:16 "
        "x_stride:i32 out_stride:i32 channels:i32 num_spans:i32",
        "TAPS BIAS SILU GATED TOKENS BLOCK KEPT",
        lambda n: (_cdiv(n["channels"], n["BLOCK"]), n["num_spans"], 1),
    ),
    _row(
        "recurrent",
        "mamba2_scan",
        "mixed:*fp32 wide:*fp32 decay_rate:*fp64 dt_bias:*fp64 skip:*fp32 states:*fp32 out:*fp32 "
        f"{_SPANS} slot_stride:i64:16 wide_stride:i32 out_stride:i32 groups:i32 heads:i32 "
        "head_dim:i32 state_dim:i32 dt_least:fp32 dt_most:fp32 num_spans:i32",
        "STATES BLOCK",
        lambda n: (_cdiv(n["head_dim"], n["BLOCK"]), n["heads"], n["num_spans"]),
    ),
    _row(
        "delta",
        "delta_rule",
        _DELTA,
        "KEYS BLOCK",
        lambda n: (_cdiv(n["value_dim"], n["BLOCK"]), n["heads"], n["num_spans"]),
    ),
    _row(
        "delta_chunk",
        "delta_chunk",
        _DELTA,
        "KEYS BLOCK CHUNK",
        lambda n: (_cdiv(n["value_dim"], n["BLOCK"]), n["heads"], n["num_spans"]),
    ),
    _row(
        "delta",
        "gated_norm",
        "found:*fp32 gate:*fp32:any weight:*fp32 out:*fp32 gate_stride:i32 out_stride:i32 "
        "heads:i32 dim:i32 eps:fp32 num_tokens:i32",
        "BLOCK",
        lambda n: (n["num_tokens"], n["heads"], 1),
    ),
)


def _latent(kv: str, suffix: str) -> tuple[Kernel, ...]:
    turn = "cos:*fp32 sin:*fp32"
    look = (
        f"absorbed:*fp32 q:*fp32:any {turn} temper:*fp32 positions:*i32:any pool:{kv} places:*i32 "
        "lengths:*i32:any"
    )
    looked = "RANK ROPE HALF DIM TURN ROWS INTERLEAVED TEMPER CHOSEN DOT"
    rows = (
        _row(
            "latent",
            "latent_store",
            f"latent:*fp32:any key:*fp32:any weight:*fp32 {turn} positions:*i32 slots:*i64 "
            f"pool:{kv} row_stride:i32 eps:fp32 num_tokens:i32",
            "RANK ROPE HALF DIM TURN INTERLEAVED",
            lambda n: (n["num_tokens"], 1, 1),
        ),
        _row(
            "latent",
            "head_product",
            f"x:*fp32:any weight:{kv} out:*fp32:any x_stride:i32 x_head_stride:i32 out_stride:i32 "
            "out_head_stride:i32 heads:i32 num_tokens:i32",
            "IN OUT TOKENS BLOCK WIDE DOT",
            lambda n: (
                _cdiv(n["OUT"], n["BLOCK"]),
                n["heads"],
                _cdiv(n["num_tokens"], n["TOKENS"]),
            ),
        ),
        _row(
            "latent",
            "latent_split",
            f"{look} part_sums:*fp32 parts:*fp32 q_stride:i32 place_stride:i32 heads:i32 "
            "head_dim:i32 scale:fp32 num_splits:i32 num_tokens:i32",
            looked,
            lambda n: (n["num_splits"], n["num_tokens"], _cdiv(n["heads"], n["ROWS"])),
        ),
        _row(
            "latent",
            "latent_chunk",
            f"{look} query_start:*i32 out:*fp32 q_stride:i32 place_stride:i32 heads:i32 "
            "head_dim:i32 scale:fp32 first:i32 num_sequences:i32 num_tokens:i32",
            looked,
            lambda n: (n["num_tokens"], _cdiv(n["heads"], n["ROWS"]), 1),
        ),
        _row(
            "index_keys",
            "index_store",
            f"key:*fp32:any weight:*fp32 bias:*fp32 {turn} positions:*i32 slots:*i64 pool:{kv} "
            "row_stride:i32 eps:fp32 num_tokens:i32",
            "SIZE HALF DIM INTERLEAVED",
            lambda n: (n["num_tokens"], 1, 1),
        ),
        _row(
            "index_keys",
            "index_scores",
            f"q:*fp32:any factors:*fp32:any {turn} positions:*i32:any pool:{kv} query_start:*i32 "
            "page_table:*i32 scores:*fp32 q_stride:i32 factor_stride:i32 table_stride:i32 "
            "heads:i32 scale:fp32 most_keys:i32 first:i32 num_sequences:i32 num_tokens:i32",
            "SIZE HALF DIM HEADS KEYS INTERLEAVED DOT",
            lambda n: (_cdiv(n["most_keys"], n["KEYS"]), n["num_tokens"], 1),
        ),
    )
    return tuple(_renamed(row, f"{row.name}.{suffix}") for row in rows)


_INDEX_CHOOSE = _row(
    "index_keys",
    "index_choose",
    "scores:*fp32 positions:*i32:any query_start:*i32 page_table:*i32 chosen:*i32:any "
    "counts:*i32:any table_stride:i32 most_keys:i32 top_k:i32 first:i32 num_sequences:i32 "
    "num_tokens:i32",
    "BLOCK",
    lambda n: (n["num_tokens"], 1, 1),
)

KERNELS = (
    *_EXPERTS,
    *_gemms("*bf16", "bf16"),
    *_gemms("*fp32", "f32"),
    *_LAYERS,
    *_attention("*fp32", "f32"),
    *_attention("*bf16", "bf16"),
    *_attention("*i8", "q8_0"),
    *_odd(_attention("*fp32", "f32.odd", "head_dim:i32")),
    *_odd(_attention("*bf16", "bf16.odd", "head_dim:i32")),
    *_STATEFUL,
    *_latent("*fp32", "f32"),
    *_latent("*bf16", "bf16"),
    _INDEX_CHOOSE,
)
