"""Virtual time: queues, dependencies, host memory shared by link and CPU, latencies, overlap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftengine.device.clock import CPU, DEVICE, LINK, Operation, VirtualClock
from ftengine.device.machine import Machine, parse_machine, profile_names, read_machine
from ftengine.device.virtual import (
    PrefillLayer,
    run_decode_layer,
    run_prefill,
    run_prefill_one_buffer,
)
from ftengine.errors import LoadError

MACHINE = Machine(
    name="test",
    title="",
    vram_bytes=1,
    ram_bytes=1,
    device_bytes_per_s=1000.0,
    device_flops_per_s=1.0,
    link_bytes_per_s=10.0,
    host_bytes_per_s=20.0,
    host_left_bytes_per_s=5.0,
    link_latency_s=0.0,
    copy_latency_s=0.0,
    cpu_latency_s=0.0,
    launch_s=0.0,
)


def test_the_cpu_gets_what_the_link_leaves_and_all_of_it_afterwards() -> None:
    clock = VirtualClock(MACHINE)
    copy = clock.submit(LINK, 20.0)
    work = clock.submit(CPU, 50.0)
    assert clock.run() == pytest.approx(4.0)
    # 2 s beside the link at 5 per second, the other 40 at 20 per second.
    assert copy.finished_s == pytest.approx(2.0)
    assert work.finished_s == pytest.approx(4.0)


def test_a_resource_takes_work_in_order() -> None:
    clock = VirtualClock(MACHINE)
    first, second = clock.submit(LINK, 10.0), clock.submit(LINK, 30.0)
    clock.run()
    assert (first.finished_s, second.started_s, second.finished_s) == (1.0, 1.0, 4.0)


def test_work_waits_for_what_it_needs() -> None:
    clock = VirtualClock(MACHINE)
    copy = clock.submit(LINK, 10.0)
    matmul = clock.submit(DEVICE, 0.5, latency_s=0.25, after=[copy])
    assert clock.run() == pytest.approx(1.75)
    assert matmul.started_s == pytest.approx(1.0)


def test_latency_uses_no_bandwidth() -> None:
    clock = VirtualClock(MACHINE)
    clock.submit(LINK, 10.0, latency_s=3.0)
    work = clock.submit(CPU, 60.0)
    clock.run()
    assert work.finished_s == pytest.approx(3.0)


def test_without_overlap_times_add_up() -> None:
    clock = VirtualClock(MACHINE, overlap=False)
    clock.submit(LINK, 10.0)
    clock.submit(CPU, 20.0)
    clock.submit(DEVICE, 1.0)
    assert clock.run() == pytest.approx(3.0)


def test_waiting_for_a_stranger_is_an_error() -> None:
    clock = VirtualClock(MACHINE)
    clock.submit(DEVICE, 1.0, after=[Operation(LINK, 1.0, 0.0)])
    with pytest.raises(RuntimeError, match="wait for"):
        clock.run()


WORK = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0, 50), st.floats(0, 2), st.booleans()), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(WORK)
def test_no_resource_works_more_than_its_rate_allows(work: list[tuple]) -> None:
    clock = VirtualClock(MACHINE)
    operations: list[Operation] = []
    for resource, amount, latency, chained in work:
        after = operations[-1:] if chained else []
        operations.append(clock.submit(resource, amount, latency, after))
    ended = clock.run()
    moved = sum(op.amount for op in operations if op.resource == LINK)
    assert clock.link_bytes == pytest.approx(moved)
    for resource, rate in ((LINK, 10.0), (CPU, 20.0), (DEVICE, 1.0)):
        mine = [op for op in operations if op.resource == resource]
        floor = sum(op.amount / rate + op.latency_s for op in mine)
        assert ended >= floor - 1e-6
        for before, later in pairwise(mine):
            assert later.started_s >= before.finished_s - 1e-9
    # Host memory is never read faster than the link's and the CPU's shares together.
    assert clock.busy_s[LINK] <= ended + 1e-9


def test_the_same_work_takes_the_same_time() -> None:
    def once() -> float:
        clock = VirtualClock(read_machine("rtx-4060-laptop"))
        for fills, on_cpu in ((0, 3), (1, 4), (2, 0)):
            run_decode_layer(clock, 1_769_472, 5, fills, on_cpu, dense_s=1e-5)
        return clock.now_s

    assert once() == once()


def test_a_layer_takes_as_long_as_its_longer_branch() -> None:
    times = run_decode_layer(VirtualClock(MACHINE), 10, num_hits=0, fills=2, on_cpu=1)
    assert times.fill_s == pytest.approx(2.0)
    assert times.cpu_s == pytest.approx(2.0)
    assert times.layer_s == pytest.approx(2.0 + 20 / 1000)


def test_prefill_hides_the_shorter_of_link_and_device() -> None:
    layers = [PrefillLayer(100.0, 4.0)] * 10
    assert run_prefill(VirtualClock(MACHINE), layers) == pytest.approx(10 * 10 + 4)
    assert run_prefill_one_buffer(MACHINE, layers) == pytest.approx(10 * 14)
    slow = [PrefillLayer(100.0, 20.0)] * 10
    assert run_prefill(VirtualClock(MACHINE), slow) == pytest.approx(10 + 10 * 20)


def test_two_buffers_bound_how_far_the_link_runs_ahead() -> None:
    # The third copy needs the first layer's buffer: it cannot start before that is computed.
    layers = [PrefillLayer(10.0, 30.0), PrefillLayer(10.0, 0.0), PrefillLayer(100.0, 0.0)]
    assert run_prefill(VirtualClock(MACHINE), layers) == pytest.approx(1 + 30 + 10)


@pytest.mark.parametrize("name", profile_names())
def test_packaged_profiles_are_whole(name: str) -> None:
    machine = read_machine(name)
    assert machine.name == name
    assert machine.host_bytes_per_s > machine.link_bytes_per_s > 1e9


def test_the_six_machines_are_there() -> None:
    assert len(profile_names()) == 6


GOOD = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in vars(MACHINE).items())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD.replace('name = "test"', "name = 3"), "name = 3"),
        (GOOD + "\nspeed = 3", "'speed'"),
        (GOOD.replace("link_bytes_per_s = 10.0", "link_bytes_per_s = 0"), "link_bytes_per_s"),
        (GOOD.replace("link_bytes_per_s = 10.0", ""), "lacks 'link_bytes_per_s'"),
        ("= 3", "not TOML"),
    ],
)
def test_a_bad_profile_names_the_key(text: str, named: str) -> None:
    assert parse_machine(GOOD, "good") == MACHINE
    with pytest.raises(LoadError, match=named):
        parse_machine(text, "bad")


def test_an_unknown_profile_lists_the_packaged_ones() -> None:
    with pytest.raises(LoadError, match="rtx-4060-laptop"):
        read_machine("rtx-9090")
    with pytest.raises(LoadError, match="does not exist"):
        read_machine("nowhere.toml")


def test_a_slower_link_is_never_faster() -> None:
    slow = replace(MACHINE, link_bytes_per_s=5.0)
    for fills, on_cpu in ((1, 0), (2, 3), (0, 2)):
        fast = run_decode_layer(VirtualClock(MACHINE), 10, 1, fills, on_cpu).layer_s
        assert run_decode_layer(VirtualClock(slow), 10, 1, fills, on_cpu).layer_s >= fast
