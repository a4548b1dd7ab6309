"""Charts of percentages as PNG, by matplotlib (in the dev extra); one panel a group of lines."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_COLOURS = ("#1b6ca8", "#d1495b", "#3b8e5a")
MISSING = (
    "matplotlib is not installed, so no chart is drawn: pip install -c constraints.txt matplotlib"
)


@dataclass(frozen=True)
class Line:
    """Points in per cent, 0 to 100 on both axes."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    """Lines that are compared with one another, and single points from somewhere else."""

    title: str
    lines: tuple[Line, ...]
    marks: tuple[Line, ...] = ()


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def write_png(path: Path, title: str, axes: tuple[str, str], panels: Sequence[Panel]) -> None:
    """One row of panels with the same axes; the same lines have the same colours everywhere.

    Raises: ImportError where matplotlib is missing; ask can_draw first.
    """
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    size = (0.6 + 4.4 * len(panels), 4.6)
    figure, places = pyplot.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for panel, place in zip(panels, places[0], strict=True):
        for line, colour in zip(panel.lines, _COLOURS, strict=False):
            place.plot(
                *zip(*line.points, strict=True), "o-", color=colour, markersize=4, label=line.label
            )
        for mark, colour in zip(panel.marks, _COLOURS, strict=False):
            place.plot(
                *zip(*mark.points, strict=True),
                linestyle="none",
                marker="X",
                markersize=10,
                color=colour,
                markeredgecolor="black",
                label=mark.label,
            )
        place.set_title(panel.title, fontsize=10)
        place.set_xlabel(axes[0], fontsize=9)
        place.set_xlim(0, 100)
        place.set_ylim(0, 102)
        place.grid(alpha=0.3)
        place.legend(fontsize=8, loc="best")
    places[0][0].set_ylabel(axes[1], fontsize=9)
    figure.suptitle(title, fontsize=12)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
