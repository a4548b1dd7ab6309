"""Conversations whose right answer is known: an engine that says the prompt again and again.

Every prompt is another word, so tokens of somebody else's request would show in the text.
"""

from __future__ import annotations

import random
import string
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Answer, ask
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny

if TYPE_CHECKING:
    from ftman.supervisor.policy_events import EngineSpec


@dataclass(frozen=True)
class Talk:
    """One request to an engine that echoes."""

    model: str
    word: str
    num_tokens: int = 12

    @property
    def body(self) -> dict[str, Any]:
        """For /api/generate."""
        given = {"num_predict": self.num_tokens}
        return {"model": self.model, "prompt": self.word, "raw": True, "options": given}

    def ask(
        self, url: str, on_line: Callable[[Answer], None] | None = None, *, may_break: bool = False
    ) -> Answer:
        """Ask it; the answer ends once, and holds nothing but this word."""
        answer = ask(url, self.body, "/api/generate", on_line)
        invariants.ended_once(answer, may_break=may_break)
        assert (self.word * (self.num_tokens + 1)).startswith(answer.text), (self, answer.lines)
        if answer.complete:
            assert answer.values[-1]["eval_count"] == self.num_tokens, answer.lines[-1]
        return answer


def random_word(rng: random.Random) -> str:
    """Letters that stand for themselves in the tiny tokenizer."""
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randrange(3, 9)))


def models_named(count: int) -> tuple[Tiny, ...]:
    """Models m0, m1, ... with weights of their own."""
    return tuple(Tiny(f"m{number}:latest", seed=number) for number in range(count))


class Starts:
    """Scripts by model: its n-th start follows the n-th of its list, the last one stays.

    default: for models without a list.
    """

    def __init__(self, lists: Mapping[str, Sequence[FakeScript]], default: FakeScript):
        self._lists = lists
        self._default = default
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, spec: EngineSpec) -> FakeScript:
        model = spec.name.partition(":")[0]
        with self._lock:
            number = self._counts[model]
            self._counts[model] += 1
        scripts = self._lists.get(model, (self._default,))
        return scripts[min(number, len(scripts) - 1)]

    def count(self, model: str) -> int:
        """How often an engine of this model was started."""
        with self._lock:
            return self._counts[model]
