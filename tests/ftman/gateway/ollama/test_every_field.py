"""A field that is accepted and has no effect does not exist: each one is sent, and seen to act.

FIELDS lists what Ollama's documentation lists for each request. A row says what is sent beside the
least request of its route, and how its effect (or its error) is seen. The last test fails when a
documented field has no row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.ftman.gateway.ollama.models import NOW, NativeManager
from tests.ftman.gateway.ollama.rows import HI, PNG
from tests.ftman.gateway.serving import lines_of

See = Callable[[NativeManager, httpx.Response], object]
FIELDS: dict[str, str] = {
    "generate": "model prompt suffix system template context stream raw format keep_alive images "
    "options think truncate shift logprobs top_logprobs _debug_render_only",
    "chat": "model messages stream format keep_alive tools options think truncate shift logprobs "
    "top_logprobs _debug_render_only",
    "embed": "model input keep_alive truncate dimensions options",
    "embeddings": "model prompt keep_alive options",
    "show": "model name system verbose options",
    "create": "model name stream from files adapters draft_files template license system "
    "parameters messages quantize quantization draft_quantize renderer parser requires "
    "remote_host info",
    "copy": "source destination",
    "pull": "model name insecure stream",
    "push": "model name insecure stream",
    "options": "num_ctx num_batch num_gpu main_gpu use_mmap num_thread draft_num_predict num_keep "
    "seed num_predict top_k top_p min_p typical_p repeat_last_n temperature repeat_penalty "
    "presence_penalty frequency_penalty stop",
}
LEAST: dict[str, dict[str, Any]] = {
    "generate": {"model": "go", "prompt": "Hi", "stream": False},
    "chat": {"model": "go", "messages": HI, "stream": False},
    "embed": {"model": "tiny", "input": "abc"},
    "embeddings": {"model": "tiny", "prompt": "abc"},
    "show": {"model": "tiny"},
    "create": {"model": "field", "from": "tiny", "stream": False},
    "copy": {"source": "tiny", "destination": "field-copy"},
    "pull": {"model": "no-such", "stream": False},
    "push": {"model": "tiny", "stream": False},
    "options": {"model": "tiny", "prompt": "Hi", "stream": False},
}


@dataclass(frozen=True)
class Row:
    """One field of one route and what shows that it acts."""

    route: str
    field: str
    value: Any
    see: See
    beside: tuple[tuple[str, Any], ...] = ()


def sent(**wanted: Any) -> See:
    """The engine was asked for this: top fields, else sampling fields."""

    def see(native: NativeManager, reply: httpx.Response) -> None:
        asked = native.asked()
        flat = {**asked, **asked.get("sampling", {})}
        assert {key: flat.get(key) for key in wanted} == wanted

    return see


def answers(**wanted: Any) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        value = reply.json()
        assert {key: value.get(key) for key in wanted} == wanted

    return see


def refused(text: str) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        assert text in lines_or_object(reply)["error"]

    return see


def lines_or_object(reply: httpx.Response) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(reply.text.strip().splitlines()[-1])
    return last


def warned(text: str) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        assert text in reply.json()["warning"]

    return see


def streamed(native: NativeManager, reply: httpx.Response) -> None:
    assert len(lines_of(reply)) > 1


def rendered(text: str) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        assert text in reply.json()["_debug_info"]["rendered_template"]

    return see


def shown(name: str, **wanted: Any) -> See:
    """What /api/show tells of a model afterwards."""

    def see(native: NativeManager, reply: httpx.Response) -> None:
        assert reply.json() == {"status": "success"}, reply.text
        value = native.post("show", {"model": name}).json()
        for key, expected in wanted.items():
            assert expected in json.dumps(value[key]), value[key]

    return see


def constrained(native: NativeManager, reply: httpx.Response) -> None:
    assert native.asked()["constraint"] is not None


def forever(native: NativeManager, reply: httpx.Response) -> None:
    entries = native.http.get("/api/ps").json()["models"]
    assert any(int(entry["expires_at"][:4]) > 2200 for entry in entries)


def has(name: str) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        assert name in reply.json()

    return see


def window(tokens: int) -> See:
    def see(native: NativeManager, reply: httpx.Response) -> None:
        entries = native.http.get("/api/ps").json()["models"]
        assert tokens in [entry["context_length"] for entry in entries]

    return see


def unlike_before(native: NativeManager, reply: httpx.Response) -> None:
    """More tokens of the prompt are kept than without the option."""
    body = {"model": "tiny", "prompt": "x" * 700, "stream": False, "options": {"num_keep": 0}}
    native.post("generate", body)
    least = len(native.asked()["token_ids"])
    native.post("generate", body | {"options": {"num_keep": 200}})
    assert len(native.asked()["token_ids"]) > least


LONG = [{"role": "user", "content": "x" * 700}]
DEBUG = (("_debug_render_only", True),)
TALK = (
    ("keep_alive", -1, forever),
    ("format", {"type": "object"}, constrained),
    ("stream", True, streamed),
    ("options", {"top_k": 3}, sent(top_k=3)),
    ("think", True, refused("does not support thinking")),
    ("logprobs", True, has("logprobs")),
)
ROWS = (
    *(Row(route, name, value, see) for route in ("generate", "chat") for name, value, see in TALK),
    Row("generate", "model", "nope", refused("model 'nope' not found")),
    Row("generate", "prompt", "Hello you", rendered("Hello you"), DEBUG),
    Row(
        "generate", "suffix", "END", rendered("<PRE>Hi<SUF>END<MID>"), (("model", "insert"), *DEBUG)
    ),
    Row("generate", "system", "Mine.", rendered("Mine."), DEBUG),
    Row("generate", "template", "T:{{ .Prompt }}", rendered("T:Hi"), DEBUG),
    Row("generate", "context", [9, 9, 9], lambda n, r: n.asked()["token_ids"][:3] == [9, 9, 9]),
    Row("generate", "raw", True, rendered("Hi"), DEBUG),
    Row("generate", "images", [PNG], refused("does not support vision")),
    Row("generate", "truncate", False, refused("the prompt is longer"), (("prompt", "x" * 700),)),
    Row("generate", "shift", False, refused("the prompt is longer"), (("prompt", "x" * 700),)),
    Row("generate", "top_logprobs", 2, sent(logprobs=2), (("logprobs", True),)),
    Row("generate", "_debug_render_only", True, rendered("<|im_start|>user\nHi")),
    Row("chat", "model", "", refused("model is required")),
    Row("chat", "messages", [{"role": "user", "content": "Hey"}], rendered("Hey"), DEBUG),
    Row("chat", "tools", [NOW], rendered('"name":"now"'), (("model", "caller"), *DEBUG)),
    Row("chat", "truncate", False, refused("the prompt is longer"), (("messages", LONG),)),
    Row("chat", "shift", False, refused("the prompt is longer"), (("messages", LONG),)),
    Row("chat", "top_logprobs", 2, sent(logprobs=2), (("logprobs", True),)),
    Row("chat", "_debug_render_only", True, rendered("<|im_start|>user\nHi")),
    Row("embed", "model", "nope", refused("try pulling it first")),
    Row("embed", "input", ["a", "b"], lambda n, r: len(r.json()["embeddings"]) == 2),
    Row("embed", "keep_alive", "x", refused("invalid duration")),
    Row("embed", "truncate", False, refused("exceeds the context length"), (("input", "x" * 700),)),
    Row("embed", "dimensions", 3, lambda n, r: len(r.json()["embeddings"][0]) == 3),
    Row("embed", "options", {"num_ctx": 128}, window(128)),
    Row("embeddings", "model", "", refused("model is required")),
    Row("embeddings", "prompt", "", answers(embedding=[])),
    Row("embeddings", "keep_alive", True, refused("Unsupported type")),
    Row("embeddings", "options", {"num_ctx": 64}, window(64)),
    Row("show", "model", "nope", refused("model 'nope:latest' not found")),
    Row("show", "name", "go", answers(system="Be brief."), (("model", ""),)),
    Row("show", "system", "Mine.", answers(system="Mine.")),
    Row("show", "verbose", True, lambda n, r: r.json()["model_info"]["tokenizer.ggml.tokens"]),
    Row("show", "options", {"seed": 7}, lambda n, r: "PARAMETER seed 7" in r.json()["modelfile"]),
    Row("create", "model", "a//b", refused("invalid model name")),
    Row("create", "name", "field-n", shown("field-n", license="MIT"), (("model", ""),)),
    Row("create", "stream", True, streamed),
    Row("create", "from", "go", shown("field", system="Be brief.")),
    Row("create", "files", {"../x": "y"}, refused("must be relative"), (("from", ""),)),
    Row("create", "adapters", {"a.gguf": "sha256:" + "0" * 64}, refused("has not been uploaded")),
    Row("create", "draft_files", {"d.gguf": "x"}, refused("draft models are not built")),
    Row("create", "template", "X{{ .Prompt }}", shown("field", template="X{{ .Prompt }}")),
    Row("create", "license", "My terms", shown("field", license="My terms")),
    Row("create", "system", "S.", shown("field", system="S.")),
    Row("create", "parameters", {"seed": 5}, shown("field", parameters="seed")),
    Row(
        "create",
        "parameters",
        {"nope": 1},
        lambda n, r: "warning: unknown and without effect: option nope" in r.text,
        (("stream", True),),
    ),
    Row("create", "messages", HI, shown("field", messages="Hi")),
    Row("create", "quantize", "q9", refused("unsupported quantization type q9")),
    Row("create", "quantization", "q9", refused("unsupported quantization type q9")),
    Row("create", "draft_quantize", "q8_0", refused("requires a DRAFT model")),
    Row("create", "renderer", "qwen3-coder", shown("field", modelfile="RENDERER qwen3-coder")),
    Row("create", "parser", "qwen3", shown("field", capabilities="tools")),
    Row("create", "requires", "0.14.0", shown("field", requires="0.14.0")),
    Row("create", "remote_host", "h", refused("remote model is unavailable")),
    Row("create", "info", {"base_name": "x"}, refused("info describes models on a remote host")),
    Row("copy", "source", "nope", refused('model "nope" not found')),
    Row("copy", "destination", "a//b", refused('destination "a//b" is invalid')),
    Row("pull", "model", "a//b", refused("invalid model name")),
    Row("pull", "name", "a//b", refused("invalid model name"), (("model", ""),)),
    Row(
        "pull", "insecure", True, refused("cannot be asked"), (("model", "http://127.0.0.1:1/a/b"),)
    ),
    Row("pull", "stream", True, streamed),
    Row("push", "model", "nope", refused("not found")),
    Row("push", "name", "nope", refused("not found"), (("model", ""),)),
    Row("push", "insecure", "x", refused("cannot unmarshal string")),
    Row("push", "stream", True, streamed),
)
OPTIONS = (
    Row("options", "num_ctx", 100, window(100)),
    *(
        Row("options", name, value, warned(f"without effect in this engine: option {name}"))
        for name, value in (
            ("num_batch", 1),
            ("num_gpu", 1),
            ("main_gpu", 0),
            ("use_mmap", True),
            ("draft_num_predict", 2),
        )
    ),
    Row("options", "num_thread", -1, lambda n, r: n.launcher.launched[-1].threads != -1),
    Row("options", "num_thread", 9999, refused("option num_thread must be at most 1024")),
    Row("options", "num_thread", 1, lambda n, r: n.launcher.launched[-1].threads == 1),
    Row("options", "num_keep", 200, unlike_before),
    Row("options", "seed", 42, sent(seed=42)),
    Row("options", "num_predict", 2, answers(response="He", done_reason="length")),
    Row("options", "top_k", 3, sent(top_k=3)),
    Row("options", "top_p", 0.5, sent(top_p=0.5)),
    Row("options", "min_p", 0.25, sent(min_p=0.25)),
    Row("options", "typical_p", 0.5, sent(typical_p=0.5)),
    Row("options", "repeat_last_n", 7, sent(repeat_last_n=7)),
    Row("options", "temperature", 0.25, sent(temperature=0.25)),
    Row("options", "repeat_penalty", 1.5, sent(repeat_penalty=1.5)),
    Row("options", "presence_penalty", 0.5, sent(presence_penalty=0.5)),
    Row("options", "frequency_penalty", 0.5, sent(frequency_penalty=0.5)),
    Row("options", "stop", ["lo"], answers(response="Hel", done_reason="stop")),
)


@pytest.mark.parametrize("row", [*ROWS, *OPTIONS], ids=lambda row: f"{row.route}.{row.field}")
def test_the_field_acts_or_is_refused(native: NativeManager, row: Row) -> None:
    given = (
        {"options": {row.field: row.value}} if row.route == "options" else {row.field: row.value}
    )
    path = "generate" if row.route == "options" else row.route
    if "num_ctx" in str(given):  # an engine with a larger window would serve it, too
        native.post("generate", {"model": "tiny", "keep_alive": 0})
    reply = native.post(path, LEAST[row.route] | dict(row.beside) | given)
    assert row.see(native, reply) is not False


def test_every_documented_field_has_a_row() -> None:
    walked = {(row.route, row.field) for row in (*ROWS, *OPTIONS)}
    documented = {(route, name) for route, names in FIELDS.items() for name in names.split()}
    assert documented - walked == set()
