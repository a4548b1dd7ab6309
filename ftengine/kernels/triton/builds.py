"""Compile-time constants of every kernel, and the builds that a release ships. No Triton, no torch.

One place chooses block sizes, so that what runs is what was compiled ahead. Sizes that change from
model to model are run-time arguments; what is left here is formats, head sizes and widths.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftengine.errors import EngineError
from ftengine.gpu.kernel_table import Build, Constant, KernelTable
from ftengine.kernels.operands import RouteSpec
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
LATENT_HEADS = 16
"""Heads that a program of latent attention takes: more would not fit in registers."""
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


def gate_up(fmt: str, activation: str = "silu", bias: str = "", gated: bool = True) -> Build:
    """Gate and up of a few tokens, or up alone. Raises: EngineError for what no kernel computes."""
    _check_activation(activation)
    return _build(
        "expert_ffn.gate_up",
        FORMAT=fmt,
        ACTIVATION=activation,
        GATED=gated,
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
    fmt: str,
    down: str,
    dot: str,
    activation: str = "silu",
    bias: str = "",
    item: str = "bf16",
    gated: bool = True,
) -> Build:
    """Gate and up of many tokens. dot: product.py's names. Raises: as gate_up."""
    _check_activation(activation)
    return _build(
        f"grouped_gemm.gate_up_gemm.{item}",
        8,
        FORMAT=fmt,
        FORMAT_DOWN=down,
        ACTIVATION=activation,
        GATED=gated,
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


def _odd(head_dim: int) -> str:
    """Loads of heads whose addresses are no multiples of 16 are narrower: kernels of their own."""
    return ".odd" if head_dim % 16 else ""


def attention_split(kv: str, head_dim: int, per_key: int, dot: str) -> Build:
    """Decoding: a cut of 256 keys."""
    return _build(
        f"attention.attention_split.{kv}{_odd(head_dim)}",
        8 if _odd(head_dim) and head_dim > 64 else 4,
        1,
        DIM=power_of_two(head_dim, 16),
        ROWS=power_of_two(per_key, 16),
        KV="q8_0" if kv == "q8_0" else "plain",
        DOT=dot,
    )


def attention_merge(head_dim: int, sinks: bool) -> Build:
    """Decoding: the cuts together."""
    return _build(
        f"attention.attention_merge{_odd(head_dim)}", DIM=power_of_two(head_dim, 16), SINKS=sinks
    )


def attention_chunk(kv: str, head_dim: int, per_key: int, dot: str, sinks: bool) -> Build:
    """A chunk of a prompt."""
    heads = power_of_two(per_key)
    dim = power_of_two(head_dim, 16)
    return _build(
        f"attention.attention_chunk.{kv}{_odd(head_dim)}",
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
    spec: RouteSpec, num_experts: int, num_chosen: int, bias: bool = False, scaled: bool = False
) -> Build:
    """The router's choice."""
    return _build(
        "route.route",
        1 if num_experts <= 128 else 4,
        SCORE="sparse" if spec.jitter else spec.score,
        BIAS=bias,
        SCALED=scaled,
        NORMALIZE=spec.normalize,
        GROUPS=power_of_two(spec.groups) if spec.grouped else 1,
        GROUP_BY=spec.group_by if spec.grouped else "",
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


def gate_rows(kind: str, indexed: bool = False) -> Build:
    """Rows times gates. kind: "plain", "sigmoid" or "silu"."""
    return _build("rows.gate_rows", KIND=kind, INDEXED=indexed, BLOCK=ROW_BLOCK)


def move_heads(width: int) -> Build:
    """Heads in another length or order. width: of all of them, as they become."""
    block = power_of_two(width, 128)
    return _build(
        "rows.move_heads", 4 if block <= 2048 else 8 if block <= 8192 else 16, BLOCK=block
    )


def squash_rows(kind: str) -> Build:
    """A function of each number. kind: "sigmoid", "tanh", "clamp" or "fill"."""
    return _build("rows.squash_rows", KIND=kind, BLOCK=ROW_BLOCK)


def centre_rows(size: int) -> Build:
    """Rows less their mean."""
    block = power_of_two(size, 128)
    return _build("norm.centre_rows", 4 if block <= 2048 else 8, BLOCK=block)


def causal_conv(taps: int, bias: bool, silu: bool, gated: bool = False) -> Build:
    """Short convolution."""
    return _build(
        "recurrent.causal_conv",
        TAPS=taps,
        BIAS=bias,
        SILU=silu,
        GATED=gated,
        TOKENS=16,
        BLOCK=_CHANNELS,
        KEPT=power_of_two(taps - 1),
    )


def delta_rule(key_dim: int) -> Build:
    """The delta rule, token after token."""
    return _build("delta.delta_rule", KEYS=power_of_two(key_dim, 16), BLOCK=32)


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


def gated_norm(dim: int) -> Build:
    """The norm of heads, times a gate."""
    return _build("delta.gated_norm", 1, BLOCK=power_of_two(dim, 32))


def mamba2_scan(state_dim: int) -> Build:
    """Mamba-2, token after token."""
    return _build("recurrent.mamba2_scan", STATES=power_of_two(state_dim, 16), BLOCK=8)


def latent_store(item: str, rank: int, rope: int, half: int, interleaved: bool) -> Build:
    """A latent and its key into a page. item: of the pool; half: pairs that turn."""
    return _build(
        f"latent.latent_store.{item}",
        RANK=rank,
        ROPE=rope,
        HALF=half,
        DIM=power_of_two(rank, 16),
        TURN=power_of_two(rope, 16),
        INTERLEAVED=interleaved,
    )


def head_product(item: str, num_in: int, num_out: int, num_tokens: int, dot: str) -> Build:
    """A matrix for every head. item: of the matrices."""
    return _build(
        f"latent.head_product.{item}",
        4 if num_tokens <= 16 else 8,
        IN=num_in,
        OUT=num_out,
        TOKENS=16 if num_tokens <= 16 else 64,
        BLOCK=min(power_of_two(num_out, 16), 64),
        WIDE=min(power_of_two(num_in, 16), 32),
        DOT=dot,
    )


@dataclass(frozen=True)
class Look:
    """Attention over latents. item: of the pool; half: pairs that turn; chosen: keys by slot."""

    item: str
    rank: int
    rope: int
    half: int
    interleaved: bool
    temper: bool
    chosen: bool
    dot: str

    def build(self, function: str, num_warps: int) -> Build:
        """Of latent_split or latent_chunk."""
        return _build(
            f"latent.{function}.{self.item}",
            num_warps,
            1,
            RANK=self.rank,
            ROPE=self.rope,
            HALF=self.half,
            DIM=power_of_two(self.rank, 16),
            TURN=power_of_two(self.rope, 16),
            ROWS=LATENT_HEADS,
            INTERLEAVED=self.interleaved,
            TEMPER=self.temper,
            CHOSEN=self.chosen,
            DOT=self.dot,
        )


def latent_split(look: Look) -> Build:
    """Decoding: a cut of 256 latents."""
    return look.build("latent_split", 4)


def latent_chunk(look: Look) -> Build:
    """A chunk of a prompt: it holds two sums of each number at once."""
    return look.build("latent_chunk", 8)


def index_store(item: str, size: int, half: int, interleaved: bool) -> Build:
    """A key of an indexer into a page."""
    return _build(
        f"index_keys.index_store.{item}",
        SIZE=size,
        HALF=half,
        DIM=power_of_two(size, 16),
        INTERLEAVED=interleaved,
    )


def index_scores(item: str, heads: int, size: int, half: int, interleaved: bool, dot: str) -> Build:
    """Scores of all keys."""
    return _build(
        f"index_keys.index_scores.{item}",
        4 if heads <= 32 else 8,
        1,
        SIZE=size,
        HALF=half,
        DIM=power_of_two(size, 16),
        HEADS=power_of_two(heads, 16),
        KEYS=64,
        INTERLEAVED=interleaved,
        DOT=dot,
    )


def index_choose() -> Build:
    """The best keys."""
    return _build("index_keys.index_choose", 8, BLOCK=1024)


def _shipped_latents() -> tuple[Build, ...]:
    """DeepSeek, Kimi (128 + 64, values of 128), GLM (192 + 64, values of 256), their indexers."""
    found = [latent_store("bf16", 512, 64, 32, True), attention_merge(512, False)]
    for chosen in (False, True):
        look = Look("bf16", 512, 64, 32, True, False, chosen, "bf16")
        found += [latent_split(look), latent_chunk(look)]
    for item, tokens in (("bf16", 1), ("bf16", 64), ("f32", 1), ("f32", 64)):
        found += [
            head_product(item, num_in, num_out, tokens, "bf16")
            for num_in, num_out in ((128, 512), (512, 128), (192, 512), (512, 256))
        ]
    for heads, interleaved in ((32, True), (64, False)):
        found += [index_store("bf16", 128, 32, interleaved)]
        found += [index_scores("bf16", heads, 128, 32, interleaved, "bf16")]
    return (*found, index_choose())


def _shipped() -> tuple[Build, ...]:
    found = [copy_rows(), merge(False), merge(True), admission(16, 1024), admission(64, 8192)]
    for fmt in ("bf16", "mxfp4", "nvfp4", "fp8_block", "q8_0", "q4_0", "q4_1", "q4_k"):
        found += [gate_up(fmt), down(fmt), linear(fmt, False, False), linear(fmt, False, True)]
        found += [arrange(fmt, "bf16"), gate_up_gemm(fmt, fmt, "bf16"), down_gemm(fmt, "bf16")]
    found += [gate_up("mxfp4", "swiglu_clamp", "bf16"), down("mxfp4", "bf16")]
    found += [gate_up("bf16", "relu2", gated=False)]
    found += [gate_up_gemm("bf16", "bf16", "bf16", "relu2", gated=False)]
    for dim, per_key in ((64, 8), (128, 4), (128, 8), (256, 8)):
        found += [rope_store("bf16", dim, norm, norm) for norm in (False, True)]
        found += [attention_split("bf16", dim, per_key, "bf16"), attention_merge(dim, False)]
        found += [attention_chunk("bf16", dim, per_key, "bf16", False)]
    found += [rms_norm(size, residual) for size in (2048, 4096) for residual in (False, True)]
    softmax, sigmoid = (RouteSpec(score, True, 1.0) for score in ("softmax", "sigmoid"))
    grouped = RouteSpec("sigmoid", True, 2.5, 1e-20, 8, 4)
    found += [route(softmax, experts, chosen) for experts, chosen in ((32, 4), (128, 8), (256, 8))]
    found += [route(spec, 256, 8, bias=True) for spec in (sigmoid, grouped)]
    found += [count_pairs(), *(group_pairs(experts) for experts in (32, 128, 256, 512))]
    found += [best_of_block(64), merge_blocks(128, 64)]
    found += [
        causal_conv(4, False, True),
        causal_conv(4, True, True),
        causal_conv(3, False, False, True),
    ]
    found += [embed_rows(fmt) for fmt in ("bf16", "f16", "q8_0")]
    found += [add_rows(accumulate, False) for accumulate in (False, True)]
    found += [delta_rule(128), delta_chunk(128), gated_norm(128), mamba2_scan(128)]
    found += [gate_rows(kind) for kind in ("plain", "sigmoid")]
    found += [squash_rows(kind) for kind in ("sigmoid", "tanh", "fill")]
    found += [rms_norm(1024, False), centre_rows(4096), move_heads(4096)]
    found += _shipped_latents()
    return tuple(dict.fromkeys(found))


TABLE = KernelTable(KERNELS, _shipped())
"""What the launcher is given."""
