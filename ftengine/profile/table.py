"""A profile as a small table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ftengine.profile.measure import Phase, Profile

_SMALL = 0.01
"""Kinds of calls that take less of a step than this are shown as one."""


def as_text(profile: Profile) -> str:
    """For a terminal."""
    lines = [f"kernels {profile.kernels.get('target')}, {profile.kernels.get('threads')} threads"]
    lines.append(f"memory is read at {profile.rates.read / 1e9:.1f} GB/s by all threads")
    for fmt, rate in profile.rates.products.items():
        lines.append(f"products of {fmt}: at most {2e-9 * rate:.0f} GFLOP/s")
    for phase in profile.phases:
        lines += ["", *_phase_lines(phase)]
    lines.append("")
    lines.append("floor: the longer of bytes at that read rate and products at that rate. Weights")
    lines.append("that fit in the cache may be read faster than the floor says.")
    return "\n".join(lines)


def as_json(profile: Profile) -> dict[str, Any]:
    """The same and more. Units: seconds, bytes per second, multiply-adds per second."""
    return {
        "kernels": profile.kernels,
        "read_bytes_per_s": round(profile.rates.read),
        "multiply_adds_per_s": {k: round(v) for k, v in profile.rates.products.items()},
        "phases": {phase.name: _phase_json(phase) for phase in profile.phases},
    }


def _phase_lines(phase: Phase) -> Iterator[str]:
    rate = phase.tokens / phase.seconds
    yield f"{phase.name}: {1e3 * phase.seconds:.2f} ms a step, {rate:.1f} tokens/s"
    yield f"  {'operator':44}{'calls':>7}{'ms':>9}{'share':>8}{'floor ms':>10}{'of floor':>10}"
    small = [row for row in phase.rows if row.seconds < _SMALL * phase.seconds]
    for row in phase.rows:
        if row not in small:
            yield _line(row.label, row.calls, row.seconds, row.floor_s, phase.seconds)
    if small:
        names = f"{len(small)} more kinds of calls"
        calls, seconds = sum(row.calls for row in small), sum(row.seconds for row in small)
        yield _line(names, calls, seconds, sum(row.floor_s for row in small), phase.seconds)
    yield _line("outside of native calls", 0, phase.rest_s, 0.0, phase.seconds)
    floor = sum(row.floor_s for row in phase.rows)
    yield _line("all", 0, phase.seconds, floor, phase.seconds)


def _line(label: str, calls: float, seconds: float, floor_s: float, step_s: float) -> str:
    count = f"{calls:.0f}" if calls else ""
    text = f"  {label[:43]:44}{count:>7}{1e3 * seconds:9.3f}{seconds / step_s:8.1%}"
    if not floor_s:
        return text
    return text + f"{1e3 * floor_s:10.3f}{floor_s / seconds:10.0%}"


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "outside_s": phase.rest_s,
        "operators": [
            {
                "operator": row.label,
                "calls": row.calls,
                "seconds": row.seconds,
                "floor_s": row.floor_s,
                "bytes": round(row.num_bytes),
                "multiply_adds": round(row.multiply_adds),
            }
            for row in phase.rows
        ],
    }
