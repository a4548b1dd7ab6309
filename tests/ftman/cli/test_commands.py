"""Each verb against a scripted manager: what it sends, what it prints, how it ends."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.cli.answer import AnswerView
from ftman.cli.commands import shutdown
from ftman.cli.commands.search import HEADER, shown
from ftman.cli.output import Output, table
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import FINAL, SHOWN, Gateway, Reply, answer_stream
from tests.ftman.cli.test_progress import Tty

ROOT = Path(__file__).resolve().parents[3]
DIGEST = "a" * 64
MODELS = {
    "models": [
        {"name": "Smol:135m", "digest": DIGEST, "size": 5, "modified_at": "2020-01-01T00:00:00Z"},
        {"name": "other:x", "digest": DIGEST, "size": 5, "modified_at": "2020-01-01T00:00:00Z"},
    ]
}
PULL = [
    {"status": "pulling manifest"},
    {"status": "pulling aaaaaaaaaaaa", "digest": "sha256:a", "total": 10},
    {"status": "pulling aaaaaaaaaaaa", "digest": "sha256:a", "total": 10, "completed": 10},
    {"status": "verifying sha256 digest"},
    {"status": "success"},
]


def test_list_filters_by_prefix_without_case(ft: Cli, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", MODELS)
    assert [line.split()[0] for line in ft("ls", "smol").out.splitlines()] == ["NAME", "Smol:135m"]
    assert json.loads(ft("list", "--json").out) == MODELS


def test_list_tells_of_damage(ft: Cli, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", {"models": [{**MODELS["models"][0], "ft": {"damaged": "gone"}}]})
    assert "warning: Smol:135m is damaged: gone" in ft("list").err


def test_ps_filters_with_case(ft: Cli, gateway: Gateway) -> None:
    entry = {**MODELS["models"][0], "size_vram": 0, "context_length": 1, "expires_at": ""}
    gateway.on("GET", "/api/ps", {"models": [entry]})
    assert len(ft("ps", "smol").out.splitlines()) == 1
    assert " 4096 " not in ft("ps").out
    entry |= {"context_length": 4096, "ft": {"kv_format": "bf16"}}
    gateway.on("GET", "/api/ps", {"models": [entry]})
    assert "q8_0" not in ft("ps").out
    entry["ft"] = {"kv_format": "q8_0"}
    gateway.on("GET", "/api/ps", {"models": [entry]})
    assert " 4096 q8_0 " in ft("ps").out
    assert "100% CPU" in ft("ps", "Smol").out


def test_pull_shows_progress_on_stderr_only(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/pull", Reply(PULL))
    done = ft("pull", "smollm2", "--insecure")
    assert done.code == 0
    assert done.out == ""
    assert done.err.splitlines()[-1] == "success"
    assert gateway.bodies("/api/pull") == [{"name": "smollm2", "insecure": True, "stream": True}]


def test_pull_json_is_ndjson(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/pull", Reply(PULL))
    done = ft("pull", "smollm2", "--json")
    assert [json.loads(line) for line in done.out.splitlines()] == PULL
    assert done.err == ""


def test_pull_of_a_local_folder_sends_a_file_url(ft: Cli, gateway: Gateway, tmp_path: Path) -> None:
    gateway.on("POST", "/api/pull", Reply(PULL))
    folder = tmp_path / "my model"
    folder.mkdir()
    ft("pull", str(folder))
    assert gateway.bodies("/api/pull")[0]["name"] == folder.resolve().as_uri()


def test_pull_of_an_unknown_name_is_exit_5(ft: Cli, gateway: Gateway) -> None:
    text = "pull model manifest: file does not exist"
    gateway.on("POST", "/api/pull", Reply([PULL[0], {"error": text}]))
    done = ft("pull", "nosuch")
    assert done.code == 5
    assert f"error: {text}" in done.err
    assert "ft" in done.err.splitlines()[-1]


def test_an_in_stream_error_keeps_its_code(ft: Cli, gateway: Gateway) -> None:
    line = {"error": "needs 10 GB, has 1 GB", "code": "cannot_fit", "hint": "free some"}
    gateway.on("POST", "/api/pull", Reply([PULL[0], line]))
    done = ft("pull", "m")
    assert done.code == 3
    assert done.err.endswith("error: needs 10 GB, has 1 GB\n  free some\n")
    gateway.on("POST", "/api/pull", Reply([PULL[0], {**line, "code": "disk_full"}]))
    assert ft("pull", "m").code == 3
    gateway.on("POST", "/api/pull", Reply([PULL[0], {"error": "invalid model name 'a/b/c/d/e'"}]))
    done = ft("pull", "m")
    assert done.code == 2
    assert "A name looks like" in done.err


def test_a_path_that_leads_nowhere_is_told_as_one(
    ft: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ft("pull", str(tmp_path / "no.gguf"))
    assert (done.code, gateway.bodies("/api/pull")) == (5, [])
    assert f"there is no file or folder {tmp_path}/no.gguf" in done.err
    done = ft("run", "./no.gguf", "hi")
    assert done.code == 2
    assert "ft pull ./no.gguf" in done.err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.gguf").write_bytes(b"GGUF")
    missing = {"error": "pull model manifest: file does not exist", "hint": "see: ft search"}
    gateway.on("POST", "/api/pull", Reply([PULL[0], missing]))
    assert "ft pull ./here.gguf" in ft("pull", "here.gguf").err


@pytest.mark.parametrize("cut", [True, False])
def test_a_pull_that_just_ends_is_an_error(ft: Cli, gateway: Gateway, cut: bool) -> None:
    gateway.on("POST", "/api/pull", Reply(PULL[:2], cut=cut))
    done = ft("pull", "m")
    assert done.code == (4 if cut else 1)
    assert "ended the" in done.err


def test_show_parts_and_sections(ft: Cli, gateway: Gateway) -> None:
    assert ft("show", "m").out.startswith("  Model\n    architecture ")
    assert ft("show", "m", "--system").out == "Be kind."
    assert ft("show", "--modelfile", "m").out == "# Modelfile\nFROM m\n"
    assert ft("show", "m", "--parameters").out == SHOWN["parameters"] + "\n"
    assert json.loads(ft("show", "m", "--json").out) == SHOWN
    done = ft("show", "m", "--system", "--license")
    assert done.code == 2
    assert "only one of '--license', '--modelfile'" in done.err


def test_show_of_something_missing_is_exit_5(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/show", Reply({"error": "model 'x:latest' not found"}, 404))
    done = ft("show", "x")
    assert done.code == 5
    assert "error: model 'x:latest' not found\n  What is installed: ft list" in done.err


def test_a_missing_models_near_names_are_told(ft: Cli, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", {"models": [{"name": "smollm2:135m"}, {"name": "qwen:4b"}]})
    gateway.on("POST", "/api/show", Reply({"error": "model 'smolm2:latest' not found"}, 404))
    near = "Did you mean smollm2:135m? What is installed: ft list"
    done = ft("show", "smolm2")
    assert (done.code, done.err.splitlines()[-1].strip()) == (5, near)
    unknown = {"error": "pull model manifest: file does not exist", "hint": "see: ft search"}
    gateway.on("POST", "/api/pull", Reply([PULL[0], unknown]))
    done = ft("run", "smolm2")
    assert [line.strip() for line in done.err.splitlines()[-2:]] == [near, "see: ft search"]


def test_stop_prints_nothing_and_names_what_is_missing(ft: Cli, gateway: Gateway) -> None:
    done = ft("stop", "m")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert gateway.bodies("/api/generate")[0]["keep_alive"] == 0
    gateway.on("POST", "/api/generate", Reply({"error": "model 'x' not found"}, 404))
    done = ft("stop", "x")
    assert done.code == 5
    assert done.err.startswith('error: couldn\'t find model "x" to stop\n')


def test_rm_unloads_first_and_stops_at_the_first_error(ft: Cli, gateway: Gateway) -> None:
    def delete(body: dict[str, str]) -> Reply:
        if body["name"] == "b":
            return Reply({"error": "model 'b' not found"}, 404)
        return Reply(None)

    gateway.on("DELETE", "/api/delete", delete)
    done = ft("rm", "a", "b", "c")
    assert done.code == 5
    assert done.out == "deleted 'a'\n"
    assert [b["name"] for b in gateway.bodies("/api/delete")] == ["a", "b"]
    assert [b["model"] for b in gateway.bodies("/api/generate")] == ["a", "b"]


def test_rm_warns_when_unloading_fails(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/generate", Reply({"error": "busy"}, 503))
    gateway.on("DELETE", "/api/delete", Reply(None))
    done = ft("rm", "a")
    assert done.err == "warning: unable to stop model 'a'\n"
    assert done.out == "deleted 'a'\n"


def test_cp(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/copy", Reply(None))
    assert ft("cp", "a", "b").out == "copied 'a' to 'b'\n"
    assert gateway.bodies("/api/copy") == [{"source": "a", "destination": "b"}]


def test_search(ft: Cli, gateway: Gateway) -> None:
    entry = {
        "name": "big",
        "tag": "nvfp4",
        "bytes": 0,
        "total_params": 35_100_000_000,
        "active_params": 3_000_000_000,
        "license": "mit",
        "summary": "A model.",
    }
    gateway.on("GET", "/api/ft/search", {"models": [entry]})
    done = ft("search", "big", "model")
    assert "big:nvfp4    -       35.1B (3B active)" in done.out
    assert gateway.requests[-1][1] == "/api/ft/search?q=big+model"


def test_a_search_that_finds_nothing_tells_near_names(ft: Cli, gateway: Gateway) -> None:
    answers = [{"models": []}, {"models": [{"name": "smollm2"}]}] * 2
    gateway.on("GET", "/api/ft/search", lambda _: Reply(answers.pop(0)))
    assert "no known model matches; did you mean smollm2? " in ft("search", "smolm2").err
    assert "no known model matches; ft pull hf.co" in ft("search", "else").err


def test_a_search_on_a_narrow_terminal_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("big:nvfp4", "-", "35.1B (3B active)", "mit", "A model of many words.")]
    lines = [f"{rows[0][0]}   35.1B (3B active), mit", "  A model of many words."]
    out = Output(Tty(), io.StringIO())
    monkeypatch.setenv("COLUMNS", "60")
    assert shown(rows, out).splitlines() == lines
    assert shown(rows, Output(io.StringIO(), io.StringIO())) == table(HEADER, rows)
    monkeypatch.setenv("COLUMNS", "120")
    assert shown(rows, out) == table(HEADER, rows)


def test_calibrate_follows_progress(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/calibrate", Reply([{"status": "cpu"}, {"status": "success"}]))
    assert ft("calibrate", "m").err == "cpu\nsuccess\n"


def test_bench_prints_the_engines_table(ft: Cli, gateway: Gateway) -> None:
    last = {"status": "success", "profile": {}, "text": "decode: 2 ms"}
    gateway.on("POST", "/api/ft/bench", Reply([{"status": "measuring"}, last]))
    done = ft("bench", "m", "--profile")
    assert done.out == "decode: 2 ms\n"
    assert gateway.bodies("/api/ft/bench") == [{"model": "m"}]
    assert ft("bench", "m").code == 2


def test_calibrate_prints_the_rates(ft: Cli, gateway: Gateway) -> None:
    profile = {
        "threads": 2,
        "target": "avx2",
        "read_bytes_per_s": 41.26e9,
        "expert_bytes_per_s": {"bf16": 33e9},
        "disk_bytes_per_s": 0.0,
    }
    gateway.on("POST", "/api/ft/calibrate", Reply([{"status": "success", "profile": profile}]))
    lines = ft("calibrate").out.splitlines()
    assert lines[1].split("  ")[0] == "memory, read"
    assert "41.3 GB/s" in lines[1]
    assert "experts, bf16" in lines[2]
    assert "disk" not in "".join(lines)
    assert lines[3].split()[:5] == ["link", "to", "a", "device", "none"]
    assert "no accelerator" in lines[3]


def test_run_with_a_prompt_loads_then_generates(ft: Cli, gateway: Gateway) -> None:
    def generate(body: dict[str, str]) -> Reply:
        if body["prompt"]:
            return Reply(answer_stream("Hello", " world"))
        return Reply({"done": True, "done_reason": "load"})

    gateway.on("POST", "/api/generate", generate)
    done = ft("run", "m", "--verbose", "say", "hi", "--keepalive", "5m", stdin="from a pipe")
    assert done.out == "Hello world\n\n"
    assert done.code == 0
    loads, asks = gateway.bodies("/api/generate")
    assert loads == {"model": "m", "prompt": "", "stream": False, "keep_alive": "5m"}
    assert asks == {"model": "m", "keep_alive": "5m", "prompt": "from a pipe say hi"}
    assert done.err == (
        "total duration:       4.86s\n"
        "load duration:        113ms\n"
        "prompt eval count:    26 token(s)\n"
        "prompt eval duration: 130ms\n"
        "prompt eval rate:     200.00 tokens/s\n"
        "eval count:           298 token(s)\n"
        "eval duration:        4.5s\n"
        "eval rate:            66.22 tokens/s\n"
    )


def test_run_without_prompt_or_terminal_only_loads(ft: Cli, gateway: Gateway) -> None:
    done = ft("run", "m")
    assert (done.code, done.out) == (0, "")
    assert len(gateway.bodies("/api/generate")) == 1


def test_run_pulls_what_is_missing(ft: Cli, gateway: Gateway) -> None:
    def show(body: dict[str, str]) -> Reply:
        if gateway.bodies("/api/pull"):
            return Reply(SHOWN)
        return Reply({"error": "model 'm' not found"}, 404)

    gateway.on("POST", "/api/show", show)
    gateway.on("POST", "/api/pull", Reply(PULL))
    assert ft("run", "m").code == 0
    assert [path for _, path, _ in gateway.requests if path.startswith("/api/")] == [
        "/api/show",
        "/api/tags",
        "/api/ft/plan",
        "/api/pull",
        "/api/show",
        "/api/generate",
    ]


def test_run_shows_thinking_apart_or_hides_it(ft: Cli, gateway: Gateway) -> None:
    stream = [
        {"response": "", "thinking": "hmm", "done": False},
        {"response": "ok", "done": False},
        {"response": "", **FINAL},
    ]
    gateway.on("POST", "/api/generate", lambda b: Reply(stream if b["prompt"] else {"done": True}))
    shown = "Thinking...\nhmm\n...done thinking.\n\nok\n\n"
    assert ft("run", "m", "x", "--think").out == shown
    assert gateway.bodies("/api/generate")[-1]["think"] is True
    assert ft("run", "m", "x", "--think=high", "--hidethinking").out == "ok\n\n"
    assert gateway.bodies("/api/generate")[-1]["think"] == "high"


def test_run_passes_warnings_on(ft: Cli, gateway: Gateway) -> None:
    stream = [{"response": "ok", **FINAL, "warning": "the prompt was cut"}]
    gateway.on("POST", "/api/generate", lambda b: Reply(stream if b["prompt"] else {"done": True}))
    done = ft("run", "m", "x")
    assert done.err == "warning: the prompt was cut\n"
    told = io.StringIO()
    AnswerView(Output(told, told)).show(stream)
    assert told.getvalue() == "ok\n\nwarning: the prompt was cut\n"


@pytest.mark.parametrize("ending", ["error", "cut", "short"])
def test_an_answer_that_breaks_is_an_error(ft: Cli, gateway: Gateway, ending: str) -> None:
    stream = answer_stream("Hel")[:1]
    if ending == "error":
        stream.append({"error": "the engine died"})
    reply = Reply(stream, cut=ending == "cut")
    gateway.on("POST", "/api/generate", lambda b: reply if b["prompt"] else Reply({"done": True}))
    done = ft("run", "m", "x")
    assert done.code != 0
    assert done.out == "Hel"
    assert "error: " in done.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--keepalive", "5"], 'time: missing unit in duration "5"'),
        (["--think=maybe"], 'invalid value for --think: "maybe" (must be true, false, high'),
        (["--format", "xml"], "invalid format: 'xml'"),
        (["--truncate", "maybe"], 'invalid value for --truncate: "maybe"'),
    ],
)
def test_run_refuses_bad_flags_before_anything_is_sent(
    ft: Cli, gateway: Gateway, words: list[str], text: str
) -> None:
    done = ft("run", "m", "hi", *words)
    assert done.code in (1, 2)
    assert text in done.err
    assert gateway.requests == []


def test_run_sends_a_schema(ft: Cli, gateway: Gateway) -> None:
    stream = answer_stream("{}")
    gateway.on("POST", "/api/generate", lambda b: Reply(stream if b["prompt"] else {"done": True}))
    assert ft("run", "m", "x", "--format", '{"type":"object"}').code == 0
    assert gateway.bodies("/api/generate")[-1]["format"] == {"type": "object"}


def test_create_from_a_model(ft: Cli, gateway: Gateway, tmp_path: Path) -> None:
    gateway.on("POST", "/api/create", Reply([{"status": "success"}]))
    path = tmp_path / "Modelfile"
    path.write_text(
        "FROM base\nSYSTEM be brief\nPARAMETER seed 7\nPARAMETER mirostat 1\n"
        "MESSAGE user hi\nLICENSE MIT\nRENDERER r\n"
    )
    done = ft("create", "mine", "-f", str(path))
    assert done.code == 0
    assert done.err == "warning: parameter mirostat is deprecated\nsuccess\n"
    assert gateway.bodies("/api/create") == [
        {
            "model": "mine",
            "stream": True,
            "from": "base",
            "system": "be brief",
            "renderer": "r",
            "parameters": {"seed": 7},
            "license": ["MIT"],
            "messages": [{"role": "user", "content": "hi"}],
        }
    ]


def test_create_uploads_files_the_manager_lacks(ft: Cli, gateway: Gateway, tmp_path: Path) -> None:
    uploads: list[bytes] = []

    def upload(body: bytes) -> Reply:
        uploads.append(body)
        return Reply(None, 201)

    gateway.on("HEAD", "/api/blobs/", Reply(None, 404))
    gateway.on("POST", "/api/blobs/", upload)
    gateway.on("POST", "/api/create", Reply([{"status": "success"}]))
    (tmp_path / "w.gguf").write_bytes(b"GGUF\xff bytes")
    (tmp_path / "Modelfile").write_text("FROM ./w.gguf")
    assert ft("create", "mine", "-f", str(tmp_path / "Modelfile")).code == 0
    digest = "sha256:" + hashlib.sha256(b"GGUF\xff bytes").hexdigest()
    assert uploads == [b"GGUF\xff bytes"]
    assert gateway.bodies("/api/create")[0]["files"] == {"w.gguf": digest}
    gateway.on("HEAD", "/api/blobs/", Reply(None, 200))
    assert ft("create", "mine", "-f", str(tmp_path / "Modelfile")).code == 0
    assert len(uploads) == 1


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        ("FROM x\nDRAFT d", 1, "DRAFT d: draft models are not built yet"),
        ("FROM ./missing.gguf", 2, "FROM ./missing.gguf: no such file"),
        ("FROM x\nFORM y", 2, '(line 2): command must be one of "from"'),
        ("SYSTEM x", 2, "no FROM line"),
        ("FROM a\nFROM b", 2, "FROM names two models: a and b"),
    ],
)
def test_create_refuses_before_anything_is_sent(
    ft: Cli, gateway: Gateway, tmp_path: Path, text: str, exit_code: int, message: str
) -> None:
    (tmp_path / "Modelfile").write_text(text)
    done = ft("create", "mine", "-f", str(tmp_path / "Modelfile"))
    assert done.code == exit_code
    assert message in done.err
    assert gateway.requests == []


def test_create_needs_a_file_and_a_name(
    ft: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no Modelfile or safetensors files found" in ft("create", "mine").err
    assert "specified Modelfile wasn't found" in ft("create", "mine", "-f", "nope").err
    assert "invalid model name: a//b" in ft("create", "a//b").err
    (tmp_path / "Modelfile").write_text("FROM x")
    assert "requires a DRAFT model" in ft("create", "m", "--draft-quantize", "Q8_0").err


def test_create_sends_quantize_and_adapters(ft: Cli, gateway: Gateway, tmp_path: Path) -> None:
    gateway.on("POST", "/api/create", Reply([{"status": "success"}]))
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    gateway.on("HEAD", "/api/blobs/", Reply(None, 200))
    (tmp_path / "Modelfile").write_text("FROM tiny\nADAPTER ./lora")
    assert ft("create", "m", "-f", str(tmp_path / "Modelfile"), "-q", "q4_0").code == 0
    (body,) = gateway.bodies("/api/create")
    assert (body["from"], body["quantize"]) == ("tiny", "q4_0")
    assert sorted(body["adapters"]) == ["adapter_config.json", "adapter_model.safetensors"]
    (tmp_path / "Modelfile").write_text("FROM tiny\nADAPTER ./nope")
    assert (
        "ADAPTER ./nope: no such file" in ft("create", "m", "-f", str(tmp_path / "Modelfile")).err
    )


def test_push_shows_progress_and_how_others_get_it(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/push", Reply([{"status": "pushing manifest"}, {"status": "success"}]))
    done = ft("push", "example.com:5000/me/m", "--insecure")
    assert done.code == 0
    assert gateway.bodies("/api/push") == [
        {"model": "example.com:5000/me/m", "insecure": True, "stream": True}
    ]
    assert "ft pull example.com:5000/me/m:latest" in done.err
    assert "invalid model name: a//b" in ft("push", "a//b").err


def test_folders_bring_weights_and_what_lies_beside(tmp_path: Path) -> None:
    from ftman.cli.sources import resolve_sources
    from ftman.errors import UsageError

    folder = tmp_path / "hf"
    folder.mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors", "config.json", "x.gguf", "a.txt"):
        (folder / name).write_bytes(b"x")
    assert sorted(resolve_sources(["hf"], tmp_path).files) == [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    (tmp_path / "secret.json").write_text("{}")
    (folder / "evil.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(UsageError, match=r"insecure path: evil\.json"):
        resolve_sources(["hf"], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no model files"):
        resolve_sources(["empty"], tmp_path)


def test_a_shutdown_that_takes_its_time_says_why(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.on("GET", "/api/ft/status", {"pid": os.getpid()})
    gateway.on("POST", "/api/ft/shutdown", {})
    monkeypatch.setattr(shutdown, "SAY_AFTER_S", 0.0)
    monkeypatch.setattr(shutdown, "LIMIT_S", 0.1)
    done = ft("shutdown")
    assert done.code == 1
    assert done.err.count("it ends when the answers under way are done") == 1
    assert "is still there after" in done.err


def test_df_and_gc_work_without_a_manager(ft: Cli, tmp_path: Path) -> None:
    from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model

    catalog = catalog_in(tmp_path / "ft-home")
    catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    orphan = make_ftw(catalog.paths, 2)
    os.utime(catalog.paths.ftw / orphan, (1, 1))
    sizes = json.loads(ft("df", "--json").out)
    assert sizes["unneeded"] > 2 * 8192
    assert ft("df").out.startswith("WHAT")
    done = ft("gc", "--json")
    assert json.loads(done.out)["freed"] == sizes["unneeded"]
    assert catalog.find("m").damaged == ""


def test_logs_shows_the_tail_and_names_what_there_is(ft: Cli, tmp_path: Path) -> None:
    assert "there is no log" in ft("logs").err
    folder = tmp_path / "ft-home" / "logs"
    folder.mkdir(parents=True)
    (folder / "manager.log").write_text("".join(f"line {i}\n" for i in range(100)))
    assert ft("logs", "-n", "2").out == "line 98\nline 99\n"
    assert "There are: manager\n" in ft("logs", "nope").err
    assert ft("logs", "../../etc/passwd").code == 5


def slow_stream(release: threading.Event, first: list[dict[str, object]]) -> object:
    def items() -> Iterator[dict[str, object]]:
        yield from first
        while not release.is_set():
            yield {"status": first[-1].get("status", ""), "total": 10, "completed": 1}
            release.wait(0.02)

    return items


def test_ctrl_c_during_a_pull_closes_the_stream_and_says_how_to_resume(gateway: Gateway) -> None:
    gateway.on("POST", "/api/pull", Reply(slow_stream(gateway.broken, PULL[:2])))
    process = subprocess.Popen(
        [sys.executable, "-m", "ftman", "pull", "smollm2"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "pulling aaaaaaaaaaaa" in first
    assert rest.endswith("stopped; what was fetched is kept. ft pull smollm2 resumes\n")
    assert gateway.broken.wait(5)


def test_a_reader_that_goes_away_is_no_error(gateway: Gateway) -> None:
    many = [{**MODELS["models"][0], "name": f"m{i}:x"} for i in range(5000)]
    gateway.on("GET", "/api/tags", {"models": many})
    shell = f"{sys.executable} -m ftman list | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
