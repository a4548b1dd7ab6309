"""A checkpoint with a few layers of GLM-5.2 at their real sizes, filled with random values.

Names, formats and shapes of the large tensors are big_models.py's; here are the small ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fakes.big_models import GLM_CONFIG, glm_nvfp4
from tests.fakes.random_checkpoint import Row, write_checkpoint
from tests.fakes.tiny_models import write_tokenizer

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nCall a tool: <tool_call>NAME\n<arg_key>KEY</arg_key>\n"
    "<arg_value>VALUE</arg_value>\n</tool_call>\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}\n<arg_key>{{ key }}</arg_key>\n"
    "<arg_value>{{ value }}</arg_value>{% endfor %}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shaped_config(moe_layers: int, vocab_size: int) -> dict[str, Any]:
    """config.json: one dense layer, then so many with experts, everything else as released."""
    kept = ["lm_head", "*self_attn*", "*mlp.gate", "*shared_experts*", "model.layers.0.*"]
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    return {
        **GLM_CONFIG,
        "num_hidden_layers": 1 + moe_layers,
        "first_k_dense_replace": 1,
        "vocab_size": vocab_size,
        "index_topk": 2048,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "eos_token_id": 2,
        "bos_token_id": 1,
        "torch_dtype": "bfloat16",
        "quantization_config": quantised | {"ignore": kept},
    }


def build_shaped(folder: Path, moe_layers: int = 1, vocab_size: int = 16384, seed: int = 0) -> Path:
    """Write the folder, tokenizer and template included: a shard for each layer. Returns it."""
    config = shaped_config(moe_layers, vocab_size)
    rows = (*glm_nvfp4(config, drafting=0), *_small_rows(config))
    write_checkpoint(folder, config, rows, seed)
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder


def _small_rows(config: Mapping[str, Any]) -> Iterator[Row]:
    """What the shape table leaves out. The final norm is in it."""
    hidden = config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Row(f"{base}.{name}.weight", "BF16", (hidden,), mean=1)
        attention = f"{base}.self_attn"
        yield Row(f"{attention}.q_a_layernorm.weight", "BF16", (config["q_lora_rank"],), mean=1)
        yield Row(f"{attention}.kv_a_layernorm.weight", "BF16", (config["kv_lora_rank"],), mean=1)
        for ending in ("weight", "bias"):
            size = config["index_head_dim"]
            mean = float(ending == "weight")
            yield Row(f"{attention}.indexer.k_norm.{ending}", "BF16", (size,), mean)
        heads = config["index_n_heads"]
        yield Row(f"{attention}.indexer.weights_proj.weight", "BF16", (heads, hidden))
        if layer >= config["first_k_dense_replace"]:
            size = config["n_routed_experts"]
            yield Row(f"{base}.mlp.gate.e_score_correction_bias", "F32", (size,))
