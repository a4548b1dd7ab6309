"""What kernels are given beside plain tensors: packed weights, expert banks, head counts.

Shapes, formats and alignment are checked here, once, when the operand is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from ftengine.errors import EngineError
from ftengine.quant import format_named
from ftengine.quant.panel32 import PART_ALIGN_BYTES, ExpertLayout, packed_bytes
from ftengine.quant.panel_form import PANEL_ROWS

PAGE_TOKENS = 16
"""Tokens of a KV page."""

KV_GROUP = format_named("q8_0").block_elements
"""Numbers of a head that share a scale in q8_0 pages."""

ACTIVATIONS: dict[str, int] = {"silu": 0, "gelu_tanh": 1, "relu2": 2, "swiglu_clamp": 3}
"""Activations of gated experts and their native ids."""

PLAIN_ACTIVATIONS = ("silu_clamp",)
"""Those that are computed out of plain matrix products, like experts with biases."""

SCORES: dict[str, int] = {"softmax": 0, "sigmoid": 1}
"""What a router makes of its logits, and native ids."""


ROUTE_SCORES = (*SCORES, "sqrt_softplus")
"""With those that no native kernel computes."""


@dataclass(frozen=True)
class RouteSpec:
    """How experts are chosen: score over all of them, normalize = divide the chosen by their sum +
    epsilon, scale multiplies them.

    Only experts of the `kept_groups` best of `groups` equal groups are chosen; group_by: a group's
    worth, "top2", the sum of its two best, or "max", its best. jitter: how near to the best experts
    must be to share its weight, 0 = experts are weighed by their scores.

    Raises: EngineError("bad_operand") for a score that is not built.
    """

    score: str
    normalize: bool
    scale: float
    epsilon: float = 0.0
    groups: int = 1
    kept_groups: int = 1
    group_by: str = "top2"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in ROUTE_SCORES:
            known = ", ".join(ROUTE_SCORES)
            raise EngineError(
                f"router score {self.score!r} is not built; built: {known}", code="bad_operand"
            )

    @property
    def grouped(self) -> bool:
        """Whether some groups are out."""
        return self.groups != self.kept_groups

    @property
    def divides_late(self) -> bool:
        """Whether the sum needs its epsilon."""
        return self.normalize and self.epsilon > 0

    @property
    def chooses_plainly(self) -> bool:
        """Whether the experts of the best native scores are chosen, and weighed by them."""
        return self.score in SCORES and not self.grouped and not self.jitter

    @property
    def undivided(self) -> RouteSpec:
        """The same, weights left as scores."""
        return replace(self, normalize=False, scale=1.0, epsilon=0.0)


@dataclass(frozen=True)
class HeadLayout:
    """Heads of one attention layer: a qkv row is heads, kv_heads, kv_heads times head_dim."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def qkv_cols(self) -> int:
        """Width of a qkv row."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class KvScales:
    """What int8 pages are multiplied by.

    Shape: keys, values float16 [num_pages, kv_heads, 16, head_dim / KV_GROUP].
    """

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [rows, cols] in panel32.v1. Shape: data uint8 [packed_bytes], 64-byte aligned.

    Raises: EngineError("bad_operand") if the data is not what it claims to be.
    """

    data: torch.Tensor
    fmt: str
    rows: int
    cols: int
    address: int = field(init=False, repr=False)
    native_id: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_bytes(self.data, packed_bytes(self.fmt, self.rows, self.cols), "packed weight")
        object.__setattr__(self, "address", self.data.data_ptr())
        object.__setattr__(self, "native_id", format_named(self.fmt).native_id)

    def between(self, first: int, end: int) -> PackedWeight:
        """Rows [first, end) as a matrix of its own over the same bytes; first: of a panel."""
        assert first % PANEL_ROWS == 0, f"row {first} stands inside a panel"
        at, size = (packed_bytes(self.fmt, rows, self.cols) for rows in (first, end - first))
        return PackedWeight(self.data[at : at + size], self.fmt, end - first, self.cols)


@dataclass(frozen=True)
class ExpertBank:
    """All experts of one layer. Shape: data uint8 [num_experts, row_bytes], rows as in layout.

    activation names one of ACTIVATIONS or PLAIN_ACTIVATIONS; alpha and limit belong to
    swiglu_clamp, limit to silu_clamp. fmt_bias: item
    format of the bias vectors in each row, "" where experts have none. gated False: the first part
    is up alone, as a plain matrix, and an expert is down(act(up x)).
    Raises: EngineError("bad_operand") if the data is not what it claims to be.
    """

    data: torch.Tensor
    layout: ExpertLayout
    fmt_gate_up: str
    fmt_down: str
    hidden: int
    inter: int
    activation: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0
    fmt_bias: str = ""
    gated: bool = True
    address: int = field(init=False, repr=False)
    row_bytes: int = field(init=False, repr=False)
    num_experts: int = field(init=False, repr=False)
    native_id_gate_up: int = field(init=False, repr=False)
    native_id_down: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.data.ndim != 2:
            raise EngineError("an expert bank is [num_experts, row_bytes]", code="bad_operand")
        count, row_bytes = self.data.shape
        _check_bytes(self.data, count * row_bytes, "expert bank")
        _check_layout(self, row_bytes)
        if self.activation not in (*ACTIVATIONS, *PLAIN_ACTIVATIONS):
            known = ", ".join((*ACTIVATIONS, *PLAIN_ACTIVATIONS))
            raise EngineError(
                f"activation {self.activation!r} is not built; built: {known}", code="bad_operand"
            )
        object.__setattr__(self, "address", self.data.data_ptr())
        object.__setattr__(self, "row_bytes", row_bytes)
        object.__setattr__(self, "num_experts", count)
        object.__setattr__(self, "native_id_gate_up", format_named(self.fmt_gate_up).native_id)
        object.__setattr__(self, "native_id_down", format_named(self.fmt_down).native_id)

    @property
    def in_products(self) -> bool:
        """Whether no fused kernel knows such experts: they are computed of matrix products."""
        return bool(self.fmt_bias) or self.activation in PLAIN_ACTIVATIONS or not self.gated


def _check_layout(bank: ExpertBank, row_bytes: int) -> None:
    """Parts are aligned and end inside the row."""
    layout = bank.layout
    if any(at % PART_ALIGN_BYTES for at in (layout.gate_up_offset, layout.down_offset, row_bytes)):
        raise EngineError(
            f"expert rows and parts start at multiples of {PART_ALIGN_BYTES}, got {layout}",
            code="bad_operand",
        )
    gate_up = packed_bytes(bank.fmt_gate_up, bank.inter, bank.hidden, paired=bank.gated)
    down = packed_bytes(bank.fmt_down, bank.hidden, bank.inter)
    end = max(layout.gate_up_offset + gate_up, layout.down_offset + down)
    if bank.fmt_bias and not bank.gated:
        raise EngineError("experts with biases have gates", code="bad_operand")
    if bank.fmt_bias:
        fmt = format_named(bank.fmt_bias)
        first = layout.gate_up_bias_offset + fmt.row_bytes(2 * bank.inter)
        end = max(end, first, layout.down_bias_offset + fmt.row_bytes(bank.hidden))
    if end > row_bytes:
        raise EngineError(
            f"an expert of [{bank.inter}, {bank.hidden}] ends at byte {end}, its bank row has "
            f"{row_bytes}",
            code="bad_operand",
        )


def _check_bytes(data: torch.Tensor, expected: int, what: str) -> None:
    good = data.dtype == torch.uint8 and data.is_contiguous() and data.numel() == expected
    if not good or data.device.type not in ("cpu", "cuda"):
        raise EngineError(
            f"{what}: need {expected} contiguous uint8 on the CPU or a GPU, got {data.dtype} "
            f"{tuple(data.shape)} on {data.device}",
            code="bad_operand",
        )
    if data.data_ptr() % PART_ALIGN_BYTES:
        raise EngineError(
            f"{what} must start at a multiple of {PART_ALIGN_BYTES} bytes; copy it to an aligned "
            "tensor first",
            code="bad_operand",
        )
