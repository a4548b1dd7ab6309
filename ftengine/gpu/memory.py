"""Host memory that the GPU reaches: small pinned blocks, and banks pinned once they are filled.

Pinning an empty buffer would fault in and zero every page, to be overwritten at once; so banks are
registered after they are filled, by a thread, while the engine serves already. Device memory is
device/cuda.py's.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ftengine.errors import EngineError
from ftengine.gpu.driver import Driver

log = logging.getLogger(__name__)

LINE_BYTES = 64


class PinnedBlock:
    """One block of pinned memory, cut into aligned parts. Zeroed.

    Raises: CapacityError when the driver refuses it.
    """

    def __init__(self, driver: Driver, num_bytes: int) -> None:
        self._driver = driver
        num_bytes = -(-num_bytes // LINE_BYTES) * LINE_BYTES
        self._address = driver.allocate_host(num_bytes)
        ctypes.memset(self._address, 0, num_bytes)
        self._num_bytes = num_bytes
        self._used = 0

    def take(self, num_bytes: int) -> int:
        """The address of a part, on cache lines of its own. Raises: EngineError when it is full."""
        start = self._used
        self._used += -(-num_bytes // LINE_BYTES) * LINE_BYTES
        if self._used > self._num_bytes:
            raise EngineError(
                f"{self._used} bytes of pinned memory are needed, {self._num_bytes} were taken",
                code="gpu_call",
            )
        return self._address + start

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return not self._address

    def close(self) -> None:
        """Give it back; may be called twice. Not while the device uses it."""
        address, self._address = self._address, 0
        if address:
            self._driver.free_host(address)


@dataclass(frozen=True)
class Region:
    """Filled host memory of one bank: pinned whole, since a copy may not span two registrations."""

    address: int
    num_bytes: int


class PinnedBanks:
    """Pins regions one after the other on a thread of its own.

    Where the system refuses, what is pinned stays so and `refused` says why: kernels cannot read
    those banks then, and their experts are the CPU's.
    """

    def __init__(self, driver: Driver, regions: Sequence[Region]) -> None:
        self._driver = driver
        self._regions = tuple(regions)
        self._pinned: list[Region] = []
        self._stop = threading.Event()
        self.refused = ""
        self._thread = threading.Thread(target=self._run, name="pin-banks", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether pinning has ended, all or refused."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def pinned_bytes(self) -> int:
        """Bytes that the GPU reaches now."""
        return sum(region.num_bytes for region in self._pinned)

    @property
    def complete(self) -> bool:
        """Whether every bank is pinned."""
        return len(self._pinned) == len(self._regions)

    def is_pinned(self, address: int) -> bool:
        """Whether the bank that holds this address is pinned."""
        return any(0 <= address - item.address < item.num_bytes for item in self._pinned)

    def close(self) -> None:
        """Stop, and let everything go; may be called twice. Not while the device copies."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        while self._pinned:
            self._driver.unregister_host(self._pinned.pop().address)

    def _run(self) -> None:
        self._driver.use()
        for region in self._regions:
            if self._stop.is_set():
                return
            try:
                self._driver.register_host(region.address, region.num_bytes)
            except EngineError as error:
                missing = sum(item.num_bytes for item in self._regions) - self.pinned_bytes
                self.refused = (
                    f"{missing} bytes of experts stay unpinned ({error.message}); "
                    f"the CPU computes them"
                )
                log.warning("%s", self.refused)
                return
            self._pinned.append(region)
