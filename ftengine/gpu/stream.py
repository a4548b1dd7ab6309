"""Streams, events and captured graphs of one driver. What goes in is the callers' business."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from ftengine.errors import EngineError
from ftengine.gpu import api
from ftengine.gpu.driver import Driver


class Event:
    """A point of a stream. timed: `seconds_since` may be asked."""

    def __init__(self, driver: Driver, timed: bool = False) -> None:
        self._driver = driver
        flags = api.EVENT_TIMING if timed else api.EVENT_NO_TIMING
        self.handle = driver.read_pointer("event_create", flags)

    @property
    def passed(self) -> bool:
        """Whether the stream is beyond it; never waits. Raises: the error of work before it."""
        status = self._driver.status("event_query", self.handle)
        if status == api.NOT_READY:
            return False
        if status != 0:
            self._driver.call("event_query", self.handle)
        return True

    def synchronize(self) -> None:
        """Wait on the host."""
        self._driver.call("event_synchronize", self.handle)

    def seconds_since(self, earlier: Event) -> float:
        """Device time between two passed, timed events."""
        milliseconds = ctypes.c_float()
        self._driver.call("event_elapsed", ctypes.byref(milliseconds), earlier.handle, self.handle)
        return milliseconds.value / 1e3

    def close(self) -> None:
        """Give the event back; may be called twice."""
        handle, self.handle = self.handle, 0
        if handle:
            self._driver.call("event_destroy", handle)


class Stream:
    """Work in order. Addresses are integers; nothing here waits, except synchronize."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = driver.read_pointer("stream_create", api.STREAM_NON_BLOCKING)

    def copy_in(self, target: int, source: int, num_bytes: int) -> None:
        """Host to device; overlaps with other work only from pinned memory."""
        self.driver.call("copy_in", target, source, num_bytes, self.handle)

    def copy_out(self, target: int, source: int, num_bytes: int) -> None:
        """Device to host."""
        self.driver.call("copy_out", target, source, num_bytes, self.handle)

    def copy_inside(self, target: int, source: int, num_bytes: int) -> None:
        """Device to device."""
        self.driver.call("copy_inside", target, source, num_bytes, self.handle)

    def fill(self, target: int, value: int, num_bytes: int) -> None:
        """Set every byte."""
        self.driver.call("fill", target, value, num_bytes, self.handle)

    def record(self, event: Event) -> Event:
        """Put a point behind all work enqueued so far."""
        self.driver.call("event_record", event.handle, self.handle)
        return event

    def wait(self, event: Event) -> None:
        """What is enqueued from now on runs after the event."""
        self.driver.call("stream_wait_event", self.handle, event.handle, 0)

    def write_value(self, address: int, value: int) -> None:
        """Write a 32-bit word that the host sees, after all earlier work of the stream."""
        self.driver.call("write_value", self.handle, address, value, 0)

    def wait_value(self, address: int, value: int) -> None:
        """Stand still until the 32-bit word has this value."""
        self.driver.call("wait_value", self.handle, address, value, api.WAIT_EQUAL)

    def host_function(self, function: int, data: int) -> None:
        """Call a C function on a thread of the driver; it must not call the driver."""
        self.driver.call("host_function", self.handle, function, data)

    def synchronize(self) -> None:
        """Wait on the host until everything enqueued is done."""
        self.driver.call("stream_synchronize", self.handle)

    def close(self) -> None:
        """Give the stream back; may be called twice."""
        handle, self.handle = self.handle, 0
        if handle:
            self.driver.call("stream_destroy", handle)


@dataclass
class Graph:
    """Captured work that can be launched again and again. Made by capture."""

    driver: Driver
    handle: int

    def launch(self, stream: Stream) -> None:
        """Enqueue the whole of it."""
        self.driver.call("graph_launch", self.handle, stream.handle)

    def close(self) -> None:
        """Give it back; may be called twice. Not while it runs."""
        handle, self.handle = self.handle, 0
        if handle:
            self.driver.call("graph_exec_destroy", handle)


def capture(stream: Stream, enqueue: Callable[[], None]) -> Graph:
    """Record what `enqueue` puts on the stream, and on streams that wait for it and rejoin it.

    Nothing runs meanwhile. Raises: EngineError of enqueue or of the driver; the capture has ended.
    """
    driver = stream.driver
    driver.call("capture_begin", stream.handle, api.CAPTURE_THREAD_LOCAL)
    try:
        enqueue()
    except BaseException:
        _abandon(stream)
        raise
    graph = driver.read_pointer_last("capture_end", stream.handle)
    if not graph:
        raise EngineError("the captured step holds no work", code="gpu_call")
    try:
        return Graph(driver, driver.read_pointer("graph_instantiate", graph, 0))
    finally:
        driver.call("graph_destroy", graph)


def _abandon(stream: Stream) -> None:
    """End a capture that failed; its own status says nothing new."""
    graph = ctypes.c_void_p()
    stream.driver.status("capture_end", stream.handle, ctypes.byref(graph))
    if graph.value:
        stream.driver.call("graph_destroy", graph.value)
