"""Small random checkpoints of real architectures with their chat formats, through every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.dialects import DIALECTS, Wish
from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_models import tiny_vocabulary

QWEN = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call as <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n"
    "</tool_call><|im_end|>\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    "<function={{ call.function.name }}>\n{% for k, v in call.function.arguments | items %}"
    "<parameter={{ k }}>\n{{ v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{%- if tools %}<|start|>developer<|message|>{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}<|end|>{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}"
    "<|end|>{% else %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|>{% endif %}{% for call in m.tool_calls or [] %}<|start|>assistant"
    "<|channel|>commentary to=functions.{{ call.function.name }} <|constrain|>json<|message|>"
    "{{ call.function.arguments | tojson }}<|call|>{% endfor %}{% if m.content %}"
    "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
CASES = {"qwen3_5_moe": QWEN, "gpt_oss": HARMONY}
QUESTION = "Is the light on? " * 6
CALLING = ("chat", "responses", "anthropic")
"""Dialects in which a client can demand a call."""


def speaks_harmony(folder: Path) -> None:
    """Let a random model prefer what ends: it would think, or write blanks, until all tokens went.

    A bias in its last layer outweighs the rest of the hidden state. With it the beginnings of
    "final" and "commentary" and the marks of JSON are likelier than "analysis" and blanks.
    """
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    words = tiny_vocabulary()[0]
    wanted = [i for i, word in enumerate(words) if word and word in ("f", "c", "co", '"', ":", "}")]
    unwanted = [i for i, word in enumerate(words) if word and (
        "analysis".startswith(word) or not word.strip("\u0120\u010a\u0109\u010d"))]  # fmt: skip
    rows = weights["lm_head.weight"][wanted + unwanted] * weights["model.norm.weight"]
    signs = torch.tensor([1.0] * len(wanted) + [-1.0] * len(unwanted))
    bias = torch.linalg.lstsq(rows, signs).solution
    last = max(name for name in weights if name.endswith("self_attn.o_proj.bias"))
    weights[last] += bias * (200.0 / bias.norm())
    save_file(weights, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A real manager with both models."""
    root = tmp_path_factory.mktemp("architectures")
    with manager_process(root / "home", REAL) as running:
        http = httpx.Client(base_url=running.url, timeout=120, trust_env=False)
        for family, template in CASES.items():
            folder = build_hybrid(family, root / family)
            if family == "gpt_oss":
                speaks_harmony(folder)
            (folder / "chat_template.jinja").write_text(template, "utf-8")
            body = {"model": folder.as_uri(), "stream": False}
            assert http.post("/api/pull", json=body).json()["status"] == "success"
        yield http
        http.close()


@pytest.fixture(params=list(CASES))
def model(request: pytest.FixtureRequest, manager: httpx.Client) -> str:
    names = [entry["name"] for entry in manager.get("/api/tags").json()["models"]]
    (found,) = [name for name in names if request.param in name]
    return found


@pytest.mark.parametrize("think", [False, True])
def test_every_dialect_gets_the_same_reply_and_a_second_turn_is_not_computed_anew(
    manager: httpx.Client, model: str, think: bool
) -> None:
    first: set[tuple[str, str]] = set()
    second: set[tuple[str, str]] = set()
    for dialect in DIALECTS.values():
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        said = dialect(manager, model, messages, Wish(think=think))
        live = dialect(manager, model, messages, Wish(think=think, stream=True))
        first |= {(said.text, said.thinking), (live.text, live.thinking)}
        messages += [*said.turn, {"role": "user", "content": "And now?"}]
        for stream in (False, True):
            said = dialect(manager, model, messages, Wish(think=think, stream=stream))
            second.add((said.text, said.thinking))
            # The question is a hundred tokens by itself: all of it comes from the cache.
            assert said.cached == -1 or said.cached > len(QUESTION) // 2
    assert len(first) == 1
    assert len(second) == 1
    # A random model writes no harmony: what it says stands in no message, so nothing is thought.
    ((text, thinking),) = first
    assert (bool(text), bool(thinking)) == ((True, False) if "gpt" in model else (not think, think))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_of_a_given_shape_comes_whole_and_streamed(
    manager: httpx.Client, model: str, dialect: str
) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    said, live = (
        DIALECTS[dialect](manager, model, messages, Wish(stream=on, answers=True, max_tokens=60))
        for on in (False, True)
    )
    assert isinstance(json.loads(said.text)["on"], bool)
    assert (live.text, live.thinking) == (said.text, said.thinking)


@pytest.mark.parametrize("dialect", CALLING)
def test_a_call_that_must_be_made_is_made_and_its_result_is_read(
    manager: httpx.Client, model: str, dialect: str
) -> None:
    messages: list[Any] = [{"role": "user", "content": "Light!"}]
    ask = DIALECTS[dialect]
    said = ask(manager, model, messages, Wish(calls=True, max_tokens=300))
    live = ask(manager, model, messages, Wish(calls=True, max_tokens=300, stream=True))
    ((name, arguments),) = said.calls
    assert (name, list(arguments)) == ("light", ["on"])
    assert live.calls == said.calls
    messages += [*said.turn, RESULTS[dialect](said.turn)]
    for stream in (False, True):
        after = ask(manager, model, messages, Wish(calls=True, max_tokens=300, stream=stream))
        assert after.prompt > said.prompt + len("It is on.") // 2
        assert after.cached > said.prompt // 2


def test_a_call_is_read_back_in_ollama_s_dialect(manager: httpx.Client, model: str) -> None:
    call = {"function": {"name": "light", "arguments": {"on": True}}}
    messages: list[Any] = [{"role": "user", "content": "Light!"}]
    ask = DIALECTS["native"]
    before = ask(manager, model, messages, Wish(calls=True))
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "light", "content": "It is on."},
    ]
    whole, live = (
        ask(manager, model, messages, Wish(calls=True, stream=on)) for on in (False, True)
    )
    assert whole.prompt > before.prompt + len("It is on.") // 2
    assert (live.text, live.prompt) == (whole.text, whole.prompt)


def openai_result(turn: tuple[Any, ...]) -> dict[str, Any]:
    call_id = turn[0]["tool_calls"][0]["id"]
    return {"role": "tool", "tool_call_id": call_id, "content": "It is on."}


def responses_result(turn: tuple[Any, ...]) -> dict[str, Any]:
    (call,) = (item for item in turn if item["type"] == "function_call")
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "It is on."}


def anthropic_result(turn: tuple[Any, ...]) -> dict[str, Any]:
    (call,) = (block for block in turn[0]["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "It is on."}
    return {"role": "user", "content": [result]}


RESULTS = {"chat": openai_result, "responses": responses_result, "anthropic": anthropic_result}
