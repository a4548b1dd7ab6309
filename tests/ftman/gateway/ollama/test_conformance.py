"""Appendix-style checklist of Ollama's API: one table, one row for each thing a client can see.

`item` is the number in the checklist: 1 health, 2 origins, 3 hosts, 4 bodies, 5 errors, 6
keep_alive, 7 think, 8 format, 9 options, 10 stream and whole, 11 load and unload, 12 tools, 13
images, 14 truncation, 15 embed, 16 names, 17 copy and delete, 18 blobs, 19 create, 20 show, 21
pull, 22 scheduler. Items 23 to 27 belong to the other dialects' suites and the command line's.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.ftman.gateway.ollama.models import CALLS, NOW, WEATHER, NativeManager
from tests.ftman.gateway.ollama.rows import (
    BLOB,
    DIGEST,
    EVIL,
    GO,
    HI,
    LEVELS,
    LONG,
    NO_VISION,
    OLD,
    OTHER,
    PNG,
    PREFLIGHT,
    RUNNING,
    TOO_LONG,
    Row,
    chat,
    embed,
    error,
    generate,
    header,
    last_line,
    message,
    post,
    unit_vectors,
    warned,
    without,
)
from tests.ftman.gateway.serving import lines_of

ROWS = (
    *(
        Row(1, f"{method} {path}", want=want if method == "GET" else "")
        for path, want in (
            ("/", "Ollama is running"),
            ("/api/version", {"version": "0.33.0"}),
            ("/api/tags", lambda reply: reply.json()["models"]),
        )
        for method in ("GET", "HEAD")
    ),
    Row(1, "GET /api/status", want={"cloud": {"disabled": True, "source": "config"}}),
    Row(1, "HEAD /api/ps", status=405, want=""),
    Row(1, "GET /api/chat", status=405, want="405 method not allowed"),
    Row(1, "GET /nope", status=404, want="404 page not found"),
    Row(1, "GET /api/tags/", status=301, want=header("location", "/api/tags")),
    Row(1, "POST /api/chat/", {}, 307, header("location", "/api/chat")),
    Row(1, "GET /api/tags/?a=b%26c", status=301, want=header("location", "/api/tags?a=b%26c")),
    Row(1, "POST /api/me", status=503, want=error("account unavailable")),
    Row(1, "POST /api/signout", status=401, want=error("you are not currently signed in")),
    Row(1, "DELETE /api/user/keys/abc", status=401, want=error("you are not currently signed in")),
    *(
        post(
            1,
            f"experimental/web_{word}",
            {},
            403,
            error(f"ollama cloud is disabled: web {word} is unavailable"),
        )
        for word in ("search", "fetch")
    ),
    Row(1, "GET /api/experimental/model-recommendations", want={"recommendations": []}),
    Row(2, "GET /api/tags", want=header("access-control-allow-origin", None)),
    Row(2, "GET /api/tags", status=403, want="", headers=EVIL),
    *(
        Row(
            2,
            "GET /api/tags",
            want=header("access-control-allow-origin", origin),
            headers={"Origin": origin},
        )
        for origin in ("http://localhost:3000", "app://x", "vscode-webview://abc", "http://0.0.0.0")
    ),
    Row(2, "GET /api/tags", status=403, headers={"Origin": "chrome-extension://abc"}),
    Row(
        2,
        "OPTIONS /api/chat",
        status=204,
        want=header("access-control-max-age", "43200"),
        headers=PREFLIGHT,
    ),
    Row(2, "OPTIONS /api/chat", status=403, want="", headers=PREFLIGHT | EVIL),
    *(
        Row(3, "GET /api/version", status=status, headers={"Host": host})
        for host, status in (
            ("localhost", 200),
            ("127.0.0.1:11434", 200),
            ("192.168.0.2", 200),
            ("box.local", 200),
            ("BOX.Internal", 200),
            ("evil.example", 403),
        )
    ),
    *(
        Row(4, ask, body, 400, error(text))
        for ask in (
            "POST /api/generate",
            "POST /api/chat",
            "POST /api/embed",
            "POST /api/embeddings",
            "POST /api/show",
            "POST /api/create",
            "POST /api/copy",
            "DELETE /api/delete",
            "POST /api/pull",
            "POST /api/push",
        )
        for body, text in (("", "missing request body"), ('{"model": "ti', "unexpected EOF"))
    ),
    chat(4, {"done": True}, Unheard="of", MODEL="tiny"),
    chat(
        5, error(f"{GO} number into Go struct field ChatRequest.model of type string"), 400, model=1
    ),
    chat(5, error("model is required"), 400, model=""),
    chat(5, error("model 'nope' not found"), 404, model="nope"),
    generate(5, error("model '' not found"), 404, model=""),
    generate(5, error("invalid model name"), 400, model="a//b"),
    embed(5, error("model '' not found"), 404, model="", input="x"),
    embed(5, error("invalid model name"), 400, model="a//b", input="x"),
    embed(5, error('model "nope" not found, try pulling it first'), 404, model="nope", input="x"),
    post(5, "embeddings", {"prompt": "x"}, 400, error("model is required")),
    post(5, "embeddings", {"model": "a//b"}, 400, error("invalid model name")),
    post(
        5,
        "embeddings",
        {"model": "nope"},
        404,
        error('model "nope" not found, try pulling it first'),
    ),
    post(5, "show", {}, 400, error("model is required")),
    post(5, "show", {"model": "a//b"}, 400, error("invalid model name")),
    post(5, "show", {"model": "nope"}, 404, error("model 'nope:latest' not found")),
    post(5, "copy", {"source": "", "destination": "x"}, 400, error('source "" is invalid')),
    post(5, "copy", {"source": "x", "destination": ":"}, 400, error('destination ":" is invalid')),
    post(5, "copy", {"source": "nope", "destination": "x"}, 404, error('model "nope" not found')),
    Row(5, "DELETE /api/delete", {}, 400, error("model is required")),
    Row(5, "DELETE /api/delete", {"model": "a//b"}, 400, error('name "a//b" is invalid')),
    Row(5, "DELETE /api/delete", {"name": "nope"}, 404, error("model 'nope' not found")),
    post(5, "pull", {"model": "a//b"}, 400, error("invalid model name")),
    post(5, "push", {}, 400, error("model is required")),
    post(5, "create", {"model": "a//b"}, 400, error("invalid model name")),
    chat(5, error('"vectors" does not support chat'), 400, model="vectors"),
    generate(5, error('"vectors" does not support generate'), 400, model="vectors"),
    chat(
        5, error("registry.ollama.ai/library/tiny:latest does not support tools"), 400, tools=[NOW]
    ),
    generate(
        5, error("registry.ollama.ai/library/tiny:latest does not support insert"), 400, suffix="x"
    ),
    generate(
        5,
        error("raw mode does not support template, system, or context"),
        400,
        raw=True,
        system="x",
    ),
    generate(
        5,
        error("ollama cloud is disabled: remote model is unavailable"),
        403,
        model="gpt-oss:120b-cloud",
    ),
    chat(5, error("top_logprobs must be between 0 and 20"), 400, logprobs=True, top_logprobs=21),
    chat(
        5,
        lambda reply: reply.json()["error"].startswith(RUNNING),
        500,
        model="broken",
    ),
    *(
        generate(6, {"done_reason": reason}, prompt="", keep_alive=value)
        for value, reason in (
            (5, "load"),
            (0.5, "load"),
            (-1, "load"),
            ("5m", "load"),
            ("-1m", "load"),
            (None, "load"),
            (0, "unload"),
            ("0", "unload"),
        )
    ),
    *(
        generate(6, error(text), 400, prompt="", keep_alive=value)
        for value, text in (
            ("300", 'time: missing unit in duration "300"'),
            ("-1", 'time: missing unit in duration "-1"'),
            ("", 'time: invalid duration ""'),
            (True, "Unsupported type: 'bool'"),
        )
    ),
    *(chat(7, {"done": True}, model="thinker", think=v) for v in (None, True, False, "low", "max")),
    *(chat(7, {"done": True}, think=value) for value in (None, False)),
    *(chat(7, error('"tiny" does not support thinking'), 400, think=v) for v in (True, "high")),
    chat(7, error(f'invalid think value: "x" (must be {LEVELS})'), 400, think="x"),
    chat(7, error(f"think must be a boolean or string ({LEVELS})"), 400, think=1),
    *(chat(8, {"done": True}, format=value) for value in ("json", {"type": "object"}, "", None)),
    *(
        chat(
            8,
            error(f'invalid format: {shown}; expected "json" or a valid JSON Schema object'),
            500,
            format=value,
        )
        for value, shown in (("xml", '"\\"xml\\""'), (["json"], '"[\\"json\\"]"'))
    ),
    chat(8, {"done": True}, model="thinker", format={"type": "object"}),
    chat(9, {"done": True}, options={"top_k": 40.0, "num_ctx": None, "num_predict": -2}),
    chat(9, error('option "num_ctx" must be of type integer'), 500, options={"num_ctx": "5"}),
    chat(9, error('option "stop" must be of type array'), 500, options={"stop": "x"}),
    chat(9, error('option "use_mmap" must be of type boolean'), 500, options={"use_mmap": 1}),
    chat(
        9, error('option "temperature" must be of type float32'), 500, options={"temperature": "1"}
    ),
    chat(9, warned("unknown and without effect: option mirostat"), options={"mirostat": 2}),
    chat(9, warned("without effect in this engine: option num_gpu"), options={"num_gpu": 99}),
    chat(10, message(content="Hello <b>") | {"done": True, "done_reason": "stop", "eval_count": 9}),
    chat(10, last_line(done=True, done_reason="stop", eval_count=9), stream=True),
    chat(10, header("content-type", "application/json; charset=utf-8")),
    chat(10, header("content-type", "application/x-ndjson"), stream=True),
    chat(10, without("context")),
    generate(10, {"response": "Hello <b>", "done": True}),
    generate(10, without("context"), raw=True),
    *(
        make(11, {"done": True, "done_reason": reason}, stream=stream, **empty, **extra)
        for make, empty in ((chat, {"messages": []}), (generate, {"prompt": ""}))
        for stream in (True, False)
        for reason, extra in (("load", {}), ("unload", {"keep_alive": 0}))
    ),
    generate(11, error("model 'nope' not found"), 404, model="nope", prompt="", keep_alive=0),
    chat(
        12,
        lambda reply: len(reply.json()["message"]["tool_calls"]) == 2,
        model="caller",
        tools=[WEATHER, NOW],
    ),
    chat(12, message(content=CALLS, thinking="Hmm, weather."), model="caller"),
    chat(
        12,
        error("tools[0].function.name is missing; a call could not name it"),
        400,
        model="caller",
        tools=[{"type": "function"}],
    ),
    chat(
        12,
        lambda reply: reply.json()["error"].startswith(f"{GO} string into Go struct field"),
        400,
        messages=[
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
            }
        ],
    ),
    *(
        chat(
            13,
            error(NO_VISION),
            400,
            messages=[{"role": "user", "content": text, "images": images}],
        )
        for text, images in (("a", [PNG]), ("[img] a [img]", [PNG, PNG]))
    ),
    chat(
        13,
        error("illegal base64 data at input byte 4"),
        400,
        messages=[{"role": "user", "content": "a", "images": ["data:image/png;base64," + PNG]}],
    ),
    generate(13, error(NO_VISION), 400, images=[PNG]),
    generate(13, {"done": True}, images=[]),
    chat(14, warned("the 2 oldest messages were left out"), messages=OLD),
    chat(14, warned("tokens were cut out of its beginning"), messages=LONG),
    *(
        chat(
            14,
            lambda reply: reply.json()["error"].startswith(TOO_LONG),
            400,
            messages=LONG,
            **extra,
        )
        for extra in ({"truncate": False}, {"shift": False})
    ),
    embed(15, unit_vectors(1), input="abc"),
    embed(15, unit_vectors(3), input=["a", "b", ""]),
    *(
        embed(15, {"model": "tiny", "embeddings": []}, **extra)
        for extra in ({"input": ""}, {"input": []}, {})
    ),
    *(
        embed(15, error("invalid input type"), 400, input=value)
        for value in (5, [1, 2], [["a"]], {"a": 1})
    ),
    embed(15, warned("x"), input="x" * 700),
    embed(
        15,
        error("the input length exceeds the context length"),
        400,
        input="x" * 700,
        truncate=False,
    ),
    embed(15, unit_vectors(1), input="abc", dimensions=0),
    embed(15, unit_vectors(1, 4), input="abc", dimensions=4),
    embed(15, warned("dimensions"), input="abc", dimensions=99999),
    embed(15, {"prompt_eval_count": 4}, input=["ab", "cd"]),
    embed(15, unit_vectors(1), model="vectors", input="abc"),
    post(
        15,
        "embeddings",
        {"model": "tiny", "prompt": "abc"},
        want=lambda r: len(r.json()["embedding"]) == 8,
    ),
    post(15, "embeddings", {"model": "tiny"}, want={"embedding": []}),
    *(
        chat(16, {"model": name}, model=name)
        for name in (
            "tiny",
            "TINY",
            "tiny:LATEST",
            "library/tiny",
            "registry.ollama.ai/library/tiny",
        )
    ),
    *(
        chat(16, error("invalid model name"), 400, model=name)
        for name in ("a//b", "x:", "x:" + "t" * 81, "x@sha256:ab", ":x")
    ),
    chat(16, error("model 'hf.co/a/b:Q4_K_M' not found"), 404, model="hf.co/a/b:Q4_K_M"),
    post(17, "copy", {"source": "tiny", "destination": "twin"}, want=""),
    post(17, "copy", {"source": "go", "destination": "twin"}, want=""),
    post(17, "copy", {"source": "twin", "destination": "twin"}, want=""),
    post(17, "show", {"model": "twin"}, want={"system": "Be brief."}),
    Row(17, "DELETE /api/delete", {"model": "twin"}, want=""),
    post(17, "show", {"model": "go"}, want={"system": "Be brief."}),
    Row(18, f"HEAD /api/blobs/{DIGEST}", status=404, want=""),
    Row(
        18,
        f"POST /api/blobs/{OTHER}",
        BLOB,
        400,
        error(f'digest mismatch, expected "{OTHER}", got "{DIGEST}"'),
    ),
    Row(18, f"POST /api/blobs/{DIGEST}", BLOB, 200, ""),
    Row(18, f"HEAD /api/blobs/{DIGEST.replace(':', '-')}", want=""),
    Row(18, "HEAD /api/blobs/sha256:xyz", status=400),
    Row(18, "POST /api/blobs/sha1:" + "0" * 64, BLOB, 400, error("invalid digest format")),
    post(
        19,
        "create",
        {
            "model": "made",
            "from": "tiny",
            "system": "S.",
            "license": ["A", "B"],
            "parameters": {"top_k": 3},
            "stream": False,
        },
        want={"status": "success"},
    ),
    post(19, "show", {"model": "made"}, want={"system": "S.", "license": "MIT\nA\nB"}),
    post(
        19,
        "create",
        {"model": "made2", "from": "made", "messages": HI},
        want=last_line(status="success"),
    ),
    post(19, "create", {"model": "x"}, 400, error("neither 'from' or 'files' was specified")),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "quantize": "q2_K"},
        400,
        error("unsupported quantization type q2_K - supported types are Q8_0, Q4_0, MXFP4"),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "template": "{{ if }}"},
        400,
        lambda reply: reply.json()["error"].startswith("template error: "),
    ),
    post(
        19,
        "create",
        {"model": "x", "files": {"/etc/passwd": DIGEST}},
        400,
        error("file path must be relative"),
    ),
    post(
        19, "create", {"model": "x", "files": {"a.gguf": ""}}, 400, error("invalid digest format")
    ),
    post(
        19,
        "create",
        {"model": "x", "files": {"a.txt": DIGEST}},
        400,
        error("supplied file was not in GGUF format"),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "adapters": {"a.gguf": DIGEST, "b.gguf": DIGEST}},
        400,
        error("only one adapter is currently supported"),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "draft_quantize": "q8_0"},
        400,
        error("--draft-quantize requires a DRAFT model"),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "draft_files": {"d.gguf": DIGEST}},
        400,
        lambda reply: "draft models are not built" in reply.json()["error"],
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "m", "remote_host": "h"},
        403,
        error("ollama cloud is disabled: remote model is unavailable"),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "info": {"base_name": 1}},
        400,
        error('info field "base_name" must be a string'),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "info": {"context_length": "1"}},
        400,
        error('info field "context_length" must be a number'),
    ),
    post(
        19,
        "create",
        {"model": "x", "from": "tiny", "info": {"context_length": -1}},
        400,
        error('info field "context_length" must be a non-negative integer'),
    ),
    post(20, "show", {"name": "tiny"}, want={"license": "MIT", "capabilities": ["completion"]}),
    post(
        20,
        "show",
        {"model": "tiny", "verbose": True},
        want=lambda reply: reply.json()["model_info"]["tokenizer.ggml.tokens"] == ["a", "b"],
    ),
    post(
        20,
        "show",
        {"model": "tiny"},
        want=lambda reply: reply.json()["model_info"]["tokenizer.ggml.tokens"] is None,
    ),
    post(
        20,
        "show",
        {"model": "tiny"},
        want=lambda reply: (
            sorted(reply.json()["parameters"].split("\n"))
            == ['stop                           "<|end|>"', "temperature                    0.6"]
        ),
    ),
    post(20, "show", {"model": "tiny", "system": "Mine."}, want={"system": "Mine."}),
    post(
        20,
        "show",
        {"model": "tiny", "options": {"top_k": 7}},
        want=lambda reply: "PARAMETER top_k 7" in reply.json()["modelfile"],
    ),
    post(
        20, "show", {"model": "go"}, want=lambda reply: "{{ .Content }}" in reply.json()["template"]
    ),
    post(
        21,
        "pull",
        {"model": "no-such"},
        want=lambda reply: (
            [line.get("status", line.get("error")) for line in lines_of(reply)]
            == ["pulling manifest", "pull model manifest: file does not exist"]
        ),
    ),
    post(
        21,
        "pull",
        {"model": "no-such", "stream": False},
        500,
        lambda reply: reply.json()["error"] == "pull model manifest: file does not exist",
    ),
    post(
        21,
        "pull",
        {"model": "http://127.0.0.1:1/library/x"},
        want=lambda reply: lines_of(reply)[-1]["error"] == "insecure protocol http",
    ),
    post(
        21,
        "push",
        {"model": "tiny"},
        want=lambda reply: "cannot be pushed" in lines_of(reply)[-1]["error"],
    ),
    # an engine with a larger window would serve a smaller one, too
    post(22, "generate", {"model": "tiny", "keep_alive": 0}, want={"done_reason": "unload"}),
    chat(22, lambda reply: True, options={"num_ctx": 256}),
    Row(
        22,
        "GET /api/ps",
        want=lambda reply: 256 in [m["context_length"] for m in reply.json()["models"]],
    ),
)


def _ask(native: NativeManager, row: Row) -> httpx.Response:
    method, _, path = row.ask.partition(" ")
    body: dict[str, Any] = {}
    if isinstance(row.body, dict):
        body["json"] = row.body
    elif row.body is not None:
        body["content"] = row.body
    return native.http.request(method, path, headers=row.headers, **body)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.item}-{row.ask}"[:60])
def test_checklist(native: NativeManager, row: Row) -> None:
    reply = _ask(native, row)
    assert reply.status_code == row.status, reply.text[:500]
    if isinstance(row.want, dict):
        value = reply.json()
        assert {key: value.get(key) for key in row.want} == row.want
        if "error" in row.want:
            assert reply.headers["content-type"] == "application/json"
            assert not reply.content.endswith(b"\n")
    elif isinstance(row.want, str):
        assert reply.text == row.want
    elif row.want is not None:
        assert row.want(reply) is not False


def test_every_item_of_the_native_checklist_has_rows() -> None:
    assert {row.item for row in ROWS} == set(range(1, 23))
