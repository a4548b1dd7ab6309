"""F9: the disk fills up in a pull, in the conversion, at the commit and under the log."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import (
    CHAT,
    FAKE,
    Answer,
    Rig,
    arrived,
    ask,
    begun_at,
    ended_well,
    fake,
    in_background,
    runs,
    with_file_limit,
)
from tests.e2e.faults.real_models import wide_gguf
from tests.fakes.engine import FakeScript
from tests.fakes.hub import BadHub
from tests.ftman.gateway.serving import ids_of, install

PATH = "/x/wide.gguf"
DISK_BYTES = 112 << 20
SLOW = fake(FakeScript(tokens=ids_of("hello world ") * 30, token_s=0.003))
LOG_LIMIT_BYTES = 60_000


@pytest.fixture
def small_disk(rig: Rig) -> Iterator[Path]:
    """The store's folder, on a disk of its own."""
    rig.home.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(rig.home)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    yield rig.home
    subprocess.run(["umount", "-l", str(rig.home)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as writer:
        for block in (bytes(1 << 20), bytes(4096)):
            try:
                while writer.write(block) == len(block):
                    pass
            except OSError:
                continue
    return ballast


@runs
def test_a_full_disk_stops_the_pull_and_nothing_else(
    rig: Rig, small_disk: Path, hub: BadHub, num_points: int
) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data, f"slow:{3 * len(data)}")
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(SLOW) as manager:
        for _ in range(num_points):
            talk: list[Answer] = []
            thread = in_background(lambda talk=talk: talk.append(ask(manager.url, CHAT)))  # type: ignore[misc]
            stopped = stop_by_ballast(rig, manager.url, url, small_disk)
            thread.join(30)
            ended_in_words(stopped)
            ended_well_as_chat(talk[0])
            again = rig.pull(manager.url, url)
            ended_well(again)
            assert set(rig.check_store()) == {"tiny/latest", "wide/latest"}
            reply = httpx.request("DELETE", f"{manager.url}/api/delete", json={"model": "wide"})
            assert reply.status_code == 200
        invariants.answers_when_healthy(manager.url)


def stop_by_ballast(rig: Rig, url: str, source: str, disk: Path) -> Answer:
    """Pull, and fill the disk at a random moment; gives the space back at the end."""
    fraction = rig.rng.uniform(0.02, 0.9)
    ballast: list[Path] = []

    def on_line(answer: Answer) -> None:
        converting = answer.statuses[-1].startswith("converting")
        if (converting or arrived(answer) >= fraction) and not ballast:
            ballast.append(fill(disk))

    stopped = rig.pull(url, source, on_line)
    assert ballast, stopped.lines
    ballast[0].unlink()
    return stopped


def ended_in_words(answer: Answer) -> None:
    """One error that names what is missing and what there is."""
    invariants.ended_once(answer)
    if answer.complete:
        return  # the last byte was on the disk already
    assert answer.values[-1]["code"] == "disk_full", answer.lines[-1]
    assert len(re.findall(r"\d+", answer.error)) >= 2, answer.error  # need and have


def ended_well_as_chat(answer: Answer) -> None:
    """Inference did not notice."""
    invariants.ended_once(answer)
    assert answer.complete, answer.lines[-1]


@pytest.mark.parametrize(
    "faults",
    [
        {"FT_FAULTS": "catalog.before_commit:1=error:ENOSPC"},
        {"FT_CHILD_FAULTS": "files.write:{n}=error:ENOSPC"},
        pytest.param(
            {"FT_CHILD_FAULTS": "convert.before_index=error:ENOSPC"}, marks=pytest.mark.slow
        ),
    ],
    ids=["commit", "convert", "index"],
)
def test_a_full_disk_in_the_last_steps_keeps_what_was_fetched(
    rig: Rig, hub: BadHub, faults: dict[str, str]
) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data)
    number = rig.rng.randrange(2, 12)  # the first one comes before anything is fetched
    with rig.manager(
        FAKE, **{key: plan.format(n=number) for key, plan in faults.items()}
    ) as manager:
        failed = rig.pull(manager.url, url)
        invariants.ended_once(failed)
        assert failed.values[-1]["code"] == "disk_full", failed.lines[-1]
        assert rig.check_store() == {}
    with rig.manager() as manager:
        again = rig.pull(manager.url, url)
        ended_well(again)
        assert begun_at(again) == 1
    assert set(rig.check_store()) == {"wide/latest"}
    invariants.no_orphans(rig.home / "models")


def test_a_log_that_cannot_grow_stops_nothing(rig: Rig) -> None:
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(with_file_limit(FAKE, LOG_LIMIT_BYTES)) as manager:
        with httpx.Client(trust_env=False) as client:
            while len(manager.log) < LOG_LIMIT_BYTES:
                client.get(f"{manager.url}/{'x' * 200}")
            client.get(f"{manager.url}/")
        assert len(manager.log) == LOG_LIMIT_BYTES
        body = CHAT | {"options": {"num_predict": 4}}
        done = [threading.Thread(target=ask, args=(manager.url, body)) for _ in range(4)]
        for thread in done:
            thread.start()
        for thread in done:
            thread.join(20)
        invariants.answers_when_healthy(manager.url)
