"""The CPU branch inside a GPU's stream or graph: the stream hands a task over and waits for it.

Two ways, chosen once. Stream memory operations: the stream writes a number into pinned memory and
waits for another word, a native thread in between (native/include/ft/hand_off.h draws it). Host
functions: the driver itself calls the task, natively too; where it lacks the former.
A task is a C function that computes from pinned buffers into pinned buffers and returns a status.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftengine.errors import EngineError
from ftengine.gpu.driver import Driver
from ftengine.gpu.memory import LINE_BYTES, PinnedBlock
from ftengine.gpu.stream import Stream

log = logging.getLogger(__name__)

_NUM_WORDS = 5
_JOIN_S = 5.0


@dataclass(frozen=True)
class Task:
    """One CPU branch. function: address of `int32 f(const void* data)`; name for messages."""

    name: str
    function: int
    data: int


class _Item(ctypes.Structure):
    _fields_ = (
        ("work", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("number", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
        ("status", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
    )


class _ServeArguments(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("ready", ctypes.c_void_p),
        ("done", ctypes.c_void_p),
        ("stop", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
    )


class HandOff:
    """The tasks of a step. enqueue may be captured; one step runs at a time.

    library: the native one, whose ft_hand_off_serve does the tasks. What tasks point to is the
    caller's and must live as long.
    """

    def __init__(self, driver: Driver, tasks: Sequence[Task], library: Any) -> None:
        self.tasks = tuple(tasks)
        self.by_memory = driver.info.memory_ops
        self._block = PinnedBlock(driver, _NUM_WORDS * LINE_BYTES)
        words = [self._block.take(4) for _ in range(_NUM_WORDS)]
        self._ready, self._done, self._stop, self._status, self._taken = map(_word, words)
        self._ready_at, self._done_at = (driver.device_address(word) for word in words[:2])
        self._items = (_Item * len(self.tasks))(
            *(
                _Item(task.function, task.data, idx + 1, 0, words[3], words[4])
                for idx, task in enumerate(self.tasks)
            )
        )
        self._arguments = _ServeArguments(
            ctypes.sizeof(_ServeArguments),
            len(self.tasks),
            *words[:3],
            ctypes.addressof(self._items),
        )
        self._call = ctypes.cast(library.ft_hand_off_call, ctypes.c_void_p).value or 0
        self._serve = library.ft_hand_off_serve
        self._serve.argtypes = (ctypes.c_void_p,)
        self._serve.restype = ctypes.c_int32
        self._thread = threading.Thread(target=self._run, name="hand-off", daemon=True)

    def start(self) -> None:
        """Start the native thread, where one is needed."""
        if self.by_memory:
            self._thread.start()

    def enqueue(self, stream: Stream, task: int) -> None:
        """Let a stream hand over task number `task` and wait for its end.

        The inputs' copies must be on this stream before, the results' after.
        """
        if not self.by_memory:
            item = ctypes.addressof(self._items) + task * ctypes.sizeof(_Item)
            stream.host_function(self._call, item)
            return
        stream.write_value(self._done_at, 0)
        stream.write_value(self._ready_at, task + 1)
        stream.wait_value(self._done_at, task + 1)

    def waiting(self) -> str:
        """Name of the task that is handed over and not done; empty when there is none."""
        number = self._ready.value or self._taken.value
        return self.tasks[number - 1].name if 0 < number <= len(self.tasks) else ""

    def check(self) -> None:
        """Raise what a task of the last step said. Raises: EngineError("cpu_branch")."""
        status, self._status.value = self._status.value, 0
        if status:
            raise EngineError(
                f"a CPU branch of the step failed with status {status}; the step's result is void, "
                f"load the model again",
                code="cpu_branch",
                retryable=True,
            )

    def release(self) -> None:
        """Let the stream pass the task that it waits for, undone. Of no use with host functions.

        The step's results are garbage then, and a task that still runs may answer a later one: this
        object is good for nothing but close.
        """
        number = self._ready.value or self._taken.value
        if self.by_memory and number:
            self._ready.value = 0
            self._done.value = number

    def close(self) -> None:
        """End the thread; may be called twice. Raises: EngineError when a task does not return."""
        if self._block.closed:
            return
        self._stop.value = 1
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise EngineError(
                    f"the CPU branch {self.waiting() or 'of a step'} does not end; "
                    f"the engine must be started again",
                    code="gpu_stuck",
                )
        self._block.close()

    def _run(self) -> None:
        status = self._serve(ctypes.addressof(self._arguments))
        if status:
            log.error("the CPU branch's thread ended with status %d", status)


def _word(address: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(address)
