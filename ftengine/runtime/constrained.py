"""Requests whose grammar is being compiled, on their way into the scheduler; engine thread only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ftengine.constraints.worker import Worker
from ftengine.errors import EngineError, RequestError
from ftengine.protocol import GenerateRequest
from ftengine.runtime.requests import Publish
from ftman.clock import Clock

if TYPE_CHECKING:  # llguidance is loaded when the first constraint comes
    from ftengine.constraints.compiler import Compiled, Compiler

Post = Callable[[Callable[[], None]], None]
"""Has something run on the engine thread before the next step; from any thread."""


@dataclass(frozen=True)
class Pending:
    """A checked request that waits for its grammar. Units: the engine's clock."""

    request: GenerateRequest
    publish: Publish
    arrival_s: float


class Grammars:
    """Compiles the grammars of one model, and remembers who waits for which."""

    def __init__(
        self, folder: Path, vocab_size: int, eos_ids: frozenset[int], post: Post, clock: Clock
    ) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._post = post
        self._clock = clock
        self._opener = Worker("constraint-opener", 0)
        self._compiler: Compiler | None = None
        self._pending: dict[str, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def request_ids(self) -> list[str]:
        """Requests that wait."""
        return list(self._pending)

    def start(
        self,
        pending: Pending,
        done: Callable[[Pending, Compiled | EngineError], None],
        most: int,
    ) -> None:
        """Have a request's grammar compiled; `done` then runs on the engine thread.

        Raises: RequestError when `most` requests wait already, or for an id that waits.
        """
        request = pending.request
        if request.request_id in self._pending:
            raise RequestError(
                f"request_id {request.request_id!r} is in use; choose a new one",
                code="duplicate_request",
            )
        if len(self._pending) >= most:
            raise RequestError(
                f"{most} requests wait for their grammars already; try again later",
                code="queue_full",
                retryable=True,
            )
        self._pending[request.request_id] = pending
        opened = self._opener.submit(lambda: self._begin(request))

        def compiled(future: Future[Compiled]) -> None:
            outcome = _outcome(future)
            self._post(lambda: self._settle(pending, outcome, done))

        def began(future: Future[Future[Compiled]]) -> None:
            error = future.exception()
            if error is None:
                future.result().add_done_callback(compiled)
            else:
                outcome = _as_engine_error(error)
                self._post(lambda: self._settle(pending, outcome, done))

        opened.add_done_callback(began)

    def drop(self, request_id: str) -> Pending | None:
        """Forget a request; what is compiled for it is thrown away."""
        return self._pending.pop(request_id, None)

    def close(self) -> None:
        """End the threads."""
        self._opener.close()
        if self._compiler is not None:
            self._compiler.close()

    def _begin(self, request: GenerateRequest) -> Future[Compiled]:
        # late, so that engines that never see a constraint do not hold llguidance
        from ftengine.constraints.compiler import Compiler

        assert request.constraint is not None
        if self._compiler is None:
            self._compiler = Compiler(self._folder, self._vocab_size, self._eos_ids, self._clock)
        stop_ids = {*self._eos_ids, *request.stop_token_ids}
        return self._compiler.compile(request.constraint, stop_ids)

    def _settle(
        self,
        pending: Pending,
        outcome: Compiled | EngineError,
        done: Callable[[Pending, Compiled | EngineError], None],
    ) -> None:
        if self._pending.get(pending.request.request_id) is pending:
            del self._pending[pending.request.request_id]
            done(pending, outcome)


def _outcome(future: Future[Compiled]) -> Compiled | EngineError:
    error = future.exception()
    return future.result() if error is None else _as_engine_error(error)


def _as_engine_error(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    if isinstance(error, ImportError):
        return RequestError(
            "constraints need the package llguidance, which is not installed here; install it, "
            "or ask without a constraint",
            code="constraint_unsupported",
        )
    return EngineError(f"compiling the constraint failed: {type(error).__name__}: {error}")
