"""A line chart of percentages: SVG by hand, PNG where matplotlib is installed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 48, 36, 220, 36
_COLOURS = ("#1b6ca8", "#d1495b", "#3b8e5a", "#8d6cab", "#c98b2b", "#555555")


@dataclass(frozen=True)
class Line:
    """Points in per cent, 0 to 100 on both axes."""

    label: str
    points: tuple[tuple[float, float], ...]


def write_svg(path: Path, title: str, lines: list[Line]) -> None:
    """One self-contained SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for percent in range(0, 101, 20):
        x, y = _place(percent, percent)
        parts += [
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>',
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{percent}</text>',
        ]
    for idx, line in enumerate(lines):
        parts += _line(idx, line)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def write_png(path: Path, title: str, lines: list[Line]) -> None:
    """The same chart by matplotlib."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for line in lines:
        axes.plot(*zip(*line.points, strict=True), marker="o", markersize=3, label=line.label)
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _line(idx: int, line: Line) -> list[str]:
    colour = _COLOURS[idx % len(_COLOURS)]
    places = [_place(x, y) for x, y in line.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    key = _TOP + 14 + 18 * idx
    start = _WIDTH - _RIGHT + 12
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in places),
        f'<path d="M{start} {key - 4}h18" stroke="{colour}" stroke-width="1.8"/>',
        f'<text x="{start + 24}" y="{key}">{escape(line.label)}</text>',
    ]


def _place(x: float, y: float) -> tuple[float, float]:
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    return _LEFT + wide * x / 100, _TOP + high * (1 - y / 100)
