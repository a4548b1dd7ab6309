"""deepseek_v4: four residual streams; a window and compressed entries; first experts by token id.

Released names, and those that the reference library saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, GgufKey, read_model
from ftengine.models.families.latent import INDEX_GGUF_KEYS, drafting_notes
from ftengine.models.families.names import gguf_layer, gguf_rules, gguf_shared
from ftengine.models.spec import (
    Activation,
    CompressedSpec,
    EntrySpec,
    IndexerSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RopeSpec,
    RouterSpec,
    StreamsSpec,
)
from ftengine.models.weight_names import Rule

_WINDOW, _CHOSEN, _HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_BY_RATIO = {0: _WINDOW, 4: _CHOSEN, 128: _HEAVY}
_RATIOS = {_CHOSEN: 4, _HEAVY: 128}
_HASHED, _ROUTED = "hash_moe", "moe"
_SQRT_SOFTPLUS = 4
"""How GGUF files number this family's scores."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a DeepSeek-V4 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    kinds = _kinds(config)
    mixers = {kind: _mixer(config, kind) for kind in {*kinds}}
    moe = _moe(config)
    by_id = replace(moe, router=replace(moe.router, correction=False, table=True))
    layers = tuple(
        LayerSpec(mixers[kind], by_id if hashed else moe)
        for kind, hashed in zip(kinds, _hashed(config), strict=True)
    )
    return read_model(
        config,
        "deepseek_v4",
        layers,
        streams=StreamsSpec(
            config.size("hc_mult", default=4),
            config.size("hc_sinkhorn_iters", default=20),
            config.number("hc_eps", 1e-6),
        ),
        notes=drafting_notes(values),
    )


def _kinds(config: Config) -> tuple[str, ...]:
    """layer_types, or the tokens per entry of each layer; the latter may go on with drafting."""
    ratios = config.values.get("compress_ratios")
    if config.values.get("layer_types") is None and ratios is not None:
        known = isinstance(ratios, list) and all(item in _BY_RATIO for item in ratios)
        if not known:
            raise LoadError(f"config.json: compress_ratios must be a list of {[*_BY_RATIO]}")
        kinds = [_BY_RATIO[item] for item in ratios[: config.num_layers()]]
        config = Config({**config.values, "layer_types": kinds})

    def usual(layer: int) -> str:
        return _HEAVY if layer < 2 or layer % 2 == 0 else _CHOSEN

    return config.layer_types(usual, _WINDOW, _CHOSEN, _HEAVY)


def _mixer(config: Config, kind: str) -> CompressedSpec:
    heads, groups = config.size("num_attention_heads"), config.size("o_groups", default=8)
    if heads % groups:
        raise LoadError(f"config.json: o_groups {groups} does not divide {heads} heads")
    plain = CompressedSpec(
        num_heads=heads,
        head_dim=config.size("head_dim", default=512),
        q_rank=config.size("q_lora_rank", default=1024),
        window=config.size("sliding_window", default=128),
        rope=_rope(config, compressed=kind != _WINDOW),
        num_groups=groups,
        group_rank=config.size("o_lora_rank", default=1024),
    )
    if kind == _WINDOW:
        return plain
    rates = config.values.get("compress_rates")
    short = "compress_rate_csa" if kind == _CHOSEN else "compress_rate_hca"
    ratio = config.size(short, default=_RATIOS[kind])
    if isinstance(rates, dict):
        ratio = Config(rates).size(kind, default=ratio)
    if kind == _HEAVY:
        return replace(plain, entries=EntrySpec(ratio))
    indexer = IndexerSpec(
        config.size("index_n_heads", default=64),
        config.size("index_head_dim", default=128),
        config.size("index_topk", default=512),
        "interleaved",
    )
    return replace(plain, entries=EntrySpec(ratio, overlap=True, indexer=indexer))


def _rope(config: Config, *, compressed: bool) -> RopeSpec:
    """Of layers with entries, or of those without."""
    head_dim = config.size("head_dim", default=512)
    partial = config.number("partial_rotary_factor", 0.125)
    if config.values.get("qk_rope_head_dim") is not None:
        partial = config.size("qk_rope_head_dim") / head_dim
    given = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    both = given.get("compress" if compressed else "main") if isinstance(given, dict) else None
    if not isinstance(both, dict):
        both = {"rope_theta": config.number("rope_theta", 1e4)}
        if compressed:
            theta = config.number("compress_rope_theta", 160000.0)
            both = {**given, "rope_theta": theta, "attention_factor": 1.0}
    both = {**both, "partial_rotary_factor": both.get("partial_rotary_factor", partial)}
    return replace(config.rope_of(both, head_dim, 1e4), style="interleaved")


def _hashed(config: Config) -> tuple[bool, ...]:
    """Which layers find experts by token id."""
    count = config.num_layers()
    kinds = config.values.get("mlp_layer_types")
    if kinds is None:
        first = config.values.get("num_hash_layers", 3)
        if type(first) is not int or first < 0:
            raise LoadError(f"config.json: num_hash_layers must be a number, got {first!r}")
        return tuple(layer < first for layer in range(count))
    if not isinstance(kinds, list) or len(kinds) != count or {*kinds} - {_HASHED, _ROUTED}:
        raise LoadError(
            f"config.json: mlp_layer_types must be {_HASHED} or {_ROUTED}, {count} times"
        )
    return tuple(kind == _HASHED for kind in kinds)


def _moe(config: Config) -> MoeSpec:
    score = config.values.get("scoring_func", "sqrtsoftplus")
    if score not in ("sqrtsoftplus", "sigmoid", "softmax"):
        raise LoadError(f"config.json: scoring_func {score!r} is not built")
    router = RouterSpec(
        config.size("n_routed_experts", "num_local_experts"),
        config.size("num_experts_per_tok", default=6),
        score="sqrt_softplus" if score == "sqrtsoftplus" else score,
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.5),
        correction=True,
        epsilon=1e-20,
    )
    width = config.size("moe_intermediate_size", default=2048)
    activation = Activation("silu_clamp", limit=config.number("swiglu_limit", 10.0))
    shared = MlpSpec(config.size("n_shared_experts", default=1) * width, activation, stem="shared")
    return MoeSpec(router, width, activation, shared=shared)


_ATTENTION = (
    ("wq_a.weight", "q_a_proj.weight", "q_a"),
    ("q_norm.weight", "q_a_norm.weight", "q_a_norm"),
    ("wq_b.weight", "q_b_proj.weight", "q_b"),
    ("wkv.weight", "kv_proj.weight", "kv"),
    ("kv_norm.weight", "kv_norm.weight", "kv_norm"),
    ("attn_sink", "sinks", "sinks"),
    ("wo_a.weight", "o_a_proj.weight", "o_a"),
    ("wo_b.weight", "o_b_proj.weight", "o_b"),
    ("compressor.wkv.weight", "compressor.kv_proj.weight", "entry_kv"),
    ("compressor.wgate.weight", "compressor.gate_proj.weight", "entry_gate"),
    ("compressor.ape", "compressor.position_bias", "entry_place"),
    ("compressor.norm.weight", "compressor.kv_norm.weight", "entry_norm"),
    ("indexer.compressor.wkv.weight", "compressor.indexer.kv_proj.weight", "index_kv"),
    ("indexer.compressor.wgate.weight", "compressor.indexer.gate_proj.weight", "index_gate"),
    ("indexer.compressor.ape", "compressor.indexer.position_bias", "index_place"),
    ("indexer.compressor.norm.weight", "compressor.indexer.kv_norm.weight", "index_norm"),
    ("indexer.wq_b.weight", "compressor.indexer.q_b_proj.weight", "index_q"),
    (
        "indexer.weights_proj.weight",
        "compressor.indexer.scorer.weights_proj.weight",
        "index_weights",
    ),
)
"""(released name, the library's, ours) below a layer's attention."""
_LAYER = (
    ("attn_norm.weight", "input_layernorm.weight", "attn_norm"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm"),
    ("ffn.gate.weight", "mlp.gate.weight", "router"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias", "router.correction"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid", "router.table"),
    ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", "shared.gate"),
    ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", "shared.up"),
    ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", "shared.down"),
)
_MODEL = (
    ("embed.weight", "model.embed_tokens.weight", "embed"),
    ("norm.weight", "model.norm.weight", "norm"),
    ("head.weight", "lm_head.weight", "head"),
)


def _rules() -> tuple[Rule, ...]:
    released, library, ours = "layers.{layer}.", "model.layers.{layer}.", "layers.{layer}."
    pairs = [(name, other, own) for name, other, own in _MODEL]
    pairs += [(released + name, library + other, ours + own) for name, other, own in _LAYER]
    pairs += [
        (f"{released}attn.{name}", f"{library}self_attn.{other}", f"{ours}csa.{own}")
        for name, other, own in _ATTENTION
    ]
    for part in ("fn", "base", "scale"):
        pairs.append((f"hc_head_{part}", f"model.hc_head.hc_{part}", f"hc_head.{part}"))
        for block in ("attn", "ffn"):
            pairs.append(
                (
                    f"{released}hc_{block}_{part}",
                    f"{library}{block}_hc.{part}",
                    f"{ours}{block}_hc.{part}",
                )
            )
    rules = [Rule(name, own) for first, second, own in pairs for name in (first, second)]
    bank = ours + "experts"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        rules.append(Rule(f"{released}ffn.experts.{{expert}}.{name}.weight", bank, part))
        rules.append(Rule(f"{library}mlp.experts.{{expert}}.{part}_proj.weight", bank, part))
    rules.append(Rule(library + "mlp.experts.gate_up_proj", bank, "gate_up"))
    rules.append(Rule(library + "mlp.experts.down_proj", bank, "down"))
    return tuple(dict.fromkeys(rules))


def _gguf_rules() -> tuple[Rule, ...]:
    attention = (
        ("attn_q_a", "q_a"),
        ("attn_q_a_norm", "q_a_norm"),
        ("attn_q_b", "q_b"),
        ("attn_kv", "kv"),
        ("attn_kv_norm", "kv_norm"),
        ("attn_sinks", "sinks"),
        ("attn_output_a", "o_a"),
        ("attn_output_b", "o_b"),
        ("attn_compressor_kv", "entry_kv"),
        ("attn_compressor_gate", "entry_gate"),
        ("attn_compressor_ape", "entry_place"),
        ("attn_compressor_norm", "entry_norm"),
        ("indexer_compressor_kv", "index_kv"),
        ("indexer_compressor_gate", "index_gate"),
        ("indexer_compressor_ape", "index_place"),
        ("indexer_compressor_norm", "index_norm"),
        ("indexer.attn_q_b", "index_q"),
        ("indexer.proj", "index_weights"),
    )
    parts = ("fn", "base", "scale")
    streams = ((f"hc_{b}_{p}.weight", f"{b}_hc.{p}") for b in ("attn", "ffn") for p in parts)
    return (
        *(Rule(f"output_hc_{part}.weight", f"hc_head.{part}") for part in parts),
        *gguf_layer(*((f"{name}.weight", f"csa.{ours}") for name, ours in attention)),
        *gguf_layer(*streams, ("ffn_gate_tid2eid.weight", "router.table")),
        *gguf_rules(experts=True),
        *gguf_shared(),
    )


FAMILY = Family(
    name="deepseek_v4",
    architectures=("DeepseekV4ForCausalLM",),
    model_types=("deepseek_v4",),
    gguf_archs=("deepseek4",),
    read_config=read_config,
    weights=_rules(),
    gguf_weights=_gguf_rules(),
    gguf_keys=(
        *INDEX_GGUF_KEYS,
        GgufKey("qk_rope_head_dim", "rope.dimension_count"),
        GgufKey("q_lora_rank", "attention.q_lora_rank"),
        GgufKey("sliding_window", "attention.sliding_window"),
        GgufKey("o_groups", "attention.output_group_count"),
        GgufKey("o_lora_rank", "attention.output_lora_rank"),
        GgufKey("compress_ratios", "attention.compress_ratios", "list"),
        GgufKey("compress_rope_theta", "attention.compress_rope_freq_base", "number"),
        GgufKey("hc_mult", "hyper_connection.count"),
        GgufKey("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
        GgufKey("hc_eps", "hyper_connection.epsilon", "number"),
        GgufKey("num_hash_layers", "hash_layer_count", "count"),
        GgufKey("n_routed_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("n_shared_experts", "expert_shared_count"),
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("routed_scaling_factor", "expert_weights_scale", "number"),
        GgufKey("norm_topk_prob", "expert_weights_norm", "flag"),
        GgufKey("swiglu_limit", "swiglu_clamp_exp", "number"),
        GgufKey("swiglu_limit_shared", "swiglu_clamp_shexp", "ignored"),  # the same number
    ),
    gguf_only=(("expert_gating_func", (_SQRT_SOFTPLUS,)),),
)
