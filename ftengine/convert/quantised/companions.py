"""Tensors of safetensors headers -> SourceTensors: codes joined with their scales by name.

The dtype says that a weight is quantised, the config says how. Codes of a weight that the config
excludes are refused: nobody could tell what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ftengine.convert.quantised.scheme import QuantPlan, Scheme
from ftengine.convert.source import FACTOR, SCALES, SourceTensor
from ftengine.errors import LoadError
from ftengine.loader.safetensors_header import SafetensorsTensor
from ftengine.loader.stored import (
    FACTORED,
    FP8_BLOCK,
    FP8_BLOCK_E8M0,
    FP8_TENSOR,
    INT4,
    MXFP4,
    NVFP4,
    NVFP4_DIV,
    scale_shapes,
)
from ftengine.models.weight_names import SKIPPED, TABLE

PLAIN = {"F32": "f32", "BF16": "bf16", "F16": "f16"}
_TABLES = {"I32": "i32", "I64": "i64"}
_CODE_DTYPES = ("F8_E4M3", "U8", "I8", "I32")
_WEIGHTS = (".weight", ".weight_packed")
_SCALES = (".weight_scale_inv", ".weight_scale", ".scale")
_MULTIPLIER = ".weight_scale_2"
_DIVISOR = ".weight_global_scale"
_FLOATS = {"F32": "f32", "BF16": "bf16", "F16": "f16"}
_POWERS = {"F8_E8M0": "e8m0", "U8": "e8m0"}
_SCALE_DTYPES = {
    FP8_BLOCK: _FLOATS | _POWERS,
    FP8_TENSOR: _FLOATS,
    MXFP4: _POWERS,
    NVFP4: {"F8_E4M3": "e4m3"},
    INT4: _FLOATS,
}
_BLOCKS = "_blocks"
_BLOCK_BYTES = 16
_WHOLE_BYTES = (FP8_BLOCK, FP8_TENSOR)
_UNBUILT_BESIDE = (".weight_zero_point", ".weight_g_idx")


@dataclass(frozen=True)
class Listed:
    """One tensor of a header and the job's number and name of its file."""

    file: int
    file_name: str
    tensor: SafetensorsTensor


def source_tensors(listed: Iterable[Listed], plan: QuantPlan | None) -> tuple[SourceTensor, ...]:
    """Every tensor as the layout wants it, in the order given.

    Raises: LoadError naming the tensor: unbuilt dtypes, missing scales, shapes that do not fit.
    """
    tensors = {item.tensor.name: item for item in listed}
    found: dict[str, SourceTensor] = {}
    if plan is not None and plan.stacked is not None:
        for item in tensors.values():
            if item.tensor.name.endswith(_BLOCKS) and item.tensor.dtype in plan.stacked.codes:
                pair = _join_stacked(item, tensors, plan.stacked)
                found.update({tensor.name: tensor for tensor in pair})
    elif plan is not None:
        for item in tensors.values():
            if _is_codes(item.tensor):
                joined = tuple(_join(item, tensors, plan))
                found.update({tensor.name: tensor for tensor in joined})
    result = []
    for name, item in tensors.items():
        if name in found:
            result.append(found[name])
        elif item.tensor.dtype in PLAIN or not SKIPPED.search(name):
            result.append(_plain(item))
    return tuple(result)


def _is_codes(tensor: SafetensorsTensor) -> bool:
    ending = tensor.name.endswith(_WEIGHTS)
    return ending and tensor.dtype in _CODE_DTYPES and not SKIPPED.search(tensor.name)


def _plain(item: Listed) -> SourceTensor:
    fmt = PLAIN.get(item.tensor.dtype)
    if TABLE.search(item.tensor.name):
        fmt = _TABLES.get(item.tensor.dtype, fmt)
    if fmt is None:
        raise LoadError(
            f"{item.file_name}: {item.tensor.name} has dtype {item.tensor.dtype}, which is not "
            f"built yet; built: {', '.join(PLAIN)}, and quantised matrices with a "
            "quantization_config, one for every expert",
            code="unsupported_format",
        )
    return _source(item, fmt, item.tensor.shape)


def _join(item: Listed, tensors: Mapping[str, Listed], plan: QuantPlan) -> Iterator[SourceTensor]:
    """A weight's codes, scales and factor."""
    name = item.tensor.name
    module = name.rpartition(".")[0]
    scheme = plan.scheme_of(module, item.tensor.dtype)
    if scheme is None:
        raise LoadError(
            f"{item.file_name}: {name} has dtype {item.tensor.dtype}, but quantization_config "
            f"does not say that {module} is quantised that way",
            code="unsupported_format",
        )
    for ending in _UNBUILT_BESIDE:
        if module + ending in tensors:
            raise LoadError(
                f"{item.file_name}: {module + ending} is not built yet; use a release without it",
                code="unsupported_format",
            )
    weight = module + ".weight"
    shape = _logical_shape(item, scheme)
    scales = _scales(item, _companion(item, module, _SCALES, tensors), scheme, shape, weight)
    kind = FP8_BLOCK_E8M0 if (scheme.kind, scales.format) == (FP8_BLOCK, "e8m0") else scheme.kind
    if kind in FACTORED:
        factor = _companion(item, module, (_MULTIPLIER, _DIVISOR), tensors)
        kind = NVFP4_DIV if factor.tensor.name.endswith(_DIVISOR) else NVFP4
        yield _factor(factor, weight)
    yield scales
    yield _source(item, kind, shape, weight=weight)


def _join_stacked(
    item: Listed, tensors: Mapping[str, Listed], scheme: Scheme
) -> tuple[SourceTensor, SourceTensor]:
    """Scales and codes of all experts: blocks [E, rows, groups, 16], scales [E, rows, groups]."""
    name, shape = item.tensor.name, item.tensor.shape
    if len(shape) != 4 or shape[3] != _BLOCK_BYTES:
        raise LoadError(
            f"{item.file_name}: {name} has shape {list(shape)}; blocks of {scheme.kind} are "
            f"[experts, rows, groups, {_BLOCK_BYTES}]"
        )
    scale_name = name.removesuffix(_BLOCKS) + "_scales"
    scale = tensors.get(scale_name)
    if scale is None:
        raise LoadError(f"{item.file_name}: {name} is there without {scale_name}")
    if scale.tensor.dtype not in _POWERS or scale.tensor.shape != shape[:3]:
        raise LoadError(
            f"{scale.file_name}: {scale_name} is {scale.tensor.dtype} "
            f"{list(scale.tensor.shape)}; U8 {list(shape[:3])} was expected"
        )
    whole = (shape[0], shape[1], 2 * _BLOCK_BYTES * shape[2])
    scales = _source(scale, _POWERS["U8"], scale.tensor.shape, weight=name, role=SCALES)
    return scales, _source(item, scheme.kind, whole)


def _logical_shape(item: Listed, scheme: Scheme) -> tuple[int, ...]:
    shape = item.tensor.shape
    if len(shape) != 2:
        raise LoadError(
            f"{item.file_name}: {item.tensor.name} is {scheme.kind} of shape {list(shape)}; "
            "only matrices are built",
            code="unsupported_format",
        )
    if scheme.kind in _WHOLE_BYTES:
        return shape
    return (shape[0], (8 if scheme.kind == INT4 else 2) * shape[1])


def _companion(
    item: Listed, module: str, endings: tuple[str, ...], tensors: Mapping[str, Listed]
) -> Listed:
    found = [tensors[module + ending] for ending in endings if module + ending in tensors]
    if len(found) != 1:
        wanted = " or ".join(module + ending for ending in endings)
        problem = "is missing" if not found else "is there more than once"
        raise LoadError(
            f"{item.file_name}: {item.tensor.name} is quantised, but its scale {problem} ({wanted})"
        )
    return found[0]


def _scales(
    item: Listed, scale: Listed, scheme: Scheme, shape: tuple[int, ...], weight: str
) -> SourceTensor:
    dtypes = _SCALE_DTYPES[scheme.kind]
    fmt = dtypes.get(scale.tensor.dtype)
    if fmt is None:
        raise LoadError(
            f"{scale.file_name}: {scale.tensor.name} has dtype {scale.tensor.dtype}; scales of "
            f"{scheme.kind} are {', '.join(dtypes)}",
            code="unsupported_format",
        )
    rows, cols = shape
    try:
        allowed = scale_shapes(scheme.kind, rows, cols)
    except ValueError as error:
        raise LoadError(f"{item.file_name}: {item.tensor.name}: {error}") from None
    if scale.tensor.shape not in allowed:
        raise LoadError(
            f"{scale.file_name}: {scale.tensor.name} has shape {list(scale.tensor.shape)}; "
            f"{scheme.kind} of [{rows}, {cols}] needs {list(allowed[0])}"
        )
    return _source(scale, fmt, scale.tensor.shape or (1,), weight=weight, role=SCALES)


def _factor(scale: Listed, weight: str) -> SourceTensor:
    if scale.tensor.dtype != "F32" or scale.tensor.shape not in ((), (1,)):
        raise LoadError(
            f"{scale.file_name}: {scale.tensor.name} is {scale.tensor.dtype} "
            f"{list(scale.tensor.shape)}; one F32 is built"
        )
    return _source(scale, "f32", (1,), weight=weight, role=FACTOR)


def _source(
    item: Listed, fmt: str, shape: tuple[int, ...], *, weight: str = "", role: str = ""
) -> SourceTensor:
    tensor = item.tensor
    return SourceTensor(tensor.name, item.file, tensor.start, tensor.end, shape, fmt, weight, role)
