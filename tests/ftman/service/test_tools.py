"""Tools, reasoning and constraints from a request to events, against a scripted engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    CompletionRequest,
    Constraint,
    Finish,
    Message,
    Options,
    Prompt,
    TextDelta,
    ThinkingDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
)
from ftman.errors import UsageError
from ftman.pull.index import Index
from ftman.service import Service
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install, make_config

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.name }}: {{ m.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
OPENS = TEMPLATE.replace("<think></think>{% endif %}{% endif %}", "{% else %}<think>\n{% endif %}{% endif %}")  # fmt: skip  # noqa: E501
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = (Tool("add", "Adds", PARAMETERS), Tool("sub", "", PARAMETERS, strict=True))
FREE = (Tool("add", "Adds", PARAMETERS),)
HI = (Message("user", "Hi"),)
CALL = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
REPLY = f"<think>hm END</think>So: {CALL}\n{CALL.replace('add', 'mul')}"


class Shared:
    """One service for all tests; each model has a scripted engine of its own."""

    def __init__(self, home: Path):
        self.home = home
        self.config = make_config(home)
        self.scripts: dict[str, FakeScript] = {}
        self.loop = asyncio.new_event_loop()
        launcher = FakeLauncher(lambda spec: self.scripts[spec.name])
        self.service = Service(self.config, launcher=launcher, index=Index([]))
        self.loop.run_until_complete(self.service.start())

    def close(self) -> None:
        self.loop.run_until_complete(self.service.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Bench:
    """A model with one template and one scripted reply."""

    def __init__(self, shared: Shared, reply: str, template: str, **script: Any):
        self.shared = shared
        number = len(shared.scripts)
        self.name = f"tiny{number}"
        self.log = shared.home / f"requests{number}.jsonl"
        shared.scripts[f"{self.name}:latest"] = FakeScript(
            tokens=ids_of(reply), request_log=str(self.log), **script
        )
        tiny = Tiny(name=f"{self.name}:latest", jinja=template, seed=number)
        self.model = install(shared.config.paths, tiny)

    def run(self, work: Callable[[Service], Any]) -> Any:
        return self.shared.loop.run_until_complete(work(self.shared.service))

    def prompt(self, request: ChatRequest) -> Prompt:
        asked = dataclasses.replace(request, model=self.name)
        found: Prompt = self.run(lambda service: service.tokens.prompt(asked))
        return found

    def events(self, request: ChatRequest | CompletionRequest) -> list[ChatEvent]:
        async def work(service: Service) -> list[ChatEvent]:
            if isinstance(request, ChatRequest):
                stream = service.chat(dataclasses.replace(request, model=self.name))
            else:
                stream = service.complete(dataclasses.replace(request, model=self.name))
            return [event async for event in stream]

        found: list[ChatEvent] = self.run(work)
        return found

    def close(self) -> None:
        self.run(lambda service: service.unload(self.name))

    def sent(self) -> dict[str, Any]:
        """The last request that the engine got."""
        last: dict[str, Any] = json.loads(self.log.read_text().splitlines()[-1])["request"]
        return last


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory.mktemp("tools"))
    yield made
    made.close()


@pytest.fixture
def bench(shared: Shared) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(reply: str = REPLY, template: str = TEMPLATE, **script: Any) -> Bench:
        made.append(Bench(shared, reply, template, **script))
        return made[-1]

    yield build
    for found in made:
        found.close()


def chat(**values: Any) -> ChatRequest:
    return ChatRequest("tiny", **{"messages": HI, **values})


def text_of(events: list[ChatEvent], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def finish_of(events: list[ChatEvent]) -> Finish:
    assert isinstance(events[-1], Finish)
    return events[-1]


def test_a_reply_comes_apart_into_reasoning_text_and_calls(bench: Callable[..., Bench]) -> None:
    events = bench().events(chat(tools=FREE, options=Options(stop=("END", "zzz"))))
    assert text_of(events, ThinkingDelta) == "hm END"  # a stop string ends answers, not thoughts
    assert text_of(events, TextDelta) == "So:"
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert [(c.index, c.name, c.arguments) for c in calls] == [
        (0, "add", {"x": 1}),
        (1, "mul", {"x": 1}),  # not among the tools, and passed on
    ]
    for call in calls:
        parts = [e for e in events if isinstance(e, ToolCallDelta) and e.index == call.index]
        assert "".join(part.arguments for part in parts) == '{"x": 1}'
        assert parts[0].id == call.id
    finish = finish_of(events)
    assert (finish.reason, finish.notes) == ("stop", ())
    assert finish.usage.completion_tokens == len(REPLY)
    assert 0 < finish.usage.thinking_tokens < finish.usage.completion_tokens
    assert len(finish.context) == finish.usage.prompt_tokens + len(REPLY)


def test_a_stop_string_ends_the_answer(bench: Callable[..., Bench]) -> None:
    found = bench("<think>END</think>one END two")
    events = found.events(chat(options=Options(stop=("END",))))
    assert (text_of(events, ThinkingDelta), text_of(events, TextDelta)) == ("END", "one ")
    assert finish_of(events).stop_sequence == "END"


def test_without_tools_and_with_choice_none_text_is_text(bench: Callable[..., Bench]) -> None:
    found = bench()
    for request in (chat(), chat(tools=FREE, tool_choice=ToolChoice("none"))):
        events = found.events(request)
        assert CALL in text_of(events, TextDelta)
        assert not any(isinstance(event, ToolCall | ToolCallDelta) for event in events)
    assert "add" not in found.prompt(request).text


def test_calls_one_at_a_time_end_with_the_first(bench: Callable[..., Bench]) -> None:
    events = bench().events(chat(tools=FREE, parallel_tool_calls=False))
    assert [e.name for e in events if isinstance(e, ToolCall)] == ["add"]
    assert finish_of(events).reason == "stop"
    assert finish_of(events).usage.completion_tokens < len(REPLY)


def test_a_call_cut_by_the_limit_is_closed_and_noted(bench: Callable[..., Bench]) -> None:
    limit = len(REPLY[: REPLY.index("1}}")]) + 1
    events = bench().events(chat(tools=FREE, options=Options(num_predict=limit)))
    arguments = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert json.loads(arguments) == {}
    assert not any(isinstance(event, ToolCall) for event in events)
    finish = finish_of(events)
    assert finish.reason == "length"
    assert "the call of add was cut off" in finish.notes[0]


@pytest.mark.parametrize("cut", ["<tool", '<tool_call>{"na'])
def test_the_beginning_of_a_call_that_had_to_come_is_no_text(
    bench: Callable[..., Bench], cut: str
) -> None:
    found = bench(CALL)
    options = Options(num_predict=len(cut))
    must = chat(tools=FREE, tool_choice=ToolChoice("required"), options=options)
    events = found.events(must)
    assert text_of(events, TextDelta) == ""
    assert "a call was cut off before its tool was named" in finish_of(events).notes[0]
    free = found.events(chat(tools=FREE, options=options))
    assert text_of(free, TextDelta) == cut
    assert finish_of(free).notes == ()
    whole = found.events(chat(tools=FREE, tool_choice=ToolChoice("required")))
    assert [e.name for e in whole if isinstance(e, ToolCall)] == ["add"]
    assert finish_of(whole).notes == ()


def test_a_model_that_cannot_is_refused_in_ollamas_words(bench: Callable[..., Bench]) -> None:
    plain = bench(template="")
    with pytest.raises(UsageError, match=r"^registry.*/library/tiny\d+:latest does not support"):
        plain.events(chat(tools=FREE))
    for think in (True, "high"):
        with pytest.raises(UsageError, match=r'^"tiny\d+" does not support thinking$'):
            plain.events(chat(think=think))
    assert finish_of(plain.events(chat(think=False))).notes == ()
    (note,) = finish_of(plain.events(chat(think="low", think_if_able=True))).notes
    assert "does not support thinking" in note


def test_reasoning_that_comes_though_it_is_off_is_left_out_and_told(
    bench: Callable[..., Bench],
) -> None:
    found = bench()
    events = found.events(chat(think=False))
    assert not text_of(events, ThinkingDelta)
    assert text_of(events, TextDelta).startswith("So:")
    assert "reasoned although" in finish_of(events).notes[0]
    shown = found.prompt(chat(think=False)).text
    assert shown.endswith("<|im_start|>assistant\n<think></think>")


def test_a_template_that_opens_reasoning_puts_the_reply_inside(
    bench: Callable[..., Bench],
) -> None:
    events = bench("hm</think>\n\nYes", OPENS).events(chat())
    assert (text_of(events, ThinkingDelta), text_of(events, TextDelta)) == ("hm", "Yes")


def test_generate_tells_reasoning_apart_and_raw_does_not(bench: Callable[..., Bench]) -> None:
    found = bench("<think>hm</think>Yes")
    events = found.events(CompletionRequest("tiny", "Hi"))
    assert (text_of(events, ThinkingDelta), text_of(events, TextDelta)) == ("hm", "Yes")
    raw = found.events(CompletionRequest("tiny", "Hi", raw=True))
    assert text_of(raw, TextDelta) == "<think>hm</think>Yes"


@pytest.mark.parametrize(
    ("choice", "names"),
    [(ToolChoice("required"), {"add", "sub"}), (ToolChoice("named", "sub"), {"sub"})],
)
def test_a_choice_of_tool_binds(
    bench: Callable[..., Bench], choice: ToolChoice, names: set[str]
) -> None:
    found = bench()
    found.events(chat(tools=TOOLS, tool_choice=choice))
    constraint = found.sent()["constraint"]
    assert constraint["kind"] == "lark"
    assert {n for n in ("add", "sub") if f'\\"{n}\\"' in constraint["text"]} == names
    assert "</think>" in constraint["text"].replace("<\\/", "</")


def test_choices_that_make_no_sense_are_refused(bench: Callable[..., Bench]) -> None:
    found = bench()
    with pytest.raises(UsageError, match="names 'mul'"):
        found.events(chat(tools=TOOLS, tool_choice=ToolChoice("named", "mul")))
    with pytest.raises(UsageError, match="has no tools"):
        found.events(chat(tool_choice=ToolChoice("required")))


def test_an_answer_is_constrained_behind_its_reasoning(bench: Callable[..., Bench]) -> None:
    schema = Constraint("json_schema", '{"type": "object"}')
    reasoning = bench()
    reasoning.events(chat(constraint=schema))
    assert reasoning.sent()["constraint"]["kind"] == "lark"
    reasoning.events(chat(constraint=schema, think=False))
    assert reasoning.sent()["constraint"] == {"kind": "json_schema", "text": schema.text}
    reasoning.events(CompletionRequest("tiny", "Hi", raw=True, constraint=schema))
    assert reasoning.sent()["constraint"]["kind"] == "json_schema"


def test_strict_tools_bind_or_a_note_says_that_they_do_not(bench: Callable[..., Bench]) -> None:
    found = bench()
    events = found.events(chat(tools=TOOLS))
    # the marks are no tokens of this vocabulary, so where a call begins cannot be told from text
    assert "strict tools are not enforced" in finish_of(events).notes[0]
    assert found.sent().get("constraint") is None


def test_a_grammar_that_the_engine_refuses_is_the_clients_mistake(
    bench: Callable[..., Bench],
) -> None:
    found = bench(bad_constraint="no such rule")
    with pytest.raises(UsageError, match="no such rule") as caught:
        found.events(chat(constraint=Constraint("lark", "start: x")))
    assert (caught.value.status, caught.value.code) == (400, "bad_constraint")


def test_tools_in_a_form_we_do_not_know_are_called_in_bare_json(
    bench: Callable[..., Bench],
) -> None:
    shows_tools = "{{ tools }}{% for m in messages %}<think></think>{{ m.content }}{% endfor %}"
    found = bench('<think>hm</think>{"name": "add", "parameters": {"x": 1}}', shows_tools)
    events = found.events(chat(tools=FREE, tool_choice=ToolChoice("required")))
    assert [e.arguments for e in events if isinstance(e, ToolCall)] == [{"x": 1}]
    assert found.sent()["constraint"]["kind"] == "lark"


def test_a_limit_beyond_the_window_is_clamped(bench: Callable[..., Bench]) -> None:
    found = bench()
    finish = finish_of(found.events(chat(options=Options(num_predict=32000))))
    assert found.sent()["max_tokens"] == 512 - finish.usage.prompt_tokens


def test_a_hundred_turns_make_the_same_prompt_in_every_clients_form(
    bench: Callable[..., Bench],
) -> None:
    """Ids of calls, the form of arguments and what names a result differ between clients; the
    prompt does not."""

    def turns(form: int) -> tuple[Message, ...]:
        made = [Message("user", "Go")]
        for idx in range(50):
            arguments: Any = {"x": idx, "a": [1.5, None, "ü\n"]}
            call_id = ("toolu_%d", "call_%d", "")[form] % idx if form < 2 else ""
            call: dict[str, Any] = {"function": {"name": "add", "arguments": arguments}}
            if form == 1:
                call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
            if call_id:
                call["id"] = call_id
            made.append(Message("assistant", "", thinking="hm", tool_calls=(call,)))
            name = "add" if form == 2 else ""
            made.append(Message("tool", str(idx), tool_name=name, tool_call_id=call_id))
        return tuple(made)

    tools = (
        FREE,
        tuple(dataclasses.replace(t, given={"type": "function", "function": {
            "strict": False, "parameters": PARAMETERS, "description": "Adds", "name": "add"}})
            for t in FREE),
        FREE,
    )  # fmt: skip

    found = bench()
    prompts = [
        found.prompt(chat(messages=turns(form), tools=tools[form])).token_ids for form in range(3)
    ]
    assert prompts[0] == prompts[1] == prompts[2]
    assert len(prompts[0]) > 5000


def test_what_is_cut_from_a_long_conversation_leaves_no_result_without_its_call(
    bench: Callable[..., Bench],
) -> None:
    messages = [Message("system", "Be brief.")]
    for idx in range(8):
        call = {"id": f"c{idx}", "function": {"name": "add", "arguments": {"x": idx}}}
        messages.append(Message("assistant", "", tool_calls=(call,)))
        messages.append(Message("tool", f"result {idx}", tool_call_id=f"c{idx}"))
    found = bench()
    events = found.events(chat(messages=tuple(messages)))
    assert any("left out" in note for note in finish_of(events).notes)
    sent = Tokenizer.load(found.model.ftw_path).decode(found.sent()["token_ids"])
    assert "result 7" in sent
    assert "result 0" not in sent
    assert sent.index('"x"') < sent.index("<tool_response>")
