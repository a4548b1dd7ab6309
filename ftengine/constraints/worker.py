"""Threads with deep stacks: grammars with nested rules make their library recurse."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

STACK_BYTES = 64 << 20
"""Of every thread that works on grammars, in the engine and in the trial."""

T = TypeVar("T")
_making = threading.Lock()


def start_deep(target: Callable[[], None], name: str, stack_bytes: int) -> threading.Thread:
    """Start a daemon thread whose stack has `stack_bytes`, 0 = as the system gives it."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _making:  # the size is a setting of the process, for threads made from then on
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


class Worker:
    """Runs what is given to it, in order, on a daemon thread that starts with the first work.

    stack_bytes 0 = as the system gives it.
    """

    def __init__(self, name: str, stack_bytes: int) -> None:
        self._name = name
        self._stack_bytes = stack_bytes
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have something done; its result or error comes through the future."""
        with self._starting:
            if self._thread is None:
                self._thread = start_deep(self._run, self._name, self._stack_bytes)
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # the root of this piece of work
                future.set_exception(error)

        self._work.put(run)
        return future

    def close(self) -> None:
        """End the thread after what it was given."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
