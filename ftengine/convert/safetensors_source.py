"""A safetensors checkpoint folder as a Checkpoint: config, shards, tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ftengine.convert.pooling import POOLING_FILE, pooling_settings
from ftengine.convert.protocol import Job, SourceFile
from ftengine.convert.quantised.companions import Listed, source_tensors
from ftengine.convert.quantised.config import HF_QUANT_CONFIG, plan_of_config
from ftengine.convert.source import Checkpoint, check_small, dump_json, parse_object
from ftengine.convert.tiktoken import RANKS_FILE, tokenizer_of_ranks
from ftengine.convert.window import KeptRanges
from ftengine.errors import FormatError, LoadError
from ftengine.loader import safetensors_header
from ftengine.models.families import family_of_config
from ftengine.models.families.base import Family
from ftengine.models.spec import LatentSpec, ModelConfig

_COPIED = ("tokenizer.json", "special_tokens_map.json", "generation_config.json")
_INDEX = "model.safetensors.index.json"


def read_safetensors(job: Job, kept: KeptRanges) -> Checkpoint:
    """Read config, headers and small files; refuses an unbuilt family before any header.

    Raises: LoadError, FormatError naming the file and the reason.
    """
    folder = Folder(job, kept)
    config = folder.object("config.json")
    if config is None:
        raise LoadError("config.json is missing: the folder is not a complete checkpoint")
    family = family_of_config(config)
    family.read_config(config)
    plan = plan_of_config(config, lambda: folder.object(HF_QUANT_CONFIG))
    generation = folder.object("generation_config.json") or {}
    config["eos_token_id"] = _union(config.get("eos_token_id"), generation.get("eos_token_id"))
    small, notes = _small_files(folder)
    pooling, told = pooling_settings(folder.object(POOLING_FILE), family.info_name)
    tensors = source_tensors(listed_tensors(folder), plan)
    return Checkpoint(
        kind="safetensors",
        family=family,
        config=config,
        tensors=tensors,
        small=small,
        settings=settings_of_config(family, config) | pooling,
        files=job.files,
        notes=(*notes, *told),
    )


class Folder:
    """The job's files by base name."""

    def __init__(self, job: Job, kept: KeptRanges):
        self.kept = kept
        self.numbers = {item.name.rpartition("/")[2]: n for n, item in enumerate(job.files)}
        self.files = job.files

    def bytes_of(self, name: str) -> bytes | None:
        """A whole small file; None when there is none of that name."""
        number = self.numbers.get(name)
        if number is None:
            return None
        item = self.files[number]
        check_small(item)
        return self.kept.fetch(number, 0, item.bytes)

    def object(self, name: str) -> dict[str, Any] | None:
        """A small file as a JSON object. Raises: FormatError."""
        data = self.bytes_of(name)
        return None if data is None else parse_object(data, name)

    def weights(self) -> list[tuple[int, SourceFile]]:
        """Weight files: those of the index, else model.safetensors, else all."""
        found = {name: n for name, n in self.numbers.items() if name.endswith(".safetensors")}
        index = self.object(_INDEX)
        if index is not None:
            listed = index.get("weight_map")
            if not isinstance(listed, dict):
                raise FormatError(f"{_INDEX} has no weight_map")
            names = sorted({str(name).rpartition("/")[2] for name in listed.values()})
            missing = [name for name in names if name not in found]
            if missing:
                raise LoadError(f"{_INDEX} names {missing[0]}, which is missing; fetch it too")
            found = {name: found[name] for name in names}
        elif "model.safetensors" in found:
            found = {"model.safetensors": found["model.safetensors"]}
        if not found:
            raise LoadError("there is no .safetensors file; only safetensors and GGUF are built")
        return [(number, self.files[number]) for number in sorted(found.values())]


def listed_tensors(folder: Folder) -> Iterator[Listed]:
    """The tensors of all headers, in file order."""
    for number, item in folder.weights():

        def fetch(start: int, end: int, number: int = number) -> bytes:
            return folder.kept.fetch(number, start, end)

        header = safetensors_header.read_header(fetch, item.bytes, item.name)
        for tensor in header.tensors:
            yield Listed(number, item.name, tensor)


def _small_files(folder: Folder) -> tuple[dict[str, bytes], tuple[str, ...]]:
    small: dict[str, bytes] = {}
    for name in _COPIED:
        data = folder.bytes_of(name)
        if data is not None:
            parse_object(data, name)
            small[name] = data
    settings = folder.object("tokenizer_config.json") or {}
    template = folder.bytes_of("chat_template.jinja")
    if template is None:
        inner = settings.get("chat_template") or (folder.object("chat_template.json") or {}).get(
            "chat_template"
        )
        template = _template_text(inner)
    settings.pop("chat_template", None)
    if settings:
        small["tokenizer_config.json"] = dump_json(settings)
    if template:
        small["chat_template.jinja"] = template
    ranks = folder.bytes_of(RANKS_FILE)
    if "tokenizer.json" not in small and ranks is not None:
        small["tokenizer.json"] = tokenizer_of_ranks(ranks, settings)
        return small, (f"tokenizer.json was made from {RANKS_FILE}",)
    if "tokenizer.json" in small:
        return small, ()
    return small, ("the checkpoint has no tokenizer.json: it serves token ids only",)


def _template_text(value: Any) -> bytes | None:
    """A template as text, or the default one of a list of named templates."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value.encode() if isinstance(value, str) and value else None


def _union(*values: Any) -> list[int]:
    ids: dict[int, None] = {}
    for value in values:
        for item in value if isinstance(value, list) else [value]:
            if type(item) is int:
                ids[item] = None
    return list(ids)


def settings_of_config(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """The key-values a GGUF file of this model would have, without its tokenizer."""
    model = family.read_config(config)
    arch = family.info_name
    name = str(config.get("_name_or_path") or "").rpartition("/")[2]
    values: dict[str, Any] = {
        "general.architecture": arch,
        "general.type": "model",
        f"{arch}.block_count": len(model.layers),
        f"{arch}.context_length": model.context_tokens,
        f"{arch}.embedding_length": model.hidden_size,
        f"{arch}.vocab_size": model.vocab_size,
        f"{arch}.attention.layer_norm_rms_epsilon": model.norm_eps,
    }
    if name:
        values["general.name"] = name
    if type(config.get("intermediate_size")) is int:
        values[f"{arch}.feed_forward_length"] = config["intermediate_size"]
    values |= _attention_settings(arch, model)
    for moe in model.moe_specs[:1]:
        values[f"{arch}.expert_count"] = moe.router.num_experts
        values[f"{arch}.expert_used_count"] = moe.router.num_experts_per_tok
        values[f"{arch}.expert_feed_forward_length"] = moe.intermediate_size
    if model.eos_ids:
        values["tokenizer.ggml.eos_token_id"] = model.eos_ids[0]
    if model.bos_id is not None:
        values["tokenizer.ggml.bos_token_id"] = model.bos_id
    return values


def _attention_settings(arch: str, model: ModelConfig) -> dict[str, Any]:
    """Those of the first layer that attends, rotates, or has a window."""
    values: dict[str, Any] = {}
    mixers = [layer.mixer for layer in model.layers]
    for latent in [mixer for mixer in mixers if isinstance(mixer, LatentSpec)][:1]:
        values[f"{arch}.attention.head_count"] = latent.num_heads
        values[f"{arch}.attention.key_length"] = latent.head_dim
        values[f"{arch}.attention.value_length"] = latent.value_dim
        values[f"{arch}.attention.kv_lora_rank"] = latent.kv_rank
        if latent.q_rank:
            values[f"{arch}.attention.q_lora_rank"] = latent.q_rank
    for spec in model.attention_specs[:1]:
        values[f"{arch}.attention.head_count"] = spec.num_heads
        values[f"{arch}.attention.head_count_kv"] = spec.num_kv_heads
        values[f"{arch}.attention.key_length"] = spec.head_dim
        values[f"{arch}.attention.value_length"] = spec.head_dim
    for rope in [spec.rope for spec in model.attention_specs if spec.rope is not None][:1]:
        values[f"{arch}.rope.freq_base"] = rope.theta
        values[f"{arch}.rope.dimension_count"] = rope.dims
    for window in [spec.window for spec in model.attention_specs if spec.window][:1]:
        values[f"{arch}.attention.sliding_window"] = window
    return values
