"""Times the native calls of decode steps and of one prompt, beside what the machine could do.

Decode steps are replayed from their plan, which times its calls itself. The floor of a call is the
longer of two times: its bytes at the read rate of all threads, and its multiply-adds at the rate of
the instruction that its format's products are made of. Both rates are measured in the same run.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial

import torch

from ftengine.config import EngineConfig
from ftengine.device.torch_device import page_aligned
from ftengine.errors import EngineError
from ftengine.kernels.call_work import TimedCall
from ftengine.kernels.native import NativeKernels
from ftengine.runtime.engine import Engine
from ftengine.runtime.runner import lone_sequence
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.sequence import Sequence
from ftman.clock import SYSTEM, Clock

_PROBE_BYTES = 512 << 20
_PROBE_TRIES = 5
_PRODUCT_ROUNDS = 20000
_FLOAT = "f32"


@dataclass(frozen=True)
class Asked:
    """Units: tokens. prompt: prefilled in one measurement; context: there when decoding starts."""

    prompt: int
    context: int
    steps: int


@dataclass(frozen=True)
class Rates:
    """What the machine can do. Units: bytes per second; multiply-adds per second, per format."""

    read: float
    products: dict[str, float]

    def floor_s(self, call: TimedCall) -> float:
        """The shortest time the call could take. Units: seconds."""
        work = call.work
        products = work.multiply_adds / self.products[work.fmt or _FLOAT]
        return max(work.num_bytes / self.read, products)


@dataclass(frozen=True)
class Row:
    """All calls of one kind. Units: seconds of one step; bytes and multiply-adds of one step."""

    label: str
    calls: float
    seconds: float
    floor_s: float
    num_bytes: float
    multiply_adds: float


@dataclass(frozen=True)
class Phase:
    """Decode or prefill. seconds of one step; what the rows leave of it is spent in Python."""

    name: str
    tokens: int
    seconds: float
    rows: tuple[Row, ...]

    @property
    def rest_s(self) -> float:
        """Outside of native calls."""
        return self.seconds - sum(row.seconds for row in self.rows)


@dataclass(frozen=True)
class Profile:
    """All that was measured."""

    kernels: dict[str, str]
    rates: Rates
    phases: tuple[Phase, ...]


def measure(config: EngineConfig, asked: Asked, clock: Clock = SYSTEM) -> Profile:
    """Load a model and time it.   Raises: EngineError, LoadError, CapacityError."""
    engine = Engine(config)
    engine.load()
    engine.settle()
    kernels = engine.runner.kernels
    if not isinstance(kernels, NativeKernels):
        raise EngineError(
            "only native kernels are timed call by call, and reference kernels compute here; "
            "build the native library first",
            code="native_missing",
        )
    prompt = _prefill(engine, kernels, asked.prompt, clock)
    decode = _decode(engine, kernels, asked, clock)
    calls = [call for phase in (prompt, decode) for call in phase.calls]
    rates = _rates(kernels, {call.work.fmt or _FLOAT for call in calls}, clock)
    phases = (decode.reduced(rates), prompt.reduced(rates))
    return Profile(engine.info.kernels, rates, phases)


@dataclass(frozen=True)
class _Timed:
    """What was timed, before it is put together. seconds: of all steps."""

    name: str
    tokens: int
    steps: int
    seconds: float
    calls: list[TimedCall]

    def reduced(self, rates: Rates) -> Phase:
        groups: dict[str, list[TimedCall]] = defaultdict(list)
        for call in self.calls:
            groups[call.work.label].append(call)
        rows = [self._row(label, calls, rates) for label, calls in groups.items()]
        rows.sort(key=lambda row: -row.seconds)
        return Phase(self.name, self.tokens, self.seconds / self.steps, tuple(rows))

    def _row(self, label: str, calls: Items[TimedCall], rates: Rates) -> Row:
        steps = self.steps
        return Row(
            label,
            len(calls) / steps,
            sum(call.seconds for call in calls) / steps,
            sum(rates.floor_s(call) for call in calls) / steps,
            sum(call.work.num_bytes for call in calls) / steps,
            sum(call.work.multiply_adds for call in calls) / steps,
        )


def _prefill(engine: Engine, kernels: NativeKernels, prompt: int, clock: Clock) -> _Timed:
    """A prompt in chunks as the scheduler would cut it, after one that warms up."""
    _run_prompt(engine, lone_sequence(_ids(engine, prompt, 0)), prompt)
    kernels.timed = []
    started = clock.monotonic()
    _run_prompt(engine, lone_sequence(_ids(engine, prompt, 1)), prompt)
    seconds = clock.monotonic() - started
    calls, kernels.timed = kernels.timed, None
    return _Timed("prefill", prompt, 1, seconds, calls)


def _run_prompt(engine: Engine, sequence: Sequence, tokens: int) -> None:
    chunk = engine.config.step_tokens
    for at in range(0, tokens, chunk):
        count = min(chunk, tokens - at)
        work = Work(sequence, at, count, samples=at + count == tokens)
        engine.runner.run(Batch((work,)))


def _decode(engine: Engine, kernels: NativeKernels, asked: Asked, clock: Clock) -> _Timed:
    """Steps of one token, ids being given, after two that record the plan and warm up."""
    warm = 2
    total = asked.context + warm + asked.steps
    sequence = lone_sequence(_ids(engine, total, 7))
    _run_prompt(engine, sequence, asked.context)
    started = 0.0
    for at in range(asked.context, total):
        if at == asked.context + warm:
            kernels.timed = []
            started = clock.monotonic()
        engine.runner.run(Batch((Work(sequence, at, 1, samples=True),)))
    seconds = clock.monotonic() - started
    calls, kernels.timed = kernels.timed or [], None
    return _Timed("decode", 1, asked.steps, seconds, calls)


def _ids(engine: Engine, count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(engine.info.vocab_size) for _ in range(count)]


def _rates(kernels: NativeKernels, formats: set[str], clock: Clock) -> Rates:
    """The best of some tries each: a floor is what could be, not what usually is."""
    data: torch.Tensor = page_aligned(_PROBE_BYTES).fill_(1)
    read = max(_rate(lambda: kernels.stream_read(data), clock)[1] for _ in range(_PROBE_TRIES))
    products = {}
    for fmt in sorted(formats):
        call = partial(kernels.products, fmt, _PRODUCT_ROUNDS)
        tries = [_rate(call, clock) for _ in range(_PROBE_TRIES)]
        products[fmt] = max(count * per_s for count, per_s in tries)
    return Rates(read * _PROBE_BYTES, products)


def _rate(call: Callable[[], int], clock: Clock) -> tuple[int, float]:
    """What a call returned, and how often it could be made in a second."""
    started = clock.monotonic()
    found = call()
    return found, 1.0 / (clock.monotonic() - started)
