"""Settings: sources, precedence, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman import faults
from ftman.config import (
    Config,
    Paths,
    engine_environment,
    load_config,
    parse_duration,
    settings_of,
)
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


def test_ollamas_variables_count_where_nothing_of_ours_is_said(tmp_path: Path) -> None:
    theirs = {
        "OLLAMA_HOST": "0.0.0.0:8080",
        "OLLAMA_KEEP_ALIVE": " '-1' ",
        "OLLAMA_ORIGINS": "http://a,http://b",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_MAX_QUEUE": "7",
    }
    config = load(tmp_path, **theirs)
    assert (config.address, config.keep_alive_s, config.max_queue) == ("0.0.0.0:8080", -1, 7)
    assert config.origins == ("http://a", "http://b")
    assert (config.engine.context_length, config.engine.num_parallel) == (8192, 2)
    assert config.said_by["max_queue"] == "OLLAMA_MAX_QUEUE"
    assert config.notes == ()
    (tmp_path / "config.toml").write_text("max_queue = 8\n")
    ours = load(tmp_path, FT_HOST="127.0.0.1:1", **theirs)
    assert (ours.address, ours.max_queue) == ("127.0.0.1:1", 8)
    assert ours.said_by["host"] == "FT_HOST"
    assert ours.said_by["max_queue"].endswith("config.toml")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://box", "http://box:80"),
        ("https://box/path", "https://box:443"),
        ("https://box:9", "https://box:9"),
        ("box", "http://box:11434"),
    ],
)
def test_ollamas_address_is_read_as_ollama_reads_it(tmp_path: Path, text: str, url: str) -> None:
    assert load(tmp_path, OLLAMA_HOST=text).url == url


def test_what_ollama_would_not_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    config = load(tmp_path, OLLAMA_KEEP_ALIVE="soon", OLLAMA_NUM_PARALLEL="0", OLLAMA_HOST="a:b")
    assert config.keep_alive_s == 300
    assert config.engine.num_parallel == 4
    assert config.address == "127.0.0.1:11434"
    assert [note.partition("=")[0] for note in config.notes] == ["OLLAMA_HOST", "OLLAMA_KEEP_ALIVE"]


def test_a_variable_that_is_nearly_a_setting_is_told(tmp_path: Path) -> None:
    config = load(
        tmp_path, FT_KEEPALIVE="10m", FT_PEER_SERVER="x", FT_CHILD_FAULTS="", FT_DEBUG="1"
    )
    assert config.notes == ("FT_KEEPALIVE is no setting; did you mean FT_KEEP_ALIVE?",)


def test_every_setting_is_told_with_its_origin_and_no_secret(tmp_path: Path) -> None:
    found = settings_of(load(tmp_path, FT_API_KEY="hush", FT_DEBUG="1"))
    assert found["api_key"] == ("set", "FT_API_KEY")
    assert found["debug"] == (True, "FT_DEBUG")
    assert found["threads"] == (0, "default")
    assert "hush" not in repr(load(tmp_path, FT_API_KEY="hush"))


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
        ("host", "box:" + "9" * 5000),
        ("host", "box:\u0663"),
        ("host", "a..b"),
        ("host", "x" * 64),
        ("host", "::::"),
        ("host", "[::1"),
        ("host", "http://["),
        ("host", "\x1b[2J"),
        ("host", "a\nb"),
        ("host", "/run/ft.sock"),
        ("registry", "ftp://box/models"),
        ("registry", "https://["),
        ("tls_cert", "~nobody-has-this-name/cert.pem"),
        ("api_key", "a\nb"),
        ("api_key", "schl\u00fcssel"),
        ("cpu_target", "a b"),
        ("num_parallel", "0"),
        ("num_parallel", "1025"),
        ("threads", "1025"),
        ("park_bytes", "9" * 24),
        ("context_length", "9" * 5000),
        ("load_timeout_s", "0"),
        ("load_timeout_s", "-1s"),
        ("keep_alive", "9" * 24),
        ("strategy", "fetch"),
        ("expert_slots", "5"),
        ("keep_alive", "5 minutes"),
        ("keep_alive", "nan"),
        ("keep_alive", "inf"),
        ("threads", "-1"),
        ("threads", "two"),
        ("debug", "maybe"),
        ("device", "xpu"),
        ("max_queue", "0"),
        ("compute", "fp8"),
        ("park_disk_bytes", "5"),
        ("faults", "no.such.point=kill"),
    ],
)
def test_a_bad_value_names_its_key_and_rule(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, **{f"FT_{key.upper()}": value})
    assert key in caught.value.message
    assert "must be" in caught.value.message
    assert f"FT_{key.upper()}" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["box", "b\u00fccher.example", "1.2.3.4", "fe80::1%eth0", "a_b.c."]
)
def test_what_names_a_machine_is_a_host(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, FT_HOST=text).host == text


@pytest.mark.parametrize("key", ["models", "tls_cert"])
def test_a_path_that_holds_a_zero_is_none(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.toml").write_text(f'{key} = "/a\\u0000b"\n')
    with pytest.raises(UsageError, match=key):
        load(tmp_path)


def test_experts_are_kept_where_there_is_a_device(tmp_path: Path) -> None:
    engine = load(tmp_path, FT_DEVICE="auto", FT_STRATEGY="split", FT_EXPERT_SLOTS="5").engine
    assert (engine.strategy, engine.expert_slots) == ("split", 5)
    with pytest.raises(UsageError, match="expert_slots = '5'"):
        load(tmp_path, FT_DEVICE="auto", FT_STRATEGY="cpu", FT_EXPERT_SLOTS="5")


def test_parked_conversations_need_something_to_park(tmp_path: Path) -> None:
    config = load(tmp_path, FT_PARK_DISK=str(tmp_path / "parked"))
    assert config.paths.parked == config.engine.park_disk == tmp_path / "parked"
    for other in ({"FT_PREFIX_CACHE": "off"}, {"FT_PARK_BYTES": "0"}):
        with pytest.raises(UsageError, match="nothing is parked then"):
            load(tmp_path, FT_PARK_DISK=str(tmp_path), **other)


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


def test_kv_cache_type_is_ours_or_ollamas(tmp_path: Path) -> None:
    assert load(tmp_path).engine.kv_cache_type == "auto"
    ours = load(tmp_path, FT_KV_CACHE_TYPE="q8_0", OLLAMA_KV_CACHE_TYPE="f16")
    assert (ours.engine.kv_cache_type, ours.notes) == ("q8_0", ())
    theirs = load(tmp_path, OLLAMA_KV_CACHE_TYPE="q8_0")
    assert theirs.engine.kv_cache_type == "q8_0"
    assert settings_of(theirs)["kv_cache_type"] == ("q8_0", "OLLAMA_KV_CACHE_TYPE")


@pytest.mark.parametrize("name", ["OLLAMA_KV_CACHE_TYPE", "FT_KV_CACHE_TYPE"])
def test_f16_keys_and_values_are_kept_as_bf16_with_a_note(tmp_path: Path, name: str) -> None:
    config = load(tmp_path, **{name: "f16"})
    assert config.engine.kv_cache_type == "bf16"
    (note,) = config.notes
    assert note.startswith(f"{name}=f16: keys and values are kept as bf16")


def test_activations_are_rounded_to_8_bits_only_where_that_is_asked_for(tmp_path: Path) -> None:
    assert load(tmp_path).engine.activations == "auto"
    assert load(tmp_path, FT_ACTIVATIONS="int8").engine.activations == "int8"
    with pytest.raises(UsageError, match=r"activations = 'int4' .* one of auto, int8"):
        load(tmp_path, FT_ACTIVATIONS="int4")
    with pytest.raises(UsageError, match=r"activations = 'int8' .* auto where compute is float32"):
        load(tmp_path, FT_ACTIVATIONS="int8", FT_COMPUTE="float32")


def test_a_kv_cache_type_that_is_not_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kv_cache_type = 'q4_0' .* one of auto, bf16, f16, f32"):
        load(tmp_path, FT_KV_CACHE_TYPE="q4_0")
    config = load(tmp_path, OLLAMA_KV_CACHE_TYPE="q4_0")
    assert config.engine.kv_cache_type == "auto"
    (note,) = config.notes
    assert "OLLAMA_KV_CACHE_TYPE='q4_0' is left out: it must be one of auto, bf16" in note


@pytest.mark.parametrize(
    "name", ["FT_HOME", "FT_MODELS", "FT_PARK_DISK", "FT_REGISTRY", "FT_CONFIG"]
)
@pytest.mark.parametrize("value", ["models", "./models", "~nobody-has-this-name/models"])
def test_folders_that_depend_on_where_one_stands_are_refused(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(UsageError, match="must be a whole path") as caught:
        load_config({"FT_HOME": str(tmp_path), name: value})
    assert "Perhaps: /" in caught.value.hint


def test_a_relative_folder_in_the_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('models = "models"\n')
    with pytest.raises(UsageError, match="setting models = 'models' is not valid"):
        load_config({"FT_HOME": str(tmp_path)})
