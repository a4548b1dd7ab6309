"""Whole pulls: from a name to an installed model, through crashes, full disks and lying mirrors."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftman import faults
from ftman.errors import (
    CannotFitError,
    ConflictError,
    FtmanError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ftman.files import Lock
from ftman.pull.source import LocalSource
from ftman.pull.supply import SupplySettings
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import Station, converter, gguf_bytes, options

DATA = gguf_bytes(700_001)
ROOT = Path(__file__).parents[3]
WINDOWS = SupplySettings(window_over_bytes=100_000, window_bytes=150_000)


def statuses(found: list[Any]) -> list[str]:
    """Statuses in order, repeats dropped, digests cut."""
    names = [" ".join(p.status.split()[:1]) if p.digest else p.status for p in found]
    return list(dict.fromkeys(names))


def puller(home: Path, name: str, plan: str = "", **given: Any) -> subprocess.CompletedProcess[str]:
    """Pull in a process that may be killed."""
    given = {"converter": converter(), **given}
    return subprocess.run(
        [sys.executable, "-m", "tests.fakes.puller", str(home), name, json.dumps(given), plan],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_url_becomes_an_installed_model(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    found = station.pull(url, insecure=True)
    assert statuses(found) == [
        "pulling manifest",
        "pulling",
        "converting",
        "writing manifest",
        "success",
    ]
    bars = [p for p in found if p.phase == "download"]
    assert bars[-1].completed == bars[-1].total == len(DATA)
    assert station.weights("tiny") == DATA
    assert station.leftovers() == []
    assert hub.bytes_sent("/x/tiny.gguf") <= len(DATA) + 100


def test_a_second_pull_is_up_to_date_and_fetches_nothing(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    station.pull(url, insecure=True)
    before = hub.bytes_sent("/x/tiny.gguf")
    found = station.pull(url, insecure=True)
    assert found[-1].detail == "up to date"
    assert hub.bytes_sent("/x/tiny.gguf") <= before + 1


def test_a_damaged_model_is_brought_in_again(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    station.pull(url, insecure=True)
    shard = station.catalog.find("tiny").ftw_path / "weights-00000.ftw"
    shard.write_bytes(b"cut")
    station.pull(url, insecure=True)
    assert station.weights("tiny") == DATA


def test_plain_http_needs_to_be_asked_for(station: Station, hub: BadHub) -> None:
    with pytest.raises(UsageError, match="insecure protocol http"):
        station.pull(hub.add("/x/tiny.gguf", DATA))
    assert not hub.asked


def test_a_local_file_is_read_in_place_and_stays(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(DATA)
    found = station.pull(str(path))
    assert "pulling" not in statuses(found)
    assert station.weights("My-Model") == DATA
    assert path.read_bytes() == DATA
    assert station.pull(f"file://{path}")[-1].detail == "up to date"
    station.pull("other:v1", local=LocalSource(path))
    assert station.catalog.find("other:v1").ftw_id == station.catalog.find("My-Model").ftw_id


def test_an_indexed_name_gets_its_modelfile_and_licence(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    station.pull("smollm2", local=LocalSource(path))
    model = station.catalog.find("smollm2")
    assert model.name.short == "smollm2:135m"
    assert model.parameters["temperature"] == pytest.approx(0.2)
    assert model.licenses == ("apache-2.0",)
    station.pull("smollm2-moe", local=LocalSource(path))
    moe = station.catalog.find("smollm2-moe")
    config = json.loads((moe.ftw_path / "config.json").read_text())
    assert config["derive"]["num_experts"] == 8


def test_a_hub_repository_is_pinned_to_its_commit(station: Station, hub: BadHub) -> None:
    repo = {"config.json": b"{}", "model.safetensors": DATA, "README.md": b"no", "x/y.json": b"no"}
    hub.add_repo("org/tiny", repo)
    given = replace(options(), hub_endpoint=hub.url)
    station.pull("hf.co/org/tiny", given)
    model = station.catalog.find("hf.co/org/tiny")
    assert model.source["revision"].startswith("c0ffee")
    assert [file["name"] for file in model.source["files"]] == ["config.json", "model.safetensors"]
    assert station.weights("hf.co/org/tiny") == b"{}" + DATA
    assert station.pull("hf.co/org/tiny", given)[-1].detail == "up to date"


def test_a_family_that_is_not_built_costs_no_request(station: Station, hub: BadHub) -> None:
    given = replace(options(families=["llama", "qwen3"]), hub_endpoint=hub.url)
    with pytest.raises(UnsupportedError, match=r"glm_moe_dsa.*not built yet; built: llama, qwen3"):
        station.pull("glm-5.2", given)
    assert not hub.asked


def test_a_plan_that_refuses_costs_only_headers(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    given = options(error={"code": "unsupported_family", "message": "gemma9 is not built yet"})
    with pytest.raises(UnsupportedError, match="gemma9 is not built yet"):
        station.pull(url, given, insecure=True)
    assert hub.bytes_sent("/x/tiny.gguf") <= 100


def test_sources_that_come_later_are_refused(station: Station) -> None:
    with pytest.raises(UnsupportedError, match="later version"):
        station.pull("modelscope://a/b")


@pytest.mark.parametrize("name", ["nosuch", "nosuch:tag", "user/model", "smollm2:9000b"])
def test_an_unknown_name_says_what_ollama_says(station: Station, name: str) -> None:
    with pytest.raises(FtmanError, match="pull model manifest: file does not exist") as caught:
        station.pull(name)
    assert caught.value.status == 404
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["../x", "a b", "x:", "hf://a", "hf://a/../b", "/no/such/file.gguf", "$(id)", "x\0y"]
)
def test_hostile_names_are_refused_and_leave_nothing(station: Station, name: str) -> None:
    with pytest.raises(FtmanError):
        station.pull(name)
    assert station.leftovers() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("https://[::1/x.gguf", "is no address"), ("/dev/null", "is neither a file nor a folder")],
)
def test_what_cannot_be_a_place_is_told_as_such(station: Station, name: str, said: str) -> None:
    with pytest.raises((UsageError, NotFoundError)) as caught:
        station.pull(name)
    assert said in caught.value.message


def test_no_disk_space_is_said_before_the_first_byte(
    station: Station, hub: BadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftman.files.free_bytes", lambda path: 1_000_000)
    url = hub.add("/x/tiny.gguf", DATA)
    with pytest.raises(CannotFitError, match=r"needs 1\.4 MB of disk.*has 1\.0 MB") as caught:
        station.pull(url, insecure=True)
    assert caught.value.exit_code == 3
    assert hub.bytes_sent("/x/tiny.gguf") <= 1


def test_the_plan_can_refuse_for_disk_space(
    station: Station, hub: BadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftman.files.free_bytes", lambda path: 5_000_000)
    url = hub.add("/x/tiny.gguf", DATA)
    with pytest.raises(CannotFitError, match=r"needs 8\.7 MB of disk"):
        station.pull(url, options(ftw_bytes=8_000_000), insecure=True)
    assert hub.bytes_sent("/x/tiny.gguf") <= 100


@pytest.mark.parametrize("window", [False, True])
def test_kill_9_at_any_point_then_again(hub: BadHub, tmp_path: Path, window: bool) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    given: dict[str, Any] = {"installed": "tiny"}
    if window:
        # A digest in play: the hash must survive the kills too.
        digest = hashlib.sha256(DATA).hexdigest()
        hub.add_repo("org/tiny", {"tiny.gguf": DATA})
        assert digest in hub.files["/api/models/org/tiny/revision/main"].decode()
        url, given = "hf://org/tiny/tiny.gguf", {"installed": "hf.co/org/tiny", "hub": hub.url}
        given |= {"window_over": 100_000, "window_bytes": 150_000}
    path = "/org/tiny/resolve/c0ffee" + "0" * 34 + "/tiny.gguf" if window else "/x/tiny.gguf"
    # Slow, so that what was sent and what had arrived at the kill are nearly the same.
    hub.script(path, "slow:400000")
    rng = random.Random(11)
    points = [
        f"pull.after_range:{rng.randrange(1, 4)}=kill",
        f"files.fsync:{rng.randrange(6, 12)}=kill",
        "pull.before_convert=kill",
        f"files.write:{rng.randrange(5, 15)}=kill",
        f"files.rename:{rng.randrange(3, 5)}=kill",
        "catalog.before_commit=kill",
    ]
    killed = 0
    for plan in points:
        done = puller(tmp_path, url, plan, **given)
        killed += done.returncode == -9
        assert done.returncode in (0, -9), done.stderr
    last = puller(tmp_path, url, **given)
    assert last.returncode == 0, last.stderr
    assert killed >= 5
    station = Station(tmp_path)
    assert station.weights(given["installed"]) == DATA
    assert station.catalog.find(given["installed"]).ftw_id == last.stdout.strip()
    assert station.leftovers() == []
    assert hub.bytes_sent(path) <= len(DATA) + killed * 4 * (32 << 10)


def test_windows_never_hold_the_file_whole(
    station: Station, hub: BadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def watch(point: str) -> None:
        nonlocal most
        folder = station.config.paths.partial
        held = [p.stat().st_size for p in folder.rglob("f_*") if ".journal" not in p.name]
        most = max(most, sum(held))

    faults.listen(watch)
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    given = replace(options(), supply=WINDOWS, hub_endpoint=hub.url)
    station.pull("hf.co/org/tiny:tiny.gguf", given)
    assert station.weights("hf.co/org/tiny:tiny.gguf") == DATA
    assert 0 < most <= 4 * WINDOWS.window_bytes
    assert station.leftovers() == []


def test_a_lie_in_a_window_is_caught_before_the_model_is_visible(
    station: Station, hub: BadHub
) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    path = "/org/tiny/resolve/c0ffee" + "0" * 34 + "/tiny.gguf"
    hub.script(path, "flip@333333")
    given = replace(options(), supply=WINDOWS, hub_endpoint=hub.url)
    with pytest.raises(IntegrityError, match="digest mismatch"):
        station.pull("hf.co/org/tiny:tiny.gguf", given)
    assert not station.catalog.models()
    hub.script(path, "ok")
    station.pull("hf.co/org/tiny:tiny.gguf", given)
    assert station.weights("hf.co/org/tiny:tiny.gguf") == DATA


def test_a_converter_that_dies_is_named_and_taken_up_again(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    with pytest.raises(FtmanError, match="the converter was ended by SIGKILL"):
        station.pull(url, options(die_after=3), insecure=True)
    with pytest.raises(FtmanError, match="status 3: the converter lost its way"):
        station.pull(url, options(exit_after=3), insecure=True)
    with pytest.raises(FtmanError, match="broke its protocol"):
        station.pull(url, options(garbage=1), insecure=True)
    before = hub.bytes_sent("/x/tiny.gguf")
    station.pull(url, insecure=True)
    assert station.weights("tiny") == DATA
    assert hub.bytes_sent("/x/tiny.gguf") <= before + 1


def test_a_full_disk_in_the_converter_keeps_its_message(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    error = {"code": "disk_full", "message": "needs 9 GB, has 1 GB", "hint": "free some"}
    with pytest.raises(CannotFitError, match="needs 9 GB, has 1 GB"):
        station.pull(str(path), options(error=error))


def test_a_limit_on_file_size_is_a_full_disk(hub: BadHub, tmp_path: Path) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    code = "import resource,runpy,sys;resource.setrlimit(resource.RLIMIT_FSIZE,(300000,300000));"
    code += "runpy.run_module('tests.fakes.puller',run_name='__main__')"
    given = json.dumps({"converter": converter(), "installed": "tiny"})
    command = [sys.executable, "-c", code, str(tmp_path), url, given, ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "CannotFitError" in done.stderr
    assert "the disk is full" in done.stderr
    again = puller(tmp_path, url, installed="tiny")
    assert again.returncode == 0, again.stderr
    assert Station(tmp_path).weights("tiny") == DATA


def test_another_process_at_the_same_pull_is_refused(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    station.pull(str(path))
    station.catalog.delete("m", lambda digest: False)
    seen: list[Path] = []
    faults.listen(lambda point: seen.extend(station.config.paths.partial.glob("*/lock")))
    station.pull(str(path))
    faults.listen(None)
    station.catalog.delete("m", lambda digest: False)
    seen[0].parent.mkdir(parents=True)
    with Lock(seen[0]), pytest.raises(ConflictError, match=r"pulling .* in another process"):
        station.pull(str(path))


def test_an_older_revision_does_not_stay_behind(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)
    with pytest.raises(FtmanError):
        station.pull(url, options(die_after=2), insecure=True)
    assert len(station.leftovers()) == 1
    hub.add("/x/tiny.gguf", gguf_bytes(300_000, 5))
    station.pull(url, insecure=True)
    assert station.leftovers() == []


def test_the_source_is_kept_on_request(station: Station, hub: BadHub) -> None:
    station.pull(hub.add("/x/tiny.gguf", DATA), insecure=True, keep_source=True)
    kept = list((station.config.paths.models / "sources").rglob("tiny.gguf"))
    assert [path.read_bytes() for path in kept] == [DATA]


def test_a_server_without_ranges_can_be_pulled_from(station: Station, hub: BadHub) -> None:
    station.pull(hub.add("/x/tiny.gguf", DATA, "no-range"), insecure=True)
    assert station.weights("tiny") == DATA


def test_an_unreachable_source_is_a_network_error(station: Station) -> None:
    with pytest.raises(NetworkError, match="cannot connect"):
        station.pull("http://127.0.0.1:1/x/tiny.gguf", insecure=True)
