"""F13: mirrors that serve other bytes of the right length."""

from __future__ import annotations

import pytest

from ftman.errors import IntegrityError
from ftman.pull.span import Health
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.hub import BadHub
from tests.ftman.pull.test_download import DATA, Count, fetch, file_of

MIRRORS = 3


@runs
def test_right_bytes_come_from_whoever_has_them_and_liars_are_put_aside(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    for number in range(num_points):
        liars = set(rig.rng.sample(range(MIRRORS), rig.rng.randrange(1, MIRRORS)))
        urls = []
        for place in range(MIRRORS):
            flip = f"flip@{rig.rng.randrange(len(DATA))}"
            path = f"/{number}/{place}"
            urls.append(hub.add(path, DATA, flip if place in liars else "ok"))
        health, target, count = Health(), rig.root / f"f{number}", Count()
        fetch(file_of(*urls), target, count=count, health=health)
        assert target.read_bytes() == DATA, liars
        assert count.arrived == len(DATA), "what was dropped is not counted as progress"
        assert {f"place {place}" for place in range(MIRRORS) if place not in liars} & (
            {f"place {place}" for place in range(MIRRORS)} - set(health.groups)
        ), "an honest mirror is still believed"
        asked = [hub.bytes_sent(f"/{number}/{place}") for place in range(MIRRORS)]
        fetch(file_of(*urls), rig.root / f"g{number}", health=health)
        for place in range(MIRRORS):
            if f"place {place}" in health.groups:
                assert place in liars
                assert hub.bytes_sent(f"/{number}/{place}") == asked[place]
    rig.check_outside()


@runs
def test_where_all_lie_nothing_is_left(rig: Rig, hub: BadHub, num_points: int) -> None:
    for number in range(num_points):
        urls = []
        for place in range(rig.rng.randrange(1, MIRRORS)):
            flip = f"flip@{rig.rng.randrange(len(DATA))}"
            urls.append(hub.add(f"/{number}/{place}", DATA, flip))
        folder = rig.root / f"d{number}"
        folder.mkdir()
        with pytest.raises(IntegrityError, match="digest mismatch"):
            fetch(file_of(*urls), folder / "f")
        assert not list(folder.iterdir())
    rig.check_outside()
