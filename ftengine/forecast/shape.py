"""What a forecast must know of a model: bytes and counts. Read from an FTW folder or from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ftengine.errors import FormatError, LoadError
from ftengine.loader.ftw import INDEX_NAME, FtwIndex, FtwTensor, parse_index
from ftengine.models.families import family_named
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import number_bytes
from ftengine.models.widths import work_bytes

_KV_ITEM_BYTES = 2
_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class ModelShape:
    """Units: bytes, counts. num_moe_layers 0 = a dense model.

    dense_bytes: everything but routed experts; dense_read_bytes: the part of it one decode step
    reads (no embedding table beside a separate head). dense_params counts their elements.
    state_bytes: recurrent states and their checkpoints. disk_bytes 0 = dense and experts together.
    work_bytes: buffers of a step, on whatever computes.
    """

    name: str
    num_layers: int
    dense_bytes: int
    kv_bytes_per_token: int
    num_moe_layers: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    expert_row_bytes: int = 0
    expert_params: int = 0
    dense_read_bytes: int = 0
    dense_params: int = 0
    state_bytes: int = 0
    context_tokens: int = 0
    disk_bytes: int = 0
    work_bytes: int = 0

    @property
    def num_experts_total(self) -> int:
        """Experts of all layers."""
        return self.num_moe_layers * self.num_experts

    @property
    def expert_bytes(self) -> int:
        """The host pool."""
        return self.num_experts_total * self.expert_row_bytes

    @property
    def read_bytes(self) -> int:
        """Dense bytes of one decode step."""
        return self.dense_read_bytes or self.dense_bytes

    @property
    def active_params(self) -> int:
        """Elements multiplied for one token."""
        dense = self.dense_params or self.read_bytes // _KV_ITEM_BYTES
        row_params = self.expert_params or self.expert_row_bytes // _KV_ITEM_BYTES
        return dense + self.num_moe_layers * self.num_experts_per_tok * row_params


def shape_of_ftw(folder: Path) -> ModelShape:
    """Read index.json and config.json, nothing else.

    Raises: FormatError or LoadError naming the file.
    """
    index = parse_index(_small(folder / INDEX_NAME), str(folder / INDEX_NAME))
    try:
        config = json.loads(_small(folder / "config.json"))
    except ValueError as error:
        raise FormatError(f"{folder / 'config.json'} is not JSON: {error}") from None
    return _shape(folder.name, index, family_named(index.family).read_config(config))


def shape_of_json(text: str, where: str) -> ModelShape:
    """A shape as written by hand, or the plan line of `python -m ftengine.convert plan`.

    Raises: FormatError naming the key.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} is not a JSON object")
    value = value.get("plan", value)
    if "details" in value:
        value = _of_plan(value, where)
    return _checked(value, where)


def _checked(value: Mapping[str, Any], where: str) -> ModelShape:
    known = {field.name: field for field in fields(ModelShape)}
    taken = {key: item for key, item in value.items() if key in known}
    for key, field in known.items():
        if key not in taken and field.default is MISSING:
            raise FormatError(f"{where} lacks {key!r}")
        good = (str if key == "name" else int,)
        if key in taken and (type(taken[key]) not in good or (key != "name" and taken[key] < 0)):
            raise FormatError(f"{where}: {key} = {taken[key]!r} makes no sense")
    return ModelShape(**taken)


def _of_plan(plan: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The names of the converter's plan turned into ours."""
    details = plan["details"] if isinstance(plan["details"], dict) else {}
    rows = plan.get("expert_row_bytes") or 0
    experts = plan.get("num_experts") or 0
    banks = (plan.get("expert_bytes") or 0) // (rows * experts) if rows and experts else 0
    keys = (
        *("num_layers", "dense_bytes", "kv_bytes_per_token", "disk_bytes"),
        *("dense_read_bytes", "dense_params", "expert_params", "work_bytes"),
    )
    value = {key: plan[key] for key in keys if key in plan}
    return value | {
        "name": str(plan.get("name", where)),
        "num_moe_layers": banks,
        "num_experts": experts,
        "num_experts_per_tok": plan.get("num_experts_per_tok") or 0,
        "expert_row_bytes": rows,
        "state_bytes": plan.get("state_bytes_per_sequence") or 0,
        "context_tokens": details.get("context_length") or 0,
    }


def _shape(name: str, index: FtwIndex, config: ModelConfig) -> ModelShape:
    dense = sum(_kept_bytes(item) for item in index.tensors)
    embed, head = index.tensor("embed"), index.tensor("head")
    unread = embed.bytes if embed is not None and head is not None else 0
    elements = sum(_elements(t.shape) for t in index.tensors if not (unread and t is embed))
    bank = index.banks[0] if index.banks else None
    moe = config.moe_specs
    return ModelShape(
        name=name,
        num_layers=len(config.layers),
        dense_bytes=dense,
        kv_bytes_per_token=config.kv_bytes_per_token(_KV_ITEM_BYTES),
        num_moe_layers=len(index.banks),
        num_experts=bank.num_experts if bank else 0,
        num_experts_per_tok=moe[0].router.num_experts_per_tok if moe else 0,
        expert_row_bytes=max((b.row_bytes for b in index.banks), default=0),
        expert_params=sum(_elements(part.shape) for part in bank.parts) if bank else 0,
        dense_read_bytes=dense - unread,
        dense_params=elements,
        state_bytes=config.state_bytes_per_sequence,
        context_tokens=config.context_tokens,
        disk_bytes=sum(shard.bytes for shard in index.shards),
        work_bytes=work_bytes(config),
    )


def _kept_bytes(item: FtwTensor) -> int:
    return number_bytes(item.name) * _elements(item.shape) or item.bytes


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _small(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _LIMIT_BYTES:
        raise FormatError(f"{path} is larger than {_LIMIT_BYTES} bytes")
    return data
