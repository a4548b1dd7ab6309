"""How much of host memory and disk parked conversations get, and whose files are whose.

What is parked and how: cache/policy/parked.py, cache/parking.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.park_files import FORMAT, ParkFolder
from ftengine.cache.parking import Parking, ParkSizes
from ftengine.cache.policy.parked import ParkedTexts
from ftengine.cache.state_pool import StatePool
from ftengine.config import PARK_DISK_BYTES, EngineConfig
from ftengine.device.host_memory import available_bytes
from ftengine.device.torch_device import page_aligned
from ftengine.errors import CapacityError
from ftengine.models.attention_specs import RopeSpec
from ftengine.models.spec import ModelConfig
from ftengine.protocol import EngineInfo
from ftengine.runtime.runner import Runner
from ftengine.scheduler.reuse import ReuseLimits
from ftengine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

PARK_PART = 8
"""One part in so many of the memory that is left over is for parked conversations by default."""
MOST_BYTES = 4 << 30
UNKNOWN_BYTES = 256 << 20
_RESERVE_BYTES = 256 << 20
_OLDEST_PART = 0.5


@dataclass(frozen=True)
class Parked:
    """parking None: nothing is parked. notes: for the user."""

    parking: Parking | None = None
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> ParkedTexts | None:
        """What the scheduler asks and tells."""
        return None if self.parking is None else self.parking.texts

    def park_ahead(self, go_on: Callable[[], bool]) -> None:
        """While nothing is to be done: so that the next step that parks has less to copy."""
        if self.parking is not None:
            self.parking.park_ahead(go_on)

    def close(self) -> None:
        """Give the folder up."""
        if self.parking is not None:
            self.parking.close()

    def connect(self, runner: Runner, scheduler: Scheduler) -> None:
        """Let the runner move what the scheduler queues, and take over files of before."""
        if self.parking is None:
            return
        runner.parking = self.parking
        self.parking.connect(
            lambda: runner.copy(scheduler.take_copies()), scheduler.reuse.park_ahead
        )
        count = self.parking.adopt_files()
        if count:
            log.info("%d files of parked conversations were taken over", count)


NOT_PARKED = Parked()


def make_parking(
    config: EngineConfig,
    reuse: ReuseLimits,
    pool: KvPool,
    states: StatePool | None,
    identity: str,
    taken_bytes: int,
) -> Parked:
    """Host rows and the folder. taken_bytes: memory that is promised and not in use yet.

    Raises: CapacityError for more host memory than there is.
    """
    sizes = ParkSizes(pool.bytes_per_page, 0 if states is None else states.bytes_per_slot)
    asked = config.memory.park_bytes
    if not reuse.active or not sizes.page_bytes or asked == 0:
        return Parked()
    host_bytes = _host_bytes(asked, taken_bytes)
    limits = sizes.limits(host_bytes, config.memory.park_disk_bytes or PARK_DISK_BYTES)
    if limits.page_rows < 1 or (states is not None and limits.state_rows < 1):
        if asked is None and config.memory.park_dir is None:
            return Parked()
        need = sizes.page_bytes + 2 * sizes.state_bytes
        return Parked(
            notes=(
                f"conversations are not parked: {host_bytes} bytes of memory are left for them "
                f"and they need {need} at least; free memory, or give more with --park-bytes",
            )
        )
    folder, notes = _folder(config.memory.park_dir, identity)
    return Parked(Parking(sizes, limits, identity, page_aligned, folder), notes)


def _folder(path: Path | None, identity: str) -> tuple[ParkFolder | None, tuple[str, ...]]:
    if path is None:
        return None, ()
    try:
        return ParkFolder(path, identity), ()
    except OSError as error:
        note = f"conversations are parked in memory only: {path} cannot be used ({error})"
        log.warning("%s", note)
        return None, (note,)


def identity_of(info: EngineInfo, spec: ModelConfig, pool: KvPool, context_tokens: int) -> str:
    """What keys, values and states depend on; files of anything else are of no use."""
    parts = (part for layer in spec.layers for part in vars(layer.mixer).values())
    stretched = any(isinstance(x, RopeSpec) and x.scaling == "longrope" for x in parts)
    counted = ("set", "target", "activations")
    kernels = {key: info.kernels[key] for key in counted if key in info.kernels}
    facts = (
        FORMAT,
        info.version,
        info.ftw_id,
        info.device,
        info.compute,
        kernels,
        pool.format.name,
        pool.bytes_per_page,
        context_tokens if stretched else 0,
    )
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def write_all(parked: Parked, scheduler: Scheduler, time_left: Callable[[], float]) -> None:
    """Put everything in files, where there is a folder: what was used last first.

    time_left: part of the time there is for it, 1 at first. What does not fit in host memory
    together, and was unused longest, goes to files before, in half of the time at most.
    """
    if parked.parking is None or not parked.parking.has_folder:
        return
    scheduler.reuse.park(lambda: time_left() > _OLDEST_PART)
    done = parked.parking.write_all(lambda: time_left() > 0)
    log.info("parked conversations were written%s", "" if done else ", as far as time and room go")


def _host_bytes(asked: int | None, taken_bytes: int) -> int:
    have = available_bytes()
    room = None if have is None else max(have - taken_bytes - _RESERVE_BYTES, 0)
    if asked is None:
        return UNKNOWN_BYTES if room is None else min(room // PARK_PART, MOST_BYTES)
    if room is not None and asked > room:
        raise CapacityError(
            f"--park-bytes {asked} for parked conversations, and {room} bytes are free beside the "
            f"model; give less, or free memory"
        )
    return asked
