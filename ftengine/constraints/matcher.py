"""One reply on its way through its grammar: which tokens may come next, and whether it is done.

The state is a function of the tokens generated so far and lies beside the sequence, not in its
pages: a preemption changes nothing. Masks are made on a worker, while the model computes the next
logits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ftengine.constraints.grammar import reason_of
from ftengine.constraints.worker import Worker
from ftengine.errors import EngineError
from ftman.clock import Clock

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
CODE = "constraint_failed"


@dataclass(frozen=True)
class Mask:
    """Token ids that may come next, rising. Units: seconds it took to make."""

    allowed: Ids
    seconds: float


class TokenMatcher:
    """State of one reply. Made by the compiler; used by the engine thread.

    stop_ids: tokens that end the reply; allowed wherever the grammar is fulfilled. vocab_size: of
    the model's logits. notes: what of the constraint is not enforced.
    """

    def __init__(
        self,
        inner: LLMatcher,
        *,
        grammar_eos: Collection[int],
        stop_ids: Collection[int],
        vocab_size: int,
        worker: Worker,
        clock: Clock,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._inner = inner
        # where the grammar is fulfilled it allows its own end tokens; only the request's may stay
        self._unwanted = np.array(sorted(set(grammar_eos) - set(stop_ids)), np.int64)
        stops = [number for number in stop_ids if 0 <= number < vocab_size]
        self._stops = np.array(sorted(stops), np.int64)
        self._vocab_size = vocab_size
        self._worker = worker
        self._clock = clock
        self.notes = tuple(f"the constraint is not enforced in full: {w}" for w in warnings)
        self._mask: Future[Mask] = worker.submit(self._make_mask)

    def mask(self) -> Mask:
        """Wait for the mask of the next token. Raises: EngineError "constraint_failed"."""
        return self._mask.result()

    def advance(self, token_id: int) -> bool:
        """A token was chosen. True: the grammar is fulfilled and nothing can follow.

        Raises: EngineError "constraint_failed".
        """
        # here and not on the worker: it takes less time than two threads to take turns
        with _as_engine_errors():
            self._inner.consume_token(token_id)
            self._check()
            return bool(self._inner.is_stopped())

    def prepare(self) -> None:
        """Have the next mask made, beside what the caller does next; after `advance`."""
        self._mask = self._worker.submit(self._make_mask)

    def _make_mask(self) -> Mask:
        with _as_engine_errors():
            return self._made_mask()

    def _made_mask(self) -> Mask:
        started_s = self._clock.monotonic()
        packed = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        self._check()
        bits = np.unpackbits(packed, bitorder="little")[: self._vocab_size]
        if self._inner.is_accepting():
            bits[self._unwanted[self._unwanted < self._vocab_size]] = 0
            bits[self._stops] = 1
        allowed: Ids = np.flatnonzero(bits)
        if not allowed.shape[0]:
            raise EngineError("the grammar allows no token here", code=CODE)
        return Mask(allowed, self._clock.monotonic() - started_s)

    def _check(self) -> None:
        if self._inner.is_error():
            raise EngineError(
                f"the reply cannot be held to its constraint any further: "
                f"{reason_of(self._inner.get_error())}; simplify the constraint",
                code=CODE,
            )


@contextlib.contextmanager
def _as_engine_errors() -> Iterator[None]:
    """The root of a piece of grammar work: whatever goes wrong in it ends one request only."""
    try:
        yield
    except EngineError:
        raise
    except BaseException as error:  # a panic of the library is no Exception
        log.exception("grammar work failed")
        raise EngineError(
            f"the reply cannot be held to its constraint: {type(error).__name__}: {error}",
            code=CODE,
        ) from None
