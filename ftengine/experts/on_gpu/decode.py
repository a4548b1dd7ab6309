"""Steps of few tokens on the device: admission, fills, CPU branch and experts of every layer.

Everything is enqueued and nothing waits, so a step may be captured. A layer's work is
gpu/moe_layer.py's; here are its buffers, its tasks, and steps cut to what one admission holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ftengine.errors import EngineError
from ftengine.experts.host import HostBank
from ftengine.experts.on_gpu.tables import DeviceTables
from ftengine.experts.slots import SlotPool
from ftengine.gpu.cpu_pairs import CpuPairs, PairSizes
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.moe_layer import CpuSide, DeviceLayer, Marks, MoeBuffers, MoeStep, Routing
from ftengine.gpu.stream import Stream
from ftengine.gpu.tools import GpuTools
from ftengine.kernels import abi
from ftengine.kernels.triton import builds


@dataclass(frozen=True)
class Pool:
    """Where fills go: slots and their tables."""

    slots: SlotPool
    tables: DeviceTables


class DecodeExperts:
    """The routed experts of steps of few tokens. with_cpu: with a CPU branch."""

    def __init__(
        self,
        tools: GpuTools,
        hosts: Sequence[HostBank],
        experts_per_token: int,
        pool: Pool,
        with_cpu: bool,
    ) -> None:
        self._tools = tools
        self._hosts = hosts
        self._places = experts_per_token
        self._most_tokens = max(builds.MOST_PAIRS // experts_per_token, 1)
        banks = [host.bank for host in hosts]
        sizes = PairSizes(self._most_tokens, experts_per_token, banks[0].hidden)
        self._buffers = MoeBuffers(tools.device.allocate, sizes, max(bank.inter for bank in banks))
        self._cpu = self._make_cpu(sizes) if with_cpu else None
        self._addresses: list[int | None] = [None] * len(hosts)
        self._prepared: set[int] = set()
        self._pool = pool
        self._step = self._make_step(pool)

    @property
    def hand_off(self) -> HandOff | None:
        """The CPU branch's, for the watchdog."""
        return None if self._cpu is None else self._cpu.hand_off

    @property
    def has_cpu(self) -> bool:
        """Whether misses may be the CPU's."""
        return self._cpu is not None

    def use(self, pool: Pool) -> None:
        """Another pool, between steps; what was captured is void."""
        self._step.close()
        self._pool = pool
        self._step = self._make_step(pool)
        self._prepare_again()

    def use_pinned(self) -> bool:
        """Let kernels read the banks, all of which are pinned. Returns whether addresses moved."""
        driver = self._tools.device.driver
        seen = [driver.device_address(host.bank.address) for host in self._hosts]
        changed = any(at != host.bank.address for at, host in zip(seen, self._hosts, strict=True))
        if changed:
            self._addresses = list(seen)
            self.use(self._pool)
        return changed

    def prepare(self, tokens: int) -> None:
        """Make everything that steps of so many tokens need, so that they may be captured."""
        self._prepared.add(tokens)
        for part in self._cuts(tokens):
            self._step.prepare(part.stop - part.start)

    def is_prepared(self, tokens: int) -> bool:
        """Whether a step of so many tokens only enqueues."""
        return tokens in self._prepared

    def enqueue(
        self, layer: int, work: Routing, beside: Callable[[], None], marks: Marks | None
    ) -> None:
        """One layer. beside: enqueues what runs while the CPU computes; called once."""
        for part in self._cuts(work.ids.shape[0]):
            count = part.stop - part.start
            mine = replace(
                work,
                x=work.x[part],
                ids=work.ids[part],
                weights=work.weights[part],
                out=work.out[part],
                beside=beside if part.start == 0 else None,
            )
            self._step.prepare_size(count)
            task = (count - 1) * len(self._hosts) + layer
            self._step.enqueue_routed(layer, mine, task, marks if part.start == 0 else None)

    def close(self) -> None:
        """Give everything back. Nothing may be in flight."""
        cpu, self._cpu = self._cpu, None
        if cpu is not None:
            cpu.hand_off.close()
            cpu.pairs.close()
            cpu.stream.close()
        self._step.close()
        while self._buffers.memory:
            self._tools.device.release(self._buffers.memory.pop())

    def _cuts(self, tokens: int) -> Iterator[slice]:
        """Parts of a step that one admission holds, and that fit a pool with no CPU behind it."""
        most = self._most_tokens
        if self._cpu is None:
            most = max(min(most, self._pool.slots.num_slots // self._places), 1)
        for start in range(0, tokens, most):
            yield slice(start, min(start + most, tokens))

    def _make_cpu(self, sizes: PairSizes) -> CpuSide:
        native, driver = self._tools.native, self._tools.device.driver
        if native is None:
            raise EngineError(
                "the CPU branch beside a GPU needs the native kernels, which are missing; build "
                "them, or use the strategy fetch or resident",
                code="native_missing",
            )
        library = abi.load_library(native.path)
        pairs = CpuPairs(driver, library, sizes, native.expert_ffn)
        banks = [host.bank for host in self._hosts]
        tasks = [
            task for tokens in range(1, sizes.tokens + 1) for task in pairs.tasks(banks, tokens)
        ]
        hand_off = HandOff(driver, tasks, library)
        hand_off.start()
        return CpuSide(Stream(driver), pairs, hand_off)

    def _make_step(self, pool: Pool) -> MoeStep:
        layers = [
            DeviceLayer(host.bank, host.bank.data, pool.slots.bank(layer), self._addresses[layer])
            for layer, host in enumerate(self._hosts)
        ]
        device = self._tools.device
        return MoeStep(
            self._tools.launcher,
            device.compute,
            layers,
            self._buffers,
            pool.tables.tables,
            self._cpu,
        )

    def _prepare_again(self) -> None:
        for tokens in sorted(self._prepared):
            self.prepare(tokens)
