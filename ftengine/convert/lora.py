"""LoRA adapters: PEFT folders and GGUF adapters as low-rank changes of this model's matrices.

W' = W + scale * B @ A, in our row order. Read whole: adapters are small. Merging is remake.py's.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftengine.convert.source import parse_object
from ftengine.errors import FormatError, LoadError
from ftengine.loader import gguf, safetensors_header
from ftengine.models.families.base import Family
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import Matcher, Place
from ftengine.quant import format_named, format_of_gguf
from ftengine.quant.base import Floats
from ftman import files

ADAPTER_LIMIT_BYTES = 8 << 30
_CONFIG = "adapter_config.json"
_DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_PEFT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_GGUF = re.compile(r"(.+\.weight)\.lora_([ab])")
_REFUSED = {
    "use_dora": (True,),
    "fan_in_fan_out": (True,),
    "bias": ("all", "lora_only"),
}
Key = tuple[str, int, str]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LowRank:
    """One change. Shape: down [rank, cols] (A), up [rows, rank] (B), rows in our order."""

    down: Floats
    up: Floats
    scale: float

    def add_to(self, values: Floats, first_row: int) -> Floats:
        """Rows from `first_row` on with the change added.

        Rank by rank in float64: a matrix product's order of additions differs by machine.
        """
        change: Doubles = np.zeros(values.shape, dtype=np.float64)
        up = self.up[first_row : first_row + values.shape[0]].astype(np.float64)
        for rank in range(self.down.shape[0]):
            change += up[:, rank : rank + 1] * self.down[rank].astype(np.float64)
        merged: Floats = (values.astype(np.float64) + self.scale * change).astype(np.float32)
        return merged


@dataclass(frozen=True)
class Adapter:
    """All changes of one adapter, by (our name, expert, part). sha256: of its files, in order."""

    changes: Mapping[Key, LowRank]
    kind: str
    sha256: str

    def recipe(self) -> dict[str, Any]:
        """What of an adapter decides the bytes."""
        return {"kind": self.kind, "sha256": self.sha256}


def read_adapter(paths: Mapping[str, Path], family: Family, model: ModelConfig) -> Adapter:
    """Read an adapter for a model. paths: file name -> where it lies.

    Raises: LoadError, FormatError naming the file, the tensor or the setting.
    """
    if sum(path.stat().st_size for path in paths.values()) > ADAPTER_LIMIT_BYTES:
        raise LoadError(f"the adapter is larger than {ADAPTER_LIMIT_BYTES} bytes; is it one?")
    ggufs = [name for name in paths if name.lower().endswith(".gguf")]
    weights = [name for name in paths if name.lower().endswith(".safetensors")]
    if not ggufs and len(paths) == 1:
        (only,) = paths
        ggufs = [only] if _magic(paths[only]) == b"GGUF" else []
    if len(ggufs) + len(weights) != 1:
        raise LoadError(
            f"an adapter is one .gguf file, or one .safetensors file with {_CONFIG}; "
            f"got {', '.join(sorted(paths))}",
            code="unsupported_adapter",
        )
    kind = "gguf" if ggufs else "safetensors"
    found = (
        _gguf_changes(paths[ggufs[0]], family, model)
        if ggufs
        else _peft_changes(paths, weights[0], family)
    )
    digest = hashlib.sha256()
    for name in sorted(paths):
        if name in (*ggufs, *weights) or name.rpartition("/")[2] == _CONFIG:
            digest.update(bytes.fromhex(files.sha256_file(paths[name])))
    return Adapter(found, kind, digest.hexdigest())


def check_shapes(adapter: Adapter, shapes: Mapping[Key, tuple[int, ...]]) -> None:
    """Every change must have a matrix of its shape.   Raises: LoadError naming the matrix."""
    for key, change in adapter.changes.items():
        name = ".".join(str(part) for part in key if part not in (-1, ""))
        shape = shapes.get(key)
        if shape is None:
            raise LoadError(
                f"the adapter changes {name}, which this model does not have",
                code="unsupported_adapter",
            )
        rows, cols = change.up.shape[0], change.down.shape[1]
        if (rows, cols) != shape or change.up.shape[1] != change.down.shape[0]:
            raise LoadError(
                f"the adapter's {name} is for a matrix of [{rows}, {cols}], the model's is "
                f"{list(shape)}: it was made for another model",
                code="unsupported_adapter",
            )


def _peft_changes(paths: Mapping[str, Path], weights: str, family: Family) -> dict[Key, LowRank]:
    where = next((name for name in paths if name.rpartition("/")[2] == _CONFIG), None)
    if where is None:
        raise LoadError(f"{_CONFIG} is missing beside {weights}", code="unsupported_adapter")
    config = parse_object(files.read_bytes(paths[where], limit=1 << 20), where)
    _check_config(config)
    halves: dict[str, dict[str, Floats]] = {}
    for name, values in _safetensors(paths[weights], weights):
        match = _PEFT.fullmatch(name)
        if match is None:
            raise _unknown(name)
        halves.setdefault(match[1], {})[match[2].upper()] = values
    matcher = Matcher(family.weights)
    changes = {}
    for module, pair in halves.items():
        key = _key(matcher.match(f"{module}.weight"), module)
        changes[key] = _low_rank(pair, module, _peft_scale(config, module, pair))
    return _some(changes)


def _check_config(config: Mapping[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise LoadError(
            f"{_CONFIG}: peft_type {config['peft_type']!r} is not built; LORA is",
            code="unsupported_adapter",
        )
    for key, refused in _REFUSED.items():
        if config.get(key) in refused:
            raise LoadError(
                f"{_CONFIG}: {key} = {config[key]!r} is not built", code="unsupported_adapter"
            )
    if config.get("modules_to_save"):
        raise LoadError(
            f"{_CONFIG}: modules_to_save (whole layers) is not built", code="unsupported_adapter"
        )


def _peft_scale(config: Mapping[str, Any], module: str, pair: Mapping[str, Floats]) -> float:
    """alpha / rank, or alpha / sqrt(rank) where the adapter says so."""
    rank = pair["A"].shape[0] if "A" in pair else 1
    alpha = config.get("lora_alpha", config.get("r", rank))
    patterns = config.get("alpha_pattern")
    for pattern, value in (patterns if isinstance(patterns, dict) else {}).items():
        if re.fullmatch(rf"(.*\.)?{pattern}", module):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise FormatError(f"{_CONFIG}: lora_alpha must be a number")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _gguf_changes(path: Path, family: Family, model: ModelConfig) -> dict[Key, LowRank]:
    size = path.stat().st_size
    with files.open_read(path) as reader:

        def fetch(start: int, end: int) -> bytes:
            reader.seek(start)
            return reader.read(end - start)

        header = gguf.read_header(fetch, size, path.name)
        kind = (header.values.get("general.type"), header.values.get("adapter.type"))
        if kind != ("adapter", "lora"):
            raise LoadError(
                f"the GGUF file is no LoRA adapter: general.type {kind[0]!r}, adapter.type "
                f"{kind[1]!r}",
                code="unsupported_adapter",
            )
        halves: dict[str, dict[str, Floats]] = {}
        for tensor in header.tensors:
            match = _GGUF.fullmatch(tensor.name)
            if match is None:
                raise _unknown(tensor.name)
            raw = np.frombuffer(fetch(tensor.start, tensor.end), np.uint8)
            fmt = format_of_gguf(tensor.type_id)
            values = fmt.dequantize(raw.reshape(tensor.shape[0], -1))
            halves.setdefault(match[1], {})[match[2].upper()] = values
    alpha = header.values.get("adapter.lora.alpha", 0.0)
    matcher, changes = Matcher(family.gguf_weights), {}
    for name, pair in halves.items():
        key = _key(matcher.match(name), name)
        rank = pair["A"].shape[0] if "A" in pair else 1
        change = _low_rank(pair, name, float(alpha) / rank if alpha else 1.0)
        changes[key] = _unpermuted(change, key, family, model)
    return _some(changes)


def _unpermuted(change: LowRank, key: Key, family: Family, model: ModelConfig) -> LowRank:
    """GGUF files of these families hold q and k in interleaved rope order; ours is half-split."""
    layer, _, inner = key[0].removeprefix("layers.").partition(".")
    if not family.gguf_permuted or inner not in ("attn.q", "attn.k"):
        return change
    head = model.layers[int(layer)].attention.head_dim
    if change.up.shape[0] % head:
        return change  # the shapes are compared later, with a text of their own
    heads = change.up.reshape(-1, head // 2, 2, change.up.shape[1])
    up = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(change.up.shape)
    return LowRank(change.down, up, change.scale)


def _low_rank(pair: Mapping[str, Floats], name: str, scale: float) -> LowRank:
    if set(pair) != {"A", "B"}:
        raise LoadError(f"the adapter has only one half of {name}", code="unsupported_adapter")
    if pair["A"].ndim != 2 or pair["B"].ndim != 2:
        raise LoadError(
            f"the adapter's {name} is not a pair of matrices", code="unsupported_adapter"
        )
    return LowRank(pair["A"], pair["B"], scale)


def _key(place: Place | None, name: str) -> Key:
    if place is None or place.is_stacked:
        raise _unknown(name)
    return place.name, place.expert, place.part


def _some(changes: dict[Key, LowRank]) -> dict[Key, LowRank]:
    if not changes:
        raise LoadError("the adapter holds no tensors", code="unsupported_adapter")
    return changes


def _safetensors(path: Path, where: str) -> Iterator[tuple[str, Floats]]:
    with files.open_read(path) as reader:

        def fetch(start: int, end: int) -> bytes:
            reader.seek(start)
            return reader.read(end - start)

        header = safetensors_header.read_header(fetch, path.stat().st_size, where)
        for tensor in header.tensors:
            fmt = _DTYPES.get(tensor.dtype)
            if fmt is None:
                raise LoadError(
                    f"{where}: {tensor.name} is {tensor.dtype}; adapters are F32, F16 or BF16",
                    code="unsupported_adapter",
                )
            raw = np.frombuffer(fetch(tensor.start, tensor.end), np.uint8)
            if len(tensor.shape) != 2:
                raise _unknown(tensor.name)
            yield tensor.name, format_named(fmt).dequantize(raw.reshape(tensor.shape[0], -1))


def _unknown(name: str) -> LoadError:
    return LoadError(
        f"the adapter's tensor {name[:200]} changes nothing that can be merged here: "
        "attention and MLP matrices can",
        code="unsupported_adapter",
    )


def _magic(path: Path) -> bytes:
    with files.open_read(path) as reader:
        return reader.read(4)
