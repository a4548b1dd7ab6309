"""Composed grammars compile, accept what a model should write and refuse what it should not."""
# ruff: noqa: E501 - transcripts are one line where models write one line

from __future__ import annotations

import json
from functools import cache

import llguidance
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from ftman.chat.formats.grammar import Demand, compose
from ftman.chat.formats.output import OutputParser
from ftman.chat.formats.registry import FORMATS, format_named
from ftman.chat.types import Constraint, TextDelta, Tool, ToolCall
from tests.ftman.chat.formats.transcripts import DS, M3

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", parameters={"$schema": "urn:nowhere", **SCHEMA})
NOW = Tool("now", parameters={"type": "object", "properties": {}})
JSON_ARGS = '{"city": "Paris", "days": 2}'

CALLS = {
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON_ARGS}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": f'{M3}<tool_call>\n{M3}<invoke name="get_weather">{M3}<city>Paris{M3}</city>{M3}<days>2{M3}</days>{M3}</invoke>\n{M3}</tool_call>',
    "deepseek_dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "deepseek_v3": f"{DS['calls']}{DS['call']}get_weather{DS['sep']}{JSON_ARGS}{DS['done']}{DS['end']}",
    "kimi": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{JSON_ARGS}<|tool_call_end|><|tool_calls_section_end|>",
    "mistral": f"[TOOL_CALLS]get_weather[ARGS]{JSON_ARGS}",
    "llama3": f'{{"name": "get_weather", "parameters": {JSON_ARGS}}}',
    "granite": f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON_ARGS}}}]',
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
    "command": f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {JSON_ARGS}}}\n]<|END_ACTION|>',
    "muse": ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "solar": f"<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>get_weather<|tool_call:args|>{JSON_ARGS}<|tool_call:end|><|calls|>",
    "lfm2": '<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>',
    "llama4": '[get_weather(city="Paris", days=2)]',
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    "hunyuan": f'<tool_calls>[{{"name": "get_weather", "arguments": {JSON_ARGS}}}]</tool_calls>',
    "jamba": f'<tool_calls>[{{"name": "get_weather", "arguments": {JSON_ARGS}}}]</tool_calls>',
    "harmony": f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON_ARGS}",
}


@cache
def tokenizer_with(marks: tuple[str, ...]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["name arguments city Paris function"], trainer)
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return tokenizer


def accepts(name: str, demand: Demand, text: str, *, marks: bool = True) -> bool:
    """Whether the composed grammar takes a whole reply; with or without tokens for the marks."""
    fmt = format_named(name)
    assert fmt is not None
    known = tuple(mark for mark in fmt.visible if mark[0] in "<[]") if marks else ()
    tokenizer = tokenizer_with(known)
    control = {mark: tokenizer.token_to_id(mark) for mark in known}
    found = compose(fmt, demand, control)
    assert found is not None
    grammar = found.text
    if found.kind == "json_schema":
        grammar = f"start: %json {found.text}"
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer(tokenizer.to_str(), eos_token=0), grammar)
    assert not matcher.get_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def test_every_format_with_calls_has_a_grammar() -> None:
    assert set(CALLS) == {fmt.name for fmt in FORMATS if fmt.has_calls}


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_forced_call_is_a_call_and_nothing_else(name: str, marks: bool) -> None:
    demand = Demand(calls="must", tools=(WEATHER, NOW))
    call = CALLS[name]
    assert accepts(name, demand, call, marks=marks)
    assert not accepts(name, demand, "Sorry, I cannot.", marks=marks)
    assert not accepts(name, demand, call.replace("2", "two"), marks=marks)
    assert not accepts(name, demand, call.replace("get_weather", "get_whether"), marks=marks)
    assert not accepts(name, Demand(calls="must", tools=(NOW,)), call, marks=marks)
    fmt = format_named(name)
    assert fmt is not None
    parser = OutputParser(fmt, (WEATHER,))
    events = [*parser.feed(TextDelta(call)), *parser.finish()]
    made = [event for event in events if isinstance(event, ToolCall)]
    assert [(c.name, c.arguments) for c in made] == [("get_weather", json.loads(JSON_ARGS))]


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize(
    "name", [f.name for f in FORMATS if f.reasoning and f.name not in ("harmony", "muse", "gemma")]
)
def test_a_constraint_binds_the_answer_and_not_the_reasoning(name: str, marks: bool) -> None:
    fmt = format_named(name)
    assert fmt is not None
    assert fmt.reasoning is not None
    start, end = fmt.reasoning.start, fmt.reasoning.end
    for answer in (
        Constraint("json_schema", json.dumps(SCHEMA)),
        Constraint("regex", r"\{.*(Paris|a/b).*\}"),
        Constraint("lark", 'start: "{" start_2 "}"\nstart_2: /[^}]+/ // "start"'),
        Constraint("json"),
    ):
        may = Demand(answer=answer, thinking="may")
        assert accepts(name, may, f"{start}\nhm {{ 1\n{end}\n\n{JSON_ARGS}", marks=marks)
        assert accepts(name, may, JSON_ARGS, marks=marks)
        assert not accepts(name, may, f"{start}hm{end}no JSON", marks=marks)
        inside = Demand(answer=answer, thinking="inside")
        assert accepts(name, inside, f"hm {{ 1\n{end}\n\n{JSON_ARGS}", marks=marks)
        assert not accepts(name, inside, JSON_ARGS, marks=marks)


def test_an_answer_may_stand_behind_the_mark_that_begins_it() -> None:
    demand = Demand(answer=Constraint("json"), thinking="may")
    for name, thoughts, lead in (
        ("command", "<|START_THINKING|>hm<|END_THINKING|>", "<|START_TEXT|>"),
        ("hunyuan", "<think>\nhm\n</think>\n", "<answer>\n"),
        ("solar", "<|think|>hm<|end|>", "<|begin|>assistant<|content|>"),
    ):
        assert accepts(name, demand, thoughts + lead + "{}")
        assert accepts(name, demand, lead + "{}")
        assert accepts(name, demand, "{}")
        assert not accepts(name, demand, lead + "no")


def test_harmony_reasons_in_its_channel_before_a_constrained_answer() -> None:
    demand = Demand(answer=Constraint("json"), thinking="may")
    answer = "<|channel|>final<|message|>{}"
    thoughts = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert accepts("harmony", demand, answer)
    assert accepts("harmony", demand, thoughts + answer)
    assert not accepts("harmony", demand, thoughts + answer[:-2] + "no")


def test_muse_reasons_to_itself_before_a_constrained_answer() -> None:
    demand = Demand(answer=Constraint("json"), thinking="may")
    answer = " to=user<|message|>{}"
    thoughts = " to=self<|message|>hm<|eom|><|start|>assistant"
    assert accepts("muse", demand, answer)
    assert accepts("muse", demand, thoughts + answer)
    assert not accepts("muse", demand, thoughts + answer[:-2] + "no")


def test_nested_arguments_are_tags_where_a_format_writes_them_so() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    path = {"type": "array", "items": {"$ref": "#/$defs/point"}}
    schema = {"type": "object", "properties": {"path": path}, "$defs": {"point": point}}
    demand = Demand(calls="must", tools=(Tool("go", parameters=schema),))
    head, tail = f'{M3}<tool_call>\n{M3}<invoke name="go">', f"{M3}</invoke>\n{M3}</tool_call>"
    item = f"{M3}<item>{M3}<x>1.5{M3}</x>{M3}</item>"
    assert accepts("minimax_m3", demand, f"{head}{M3}<path>{item}{item}{M3}</path>{tail}")
    assert accepts("minimax_m3", demand, head + tail)
    assert not accepts("minimax_m3", demand, f"{head}{M3}<path>[]{M3}</path>{tail}")


def test_with_tools_an_answer_may_obey_its_schema_or_be_a_call() -> None:
    demand = Demand(answer=Constraint("json"), calls="may", tools=(WEATHER,))
    assert accepts("hermes", demand, "{}")
    assert accepts("hermes", demand, CALLS["hermes"])
    assert not accepts("hermes", demand, "Hello")


def test_strict_tools_leave_text_free_and_bind_arguments() -> None:
    demand = Demand(calls="may", tools=(WEATHER,))
    assert accepts("hermes", demand, "Hello")
    assert accepts("hermes", demand, "On it.\n" + CALLS["hermes"])
    assert not accepts("hermes", demand, CALLS["hermes"].replace("2", '"2"'))


def test_one_call_means_one() -> None:
    demand = Demand(calls="must", tools=(WEATHER,), several=False)
    assert accepts("hermes", demand, CALLS["hermes"])
    assert not accepts("hermes", demand, CALLS["hermes"] + "\n" + CALLS["hermes"])
    several = Demand(calls="must", tools=(WEATHER,))
    assert accepts("hermes", several, CALLS["hermes"] + "\n" + CALLS["hermes"])


def test_an_optional_argument_may_be_left_out_and_an_enum_binds() -> None:
    schema = {"type": "object", "properties": {"u": {"enum": ["c", "f"]}, "n": {"type": "integer"}}}
    demand = Demand(calls="must", tools=(Tool("f", parameters=schema),))
    for arguments, good in (("", True), ("u:c,n:1", True), ("n:1", True), ("u:k", False)):
        pairs = [pair.split(":") for pair in arguments.split(",") if pair]
        coder = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in pairs)
        assert (
            accepts(
                "qwen3_coder",
                demand,
                f"<tool_call>\n<function=f>\n{coder}</function>\n</tool_call>",
            )
            is good
        )
        gemma = arguments.replace("u:c", 'u:<|"|>c<|"|>').replace("u:k", 'u:<|"|>k<|"|>')
        assert accepts("gemma", demand, f"<|tool_call>call:f{{{gemma}}}<tool_call|>") is good
