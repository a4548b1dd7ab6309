"""A GGUF file, or all parts of a split one, as a Checkpoint."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftengine.convert.gguf_config import ROPE_FACTORS, GgufSettings, config_of_gguf
from ftengine.convert.gguf_tokenizer import tokenizer_files
from ftengine.convert.protocol import Job, SourceFile
from ftengine.convert.source import FACTOR, Checkpoint, SourceTensor, dump_json
from ftengine.convert.window import KeptRanges
from ftengine.errors import LoadError
from ftengine.loader import gguf
from ftengine.models.families import family_of_gguf
from ftengine.models.families.base import Family
from ftengine.models.weight_names import SKIPPED, TABLE, Matcher
from ftengine.quant import FORMATS, nvfp4

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_BUILT = {fmt.gguf_type: fmt.name for fmt in FORMATS if fmt.gguf_type is not None}
_BUILT[nvfp4.GGML_TYPE] = nvfp4.FORMAT.name
"""GGML type id -> our format. Not by name: GGUF's mxfp4 orders its nibbles in another way."""
_FACTOR_END = ".scale"
"""Of the tensor that holds the one factor of a matrix of nvfp4, or one for each expert."""
_TABLES = ("i32", "i64")


@dataclass(frozen=True)
class GgufPart:
    """One file: its number in the job and its header."""

    number: int
    file: SourceFile
    header: gguf.GgufHeader


def read_gguf(job: Job, kept: KeptRanges) -> Checkpoint:
    """Read the headers of all parts; refuses unbuilt architectures, tokenizers and types.

    Raises: LoadError, FormatError naming the file and the reason.
    """
    parts = read_parts(job, kept)
    first = parts[0]
    values, where = first.header.values, first.file.name
    settings = GgufSettings(values, where)
    family = family_of_gguf(settings.arch, values)
    tensors = _with_factors(_tensors(parts), family)
    embed = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embed is None:
        raise LoadError(f"{where} has no token_embd.weight; is it a complete model?")
    wanted = {ROPE_FACTORS, *(k.source for k in family.gguf_keys if k.kind == "factors")}
    numbers: dict[str, Sequence[float] | None] = {tensor.name: None for tensor in tensors}
    numbers |= _small_numbers(parts, kept, wanted)
    factors = numbers.get(ROPE_FACTORS)
    config = config_of_gguf(settings, family, embed.shape[0], factors, numbers)
    small = tokenizer_files(values, where)
    small["generation_config.json"] = dump_json(
        {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    )
    return Checkpoint(
        kind="gguf",
        family=family,
        config=config,
        tensors=tensors,
        small=small,
        settings=values,
        files=job.files,
    )


def read_parts(job: Job, kept: KeptRanges, *, any_family: bool = False) -> list[GgufPart]:
    """Headers of one file, or of every part of a split file in order.

    Raises: LoadError; for an unbuilt architecture too, unless `any_family`.
    """
    listed = [(n, item) for n, item in enumerate(job.files)]
    chosen = [(n, item) for n, item in listed if item.name.lower().endswith(".gguf")]
    if not chosen and len(listed) == 1:
        chosen = listed
    _check_parts([item.name for _, item in chosen])
    parts = []
    for number, item in chosen:

        def fetch(start: int, end: int, number: int = number) -> bytes:
            return kept.fetch(number, start, end)

        parts.append(GgufPart(number, item, gguf.read_header(fetch, item.bytes, item.name)))
        if len(parts) == 1 and not any_family:
            _refuse_early(parts[0])
    return parts


def _refuse_early(part: GgufPart) -> None:
    """An unbuilt architecture is refused before the headers of the other parts are asked for."""
    values = part.header.values
    family_of_gguf(GgufSettings(values, part.file.name).arch, values)


def _check_parts(names: list[str]) -> None:
    if not names:
        raise LoadError("the job lists no .gguf file")
    matches = [_PART.fullmatch(name.rpartition("/")[2]) for name in names]
    first = matches[0]
    if len(names) == 1 and first is None:
        return
    if first is None or any(m is None or m["stem"] != first["stem"] for m in matches):
        raise LoadError(f"the job lists {len(names)} GGUF files that are not parts of one model")
    have = {int(m["number"]) for m in matches if m}
    missing = set(range(1, int(first["count"]) + 1)) - have
    if missing:
        raise LoadError(
            f"part {min(missing)} of {int(first['count'])} of {first['stem']} is missing"
        )


def _tensors(parts: list[GgufPart]) -> list[SourceTensor]:
    found: list[SourceTensor] = []
    for part in parts:
        for tensor in part.header.tensors:
            fmt = _BUILT.get(tensor.type_id)
            if TABLE.search(tensor.name) and tensor.type_name in _TABLES:
                fmt = tensor.type_name
            if fmt is None and not SKIPPED.search(tensor.name):
                raise LoadError(
                    f"{part.file.name}: {tensor.name} has type {tensor.type_name}, which is not "
                    f"built yet; built: {', '.join(_BUILT.values())}",
                    code="unsupported_format",
                )
            found.append(
                SourceTensor(
                    tensor.name,
                    part.number,
                    tensor.start,
                    tensor.end,
                    tensor.shape,
                    fmt or tensor.type_name,
                    blocks=tensor.type_id == nvfp4.GGML_TYPE,
                )
            )
    return found


def _with_factors(tensors: list[SourceTensor], family: Family) -> tuple[SourceTensor, ...]:
    """Factors of nvfp4 as what they are; a family's own tensor may have such a name too.

    Raises: LoadError for one that does not fit.
    """
    blocks = {tensor.name: tensor for tensor in tensors if tensor.blocks}
    own = Matcher(family.gguf_weights)
    found = []
    for tensor in tensors:
        weight = tensor.name.removesuffix(_FACTOR_END) + ".weight"
        is_factor = tensor.name.endswith(_FACTOR_END) and weight in blocks
        if is_factor and own.match(tensor.name) is None:
            count = math.prod(blocks[weight].shape[:-2])
            if tensor.format != "f32" or tensor.shape != (count,):
                raise LoadError(
                    f"{tensor.name} is {tensor.format} {list(tensor.shape)}; the factors of "
                    f"{weight} are f32 [{count}]"
                )
            tensor = replace(tensor, weight=weight, role=FACTOR)
        found.append(tensor)
    return tuple(found)


def _small_numbers(
    parts: list[GgufPart], kept: KeptRanges, wanted: Container[str]
) -> dict[str, list[float]]:
    """Numbers of tensors that are read now because they belong to the config."""
    found = {}
    for part in parts:
        for tensor in part.header.tensors:
            if tensor.name not in wanted:
                continue
            if tensor.type_name != "f32" or tensor.end - tensor.start > 1 << 16:
                raise LoadError(f"{part.file.name}: {tensor.name} is not a small f32 tensor")
            data: Any = kept.fetch(part.number, tensor.start, tensor.end)
            found[tensor.name] = list(struct.unpack(f"<{len(data) // 4}f", data))
    return found
