"""The store of an engine on a real GPU: what on_gpu/ does for a layer, and when.

Between steps the host chooses the way of the next one, writes corrected rates into the device's
tables, reads counts back, resizes. During decode steps it only enqueues.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from ftengine.errors import CapacityError, EngineError
from ftengine.experts.counters import ExpertCounters, LayerCounters
from ftengine.experts.gpu import DeviceStore, LayerExperts, StoreSettings
from ftengine.experts.host import Readahead
from ftengine.experts.on_gpu.decode import DecodeExperts, Pool
from ftengine.experts.on_gpu.grouped import ChunkSizes, GroupedExperts, check_kernels
from ftengine.experts.on_gpu.observe import Sampler
from ftengine.experts.on_gpu.pipe import LayerPipe
from ftengine.experts.on_gpu.tables import FILLS, HITS, MISSES, ON_CPU, DeviceTables
from ftengine.experts.on_gpu.wide import WideCpu
from ftengine.experts.partials import Routed
from ftengine.experts.policy.mirror import Mirror
from ftengine.experts.policy.planner import Planner, Split
from ftengine.experts.policy.rates import Rates
from ftengine.experts.slots import Kept, SlotPool
from ftengine.experts.ways import CPU, DECODE, STREAM, WayChooser
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.memory import PinnedBanks, Region
from ftengine.gpu.moe_layer import Routing
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.dispatch import ExpertBank, ReferenceKernels
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.expert_calls import rate_numbers
from ftman.clock import SYSTEM, Clock

log = logging.getLogger(__name__)

_CLEARLY = 0.9
"""A chunk goes through admission, part by part, only where that costs so much less."""
_PLANNED = ("split", "auto")
"""Strategies that divide misses by rates."""
_MODES = {"resident": "fetch", "fetch": "fetch", "cpu": "cpu"}


class GpuStore(DeviceStore):
    """All routed experts of an engine on a GPU. add_layer for each layer, then start.

    generation: rises whenever addresses that launches carry have changed; graphs are void then.
    """

    def __init__(self, tools: GpuTools, settings: StoreSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(tools.native or ReferenceKernels(), tools.device, settings, clock)
        self.counters: GpuCounters = GpuCounters(self)
        self.generation = 0
        self._tools = tools
        self._pool: Pool | None = None
        self._grouped: GroupedExperts | None = None
        self._wide: WideCpu | None = None
        self._pins: PinnedBanks | None = None
        self._pinned = False
        self._way = DECODE
        self._resident = 0

    @property
    def num_slots(self) -> int:
        """Slots of the pool; 0 under the strategy cpu, whose one slot stays empty."""
        return 0 if self._settings.strategy == "cpu" else super().num_slots

    @property
    def num_resident(self) -> int:
        """Experts in slots, by the counts that came back last."""
        return self._resident

    @property
    def _on_disk(self) -> bool:
        """Whether a bank is a mapped file, all of which pinning would read into memory for good."""
        return any(host.readahead is not None for host in self._hosts)

    @property
    def hand_off(self) -> HandOff | None:
        """The CPU branch's; None without one."""
        return None if self._pool is None else self._decode.hand_off

    @property
    def wants_eager(self) -> bool:
        """Whether the next decode step had better run eagerly, so that its branches are timed."""
        return (
            self._pool is not None and self._settings.strategy != "resident" and self._sampler.due
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        if self._on_disk and self._settings.strategy in ("fetch", "split", "auto"):
            return ("experts that stay on disk are not pinned: single ones are the CPU's",)
        refused = "" if self._pins is None else self._pins.refused
        return (refused,) if refused else ()

    def add_layer(self, bank: ExpertBank, readahead: Readahead | None) -> LayerExperts:
        """Take the next MoE layer's bank. Raises: EngineError where a kernel is missing for it."""
        check_kernels(bank, self._tools.dot)
        return super().add_layer(bank, readahead)

    @property
    def measurable(self) -> ExpertBank | None:
        """A bank to measure rates with; None where none is needed, or reading it would wait."""
        if self._settings.strategy not in _PLANNED or not self._hosts or self._on_disk:
            return None
        return self._hosts[0].bank

    def plan_with(self, rates: Rates) -> None:
        """What the planner is to start from; before start."""
        self._settings = replace(self._settings, rates=rates)

    def reserve_work(self, step_tokens: int) -> None:
        """Make the buffers of steps of up to so many tokens, before slots take the rest."""
        self._chunks(step_tokens)

    def start(self, num_slots: int) -> None:
        """Make pool and tables, and begin to pin the banks. Raises: CapacityError."""
        hosts, strategy = self._hosts, self._settings.strategy
        self.planner = Planner(
            self._settings.rates, [host.bank.row_bytes for host in hosts], strategy
        )
        if num_slots > builds.MOST_SLOTS:
            log.info("expert slots: %d of %d are used", builds.MOST_SLOTS, num_slots)
        count = min(max(num_slots, 1), builds.MOST_SLOTS)
        slots = SlotPool(self._device, hosts, count)
        self._slots = slots
        self._pool = Pool(
            slots, DeviceTables(self._tools.device, self._sizes(count), self._rates())
        )
        alone = strategy == "resident" or (strategy == "fetch" and not self._on_disk)
        self._decode = self._make_decode(not alone)
        self._pipe = LayerPipe(self._tools, hosts, slots, self.counters.layers)
        self._sampler = Sampler(self._tools.device, len(hosts))
        if strategy == "resident":
            self._fill_every()
        elif strategy != "cpu" and not self._on_disk:
            regions = [Region(host.bank.address, host.bank.data.numel()) for host in hosts]
            self._pins = PinnedBanks(self._tools.device.driver, regions)
            self._pins.start()

    def prepare(self, tokens: Sequence[int]) -> None:
        """Make what decode steps of these numbers of tokens need; then they may be captured."""
        for count in tokens:
            self._decode.prepare(count)

    def can_capture(self, tokens: int) -> bool:
        """Whether a decode step of so many tokens only enqueues."""
        return self._decode.is_prepared(tokens)

    def begin_step(self, tokens: int, decode: bool, eager: bool = False) -> None:
        """Before a step's first layer, also before a graph's launch. Nothing is in flight.

        decode: the step only enqueues. eager: such a step is enqueued now, to run once.
        """
        assert self._pool is not None
        assert self.planner is not None
        self._look_at_pins()
        self._pool.tables.write_rates(self._rates())
        self._way = DECODE
        if decode:
            self._sampler.begin(eager)
            return
        mirror = self._pool.tables.read()
        self._way = self._choose(tokens, mirror)
        if self._way != DECODE:
            self._chunks(tokens)
            self._pipe.begin(mirror, self._buffer_experts(mirror))
            self._pool.tables.write()

    def run(self, layer: int, routed: Routed) -> None:
        """One layer: enqueued, but for the wide CPU branch."""
        if routed.num_tokens == 0:
            return
        beside = _Beside(self._tools, routed)
        work = Routing(
            routed.x, routed.expert_ids, routed.weights, routed.out, True, beside.compute
        )
        last = layer + 1 == len(self._hosts)
        few = routed.num_pairs <= builds.MOST_PAIRS
        if self._way == DECODE or (few and last):
            self._decode.enqueue(layer, work, beside.compute, self._sampler.marks(layer))
        else:
            self._run_chunk(layer, work, beside)
        beside.add()
        if last:
            assert self._pool is not None
            self._pool.tables.enqueue_totals()

    def end_step(self) -> None:
        """After a step's work has ended: buffers go back, the planner learns."""
        assert self._pool is not None
        assert self.planner is not None
        if self._sampler.tell(self.planner, self._decode.has_cpu):
            self._resident = self._pool.tables.read().num_resident
        if not self._pipe.active:
            return
        self._tools.device.synchronize()
        count, seconds = self._pipe.seconds()
        if count:
            self.planner.observe(0, Split(count, 0), seconds, 0.0)
        mirror = self._pool.tables.read()
        self._pipe.end(mirror)
        self._resident = mirror.num_resident
        self._pool.tables.write()
        self._way = DECODE

    def recover(self) -> None:
        """After an error: trust no slot. Nothing may be in flight but what ends by itself."""
        assert self._pool is not None
        self._tools.device.synchronize()
        self._pipe.forget()
        mirror = self._pool.tables.read()
        mirror.drop_all()
        self._pool.tables.write()
        self._way, self._resident = DECODE, 0
        if self._settings.strategy == "resident":
            self._fill_every()

    def resize(self, num_slots: int) -> None:
        """Another number of slots, between steps; the warmest survive. Graphs are void after it.

        Raises: CapacityError when the device has no room; then the old size is kept.
        """
        assert self._pool is not None
        count = min(max(num_slots, 1), builds.MOST_SLOTS)
        old = self._pool
        if count == old.slots.num_slots:
            return
        self._tools.device.synchronize()
        tables = DeviceTables(self._tools.device, self._sizes(count), self._rates(), old.tables)
        before, after = old.tables.read(), tables.read()
        kept = [Kept(source, target) for source, target in before.moved_to(after)]
        try:
            complete = old.slots.rebuild(count, kept)
        except CapacityError:
            tables.close()
            before.drop_all()
            old.tables.write()
            self._changed(old)
            raise
        if not complete:
            after.drop_all()
        tables.write()
        self._tools.device.synchronize()
        old.tables.close()
        self._resident = after.num_resident
        self._changed(Pool(old.slots, tables))
        log.info("expert slots: %d -> %d, %d kept", before.num_slots, count, self._resident)

    def close(self) -> None:
        """Give everything back but the device; may be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._tools.device.synchronize()
            for part in (self._decode, self._pipe, self._sampler, pool.tables):
                part.close()
            pool.slots.release()
        for item in (self._wide, self._grouped, self._pins):
            if item is not None:
                item.close()
        self._branch.close()

    def _run_chunk(self, layer: int, work: Routing, beside: _Beside) -> None:
        grouped = self._chunks(work.ids.shape[0])
        if self._way == STREAM:
            beside.compute()
            self._pipe.run(layer, work, grouped)
            grouped.merge(work)
            return
        self._wide_cpu().run(
            self._hosts[layer],
            self.counters.layers[layer],
            work,
            self._pipe.rows_of(layer),
            grouped,
            lambda: self._pipe.run(layer, work, grouped),
        )

    def _choose(self, tokens: int, mirror: Mirror) -> str:
        """The way of a chunk's layers."""
        assert self.planner is not None
        places, strategy = self._settings.experts_per_token, self._settings.strategy
        if tokens * places <= builds.MOST_PAIRS:
            return DECODE
        if strategy == "resident":
            return STREAM
        if strategy == "cpu":
            return CPU
        if mirror.num_resident >= self.num_experts:
            return STREAM
        chooser = WayChooser(mirror, self.planner, self.slot_bytes)
        way = chooser.way(tokens, places)
        if way != DECODE or not self._decode.has_cpu:
            return way
        costs = chooser.costs(tokens, places)
        # cut to what one admission holds, every part would read the CPU's experts anew
        gains = costs.decode < _CLEARLY * costs.cpu
        return DECODE if self._pinned and gains else CPU

    def _buffer_experts(self, mirror: Mirror) -> int:
        assert self.planner is not None
        if self._way == CPU or mirror.num_resident >= self.num_experts:
            return 0
        return WayChooser(mirror, self.planner, self.slot_bytes).buffer_experts

    def _look_at_pins(self) -> None:
        """Once the banks are pinned kernels may read them; if they cannot be, the CPU does all."""
        if self._pins is None or self._pinned:
            return
        if not self._decode.has_cpu:
            self._pins.wait()
        if self._pins.complete:
            self._pinned = True
            self.generation += self._decode.use_pinned()
        elif self._pins.refused and not self._decode.has_cpu:
            if self._tools.native is None:
                raise EngineError(
                    f"{self._pins.refused}, but the native kernels are missing; build them, or use "
                    f"the strategy resident",
                    code="native_missing",
                )
            self._decode.close()
            self._decode = self._make_decode(True)
            self.generation += 1

    def _rates(self) -> list[float]:
        """What the planner knows now; until the banks are pinned nothing is filled by kernels."""
        assert self.planner is not None
        mode = _MODES.get(self.planner.mode, self.planner.mode)
        readable = self._pinned or self._settings.strategy == "resident"
        return rate_numbers(self.planner.rates, mode if readable else "cpu")

    def _sizes(self, num_slots: int) -> tuple[int, int, int]:
        return len(self._hosts), self._hosts[0].bank.num_experts, num_slots

    def _make_decode(self, with_cpu: bool) -> DecodeExperts:
        assert self._pool is not None
        places = self._settings.experts_per_token
        return DecodeExperts(self._tools, self._hosts, places, self._pool, with_cpu)

    def _changed(self, pool: Pool) -> None:
        self._pool = pool
        self._decode.use(pool)
        self.generation += 1

    def _chunks(self, tokens: int) -> GroupedExperts:
        """Buffers for chunks of at least so many tokens."""
        if self._grouped is not None and tokens <= self._grouped.sizes.tokens:
            return self._grouped
        if self._grouped is not None:
            self._grouped.close()
        banks = [host.bank for host in self._hosts]
        sizes = ChunkSizes(
            tokens,
            self._settings.experts_per_token,
            banks[0].num_experts,
            banks[0].hidden,
            max(bank.inter for bank in banks),
        )
        self._grouped = GroupedExperts(self._tools, sizes)
        if self._wide is not None:
            self._wide.close()
            self._wide = None
        return self._grouped

    def _wide_cpu(self) -> WideCpu:
        if self._wide is None:
            assert self._grouped is not None
            assert self._tools.native is not None
            self._wide = WideCpu(self._tools, self._grouped.sizes, self._tools.native.expert_ffn)
        return self._wide

    def _fill_every(self) -> None:
        """Copy every expert into its slot for good."""
        assert self._pool is not None
        device, slots = self._tools.device, self._pool.slots
        mirror = self._pool.tables.read()
        slot = 0
        for layer, host in enumerate(self._hosts):
            for expert in range(host.bank.num_experts):
                device.copy(slots.row(slot, host.bank.row_bytes), host.row(expert))
                mirror.place((layer, expert), slot, 0)
                slot += 1
        device.synchronize()
        self._pool.tables.write()
        self._resident = slot


class GpuCounters(ExpertCounters):
    """Counts of the host, and those that the device keeps by itself."""

    def __init__(self, store: GpuStore) -> None:
        super().__init__()
        self._store = store

    def total(self) -> LayerCounters:
        """The sum over all layers, as of the last step that came back."""
        found = super().total()
        pool = self._store._pool
        if pool is None:
            return found
        totals = pool.tables.totals()
        sums = totals.sum(axis=0).tolist()
        found.hits += sums[HITS]
        found.misses += sums[MISSES]
        found.fills += sums[FILLS]
        found.on_cpu += sums[ON_CPU]
        for layer, host in zip(totals, self._store._hosts, strict=True):
            found.link_bytes += int(layer[FILLS]) * host.bank.row_bytes
        return found


class _Beside:
    """The shared experts of one layer: enqueued once, added last."""

    def __init__(self, tools: GpuTools, routed: Routed) -> None:
        self._tools = tools
        self._routed = routed
        self._found: torch.Tensor | None = None
        self._done = False

    def compute(self) -> None:
        """Enqueue them, unless that is done."""
        if not self._done and self._routed.shared is not None:
            self._done = True
            self._found = self._routed.shared(self._routed.x)

    def add(self) -> None:
        """Enqueue their sum; the routed experts are in it already."""
        self.compute()
        if self._found is not None:
            self._tools.add(self._routed.out, self._found)
