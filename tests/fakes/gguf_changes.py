"""What the reference converter does to the weights of a checkpoint before it writes them as GGUF.

By the names that transformers saves, family by family. Written from what such files hold; the
converter under test has a description of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fakes.tiny_gguf import permute

Array = npt.NDArray[Any]
Config = dict[str, Any]
Named = tuple[str, Array]
Change = Callable[[str, Array, Config], Iterator[Named]]

GGUF_STEMS = ("blk.", "output_hc_")
"""Beginnings of names that are those of GGUF files already."""


def changed(
    family: str, name: str, values: Array, config: Config, *, older: bool = False
) -> Iterator[Named]:
    """Tensors that stand for one of the checkpoint, under names that the tables know.

    older: as converters of before kept latents' matrices and fused projections whole.
    """
    for pattern, change in (*_CHANGES.get(family, ()), *_ALWAYS):
        if older and change in (_latent_parts, _fused_delta):
            continue
        if re.search(pattern, name):
            yield from change(name, np.ascontiguousarray(values), config)
            return
    yield name, values


def _same(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, values


def _renamed(ending: str, new: str) -> Change:
    def change(name: str, values: Array, _: Config) -> Iterator[Named]:
        yield re.sub(ending + "$", new, name), values

    return change


def _plus_one(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, _above(values)


def _above(values: Array) -> Array:
    return values + 1


def _four(values: Array) -> Array:
    """Taps of channels, with the dimensions of a file."""
    return values.reshape(1, len(values), 1, -1)


def _rate(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, -np.exp(values)


def _columns_of_one(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, values.reshape(-1, 1)


def _rate_column(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, -np.exp(values).reshape(-1, 1)


def _squeezed(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, values.squeeze()


def _outer_one(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name, values[None]


def _as_mlp(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield name.replace("block_sparse_moe", "mlp"), values


def _in_groups(key: str) -> Change:
    def change(name: str, values: Array, config: Config) -> Iterator[Named]:
        yield name, values.reshape(config[key], -1)

    return change


def _permuted(name: str, values: Array, config: Config) -> Iterator[Named]:
    key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
    yield name, permute(values, config[key])


def _named(new: str, made: Callable[[Array], Array] = lambda values: values) -> Change:
    """A tensor whose name in files the tables do not have. {} stands for the layer."""

    def change(name: str, values: Array, _: Config) -> Iterator[Named]:
        layer = re.search(r"layers\.(\d+)\.", name)
        yield new.format(layer[1] if layer else ""), made(values)

    return change


def _nothing(name: str, values: Array, _: Config) -> Iterator[Named]:
    yield from ()


def _layer_of(name: str) -> int:
    found = re.search(r"layers\.(\d+)\.", name)
    assert found, name
    return int(found[1])


def _head_norms(name: str, values: Array, config: Config) -> Iterator[Named]:
    """Muse Glimmer: what scales queries as the weights of a norm, and one of ones for keys."""
    layer, ones = _layer_of(name), np.ones(config["head_dim"], np.float32)
    yield f"blk.{layer}.attn_q_norm.weight", ones * np.float32(config["qk_scale_factor"])
    yield f"blk.{layer}.attn_k_norm.weight", ones
    yield from _permuted(name, values, config)


def _as_llama(then: Change) -> Change:
    """Ling: attention under the names of most families."""

    def change(name: str, values: Array, config: Config) -> Iterator[Named]:
        usual = name.replace(".attention.", ".self_attn.").replace(".dense.", ".o_proj.")
        yield from then(usual, values, config)

    return change


def _gate_of_layer(name: str, values: Array, config: Config) -> Iterator[Named]:
    """Ling 3: the gate of latent attention, or that of delta attention."""
    layer = _layer_of(name)
    is_full = config["layer_types"][layer] == "full_attention"
    yield f"blk.{layer}.{'attn_gate' if is_full else 'ssm_g_a'}.weight", values


def _halves(ending: str, gate: str, up: str) -> Change:
    """Rows of gate, then of up."""

    def change(name: str, values: Array, _: Config) -> Iterator[Named]:
        stem, half = name.removesuffix(ending), values.shape[-2] // 2
        yield stem + gate, np.ascontiguousarray(values[..., :half, :])
        yield stem + up, np.ascontiguousarray(values[..., half:, :])

    return change


def _transposed(ending: str) -> Change:
    def change(name: str, values: Array, _: Config) -> Iterator[Named]:
        yield name + ending, np.ascontiguousarray(values.swapaxes(-1, -2))

    return change


def _transposed_halves(name: str, values: Array, config: Config) -> Iterator[Named]:
    halves = _halves("gate_up_proj", "gate_proj.weight", "up_proj.weight")
    yield from halves(name, values.swapaxes(-1, -2), config)


def _turns(name: str, values: Array, _: Config) -> Iterator[Named]:
    """gpt-oss: gate and up take turns, in rows or, as matrices, in columns."""
    kind = "bias" if name.endswith("_bias") else "weight"
    for first, part in enumerate(("gate_proj", "up_proj")):
        new = re.sub(r"gate_up_proj(_bias)?$", f"{part}.{kind}", name)
        found = values[..., first::2]
        yield new, np.ascontiguousarray(found if kind == "bias" else found.swapaxes(-1, -2))


def _latent_parts(name: str, values: Array, config: Config) -> Iterator[Named]:
    """kv_b: what makes keys, transposed, and what makes values."""
    nope, size = config["qk_nope_head_dim"], config["v_head_dim"]
    heads = values.reshape(config["num_attention_heads"], nope + size, -1)
    yield name.replace("kv_b", "k_b"), np.ascontiguousarray(heads[:, :nope].swapaxes(1, 2))
    yield name.replace("kv_b", "v_b"), np.ascontiguousarray(heads[:, nope:])


def _fused_delta(name: str, values: Array, config: Config) -> Iterator[Named]:
    """Qwen3-Next: q, k, v, z of each key head to all q, all k, all v, and z apart."""
    dim, size = config["linear_key_head_dim"], config["linear_value_head_dim"]
    groups = config["linear_num_key_heads"]
    wide = config["linear_num_value_heads"] // groups * size
    heads = values.reshape(groups, 2 * dim + 2 * wide, -1)
    parts = np.split(heads, [dim, 2 * dim, 2 * dim + wide], axis=1)
    flat = [part.reshape(-1, values.shape[1]) for part in parts]
    yield name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate(flat[:3])
    yield name.replace("in_proj_qkvz", "in_proj_z"), np.ascontiguousarray(flat[3])


def _tiled(axis: int, size_key: str = "", keys: bool = False, after: Change = _same) -> Change:
    """Qwen3.5: value heads in turns, one of each key head. keys: q and k come before them."""

    def change(name: str, values: Array, config: Config) -> Iterator[Named]:
        groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        size = config[size_key] if size_key else 1
        first = 2 * groups * config["linear_key_head_dim"] if keys else 0
        before, rest = np.split(values, [first], axis=axis)
        shape = rest.shape
        inner = (groups, heads // groups, size)
        split = rest.reshape(*shape[:axis], *inner, *shape[axis + 1 :])
        turned = split.swapaxes(axis, axis + 1).reshape(shape)
        yield from after(name, np.concatenate([before, turned], axis=axis), config)

    return change


_SIZE = "linear_value_head_dim"
_DELTA = (
    (r"(?<!linear_attn)\.\w*norm\.weight$", _plus_one),
    (r"in_proj_qkvz\.weight$", _fused_delta),
    (r"A_log$", _rate),
    (r"dt_bias$", _renamed("dt_bias", "dt_proj.bias")),
    (r"conv1d\.weight$", _squeezed),
)
_TILED_DELTA = (
    (r"in_proj_qkv\.weight$", _tiled(0, _SIZE, keys=True)),
    (r"in_proj_z\.weight$", _tiled(0, _SIZE)),
    (r"in_proj_[ab]\.weight$", _tiled(0)),
    (r"out_proj\.weight$", _tiled(1, _SIZE)),
    (r"A_log$", _tiled(0, after=_rate)),
    (r"dt_bias$", _tiled(0, after=_renamed("dt_bias", "dt_proj.bias"))),
    (r"conv1d\.weight$", _tiled(0, _SIZE, keys=True, after=_squeezed)),
    *_DELTA,
)
_LATENT = ((r"kv_b_proj\.weight$", _latent_parts),)
_LATENT_FAMILIES = (
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "deepseek_v32",
)
_MAMBA2 = (
    (r"A_log$", _rate_column),
    (r"\.D$", _columns_of_one),
    (r"conv1d\.weight$", _squeezed),
)
_NEMOTRON = (
    *_MAMBA2,
    (r"dt_bias$", _renamed("dt_bias", "dt.bias")),
    (r"mixer\.norm\.weight$", _in_groups("n_groups")),
)
_QK = (r"[qk]_proj\.weight$", _permuted)
_SHARED_MLP = (
    r"shared_mlp\.input_linear\.weight$",
    _halves(
        "shared_mlp.input_linear.weight",
        "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.weight",
    ),
)
_GEMMA4 = (
    (r"router\.scale$", _named("blk.{}.ffn_gate_inp.scale")),
    (r"per_expert_scale$", _named("blk.{}.ffn_down_exps.scale")),
    (r"layer_scalar$", _renamed("scalar", "scalar.weight")),
    (r"experts\.(gate_up|down)_proj$", _renamed("proj", "proj.weight")),
)
_DEEPSEEK4 = {
    "attn.attn_sink": "attn_sinks",
    "attn.wq_a.weight": "attn_q_a",
    "attn.wq_b.weight": "attn_q_b",
    "attn.q_norm.weight": "attn_q_a_norm",
    "attn.wkv.weight": "attn_kv",
    "attn.kv_norm.weight": "attn_kv_norm",
    "attn.wo_a.weight": "attn_output_a",
    "attn.wo_b.weight": "attn_output_b",
    "attn.compressor.ape": "attn_compressor_ape",
    "attn.compressor.wkv.weight": "attn_compressor_kv",
    "attn.compressor.wgate.weight": "attn_compressor_gate",
    "attn.compressor.norm.weight": "attn_compressor_norm",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b",
    "attn.indexer.weights_proj.weight": "indexer.proj",
    "attn.indexer.compressor.ape": "indexer_compressor_ape",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm",
    "attn_norm.weight": "attn_norm",
    "ffn_norm.weight": "ffn_norm",
    "ffn.gate.weight": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    **{
        f"ffn.shared_experts.{old}.weight": f"ffn_{part}_shexp"
        for old, part in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
    **{f"ffn.experts.{part}_proj.weight": f"ffn_{part}_exps" for part in ("gate", "down", "up")},
    **{
        f"hc_{block}_{part}": f"hc_{block}_{part}"
        for block in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
}
"""Below a layer, without the ending ".weight" of names in files."""
_CHANGES: dict[str, tuple[tuple[str, Change], ...]] = {
    "gemma4": _GEMMA4,
    "gemma4_dense": _GEMMA4,
    "jamba": ((r"A_log$", _rate), (r"conv1d\.weight$", _squeezed)),
    "kimi_linear": (
        *_LATENT,
        (r"A_log$", _rate),
        (r"dt_bias$", _renamed("dt_bias", "dt_proj.bias")),
        (r"[qkv]_conv1d\.weight$", _outer_one),
        (r"block_sparse_moe\.\w+_proj\.weight$", _as_mlp),
    ),
    "deepseek_v4": (
        *(
            (rf"^layers\.\d+\.{re.escape(old)}$", _named(f"blk.{{}}.{new}.weight"))
            for old, new in _DEEPSEEK4.items()
        ),
        (r"\.gate\.bias$", _named("blk.{}.exp_probs_b.bias")),
        *(
            (rf"^hc_head_{part}$", _named(f"output_hc_{part}.weight"))
            for part in ("fn", "base", "scale")
        ),
        (r"^embed\.weight$", _renamed("embed.weight", "model.embed_tokens.weight")),
        (r"^norm\.weight$", _renamed("norm.weight", "model.norm.weight")),
        (r"^head\.weight$", _renamed("head.weight", "lm_head.weight")),
    ),
    "hy_v3": ((r"mlp\.expert_bias$", _named("blk.{}.exp_probs_b")),),
    "minimax": (
        (r"self_attn\.(slope_rate|\w+_decay)$", _nothing),
        (r"self_attn\.qkv_proj\.weight$", _named("blk.{}.attn_qkv.weight")),
        (r"self_attn\.output_gate\.weight$", _named("blk.{}.attn_gate.weight")),
        (r"self_attn\.norm\.weight$", _named("blk.{}.attn_norm_2.weight")),
        (r"self_attn\.out_proj\.weight$", _named("blk.{}.attn_output.weight")),
    ),
    "minimax_m3": (
        *(
            (rf"index_{part}_proj\.weight$", _named(f"blk.{{}}.indexer.{part}_proj.weight"))
            for part in "qk"
        ),
        *(
            (rf"index_{part}_norm\.weight$", _named(f"blk.{{}}.indexer.{part}_norm.weight", _above))
            for part in "qk"
        ),
        (r"norm\.weight$", _plus_one),
        (r"e_score_correction_bias$", _named("blk.{}.exp_probs_b.bias")),
        (r"block_sparse_moe\.shared_experts\.", _as_mlp),
    ),
    "bailing_hybrid": (
        (r"kv_b_proj\.weight$", _as_llama(_latent_parts)),
        (r"A_log$", _named("blk.{}.ssm_a", lambda values: np.exp(values).reshape(-1, 1))),
        (r"dt_bias$", _named("blk.{}.ssm_dt.bias")),
        *(
            (rf"{part}_conv1d\.weight$", _named(f"blk.{{}}.ssm_conv1d_{part}.weight", _four))
            for part in "qkv"
        ),
        (r"attention\.f_proj\.weight$", _named("blk.{}.ssm_f_a.weight")),
        (r"attention\.g_proj\.weight$", _gate_of_layer),
        (r"attention\.b_proj\.weight$", _named("blk.{}.ssm_beta.weight")),
        (r"attention\.o_norm\.weight$", _named("blk.{}.ssm_norm.weight")),
        (r"expert_bias$", _named("blk.{}.exp_probs_b.bias")),
        (r"\.attention\.", _as_llama(_same)),
    ),
    "muse_glimmer": (
        (r"layernorm\.weight$", _plus_one),
        (r"q_proj\.weight$", _head_norms),
        (r"k_proj\.weight$", _permuted),
        (r"self_attn\.gate_proj\.weight$", _named("blk.{}.attn_gate.weight")),
    ),
    "gemma3": ((r"norm\.weight$", _plus_one),),
    "qwen3_next": _DELTA,
    "qwen3_5": _TILED_DELTA,
    "qwen3_5_moe": _TILED_DELTA,
    "gpt_oss": (
        (r"gate_up_proj(_bias)?$", _turns),
        (r"down_proj$", _transposed(".weight")),
        (r"down_proj_bias$", _renamed("_bias", ".bias")),
        (r"sinks$", _renamed("sinks", "sinks.weight")),
    ),
    "llama4": (
        (r"gate_up_proj$", _transposed_halves),
        (r"experts\.down_proj$", _transposed(".weight")),
    ),
    "lfm2_moe": ((r"conv\.conv\.weight$", _squeezed),),
    "granitemoe": (_QK,),
    "granitemoeshared": (_QK, _SHARED_MLP),
    "granitemoehybrid": (
        _QK,
        _SHARED_MLP,
        *_MAMBA2,
        (r"dt_bias$", _renamed("dt_bias", "dt_proj.bias")),
        (r"mamba\.norm\.weight$", _in_groups("mamba_n_groups")),
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_super": _NEMOTRON,
    "mimo_v2_flash": ((r"attention_sink_bias$", _renamed("bias", "bias.weight")),),
    **dict.fromkeys(_LATENT_FAMILIES, _LATENT),
    "mistral4": (*_LATENT, (r"experts\.(gate_up|down)_proj$", _renamed("proj", "proj.weight"))),
}
_ALWAYS = (
    (
        r"block_sparse_moe\.input_linear\.weight$",
        _halves("input_linear.weight", "experts.w1.weight", "experts.w3.weight"),
    ),
    (r"e_score_correction_bias$", _renamed("correction_bias", "correction.bias")),
    (r"expert_bias$", _renamed("expert_bias", "expert_bias.bias")),
)
