"""Checkpoint names as rules: what the built families share, in the hub's and in GGUF's spelling.

A family lists its own names beside these. Prefixes of wrappers (vision-language checkpoints) are
added by `wrapped`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftengine.models.weight_names import Rule

LAYER = "model.layers.{layer}."
PRE_NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"))
"""Norm names of a layer in most checkpoints, and ours."""
_WRAPPERS = ("model.language_model.", "language_model.model.")


def hf_rules(
    *feed_forward: Rule,
    norms: Iterable[tuple[str, str]] = PRE_NORMS,
    final_norm: str = "model.norm",
    attention: tuple[Rule, ...] | None = None,
) -> tuple[Rule, ...]:
    """Names that most safetensors checkpoints share, then the family's own."""
    shared = [
        Rule("model.embed_tokens.weight", "embed"),
        Rule(final_norm + ".weight", "norm"),
        Rule("lm_head.weight", "head"),
    ]
    shared += layer_rules(*((f"{name}.weight", ours) for name, ours in norms))
    return (*shared, *(hf_attention() if attention is None else attention), *feed_forward)


def layer_rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    """Dense tensors of a layer: (name below the layer, our name below the layer)."""
    return tuple(Rule(LAYER + name, "layers.{layer}." + ours) for name, ours in pairs)


def hf_attention(
    out: str = "o_proj", q_norm: str = "q_norm", k_norm: str = "k_norm"
) -> tuple[Rule, ...]:
    """Projections with their biases, head norms and sinks."""
    pairs = [
        (f"self_attn.{q_norm}.weight", "attn.q_norm"),
        (f"self_attn.{k_norm}.weight", "attn.k_norm"),
        ("self_attn.sinks", "attn.sinks"),
    ]
    for part, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", out)):
        pairs += [
            (f"self_attn.{name}.weight", "attn." + part),
            (f"self_attn.{name}.bias", f"attn.{part}.bias"),
        ]
    return layer_rules(*pairs)


def hf_dense_mlp(
    source: str = "mlp",
    target: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> tuple[Rule, ...]:
    """A dense gated MLP; `names` are gate, up and down."""
    pairs = []
    for part, name in zip(("gate", "up", "down"), names, strict=True):
        pairs += [
            (f"{source}.{name}.weight", f"{target}.{part}"),
            (f"{source}.{name}.bias", f"{target}.{part}.bias"),
        ]
    return layer_rules(*pairs)


def hf_experts(prefix: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Per-expert tensors under `prefix`, and the fused forms with and without ".weight"."""
    base = LAYER + prefix
    target = "layers.{layer}.experts"
    rules = [
        Rule(f"{base}.experts.{{expert}}.{name}.weight", target, part)
        for part, name in (("gate", gate), ("up", up), ("down", down))
    ]
    for block in dict.fromkeys((prefix, "mlp")):
        fused = LAYER + block + ".experts."
        for ending in ("", ".weight"):
            rules.append(Rule(f"{fused}gate_up_proj{ending}", target, "gate_up"))
            rules.append(Rule(f"{fused}down_proj{ending}", target, "down"))
        rules.append(Rule(LAYER + block + ".gate.weight", "layers.{layer}.router"))
    return tuple(rules)


def hf_stacked_experts() -> tuple[Rule, ...]:
    """Granite's experts, all in one tensor: the hub's names, and those of transformers 5."""
    stem, target = LAYER + "block_sparse_moe.", "layers.{layer}.experts"
    return (
        Rule(stem + "input_linear.weight", target, "gate_up"),
        Rule(stem + "output_linear.weight", target, "down"),
        Rule(stem + "experts.gate_up_proj", target, "gate_up"),
        Rule(stem + "experts.down_proj", target, "down"),
        Rule(stem + "router.layer.weight", "layers.{layer}.router"),
        Rule(stem + "router.weight", "layers.{layer}.router"),
    )


def wrapped(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same names inside a wrapper too: both orders of "model" and "language_model"."""
    found = list(rules)
    for prefix in _WRAPPERS:
        for rule in rules:
            if rule.source.startswith("model."):
                inner = prefix + rule.source.removeprefix("model.")
                found.append(replace(rule, source=inner))
    found.append(Rule("language_model.lm_head.weight", "head"))
    return tuple(found)


def gguf_rules(*, experts: bool) -> tuple[Rule, ...]:
    """Names of GGUF files."""
    block = "blk.{layer}."
    rules = [
        Rule("token_embd.weight", "embed"),
        Rule("output_norm.weight", "norm"),
        Rule("output.weight", "head"),
        Rule(block + "attn_norm.weight", "layers.{layer}.attn_norm"),
        Rule(block + "ffn_norm.weight", "layers.{layer}.ffn_norm"),
        Rule(block + "attn_q_norm.weight", "layers.{layer}.attn.q_norm"),
        Rule(block + "attn_k_norm.weight", "layers.{layer}.attn.k_norm"),
    ]
    for part, source in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output")):
        for ending, ours in ((".weight", ""), (".bias", ".bias")):
            rules.append(Rule(block + source + ending, "layers.{layer}.attn." + part + ours))
    for part in ("gate", "up", "down"):
        if experts:
            target = "layers.{layer}.experts"
            rules.append(Rule(f"{block}ffn_{part}_exps.weight", target, part))
            rules.append(Rule(f"{block}ffn_{part}.{{expert}}.weight", target, part))
        rules.append(Rule(f"{block}ffn_{part}.weight", "layers.{layer}.mlp." + part))
    if experts:
        rules.append(Rule(block + "ffn_gate_up_exps.weight", "layers.{layer}.experts", "gate_up"))
        rules.append(Rule(block + "ffn_gate_inp.weight", "layers.{layer}.router"))
    return tuple(rules)


def gguf_layer(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    """Dense tensors of a layer in GGUF files: (name below the block, our name below the layer)."""
    return tuple(Rule("blk.{layer}." + name, "layers.{layer}." + ours) for name, ours in pairs)


def gguf_latent() -> tuple[Rule, ...]:
    """Latent attention with its indexer, experts and dense layers."""
    names = (
        ("attn_q.weight", "mla.q"),
        ("attn_q_a.weight", "mla.q_a"),
        ("attn_q_a_norm.weight", "mla.q_a_norm"),
        ("attn_q_b.weight", "mla.q_b"),
        ("attn_kv_a_mqa.weight", "mla.kv_a"),
        ("attn_kv_a_norm.weight", "mla.kv_a_norm"),
        ("attn_kv_b.weight", "mla.kv_b"),
        ("attn_k_b.weight", "mla.k_b"),
        ("attn_v_b.weight", "mla.v_b"),
        ("attn_output.weight", "mla.o"),
        ("indexer.attn_q_b.weight", "index.q"),
        ("indexer.attn_k.weight", "index.k"),
        ("indexer.k_norm.weight", "index.k_norm"),
        ("indexer.k_norm.bias", "index.k_norm.bias"),
        ("indexer.proj.weight", "index.weights"),
    )
    return (*gguf_layer(*names), *gguf_rules(experts=True), *gguf_shared())


def gguf_delta() -> tuple[Rule, ...]:
    """Gated DeltaNet layers."""
    return gguf_layer(
        ("attn_qkv.weight", "delta.qkv"),
        ("attn_gate.weight", "delta.z"),
        ("ssm_in.weight", "delta.qkvz"),
        ("ssm_ba.weight", "delta.ba"),
        ("ssm_beta.weight", "delta.b"),
        ("ssm_alpha.weight", "delta.a"),
        ("ssm_conv1d.weight", "delta.conv"),
        ("ssm_a", "delta.rate"),
        ("ssm_dt.bias", "delta.dt_bias"),
        ("ssm_norm.weight", "delta.norm"),
        ("ssm_out.weight", "delta.o"),
        ("post_attention_norm.weight", "ffn_norm"),
    )


def gguf_mamba2() -> tuple[Rule, ...]:
    """Mamba-2 layers."""
    return gguf_layer(
        ("ssm_in.weight", "mamba.in"),
        ("ssm_in.bias", "mamba.in.bias"),
        ("ssm_conv1d.weight", "mamba.conv"),
        ("ssm_conv1d.bias", "mamba.conv.bias"),
        ("ssm_a", "mamba.rate"),
        ("ssm_d", "mamba.d"),
        ("ssm_dt.bias", "mamba.dt_bias"),
        ("ssm_norm.weight", "mamba.norm"),
        ("ssm_out.weight", "mamba.o"),
        ("ssm_out.bias", "mamba.o.bias"),
    )


def gguf_shared(*, gate: bool = False) -> tuple[Rule, ...]:
    """Shared experts in GGUF files, their gate, and the correction of the router."""
    block, ours = "blk.{layer}.", "layers.{layer}."
    rules = [
        Rule(f"{block}ffn_{part}_shexp.weight", f"{ours}shared.{part}")
        for part in ("gate", "up", "down")
    ]
    if gate:
        rules.append(Rule(block + "ffn_gate_inp_shexp.weight", ours + "shared_gate"))
    rules.append(Rule(block + "exp_probs_b.bias", ours + "router.correction"))
    return tuple(rules)
