"""What one gateway has answered, in numbers. How they are told is metrics.py's business."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field

BUCKETS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0)


@dataclass
class Spent:
    """How long the requests of one route took. Units: seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one request."""
        self.buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds


class Traffic:
    """Requests by route and status.

    Routes are counted as they stand in the table, never as asked: a client cannot make as many
    series as it can think of paths.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.spent: dict[str, Spent] = {}

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; route "" = no route of ours."""
        self.requests[method if route else "", route, status] += 1
        self.spent.setdefault(route, Spent()).add(seconds)
