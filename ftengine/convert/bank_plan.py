"""Expert banks: formats, layout and row size of one layer's experts, checked for completeness."""

from __future__ import annotations

from collections import defaultdict

from ftengine.convert.source import SourceTensor
from ftengine.errors import LoadError
from ftengine.loader.ftw import ALIGN_BYTES, FtwBank, FtwPart
from ftengine.loader.stored import SCALE_FORMATS, VECTOR_LAYOUT, row_format
from ftengine.models.weight_names import BIAS_HALVES, BIAS_PARTS, UP_ALONE, Place, WantedBank
from ftengine.quant import format_named, panel32
from ftengine.quant.base import QuantFormat

ROWS_LAYOUT = "rows"
PAIR_LAYOUT = panel32.LAYOUT + ".pair"
_BIAS = "bias"
_HALVES = {"gate_up": ("gate", "up"), "gate_up_bias": BIAS_HALVES}


def plan_bank(name: str, wanted: WantedBank, places: list[tuple[Place, SourceTensor]]) -> FtwBank:
    """Formats and layout of one bank, after checking that every expert is there exactly once."""
    formats: dict[str, set[str]] = defaultdict(set)
    covered: dict[str, set[int]] = defaultdict(set)
    for place, tensor in places:
        if tensor.role:
            continue
        _check_expert_shape(name, wanted, place, tensor)
        if (_is_bias(place.part) and not wanted.bias) or _strays(place.part, wanted):
            raise LoadError(f"{name}: the config has no place for {tensor.name}")
        every = range(wanted.num_experts)
        experts = (place.expert,) if place.expert >= 0 else every
        for part in _HALVES.get(place.part, (place.part,)):
            if covered[part].intersection(experts):
                raise LoadError(f"{name}: {part} of an expert is given twice ({tensor.name})")
            covered[part].update(experts)
            formats[_format_group(part)].add(tensor.format)
    for part in (*wanted.matrices, *((*BIAS_HALVES, "down_bias") if wanted.bias else ())):
        missing = set(range(wanted.num_experts)) - covered[part]
        if missing:
            raise LoadError(f"{name}: {part} of expert {min(missing)} is missing")
    for part, names in formats.items():
        if len(names) > 1:
            raise LoadError(
                f"{name}: {part} mixes {', '.join(sorted(names))}; one format per layer is built",
                code="unsupported_format",
            )
    first, down = (
        format_named(row_format(min(formats[part]))) for part in (_first_part(wanted), "down")
    )
    bias = format_named(min(formats[_BIAS])) if wanted.bias else None
    return laid_out_bank(name, wanted, first, down, bias)


def _first_part(wanted: WantedBank) -> str:
    return "gate_up" if wanted.gated else UP_ALONE


def _strays(part: str, wanted: WantedBank) -> bool:
    """Whether this is a gate, or comes with one, where experts have none; or the other way."""
    return part in ("gate", "up", "gate_up", UP_ALONE) and wanted.gated == (part == UP_ALONE)


def _format_group(part: str) -> str:
    """Parts of one group must have one format."""
    return _BIAS if _is_bias(part) else bank_part(part)


def _is_bias(part: str) -> bool:
    return part in BIAS_PARTS or part in BIAS_HALVES


def bank_part(part: str) -> str:
    """The part of a bank that takes a part of the checkpoint."""
    return next((whole for whole, halves in _HALVES.items() if part in halves), part)


def laid_out_bank(
    name: str,
    wanted: WantedBank,
    first: QuantFormat,
    down: QuantFormat,
    bias: QuantFormat | None = None,
) -> FtwBank:
    """A bank of these formats, without its place. first: that of gate and up, or of up alone.

    Raises: LoadError for a width no panel has, and for biases whose format is not given.
    """
    if wanted.bias and bias is None:
        raise LoadError(f"{name}: experts with biases cannot be made anew yet")
    hidden, inter = wanted.hidden, wanted.inter
    rows = 2 * inter if wanted.gated else inter
    beginning = _part(_first_part(wanted), first, rows, hidden, paired=wanted.gated)
    down_offset = -(-beginning.bytes // panel32.PART_ALIGN_BYTES) * panel32.PART_ALIGN_BYTES
    second = _part("down", down, hidden, inter, paired=False, offset=down_offset)
    parts = [beginning, second]
    if bias is not None:
        for part, size in zip(BIAS_PARTS, (2 * inter, hidden), strict=True):
            parts.append(_vector(part, bias, size, parts[-1]))
    end = parts[-1].offset + parts[-1].bytes
    row_bytes = -(-end // ALIGN_BYTES) * ALIGN_BYTES
    return FtwBank(name, 0, 0, wanted.num_experts, row_bytes, tuple(parts))


def _vector(name: str, fmt: QuantFormat, size: int, before: FtwPart) -> FtwPart:
    end = before.offset + before.bytes
    offset = -(-end // panel32.PART_ALIGN_BYTES) * panel32.PART_ALIGN_BYTES
    return FtwPart(name, fmt.name, VECTOR_LAYOUT, offset, fmt.row_bytes(size), (size,))


def _part(
    name: str, fmt: QuantFormat, rows: int, cols: int, *, paired: bool, offset: int = 0
) -> FtwPart:
    shape = (rows, cols)
    if not _fits_panels(fmt, cols):
        if fmt.name in SCALE_FORMATS:
            raise LoadError(
                f"{name} of {cols} columns cannot be laid out in panels of {fmt.name}; "
                "use the bf16 release or a GGUF file",
                code="unsupported_format",
            )
        size = rows * fmt.row_bytes(cols)
        return FtwPart(name, fmt.name, ROWS_LAYOUT, offset, size, shape)
    size = panel32.packed_bytes(fmt, rows // 2 if paired else rows, cols, paired)
    layout = PAIR_LAYOUT if paired else panel32.LAYOUT
    return FtwPart(name, fmt.name, layout, offset, size, shape)


def _fits_panels(fmt: QuantFormat, cols: int) -> bool:
    return panel32.supports(fmt) and cols % panel32.panel_format(fmt).group_elements == 0


def _check_expert_shape(name: str, wanted: WantedBank, place: Place, tensor: SourceTensor) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "gate": (wanted.inter, wanted.hidden),
        "up": (wanted.inter, wanted.hidden),
        UP_ALONE: (wanted.inter, wanted.hidden),
        "gate_up": (2 * wanted.inter, wanted.hidden),
        "down": (wanted.hidden, wanted.inter),
        "gate_bias": (wanted.inter,),
        "up_bias": (wanted.inter,),
        "gate_up_bias": (2 * wanted.inter,),
        "down_bias": (wanted.hidden,),
    }
    inner = shapes[place.part]
    if place.order.startswith("columns"):
        inner = inner[::-1]
    expected = (wanted.num_experts, *inner) if place.is_stacked else inner
    if tensor.shape != expected:
        raise LoadError(
            f"{tensor.name} has shape {list(tensor.shape)}, {name} needs {list(expected)}"
        )
    if place.expert >= wanted.num_experts:
        raise LoadError(f"{tensor.name}: the config has only {wanted.num_experts} experts")
