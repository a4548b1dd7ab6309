"""Constraints -> matchers, on threads of their own, so that no running reply waits for a grammar.

A compilation is tried in a process of its own first (trial.py); only what passes there is compiled
here. Grammars that came before are copied.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher

from ftengine.constraints.grammar import grammar_of, limits, reason_of, refused
from ftengine.constraints.matcher import TokenMatcher
from ftengine.constraints.trial import Job, Verdict, run_trial
from ftengine.constraints.vocabulary import Vocabulary, load_vocabulary
from ftengine.constraints.worker import STACK_BYTES, Worker
from ftengine.errors import EngineError
from ftengine.protocol import Constraint
from ftman.clock import Clock

KEPT = 16
KEPT_BYTES = 32 << 20
"""Grammars that took more memory than this are compiled anew each time."""
_WORKERS = 2
"""One that takes its five seconds does not hold the next one up."""


@dataclass(frozen=True)
class Compiled:
    """A matcher at its start, and what it took. Units: seconds."""

    matcher: TokenMatcher
    seconds: float


@dataclass(frozen=True)
class _Kept:
    inner: LLMatcher
    warnings: tuple[str, ...]


class Compiler:
    """Makes the matchers of one model."""

    def __init__(self, folder: Path, vocab_size: int, eos_ids: Sequence[int], clock: Clock) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._clock = clock
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Constraint, _Kept] = OrderedDict()
        self._masks = Worker("constraint-masks", STACK_BYTES)
        self._workers = [Worker(f"constraint-{n}", STACK_BYTES) for n in range(_WORKERS)]
        self._turn = 0

    def compile(self, constraint: Constraint, stop_ids: Collection[int]) -> Future[Compiled]:
        """Start a compilation. The future raises RequestError for a constraint that is no good."""
        self._turn += 1
        worker = self._workers[self._turn % _WORKERS]
        return worker.submit(lambda: self._compile(constraint, stop_ids))

    def close(self) -> None:
        """End the threads."""
        for worker in (*self._workers, self._masks):
            worker.close()

    def _compile(self, constraint: Constraint, stop_ids: Collection[int]) -> Compiled:
        started_s = self._clock.monotonic()
        vocabulary = self._load()
        kept = self._find(constraint) or self._build(constraint, vocabulary)
        matcher = TokenMatcher(
            kept.inner,
            grammar_eos=vocabulary.eos_ids,
            stop_ids=stop_ids,
            vocab_size=self._vocab_size,
            worker=self._masks,
            clock=self._clock,
            warnings=kept.warnings,
        )
        try:
            matcher.mask()
        except EngineError as error:
            raise refused(error.message) from None
        return Compiled(matcher, self._clock.monotonic() - started_s)

    def _load(self) -> Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = load_vocabulary(self._folder, self._vocab_size, self._eos_ids)
            return self._vocabulary

    def _find(self, constraint: Constraint) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(constraint)
            if kept is None:
                return None
            self._kept.move_to_end(constraint)
            return _Kept(kept.inner.deep_copy(), kept.warnings)

    def _build(self, constraint: Constraint, vocabulary: Vocabulary) -> _Kept:
        grammar = grammar_of(constraint)
        verdict = self._try(grammar, vocabulary)
        inner = LLMatcher(vocabulary.inner, grammar, log_level=0, limits=limits())
        if inner.is_error():
            raise refused(reason_of(inner.get_error()))
        made = _Kept(inner, verdict.warnings)
        if verdict.memory_bytes <= KEPT_BYTES:
            with self._lock:
                self._kept[constraint] = _Kept(inner.deep_copy(), verdict.warnings)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return made

    def _try(self, grammar: str, vocabulary: Vocabulary) -> Verdict:
        verdict = run_trial(Job(grammar, vocabulary.size, vocabulary.eos_ids, vocabulary.specials))
        if verdict.error:
            raise refused(verdict.error)
        return verdict
