"""What one step computes. Plain data, made by the scheduler and read by the runner."""

from __future__ import annotations

from dataclasses import dataclass

from ftengine.scheduler.sequence import Sequence


@dataclass(frozen=True)
class Work:
    """Compute tokens [start, start + num_tokens) of a sequence.

    samples: the last of them is the newest token, so its logits choose the next one. saves: states
    to keep on the way, (position, slot), ascending, every position inside and not at the end.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    saves: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Batch:
    """One step. Decodes come first, then prefill chunks."""

    work: tuple[Work, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step, over all sequences."""
        return sum(item.num_tokens for item in self.work)
