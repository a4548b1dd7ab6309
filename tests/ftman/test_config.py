"""Settings: sources, precedence, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman import faults
from ftman.config import Config, Paths, engine_environment, load_config, parse_duration
from ftman.errors import UsageError


def load(home: Path, **settings: str) -> Config:
    return load_config({"FT_HOME": str(home), **settings})


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.address == "127.0.0.1:11434"
    assert config.keep_alive_s == 300
    assert config.paths == Paths(tmp_path, tmp_path / "models")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'keep_alive = "10m"\nthreads = 3\ndebug = true\norigins = ["http://a", "http://b"]\n'
    )
    config = load(tmp_path, FT_KEEP_ALIVE="30s", FT_MODELS="/else/where")
    assert config.keep_alive_s == 30
    assert config.engine.threads == 3
    assert config.debug
    assert config.origins == ("http://a", "http://b")
    assert config.paths.models == Path("/else/where")


def test_an_empty_variable_is_as_good_as_none(tmp_path: Path) -> None:
    assert load(tmp_path, FT_THREADS="").engine.threads == 0


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("127.0.0.1", "127.0.0.1:11434", "http://127.0.0.1:11434"),
        (":8080", "127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:8080", "0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("http://box:1/", "box:1", "http://box:1"),
        ("[::1]:8080", "[::1]:8080", "http://[::1]:8080"),
        ("::", "[::]:11434", "http://[::1]:11434"),
    ],
)
def test_addresses(tmp_path: Path, text: str, address: str, url: str) -> None:
    config = load(tmp_path, FT_HOST=text)
    assert (config.address, config.url) == (address, url)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", "box:port"),
        ("host", "box:99999"),
        ("keep_alive", "5 minutes"),
        ("keep_alive", "nan"),
        ("keep_alive", "inf"),
        ("threads", "-1"),
        ("threads", "two"),
        ("debug", "maybe"),
        ("device", "gpu"),
        ("max_queue", "0"),
        ("compute", "fp8"),
        ("faults", "no.such.point=kill"),
    ],
)
def test_a_bad_value_names_its_key_and_rule(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, **{f"FT_{key.upper()}": value})
    assert key in caught.value.message
    assert "must be" in caught.value.message
    assert f"FT_{key.upper()}" in caught.value.hint


@pytest.mark.parametrize("text", ["not toml", "unknown_key = 1", "[table]\nx = 1"])
def test_a_bad_file_names_itself(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=r"config\.toml"):
        load(tmp_path)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load(tmp_path, FT_CONFIG=str(tmp_path / "none.toml"))


def test_faults_are_armed_from_the_environment(tmp_path: Path) -> None:
    load(tmp_path, FT_FAULTS="files.write=error:ENOSPC")
    with pytest.raises(OSError, match="space"):
        faults.hit("files.write")
    load(tmp_path)
    faults.hit("files.write")


def test_children_get_their_own_faults_only() -> None:
    env = {"FT_FAULTS": "a", "FT_CHILD_FAULTS": "b", "X": "1"}
    assert engine_environment(env) == {"FT_FAULTS": "b", "X": "1"}
    assert engine_environment({"FT_FAULTS": "a"}) == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("-1s", -1),
        ("0", 0),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        ("+2s", 2),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("300", 'time: missing unit in duration "300"'),
        ("", 'time: invalid duration ""'),
        ("x", 'time: invalid duration "x"'),
        ("5y", 'time: unknown unit "y" in duration "5y"'),
        ("1.2.3s", 'time: invalid duration "1.2.3s"'),
        ("-", 'time: invalid duration "-"'),
    ],
)
def test_bad_durations_have_gos_text(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == message
