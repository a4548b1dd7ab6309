"""minimax: Text-01 and M1; lightning attention, every eighth layer softmax, normed residuals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    ROTATED_KEY,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.scan_specs import LightningSpec
from ftengine.models.spec import LayerSpec, MixerSpec, ModelConfig, MoeSpec, RouterSpec

_LINEAR, _FULL = "linear_attention", "full_attention"
_RELEASED = {
    "full_attn_alpha_factor": "layernorm_full_attention_alpha",
    "full_attn_beta_factor": "layernorm_full_attention_beta",
    "linear_attn_alpha_factor": "layernorm_linear_attention_alpha",
    "linear_attn_beta_factor": "layernorm_linear_attention_beta",
    "mlp_alpha_factor": "layernorm_mlp_alpha",
    "mlp_beta_factor": "layernorm_mlp_beta",
}


def _carry(config: Config, block: str) -> float:
    """How much of the normed input stays. Raises: LoadError where the output is scaled too."""
    keys = {name: f"{block}_{name}_factor" for name in ("alpha", "beta")}
    alpha, beta = (config.number(key, config.number(_RELEASED[key], 1.0)) for key in keys.values())
    if beta != 1 or alpha <= 0:
        raise LoadError(f"config.json: {keys['beta']} {beta} is not built yet; built: 1")
    return alpha


def _rates(layer: int, count: int, heads: int) -> tuple[float, ...]:
    """How fast each head of a layer forgets; later layers forget less."""
    share = 1 - layer / (count - 1 + 1e-5) + 1e-5
    return tuple(2.0 ** (-8 * (head + 1) / heads) * share for head in range(heads))


def _kinds(config: Config) -> tuple[str, ...]:
    released = config.values.get("attn_type_list")
    if released is not None and config.values.get("layer_types") is None:
        if not isinstance(released, list) or set(released) - {0, 1}:
            raise LoadError("config.json: attn_type_list must list 0 or 1 for every layer")
        kinds = [_FULL if kind else _LINEAR for kind in released]
        config = Config({**config.values, "layer_types": kinds})
    return config.layer_types(lambda layer: _LINEAR if layer % 2 == 0 else _FULL, _LINEAR, _FULL)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a MiniMax-Text-01 model -> ModelConfig. Raises: LoadError naming the key."""
    given = dict(values)
    if given.get("rotary_dim") and given.get("partial_rotary_factor") is None:
        given["partial_rotary_factor"] = given["rotary_dim"] / Config(given).size("head_dim")
    config = Config(given)
    attention = read_attention(config, default_theta=1e6)
    router = RouterSpec(
        config.size("num_local_experts", "num_experts", default=8),
        config.size("num_experts_per_tok", default=2),
    )
    moe = MoeSpec(router, config.size("intermediate_size"), config.activation())
    heads, dim, count = attention.num_heads, attention.head_dim, config.num_layers()
    layers = []
    for layer, kind in enumerate(_kinds(config)):
        mixer: MixerSpec = attention
        if kind == _LINEAR:
            mixer = LightningSpec(heads, dim, _rates(layer, count, heads))
        carry = _carry(config, "linear_attn" if kind == _LINEAR else "full_attn")
        layers.append(LayerSpec(mixer, moe, carries=(carry, _carry(config, "mlp"))))
    return read_model(
        config, "minimax", tuple(layers), norm_eps=config.number("rms_norm_eps", 1e-5)
    )


FAMILY = Family(
    name="minimax",
    architectures=("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    model_types=("minimax", "minimax_text_01", "minimax_m1"),
    gguf_archs=("minimax-01",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("block_sparse_moe", "w1", "w3", "w2"),
        *layer_rules(
            ("self_attn.qkv_proj.weight", "light.qkv"),
            ("self_attn.output_gate.weight", "light.gate"),
            ("self_attn.norm.weight", "light.norm"),
            ("self_attn.out_proj.weight", "light.o"),
        ),
    ),
    gguf_weights=(
        *gguf_layer(
            ("attn_qkv.weight", "light.qkv"),
            ("attn_gate.weight", "light.gate"),
            ("attn_norm_2.weight", "light.norm"),
            ("attn_output.weight", "attn.o|layers.{layer}.light.o"),
        ),
        *gguf_rules(experts=True),
    ),
    gguf_keys=(
        ROTATED_KEY,
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        *(
            GgufKey(f"{block}_alpha_factor", "residual_scale", "number", 1.0)
            for block in ("full_attn", "linear_attn", "mlp")
        ),
        GgufKey(
            "layer_types",
            "",
            "kinds",
            kinds=((_LINEAR, "blk.{layer}.attn_norm_2.weight"), (_FULL, "")),
        ),
    ),
)
