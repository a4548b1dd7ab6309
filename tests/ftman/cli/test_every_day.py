"""The verbs one lives with: settings, keys, jobs, logs, the queue, completion, embeddings."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ftman import __version__
from ftman.cli.complete import candidates
from ftman.cli.verbs import VERBS
from ftman.keys import create_key, read_keys
from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import SHOWN, Gateway, Reply

EMBEDS = {**SHOWN, "capabilities": ["embedding"]}
JOB = {
    "id": "0123456789ab",
    "name": "smollm2",
    "state": "running",
    "phase": "download",
    "completed": 1000,
    "total": 4000,
    "error": "",
    "started_wall_s": 1.0,
    "updated_wall_s": 1.0,
}


def home(tmp_path: Path) -> Path:
    return tmp_path / "ft-home"


def test_show_effective_tells_who_decides(ft: Cli, gateway: Gateway) -> None:
    effective = [
        {"name": "temperature", "value": 0.2, "origin": "the model (PARAMETER)"},
        {"name": "stop", "value": ["<e>"], "origin": "default"},
    ]
    gateway.on("POST", "/api/show", {**SHOWN, "ft": {"effective": effective}})
    lines = ft("show", "m", "--effective").out.splitlines()
    assert [line.split()[0] for line in lines] == ["SETTING", "temperature", "stop"]
    assert "0.2" in lines[1]
    assert "the model (PARAMETER)" in lines[1]
    assert '"<e>"' in lines[2]


def test_settings_name_their_origin_and_where_the_manager_differs(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_KEEP_ALIVE", "10m")
    monkeypatch.setenv("FT_API_KEY", "secret-words")
    there = {"keep_alive": {"value": 300.0, "from": "default"}, "debug": {"value": False}}
    gateway.on("GET", "/api/ft/status", {"version": "x", "effective": there})
    done = ft("settings")
    assert "OLLAMA_KEEP_ALIVE" in done.out
    assert "secret-words" not in done.out + done.err
    assert "keep_alive is 600 here (OLLAMA_KEEP_ALIVE), but the running manager has 300" in done.err
    assert "debug is" not in done.err
    told = json.loads(ft("settings", "--json").out)
    assert told["here"]["keep_alive"] == {"value": 600.0, "from": "OLLAMA_KEEP_ALIVE"}


def test_what_cannot_be_read_of_ollamas_variables_is_said(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_KEEP_ALIVE", "soon")
    gateway.on("GET", "/api/tags", {"models": []})
    done = ft("list")
    assert done.code == 0
    assert "OLLAMA_KEEP_ALIVE='soon' is left out" in done.err


def test_version_tells_of_a_manager_of_another_one(ft: Cli, tmp_path: Path) -> None:
    assert ft("version").err == ""
    path = home(tmp_path) / "run" / "manager.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"address": "127.0.0.1:1", "version": "0.0.1"}))
    assert "the running manager is version 0.0.1" in ft("version").err
    assert json.loads(ft("version", "--json").out) == {"version": __version__, "manager": "0.0.1"}
    path.write_text("[]")
    assert ft("version").err == ""


def test_keys_are_made_listed_and_removed(ft: Cli, tmp_path: Path) -> None:
    done = ft("key", "create", "laptop")
    assert done.out.startswith("ft-")
    assert "only time it is shown" in done.err
    made = json.loads(ft("key", "create", "boss", "--rights", "manage", "--json").out)
    assert (made["name"], made["rights"]) == ("boss", "manage")
    assert [line.split()[:2] for line in ft("key", "list").out.splitlines()[1:]] == [
        ["laptop", "use"],
        ["boss", "manage"],
    ]
    assert "sha256" not in ft("key", "list", "--json").out
    assert ft("key", "rm", "laptop").out == "removed 'laptop'\n"
    assert ft("key", "rm", "laptop").code == 5
    assert "no key is left" in ft("key", "rm", "boss").err
    assert read_keys(home(tmp_path) / "keys.json") == ()
    assert ft("key", "create").code == 2


def test_a_key_is_shown_to_the_manager(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.on("GET", "/api/tags", Reply({"error": "API key missing or wrong"}, 401))
    done = ft("list")
    assert done.code == 1
    assert "FT_API_KEY" in done.err


def test_jobs_are_listed_and_told_what_to_do(ft: Cli, gateway: Gateway) -> None:
    ended = {**JOB, "id": "ffff00001111", "name": "old", "state": "done"}
    paused = {**JOB, "id": "aaaa00001111", "name": "other:x", "state": "paused"}
    gateway.on("GET", "/api/ft/jobs", {"jobs": [JOB, paused, ended]})
    gateway.on("POST", "/api/ft/jobs/0123456789ab/pause", {"status": "paused"})
    gateway.on("POST", "/api/ft/jobs/aaaa00001111/resume", {"status": "resumed"})
    gateway.on("DELETE", "/api/ft/jobs/0123456789ab", Reply(None))
    listed = ft("jobs")
    assert [line.split()[1] for line in listed.out.splitlines()[1:]] == ["smollm2", "other:x"]
    assert "1.0 KB/4.0 KB" in listed.out or "1 KB/4 KB" in listed.out
    assert "old" in ft("jobs", "list", "--all").out
    assert ft("jobs", "pause", "0123").out == "smollm2 paused\n"
    assert ft("jobs", "resume", "other").out == "other:x goes on in the background\n"
    assert ft("jobs", "cancel", "smollm2").out == "smollm2 cancelled\n"
    assert ft("jobs", "pause", "other:x").code == 5
    assert ft("jobs", "pause").code == 2


def test_a_models_log_is_found_by_the_models_name(ft: Cli, tmp_path: Path) -> None:
    folder = home(tmp_path) / "logs"
    folder.mkdir(parents=True)
    (folder / "engine-smollm2-135m.log").write_text("one\ntwo \x1b[31mred\n")
    for name in ("smollm2:135m", "smollm2", "engine-smollm2-135m", "engine-smollm2-135m.log"):
        assert ft("logs", name, "-n", "1").out == "two \\x1b[31mred\n"
    assert "engine-smollm2-135m" in ft("logs", "--list").out
    assert "journalctl --user -u ft" in ft("logs").err
    assert ft("logs", "-n", "-1").code == 2


def test_ps_says_who_waits_and_why(ft: Cli, gateway: Gateway) -> None:
    queue = [
        {
            "request_id": f"req_{n}",
            "model": "m:x",
            "position": n,
            "wait_s": 62.0,
            "reason": "big:x ends, to make room",
        }
        for n in (1, 2)
    ]
    gateway.on("GET", "/api/ps", {"models": []})
    assert ft("ps").err == ""
    gateway.on("GET", "/api/ft/queue", {"queue": queue})
    assert "2 requests wait, at most 1:02: big:x ends, to make room" in ft("ps").err
    lines = ft("ps", "--queue").out.splitlines()
    assert lines[1].split()[:3] == ["1", "m:x", "1:02"]
    assert json.loads(ft("ps", "--queue", "--json").out) == {"queue": queue}
    assert json.loads(ft("ps", "other", "--queue", "--json").out) == {"queue": []}
    gateway.on("GET", "/api/ft/experts", {"models": []})
    assert ft("ps", "--experts").err == "no model is loaded\n"


def test_run_of_an_embedding_model_prints_the_vector(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/show", EMBEDS)
    gateway.on("POST", "/api/embed", {"embeddings": [[0.5, -1.0]], "warning": "it was cut"})
    done = ft("run", "m", "some", "text", "--dimensions", "2", "--truncate=false")
    assert done.out == "[0.5, -1.0]\n"
    assert done.err == "warning: it was cut\n"
    assert gateway.bodies("/api/embed") == [
        {"model": "m", "input": "some text", "truncate": False, "dimensions": 2}
    ]
    missing = ft("run", "m")
    assert missing.code == 2
    assert "embedding models require input text" in missing.err


def test_flags_for_embeddings_are_refused_elsewhere(ft: Cli, gateway: Gateway) -> None:
    done = ft("run", "m", "hi", "--dimensions", "5")
    assert done.code == 2
    assert "which m is not" in done.err
    assert ft("run", "m", "hi", "--truncate=maybe").code == 2


@pytest.mark.parametrize("verb", ["signin", "login", "signout", "logout"])
def test_verbs_about_an_account_say_that_there_is_none(ft: Cli, verb: str) -> None:
    done = ft(verb)
    assert done.code == 1
    assert "there is no account" in done.err


def test_words_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_HOME", str(home(tmp_path)))
    catalog = catalog_in(home(tmp_path))
    catalog.commit(name_of("smol", "135m"), new_model(make_ftw(catalog.paths, 1)))
    assert {verb.name for verb in VERBS} <= set(candidates([""]))
    assert candidates(["sho"]) == ["show"]
    assert candidates(["show", "sm"]) == ["smol:135m"]
    assert candidates(["show", "smol:135m", "--li"]) == ["--license"]
    assert candidates(["rm", "smol:135m", ""]) == ["smol:135m"]
    assert candidates(["completion", ""]) == ["bash", "zsh", "fish"]
    assert candidates(["key", "create", "x", "--rights", ""]) == ["use", "manage"]
    assert candidates(["launch", "co"]) == ["codex"]
    assert candidates(["help", "pu"]) == ["pull", "push"]
    assert candidates(["serve", "--a"]) == []  # only ft itself uses it
    assert candidates(["nosuch", ""]) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_bash_script_completes_names_with_a_colon(ft: Cli, tmp_path: Path) -> None:
    script = ft("completion", "bash").out
    (tmp_path / "ft").write_text("#!/bin/sh\necho smol:135m; echo smol:1b\n")
    (tmp_path / "ft").chmod(0o755)
    lines = (
        f'PATH="{tmp_path}:$PATH"\n{script}\n'
        'COMP_LINE="ft run smol:1"; COMP_POINT=${#COMP_LINE}\n'
        '_ft; echo "${COMPREPLY[*]}"'
    )
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["135m", "1b"]
    for shell in ("zsh", "fish"):
        assert "ft __complete" in ft("completion", shell).out


def test_gc_explains_what_it_would_do(ft: Cli, tmp_path: Path) -> None:
    import os

    catalog = catalog_in(home(tmp_path))
    catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    old, young = make_ftw(catalog.paths, 2), make_ftw(catalog.paths, 3)
    os.utime(catalog.paths.ftw / old, (1, 1))
    partial = catalog.paths.partial / "abc"
    partial.mkdir(parents=True)
    (partial / "job.json").write_text('{"name": "registry.ollama.ai/library/big:q4"}')
    (partial / "bytes").write_bytes(b"x" * 5000)
    done = ft("gc", "--explain")
    rows = {line.split()[1][:12]: line for line in done.out.splitlines()[1:]}
    assert "removed" in rows[old[:12]]
    assert "no model names it" in rows[old[:12]]
    assert "kept" in rows[young[:12]]
    assert "it may be about to be named" in rows[young[:12]]
    assert "ft pull big:q4 goes on with it" in done.out
    assert (catalog.paths.ftw / old).exists()
    told = json.loads(ft("gc", "--explain", "--json").out)
    assert [item["due"] for item in told["orphans"]].count(True) == 1
    assert json.loads(ft("gc", "--partials", "--json").out)["freed"] > 5000
    assert not partial.exists()
    assert not (catalog.paths.ftw / old).exists()
    assert (catalog.paths.ftw / young).exists()


def test_df_tells_what_each_model_shares(ft: Cli, tmp_path: Path) -> None:
    catalog = catalog_in(home(tmp_path))
    ftw_id = make_ftw(catalog.paths, 1)
    catalog.commit(name_of("a"), new_model(ftw_id))
    catalog.commit(name_of("b"), new_model(ftw_id, system="Another."))
    catalog.commit(name_of("c"), new_model(make_ftw(catalog.paths, 2)))
    told = {m["name"]: m for m in json.loads(ft("df", "--json").out)["models"]}
    assert told["a:latest"]["shared"] > 2 * 8192 > told["a:latest"]["own"]
    assert told["c:latest"]["own"] > 2 * 8192
    assert ft("df", "-v").out.startswith("MODEL")


def test_sources_that_no_model_was_made_from_are_cleaned_up(ft: Cli, tmp_path: Path) -> None:
    import os

    catalog = catalog_in(home(tmp_path))
    source = {"identity": "f" * 64}
    catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1), source=source))
    for name in ("f" * 16, "0" * 16):
        folder = catalog.paths.sources / name
        folder.mkdir(parents=True)
        (folder / "w.gguf").write_bytes(b"x" * 3000)
        os.utime(folder, (1, 1))
    assert "source 000000000000" in ft("gc", "--explain").out
    assert json.loads(ft("gc", "--json").out)["freed"] == 3000
    assert [path.name for path in catalog.paths.sources.iterdir()] == ["f" * 16]


def test_doctor_starts_nothing_and_its_bundle_holds_no_secret(
    ft: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    monkeypatch.setenv("FT_API_KEY", "ft-very-secret-key-text")
    create_key(home(tmp_path) / "keys.json", "a", "use")
    logs = home(tmp_path) / "logs"
    logs.mkdir()
    (logs / "manager.log").write_text(
        "got Authorization: Bearer abcdef123456 from https://u:pw@h/x"
    )
    target = tmp_path / "out.tar.gz"
    done = ft("doctor", "--bundle", str(target))
    names = {line[2:14].strip() for line in done.out.splitlines() if line[2:3] != " "}
    assert {"machine", "gpu", "store", "server", "settings", "calibrated", "access"} <= names
    assert not (home(tmp_path) / "run").exists()
    with tarfile.open(target) as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]
    together = "".join(texts.values())
    assert {"ft-support/doctor.json", "ft-support/logs/manager.log"} == set(texts)
    for secret in ("ft-very-secret-key-text", "abcdef123456", ":pw@"):
        assert secret not in together
    assert json.loads(ft("doctor", "--json").out)["findings"]


def test_export_and_import_by_the_command_line(ft: Cli, gateway: Gateway, tmp_path: Path) -> None:
    catalog = catalog_in(home(tmp_path))
    catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    folder = tmp_path / "stick"
    assert ft("export", "m", str(folder)).code == 0
    assert "is there already" in ft("export", "m", str(folder)).err
    gateway.on("POST", "/api/ft/import", Reply([{"status": "success"}]))
    assert ft("import", str(folder), "--name", "n").code == 0
    assert gateway.bodies("/api/ft/import") == [{"path": str(folder), "name": "n", "stream": True}]
    assert ft("import", str(tmp_path / "nothing")).code == 5
    assert ft("import").code == 2
