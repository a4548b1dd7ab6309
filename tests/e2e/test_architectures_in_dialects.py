"""Small random checkpoints of real architectures with their chat formats, through every dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

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
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
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
SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
          "additionalProperties": False}  # fmt: skip
TOOL = {"name": "light", "description": "Switch the light.", "parameters": SWITCH}
NUM_TOKENS = 12
QUESTION = "Is the light on? " * 6


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A real manager with both models."""
    root = tmp_path_factory.mktemp("architectures")
    with manager_process(root / "home", REAL) as running:
        http = httpx.Client(base_url=running.url, timeout=120, trust_env=False)
        for family, template in CASES.items():
            folder = build_hybrid(family, root / family)
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


def sent(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def chat(http: httpx.Client, model: str, messages: list[Any]) -> tuple[str, int, list[Any]]:
    answer = sent(http, "/v1/chat/completions", model=model, messages=messages, temperature=0,
                  max_tokens=NUM_TOKENS)  # fmt: skip
    said = answer["choices"][0]["message"]
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return said.get("reasoning", "") + (said["content"] or ""), cached, [said]


def responses(http: httpx.Client, model: str, messages: list[Any]) -> tuple[str, int, list[Any]]:
    answer = sent(http, "/v1/responses", model=model, input=messages, temperature=0,
                  max_output_tokens=NUM_TOKENS, store=False)  # fmt: skip
    parts = [part for item in answer["output"] for part in item.get("content") or ()]
    cached = answer["usage"]["input_tokens_details"]["cached_tokens"]
    return "".join(part["text"] for part in parts), cached, answer["output"]


def anthropic(http: httpx.Client, model: str, messages: list[Any]) -> tuple[str, int, list[Any]]:
    answer = sent(http, "/v1/messages", model=model, messages=messages, temperature=0,
                  max_tokens=NUM_TOKENS)  # fmt: skip
    blocks = answer["content"]
    text = "".join(block.get("thinking", "") + block.get("text", "") for block in blocks)
    cached = answer["usage"]["cache_read_input_tokens"]
    return text, cached, [{"role": "assistant", "content": blocks}]


def native(http: httpx.Client, model: str, messages: list[Any]) -> tuple[str, int, list[Any]]:
    options = {"temperature": 0, "num_predict": NUM_TOKENS}
    answer = sent(http, "/api/chat", model=model, messages=messages, options=options, stream=False)
    said = answer["message"]
    return said.get("thinking", "") + said["content"], -1, [said]


DIALECTS = (native, chat, responses, anthropic)


def test_every_dialect_gets_the_same_reply_and_a_second_turn_is_not_computed_anew(
    manager: httpx.Client, model: str
) -> None:
    first: set[str] = set()
    second: set[str] = set()
    for dialect in DIALECTS:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        text, _, turn = dialect(manager, model, messages)
        # A random model writes no harmony: what stands in no message is nobody's text.
        assert text or "gpt" in model
        messages += [*turn, {"role": "user", "content": "And now?"}]
        answer, cached, _ = dialect(manager, model, messages)
        first.add(text)
        second.add(answer)
        # The question is a hundred tokens by itself: all of it comes from the cache.
        assert cached == -1 or cached > len(QUESTION) // 2
    assert len(first) == 1
    assert len(second) == 1


def test_a_call_that_must_be_made_is_made_and_its_result_is_read(
    manager: httpx.Client, model: str
) -> None:
    tools = [{"type": "function", "function": TOOL}]
    messages: list[Any] = [{"role": "user", "content": "Light!"}]
    # Kept from "analysis", which a random model never ends.
    bias = {str(idx): -100 for idx, word in enumerate(tiny_vocabulary()[0]) if word[0] == "a"}
    common = {"model": model, "tools": tools, "temperature": 0, "reasoning_effort": "none",
              "logit_bias": bias}  # fmt: skip
    answer = sent(manager, "/v1/chat/completions", messages=messages, tool_choice="required",
                  max_tokens=300, parallel_tool_calls=False, **common)  # fmt: skip
    said = answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls", answer
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == "light"
    messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": "It is on."}]
    after = sent(manager, "/v1/chat/completions", messages=messages, max_tokens=4, **common)
    assert after["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]
