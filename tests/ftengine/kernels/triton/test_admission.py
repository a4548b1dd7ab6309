"""The admission kernel decides as residency, demand and planner do, lookup for lookup."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftengine.experts.policy.demand import Demand
from ftengine.experts.policy.planner import Planner
from ftengine.experts.policy.rates import Rates
from ftengine.experts.policy.residency import Residency
from ftengine.experts.traces import Locality, Shape, Token, read_trace, synthetic
from ftengine.kernels.triton import builds, expert_calls
from tests.ftengine.kernels.triton.interpreter import Interpreter

ROW_BYTES = 500_000
RATES = Rates(12e9, 47e9, 35e9)
LENT = 1 << 46
RECORDED = Path("benchmarks/data/smollm2-moe.trace.jsonl")
MODES = {"auto": "split", "split": "split", "fetch": "fetch", "cpu": "cpu"}


class Replay:
    """Policy and kernel side by side; step raises where they differ."""

    def __init__(
        self, interpreter: Interpreter, layers: int, experts: int, slots: int, strategy: str
    ) -> None:
        self.interpreter = interpreter
        self.residency = Residency(layers, experts, slots)
        self.planner = Planner(RATES, [ROW_BYTES] * layers, strategy)
        numbers = expert_calls.rate_numbers(self.planner.rates, MODES[strategy])
        self.tables = expert_calls.empty_tables(layers, experts, slots, numbers)
        self.evictions = 0

    def step(self, layer: int, tokens: list[tuple[int, ...]]) -> None:
        """One layer of one step of these tokens' experts."""
        ids = torch.tensor(tokens, dtype=torch.int32)
        result = expert_calls.empty_result(ids.numel())
        call = expert_calls.admission(self.tables, result, layer, ids, ROW_BYTES)
        self.interpreter.run(call)
        flat = ids.flatten().tolist()
        found = self.residency.lookup(layer, flat)
        hits = dict(found.hits)
        room = self.residency.available(hits.values())
        split = self.planner.split(
            layer, len(found.misses), len(tokens), room, len(hits), signs=found.signs
        )
        fill, rest = found.fill_order[: split.fills], found.fill_order[split.fills :]
        admitted = self.residency.admit(layer, fill, set(hits.values()))
        self.evictions += sum(item.evicted is not None for item in admitted)
        counts = [split.fills, split.on_cpu, len(hits), len(found.misses)]
        assert result.found.tolist() == counts
        copies = [[item.expert, item.slot] for item in admitted]
        assert result.fills[: len(copies)].tolist() == copies
        assert result.on_cpu[: len(rest)].tolist() == list(rest)
        slots = hits | {item.expert: item.slot for item in admitted}
        assert result.rows.tolist() == [slots.get(expert, -1) for expert in flat]

    def lend(self, count: int) -> list[int]:
        """As a prefill does: the policy lends, the tables are written by the host."""
        slots = list(self.residency.borrow(count))
        for slot in slots:
            owner = int(self.tables.owner_of[slot])
            if owner >= 0:
                self.tables.slot_of[owner] = -1
        self.tables.owner_of[slots] = -1
        self.tables.stamp_of[slots] = LENT
        return slots


def play(replay: Replay, steps: list[Token], together: int) -> None:
    for at in range(0, len(steps), together):
        tokens = steps[at : at + together]
        for layer in range(replay.residency.num_layers):
            replay.step(layer, [token[layer] for token in tokens])


def trace(steps: int) -> list[Token]:
    shape = Shape(3, 16, 3, 0, steps)
    return list(synthetic(shape, Locality(0.5, 0.8, 0.1), 3).steps)


@pytest.mark.parametrize(
    ("strategy", "slots", "tokens"),
    [
        ("auto", 7, 16),
        ("fetch", 11, 8),
        pytest.param("auto", 11, 60, marks=pytest.mark.slow),
        pytest.param("auto", 40, 60, marks=pytest.mark.slow),
        pytest.param("split", 9, 60, marks=pytest.mark.slow),
        pytest.param("cpu", 7, 60, marks=pytest.mark.slow),
    ],
)
def test_synthetic_traces_are_served_alike(
    interpreter: Interpreter, strategy: str, slots: int, tokens: int
) -> None:
    replay = Replay(interpreter, 3, 16, slots, strategy)
    play(replay, trace(tokens), 2)
    counters = replay.planner.counters
    hits, misses, fills, on_cpu, owed = replay.tables.totals.tolist()
    assert (fills, on_cpu, owed) == (counters.fills, counters.on_cpu, counters.owed_fills)
    assert misses == fills + on_cpu
    assert (strategy, slots, tokens) != ("auto", 11, 60) or int(replay.tables.clock[2]) > 0
    assert strategy == "cpu" or (hits > 0 and (replay.evictions > 0) == (slots < 20))


@pytest.mark.slow
def test_a_step_that_looks_up_the_cold_part(interpreter: Interpreter) -> None:
    """Lookup 64 and later ones count hits among the coldest eighth."""
    replay = Replay(interpreter, 1, 24, 17, "auto")
    steps = [((step % 24, (step * 7 + 1) % 24),) for step in range(70)]
    play(replay, [step for step in steps if step[0][0] != step[0][1]], 1)
    assert int(replay.tables.clock[2]) > 0
    assert float(replay.tables.reuse[2]) > 0


@pytest.mark.slow
def test_a_recorded_trace_is_served_alike(interpreter: Interpreter) -> None:
    lines = RECORDED.read_text("utf-8").splitlines()
    recorded = read_trace(lines, str(RECORDED))
    layers, experts = recorded.num_layers, recorded.num_experts
    replay = Replay(interpreter, layers, experts, 20, "auto")
    play(replay, list(recorded.steps[:8]), 1)
    assert replay.evictions > 0


def test_lent_slots_are_left_alone(interpreter: Interpreter) -> None:
    replay = Replay(interpreter, 3, 16, 12, "fetch")
    steps = trace(7)
    play(replay, steps[:3], 1)
    lent = replay.lend(4)
    play(replay, steps[3:], 1)
    assert replay.tables.owner_of[lent].tolist() == [-1] * 4


def test_powers_are_the_policys() -> None:
    tables = expert_calls.empty_tables(3, 4, 2, [0.0] * 11)
    demand = Demand(3)
    demand.note((0, 0), 0)
    for lookup in (0, 1, 2, 100, 3071):
        assert float(tables.powers[lookup]) == demand.of((0, 0), lookup)


def test_more_than_a_program_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 pairs"):
        builds.admission(65, 100)


def test_rows_are_copied_by_the_list(interpreter: Interpreter) -> None:
    bank = torch.randint(0, 256, (5, 8192), dtype=torch.uint8)
    slots = torch.zeros(4, 12288, dtype=torch.uint8)
    tasks = torch.tensor([[4, 0], [1, 3], [2, 2]], dtype=torch.int32)
    count = torch.tensor([2], dtype=torch.int32)
    interpreter.run(expert_calls.copy_rows(bank, slots, tasks, count))
    expected = torch.zeros_like(slots)
    expected[0, :8192], expected[3, :8192] = bank[4], bank[1]
    assert torch.equal(slots, expected)
