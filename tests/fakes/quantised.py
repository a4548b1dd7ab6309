"""Quantised copies of the tiny models, in the on-disk layouts of released checkpoints.

Every kind is encoded and decoded here with float64 tables of its own, sharing nothing with
ftengine/quant. `build_quantised` also writes what the weights really are, as a plain checkpoint.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fakes import tiny_models as tiny

Array = npt.NDArray[Any]
SIZES = tiny.TinySizes(
    hidden=192, heads=4, kv_heads=2, head_dim=32, inter=160, num_experts=4, expert_inter=160
)
"""Sizes with partial blocks of 128 and whole groups of 32 in both directions."""
BLOCK = 128
_KEPT = re.compile(r"embed_tokens|lm_head|norm|\.gate\.weight$|router")
_ORDER = ("I64", "F32", "BF16", "F8_E8M0", "F8_E4M3", "I32", "I8", "U8")
"""The order in which the safetensors library lays out dtypes, largest first."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a safetensors file."""

    dtype: str
    data: Array

    @property
    def raw(self) -> bytes:
        return np.ascontiguousarray(self.data).tobytes()


@dataclass(frozen=True)
class Quantised:
    """Tensors of one weight by ending, and the values they stand for, in float64."""

    tensors: dict[str, Stored]
    values: Array


def e4m3_values() -> Array:
    """All 256 codes, decoded bit by bit. NaN at 0x7f and 0xff."""
    out = np.empty(256)
    for code in range(256):
        exponent, fraction = (code >> 3) & 15, code & 7
        value = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
        out[code] = np.nan if code & 127 == 127 else value
        if code & 128:
            out[code] = -out[code]
    return out


E4M3 = e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nearest(values: Array, table: Array) -> Array:
    """Codes of the closest table entries; of equal ones the lowest code."""
    clean = np.where(np.isnan(table), np.inf, table)
    order = np.argsort(clean, kind="stable")
    ordered = clean[order]
    middle = (ordered[1:] + ordered[:-1]) / 2
    return order[np.searchsorted(middle, values)].astype(np.uint8)


def bf16_bytes(values: Array) -> Array:
    """Float32 cut to bfloat16, as uint16."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_values(stored: Array) -> Array:
    return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def pairs(codes: Array) -> Array:
    """Two nibbles a byte, the even element in the low one."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def blocks_max(weight: Array) -> Array:
    """Largest magnitude of every 128 x 128 block, partial ones included."""
    rows, cols = weight.shape
    grid = [
        [np.abs(weight[r : r + BLOCK, c : c + BLOCK]).max() for c in range(0, cols, BLOCK)]
        for r in range(0, rows, BLOCK)
    ]
    return np.array(grid)


def spread(grid: Array, shape: tuple[int, ...]) -> Array:
    """A scale for every element."""
    return grid.repeat(BLOCK, 0)[: shape[0]].repeat(BLOCK, 1)[:, : shape[1]]


def fp8_block(weight: Array, ending: str = ".weight_scale_inv", kind: str = "F32") -> Quantised:
    wanted = blocks_max(weight) / 448
    if kind == "F32":
        scale = Stored(kind, wanted.astype(np.float32))
        used = scale.data.astype(np.float64)
    elif kind == "BF16":
        scale = Stored(kind, bf16_bytes(wanted * 1.01))
        used = bf16_values(scale.data)
    else:
        scale = Stored(kind, np.ceil(np.log2(wanted) + 127).astype(np.uint8))
        used = 2.0 ** (scale.data.astype(np.float64) - 127)
    every = spread(used, weight.shape)
    codes = nearest(weight / every, E4M3)
    tensors = {".weight": Stored("F8_E4M3", codes), ending: scale}
    return Quantised(tensors, E4M3[codes] * every)


def fp8_whole(weight: Array, per_channel: bool) -> Quantised:
    largest = np.abs(weight).max(1, keepdims=True) if per_channel else np.abs(weight).max()
    if per_channel:
        scale = Stored("BF16", bf16_bytes(largest / 448 * 1.01))
        used = bf16_values(scale.data)
    else:
        scale = Stored("F32", np.float32(largest / 448).reshape(()))
        used = scale.data.astype(np.float64)
    codes = nearest(weight / used, E4M3)
    tensors = {".weight": Stored("F8_E4M3", codes), ".weight_scale": scale}
    return Quantised(tensors, E4M3[codes] * used)


def mxfp4(weight: Array, packed: str, dtype: str, scale: str, scale_dtype: str) -> Quantised:
    groups = weight.reshape(weight.shape[0], -1, 32)
    exponents = np.ceil(np.log2(np.abs(groups).max(-1) / 6) + 127).astype(np.uint8)
    factors = 2.0 ** (exponents.astype(np.float64) - 127)[..., None]
    codes = nearest(groups / factors, E2M1)
    tensors = {
        packed: Stored(dtype, pairs(codes.reshape(weight.shape))),
        scale: Stored(scale_dtype, exponents),
    }
    return Quantised(tensors, (E2M1[codes] * factors).reshape(weight.shape))


def nvfp4(weight: Array, divides: bool) -> Quantised:
    groups = weight.reshape(weight.shape[0], -1, 16)
    whole = np.float32(np.abs(weight).max() / (6 * 448))
    stored = np.float32(1 / whole) if divides else whole
    factor = 1 / np.float64(stored) if divides else np.float64(stored)
    scales = np.maximum(nearest(np.abs(groups).max(-1) / 6 / factor, E4M3[:127]), 1)
    steps = (E4M3[scales] * factor)[..., None]
    codes = nearest(groups / steps, E2M1)
    packed = Stored("U8", pairs(codes.reshape(weight.shape)))
    names = (
        (".weight_packed", ".weight_global_scale") if divides else (".weight", ".weight_scale_2")
    )
    tensors = {
        names[0]: packed,
        ".weight_scale": Stored("F8_E4M3", scales),
        names[1]: Stored("F32", stored.reshape((1,) if divides else ())),
        ".input_global_scale" if divides else ".input_scale": Stored("F32", np.ones(1, np.float32)),
    }
    return Quantised(tensors, (E2M1[codes] * steps).reshape(weight.shape))


def int4(weight: Array) -> Quantised:
    """Groups of 32 with a bfloat16 scale; eight values + 8 in an int32, the first one lowest."""
    groups = weight.reshape(weight.shape[0], -1, 32)
    scale = bf16_bytes(np.abs(groups).max(-1) / 7 * 1.01)
    used = bf16_values(scale)[..., None]
    codes = np.clip(np.rint(groups / used), -8, 7).astype(np.int8)
    packed = pairs((codes + 8).astype(np.uint8).reshape(weight.shape)).view("<i4")
    tensors = {
        ".weight_packed": Stored("I32", packed),
        ".weight_scale": Stored("BF16", scale),
        ".weight_shape": Stored("I64", np.array(weight.shape, np.int64)),
    }
    return Quantised(tensors, (codes * used).reshape(weight.shape))


def _mxfp4_ct(weight: Array) -> Quantised:
    return mxfp4(weight, ".weight_packed", "U8", ".weight_scale", "U8")


def _dsv4(name: str, weight: Array) -> Quantised:
    if ".experts." in name:
        return mxfp4(weight, ".weight", "I8", ".scale", "F8_E8M0")
    return fp8_block(weight, ".scale", "F8_E8M0")


def _mixed(name: str, weight: Array, divides: bool) -> Quantised:
    return fp8_whole(weight, divides) if "self_attn" in name else nvfp4(weight, divides)


KINDS: dict[str, Callable[[str, Array], Quantised]] = {
    "fp8_block": lambda name, weight: fp8_block(weight),
    "fp8_block_bf16": lambda name, weight: fp8_block(weight, kind="BF16"),
    "fp8_block_ct": lambda name, weight: fp8_block(weight, ".weight_scale"),
    "fp8_channel_ct": lambda name, weight: fp8_whole(weight, True),
    "fp8_tensor_ct": lambda name, weight: fp8_whole(weight, False),
    "mxfp4_ct": lambda name, weight: _mxfp4_ct(weight),
    "nvfp4_ct": lambda name, weight: nvfp4(weight, True),
    "int4_ct": lambda name, weight: int4(weight),
    "nvfp4_modelopt": lambda name, weight: nvfp4(weight, False),
    "dsv4": _dsv4,
    "mixed_ct": lambda name, weight: _mixed(name, weight, True),
    "mixed_modelopt": lambda name, weight: _mixed(name, weight, False),
}


def quant_config(kind: str, weights: dict[str, Any]) -> dict[str, Any]:
    """The quantization_config of a release of this kind."""
    modules = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    kept = [name for name in modules if _KEPT.search(name + ".weight") and "norm" not in name]
    if kind.startswith("fp8_block") and not kind.endswith("ct"):
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": kept,
        }
    if kind == "dsv4":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
    if kind == "nvfp4_modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": kept}
    if kind == "mixed_modelopt":
        layers = {
            name: {"quant_algo": "FP8"}
            if "self_attn" in name
            else {"quant_algo": "NVFP4", "group_size": 16}
            for name in modules
            if name not in kept and "norm" not in name
        }
        return {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": layers,
        }
    return _compressed_tensors(kind)


def _compressed_tensors(kind: str) -> dict[str, Any]:
    floats = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    channel = {**floats, "strategy": "channel", "group_size": None}
    nvfp4_group = {**floats, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
    formats = {
        "fp8_block_ct": (
            "float-quantized",
            {**floats, "strategy": "block", "block_structure": [BLOCK, BLOCK]},
        ),
        "fp8_channel_ct": ("float-quantized", channel),
        "fp8_tensor_ct": ("float-quantized", {**floats, "strategy": "tensor"}),
        "mxfp4_ct": (
            "mxfp4-pack-quantized",
            {**floats, "num_bits": 4, "strategy": "group", "group_size": 32},
        ),
        "nvfp4_ct": ("nvfp4-pack-quantized", nvfp4_group),
        "int4_ct": (
            "pack-quantized",
            {**floats, "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        ),
    }
    ignore = ["lm_head", r"re:.*\.gate$"]
    config = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "ignore": ignore,
    }
    if kind == "mixed_ct":
        groups = {
            "group_0": {
                "format": "nvfp4-pack-quantized",
                "targets": ["Linear"],
                "weights": nvfp4_group,
            },
            "group_1": {
                "format": "float-quantized",
                "targets": [r"re:.*self_attn\..*"],
                "weights": channel,
            },
        }
        return config | {"format": "mixed-precision", "config_groups": groups}
    fmt, weights = formats[kind]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return config | {"format": fmt, "config_groups": {"group_0": group}}


def build_quantised(
    family: str,
    folder: Path,
    kind: str,
    *,
    sizes: tiny.TinySizes = SIZES,
    num_shards: int = 1,
) -> dict[str, Array]:
    """Write the checkpoint to folder/q and its dequantised self to folder/plain.

    Returns what every weight stands for, in float64.
    """
    weights = tiny.hub_weights(family, sizes)
    tensors: dict[str, Stored] = {}
    values: dict[str, Array] = {}
    for name, weight in weights.items():
        if weight.ndim != 2 or _KEPT.search(name):
            tensors[name], values[name] = Stored("F32", weight), weight
            continue
        made = KINDS[kind](name, weight.astype(np.float64))
        values[name] = made.values
        tensors |= {name.removesuffix(".weight") + end: item for end, item in made.tensors.items()}
    config: dict[str, Any] = {"quantization_config": quant_config(kind, weights)}
    if kind == "dsv4":
        config["expert_dtype"] = "fp4"
    tiny.build_tiny(family, folder / "plain", sizes=sizes)
    plain = {name: np.asarray(item, np.float32) for name, item in values.items()}
    tiny.write_safetensors(folder / "plain" / "model.safetensors", plain)
    tiny.build_tiny(family, folder / "q", sizes=sizes, config_changes=config)
    write_stored(folder / "q", tensors, num_shards)
    return values


def write_stored(folder: Path, tensors: dict[str, Stored], num_shards: int = 1) -> None:
    """Replace the weights of a folder. Tensors lie by dtype, then name, as the library writes."""
    names = sorted(tensors, key=lambda name: (_ORDER.index(tensors[name].dtype), name))
    (folder / "model.safetensors").unlink()
    if num_shards == 1:
        _write_file(folder / "model.safetensors", {name: tensors[name] for name in names})
        return
    where: dict[str, str] = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        chosen = names[number::num_shards]
        _write_file(folder / file, {name: tensors[name] for name in chosen})
        where |= dict.fromkeys(chosen, file)
    text = json.dumps({"metadata": {}, "weight_map": where})
    (folder / "model.safetensors.index.json").write_text(text)


def _write_file(path: Path, tensors: dict[str, Stored]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, item in tensors.items():
        end = offset + len(item.raw)
        shape = list(item.data.shape)
        header[name] = {"dtype": item.dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    blobs = b"".join(item.raw for item in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + blobs)
