"""The parts of an FTW bank, checked against each other, in the words of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from ftengine.errors import FormatError
from ftengine.experts.banks import BankFormats, BankShape
from ftengine.loader.ftw import FtwBank, FtwPart
from ftengine.loader.sizes import check_part
from ftengine.models.spec import Activation
from ftengine.models.weight_names import BIAS_PARTS, UP_ALONE
from ftengine.quant import panel32


@dataclass(frozen=True)
class BankParts:
    """gate_up and down of every expert; biases: those of gate_up and of down, or nothing.

    gate_up is up alone in banks of experts without a gate.
    """

    gate_up: FtwPart
    down: FtwPart
    biases: tuple[FtwPart, ...] = ()

    @property
    def in_place(self) -> bool:
        """Whether the kernels read the rows as they are stored."""
        return self.gate_up.layout != "rows" and self.down.layout != "rows"

    @property
    def formats(self) -> BankFormats:
        """Formats of the parts."""
        bias = self.biases[0].format if self.biases else ""
        return BankFormats(self.gate_up.format, self.down.format, bias)

    def layout(self, row_bytes: int) -> panel32.ExpertLayout:
        """Where the parts lie in a row."""
        biases = [part.offset for part in self.biases] or [0, 0]
        return panel32.ExpertLayout(self.gate_up.offset, self.down.offset, row_bytes, *biases)


def bank_parts(entry: FtwBank) -> BankParts:
    """Find and check the parts of a bank. Raises: FormatError naming bank and part."""
    names = {part.name for part in entry.parts}
    gate_up = entry.part(UP_ALONE if UP_ALONE in names else "gate_up")
    down = entry.part("down")
    check_part(entry, gate_up)
    check_part(entry, down)
    hidden, inter = down.shape
    rows = inter if gate_up.name == UP_ALONE else 2 * inter
    if gate_up.shape != (rows, hidden):
        raise FormatError(
            f"{entry.name}: {gate_up.name} {gate_up.shape} does not fit down {down.shape}"
        )
    if not names.intersection(BIAS_PARTS):
        return BankParts(gate_up, down)
    first, second = (entry.part(name) for name in BIAS_PARTS)
    for part, size in ((first, 2 * inter), (second, hidden)):
        check_part(entry, part)
        if part.shape != (size,) or part.format != first.format:
            raise FormatError(
                f"{entry.name}: {part.name} is {part.format} {part.shape}; {size} items of "
                f"{first.format} were expected"
            )
    found = BankParts(gate_up, down, (first, second))
    if not found.in_place:
        raise FormatError(
            f"{entry.name} has biases and formats without panels; that is not built yet"
        )
    return found


def bank_shape(entry: FtwBank, parts: BankParts, activation: Activation) -> BankShape:
    """Sizes of a bank's experts."""
    hidden, inter = parts.down.shape
    return BankShape(entry.num_experts, hidden, inter, activation)
