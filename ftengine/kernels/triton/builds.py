"""Compile-time constants of every kernel, and the builds that a release ships. No Triton, no torch.

One place chooses block sizes, so that what runs is what was compiled ahead. Sizes that change from
model to model are run-time arguments; what is left here is formats, head sizes and widths.
"""

from __future__ import annotations

from ftengine.errors import EngineError
from ftengine.gpu.kernel_table import Build, Constant, KernelTable
from ftengine.kernels.triton.table import KERNELS
from ftengine.quant.panel32 import panel_format

FORMATS = (
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q4_k",
    "mxfp4",
    "mxfp4_gguf",
    "nvfp4",
    "nvfp4_div",
    "fp8_tensor",
    "fp8_block",
    "fp8_block_e8m0",
)
"""Formats of weights that the kernels read."""
ACTIVATIONS = ("silu", "gelu_tanh", "relu2", "swiglu_clamp", "silu_clamp")
"""Activations of experts that the kernels compute."""
MOST_PAIRS = 64
MOST_SLOTS = 1 << 15
MERGE_BLOCK = 256
ARRANGE_BLOCK = 1024
COPY_SHARE = 8
GROUP_BLOCK = 1024
GEMM_ROWS = 64
VOCAB_BLOCK = 2048
CHUNK = 16
ROW_BLOCK = 1024
_CHANNELS = 64


def _build(kernel: str, num_warps: int = 4, num_stages: int = 2, **constants: Constant) -> Build:
    return Build(kernel, tuple(constants.items()), num_warps, num_stages)


def power_of_two(value: int, least: int = 1) -> int:
    """The next power of two."""
    return max(1 << max(value - 1, 0).bit_length(), least)


def _wide_words(fmt: str) -> bool:
    """Whether a word holds nibbles. Raises: EngineError for a format that no kernel reads."""
    if fmt not in FORMATS:
        raise EngineError(
            f"no GPU kernel reads {fmt} weights; built: {', '.join(FORMATS)}; convert the model to "
            f"one of them, or use the device cpu",
            code="kernel_missing",
        )
    panel = panel_format(fmt)
    return panel.group_elements // panel.words > 4


def words_of_block(fmt: str) -> int:
    """Words of a row that a program takes at a time: nibbles need more registers each."""
    return 32 if _wide_words(fmt) else 64


def missing(what: str) -> EngineError:
    """The error for a block that no kernel computes."""
    return EngineError(f"no GPU kernel computes {what}; use --device cpu", code="kernel_missing")


def _check_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise missing(f"experts with the activation {activation} (built: {', '.join(ACTIVATIONS)})")


def gate_up(fmt: str, activation: str = "silu", bias: str = "") -> Build:
    """Gate and up of a few tokens. Raises: EngineError for what no kernel computes."""
    _check_activation(activation)
    return _build(
        "expert_ffn.gate_up",
        FORMAT=fmt,
        ACTIVATION=activation,
        BIAS=bias,
        BLOCK=words_of_block(fmt),
    )


def down(fmt: str, bias: str = "") -> Build:
    """Down of a few tokens."""
    return _build("expert_ffn.down", FORMAT=fmt, BIAS=bias, BLOCK=words_of_block(fmt))


def merge(accumulate: bool) -> Build:
    """The ordered sum."""
    return _build("expert_ffn.merge", ACCUMULATE=accumulate, BLOCK=MERGE_BLOCK)


def admission(num_pairs: int, num_slots: int) -> Build:
    """Raises: ValueError beyond what one program holds."""
    if num_pairs > MOST_PAIRS or num_slots > MOST_SLOTS:
        raise ValueError(
            f"admission of {num_pairs} pairs to {num_slots} slots: at most {MOST_PAIRS} pairs and "
            f"{MOST_SLOTS} slots; run larger steps as a prefill"
        )
    slots = power_of_two(num_slots, 256)
    warps = 4 if slots <= 1024 else 8 if slots <= 4096 else 16
    return _build("admission.admission", warps, PAIRS=power_of_two(num_pairs, 16), SLOTS=slots)


def copy_rows() -> Build:
    """Fused gather of rows."""
    return _build("row_copy.copy_rows", SHARE=COPY_SHARE, BLOCK=2048)


def count_pairs() -> Build:
    """Pairs of each expert of a chunk."""
    return _build("group.count_pairs", BLOCK=GROUP_BLOCK)


def group_pairs(num_experts: int) -> Build:
    """Pairs of a chunk by expert, and their tiles."""
    return _build(
        "group.group_pairs",
        BLOCK=GROUP_BLOCK,
        EXPERTS=power_of_two(num_experts, 16),
        ROWS=GEMM_ROWS,
    )


def arrange(fmt: str, item: str) -> Build:
    """Rows in the order of words. item: "bf16" or "f32"."""
    return _build(f"grouped_gemm.arrange.{item}", FORMAT=fmt, BLOCK=ARRANGE_BLOCK)


def _gemm_sizes(fmt: str) -> dict[str, int]:
    narrow = not _wide_words(fmt) and panel_format(fmt).group_elements == 2
    return {"ROWS": GEMM_ROWS, "PANELS": 2, "WORDS": 64 if narrow else 32}


def gate_up_gemm(
    fmt: str, down: str, dot: str, activation: str = "silu", bias: str = "", item: str = "bf16"
) -> Build:
    """Gate and up of many tokens. dot: product.py's names. Raises: as gate_up."""
    _check_activation(activation)
    return _build(
        f"grouped_gemm.gate_up_gemm.{item}",
        8,
        FORMAT=fmt,
        FORMAT_DOWN=down,
        ACTIVATION=activation,
        BIAS=bias,
        DOT=dot,
        **_gemm_sizes(fmt),
    )


def down_gemm(fmt: str, dot: str, bias: str = "", item: str = "bf16") -> Build:
    """Down of many tokens, and dense layers."""
    return _build(
        f"grouped_gemm.down_gemm.{item}", 8, FORMAT=fmt, BIAS=bias, DOT=dot, **_gemm_sizes(fmt)
    )


def linear(fmt: str, bias: bool, accumulate: bool) -> Build:
    """A dense layer of a few tokens."""
    return _build(
        "linear.linear", FORMAT=fmt, BIAS=bias, ACCUMULATE=accumulate, BLOCK=words_of_block(fmt)
    )


def rms_norm(size: int, residual: bool, add_one: bool = False) -> Build:
    """Norm of rows of up to `size`, a power of two at least 128."""
    block = power_of_two(size, 128)
    warps = 4 if block <= 2048 else 8
    return _build("norm.rms_norm", warps, RESIDUAL=residual, ADD_ONE=add_one, BLOCK=block)


def rope_store(
    kv: str, head_dim: int, q_norm: bool, k_norm: bool, interleaved: bool = False
) -> Build:
    """kv: item of the pools, "f32", "bf16" or "q8_0"."""
    return _build(
        f"rope.rope_store.{kv}",
        1,
        DIM=power_of_two(head_dim, 32),
        Q_NORM=q_norm,
        K_NORM=k_norm,
        INTERLEAVED=interleaved,
        KV="q8_0" if kv == "q8_0" else "plain",
    )


def attention_split(kv: str, head_dim: int, per_key: int, dot: str) -> Build:
    """Decoding: a cut of 256 keys."""
    return _build(
        f"attention.attention_split.{kv}",
        num_stages=1,
        DIM=power_of_two(head_dim, 16),
        ROWS=power_of_two(per_key, 16),
        KV="q8_0" if kv == "q8_0" else "plain",
        DOT=dot,
    )


def attention_merge(head_dim: int, sinks: bool) -> Build:
    """Decoding: the cuts together."""
    return _build("attention.attention_merge", DIM=power_of_two(head_dim, 16), SINKS=sinks)


def attention_chunk(kv: str, head_dim: int, per_key: int, dot: str, sinks: bool) -> Build:
    """A chunk of a prompt."""
    heads = power_of_two(per_key)
    dim = power_of_two(head_dim, 16)
    return _build(
        f"attention.attention_chunk.{kv}",
        4 if dim <= 64 else 8,
        1,
        DIM=dim,
        ROWS=max(32 if dim > 128 else 64, heads),
        HEADS=heads,
        KV="q8_0" if kv == "q8_0" else "plain",
        DOT=dot,
        SINKS=sinks,
    )


def route(
    score: str, num_experts: int, num_chosen: int, bias: bool = False, normalize: bool = True
) -> Build:
    """The router's choice."""
    return _build(
        "route.route",
        1 if num_experts <= 128 else 4,
        SCORE=score,
        BIAS=bias,
        NORMALIZE=normalize,
        EXPERTS=power_of_two(num_experts, 32),
        CHOSEN=power_of_two(num_chosen, 2),
    )


def best_of_block(keep: int) -> Build:
    """The best logits of a block. keep: a power of two."""
    return _build("top_k.best_of_block", BLOCK=VOCAB_BLOCK, KEEP=keep)


def merge_blocks(num_blocks: int, keep: int) -> Build:
    """The best logits of a row."""
    return _build("top_k.merge_blocks", 8, BLOCKS=power_of_two(num_blocks, 2), KEEP=keep)


def embed_rows(fmt: str) -> Build:
    """Rows of a table in its checkpoint format."""
    return _build("rows.embed_rows", FORMAT=fmt, BLOCK=ROW_BLOCK)


def add_rows(accumulate: bool, bias: bool) -> Build:
    """Copies and sums of strided rows."""
    return _build("rows.add_rows", ACCUMULATE=accumulate, BIAS=bias, BLOCK=ROW_BLOCK)


def causal_conv(taps: int, bias: bool, silu: bool) -> Build:
    """Short convolution."""
    return _build(
        "recurrent.causal_conv",
        TAPS=taps,
        BIAS=bias,
        SILU=silu,
        TOKENS=16,
        BLOCK=_CHANNELS,
        KEPT=power_of_two(taps - 1),
    )


def delta_rule(key_dim: int) -> Build:
    """The delta rule, token after token."""
    return _build("recurrent.delta_rule", KEYS=power_of_two(key_dim, 16), BLOCK=32)


def delta_chunk(key_dim: int) -> Build:
    """The delta rule, chunk after chunk."""
    return _build(
        "delta_chunk.delta_chunk",
        8,
        1,
        KEYS=power_of_two(key_dim, 16),
        BLOCK=32,
        CHUNK=CHUNK,
    )


def mamba2_scan(state_dim: int) -> Build:
    """Mamba-2, token after token."""
    return _build("recurrent.mamba2_scan", STATES=power_of_two(state_dim, 16), BLOCK=16)


def _shipped() -> tuple[Build, ...]:
    found = [copy_rows(), merge(False), merge(True), admission(16, 1024), admission(64, 8192)]
    for fmt in ("bf16", "mxfp4", "nvfp4", "fp8_block", "q8_0", "q4_0", "q4_1", "q4_k"):
        found += [gate_up(fmt), down(fmt), linear(fmt, False, False), linear(fmt, False, True)]
        found += [arrange(fmt, "bf16"), gate_up_gemm(fmt, fmt, "bf16"), down_gemm(fmt, "bf16")]
    found += [gate_up("mxfp4", "swiglu_clamp", "bf16"), down("mxfp4", "bf16")]
    for dim, per_key in ((64, 8), (128, 4), (128, 8), (256, 8)):
        found += [rope_store("bf16", dim, norm, norm) for norm in (False, True)]
        found += [attention_split("bf16", dim, per_key, "bf16"), attention_merge(dim, False)]
        found += [attention_chunk("bf16", dim, per_key, "bf16", False)]
    found += [rms_norm(size, residual) for size in (2048, 4096) for residual in (False, True)]
    found += [route("softmax", experts, chosen) for experts, chosen in ((32, 4), (128, 8))]
    found += [route("softmax", 256, 8), route("sigmoid", 256, 8, bias=True)]
    found += [count_pairs(), *(group_pairs(experts) for experts in (32, 128, 256, 512))]
    found += [best_of_block(64), merge_blocks(128, 64)]
    found += [causal_conv(4, False, True), causal_conv(4, True, True), causal_conv(3, False, False)]
    found += [embed_rows(fmt) for fmt in ("bf16", "f16", "q8_0")]
    found += [add_rows(accumulate, False) for accumulate in (False, True)]
    found += [delta_rule(128), delta_chunk(128), mamba2_scan(128)]
    return tuple(dict.fromkeys(found))


TABLE = KernelTable(KERNELS, _shipped())
"""What the launcher is given."""
