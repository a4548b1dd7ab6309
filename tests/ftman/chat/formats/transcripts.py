"""What models write, format by format, and what must be read from it. Written for these tests."""
# ruff: noqa: E501 - transcripts are one line where models write one line

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftman.chat.types import Tool

TOOLS = (
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"enum": ["c", "f"]},
                "where": {"$ref": "#/$defs/point"},
                "note": {"type": ["string", "null"]},
                "exact": {"type": "boolean"},
            },
            "required": ["city"],
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
        },
    ),
    Tool("now", parameters={"type": "object", "properties": {}}),
)
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Transcript:
    """raw: what the model wrote. inside: the prompt ended with the mark that opens reasoning."""

    format: str
    name: str
    raw: str
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    inside: bool = False
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.format}-{self.name}"


PARIS: Call = ("get_weather", {"city": "Paris", "days": 2})
NOW: Call = ("now", {})
DS = {
    "calls": "<｜tool▁calls▁begin｜>", "end": "<｜tool▁calls▁end｜>", "call": "<｜tool▁call▁begin｜>",
    "done": "<｜tool▁call▁end｜>", "sep": "<｜tool▁sep｜>",
}  # fmt: skip

M3 = "]<]minimax[>["

TRANSCRIPTS = (
    Transcript("plain", "text", "Hello <tool_call> & <think>x</think>\n", "Hello <tool_call> & <think>x</think>\n"),
    Transcript("think", "thought", "<think>\nso 1 < 2\n</think>\n\nYes.", "Yes.", "so 1 < 2"),
    Transcript("think", "inside", "so\n\n</think>Yes. <think>no</think>", "Yes. <think>no</think>", "so", inside=True),
    Transcript("think", "never ends", "  <think> a </thin k> ", "", "a </thin k>"),
    Transcript("hermes", "text only", "Grüße 😀 1 < 2 <tool_cal\n", "Grüße 😀 1 < 2 <tool_cal\n"),
    Transcript("hermes", "two calls",
        '<think>\nthe <tool_call>{"name": "now"}</tool_call> in thought\n</think>\n\nLet me look.\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "Let me look.", 'the <tool_call>{"name": "now"}</tool_call> in thought', (PARIS, NOW)),
    Transcript("hermes", "almost JSON",
        '<tool_call>{"name": "f", "arguments": {"a": "x\\ny\nz\\d", "b": [1, True, {"c": None,}], "e": "\\ud83d\\ude00\\ud83d", }}</tool_call>',
        calls=(("f", {"a": "x\ny\nz\\d", "b": [1, True, {"c": None}], "e": "😀\ufffd"}),)),
    Transcript("hermes", "arguments first", '<tool_call>{"arguments": {"city": "Paris", "days": 2}, "name": "get_weather"}</tool_call>ok',
        "ok", calls=(PARIS,)),
    Transcript("hermes", "arguments as text", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}</tool_call>', calls=(PARIS,)),
    Transcript("hermes", "under function", '<tool_call>{"type": "function", "function": {"name": "now", "arguments": null}}</tool_call>', calls=(NOW,)),
    Transcript("hermes", "broken before its name", 'a <tool_call>{"nam: 1}</tool_call> b', 'a <tool_call>{"nam: 1}</tool_call> b'),
    Transcript("qwen3_coder", "typed",
        "<think>\nhm\n</think>\n\nOn it.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\n\"York\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=units>\nc\n</parameter>\n<parameter=where>\n{\"x\": 1.5}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
        "On it.", "hm",
        (("get_weather", {"city": 'New\n"York"', "days": 3, "units": "c", "where": {"x": 1.5}, "note": None, "exact": True}),)),
    Transcript("qwen3_coder", "no outer mark, two calls",
        "<function=now>\n</function>\n<tool_call>\n<function=unknown>\n<parameter=k>\n12\n</parameter>\n</function>\n</tool_call>\n",
        calls=(NOW, ("unknown", {"k": "12"}))),
    Transcript("qwen3_coder", "JSON after all", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', calls=(NOW,)),
    Transcript("glm", "typed", "\n<think>hm</think>\nOn it.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
        "On it.", "hm", (PARIS, NOW)),
    Transcript("glm", "one line", "hm</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
        "", "hm", (PARIS,), inside=True),
    Transcript("minimax", "two", 'hm\n</think>\n\nOn it.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "On it.", "hm", (PARIS, NOW), inside=True),
    Transcript("minimax_m3", "two", f'<mm:think>hm 1 < 2</mm:think>On it.\n{M3}<tool_call>\n{M3}<invoke name="get_weather">{M3}<city>Paris{M3}</city>{M3}<days>2{M3}</days>{M3}</invoke>\n{M3}<invoke name="now">{M3}</invoke>\n{M3}</tool_call>',
        "On it.", "hm 1 < 2", (PARIS, NOW)),
    Transcript("minimax_m3", "nested", f'hm</mm:think>{M3}<tool_call>\n{M3}<invoke name="get_weather">{M3}<city> </city> & <b>\n{M3}</city>{M3}<where>{M3}<x>1.5{M3}</x>\n{M3}<l>{M3}<item>a{M3}</item>{M3}<item>{M3}<y>2{M3}</y>{M3}</item>{M3}</l>{M3}</where>{M3}<note>null{M3}</note>{M3}<exact>true{M3}</exact>{M3}</invoke>\n{M3}</tool_call>',
        "", "hm", (("get_weather", {"city": " </city> & <b>\n", "where": {"x": 1.5, "l": ["a", {"y": "2"}]}, "note": None, "exact": True}),), inside=True),
    Transcript("minimax_m3", "no thoughts", "</mm:think>Yes. 1 < 2", "Yes. 1 < 2"),
    Transcript("minimax_m3", "JSON inside, empty", f'{M3}<tool_call>{M3}<invoke name="get_weather">{M3}<city>{M3}</city>{M3}<where>{{"x": 1}}{M3}</where>{M3}</invoke>{M3}</tool_call>', calls=(("get_weather", {"city": "", "where": {"x": 1}}),)),
    Transcript("minimax_m3", "broken", f"{M3}<tool_call>now{M3}</tool_call>", f"{M3}<tool_call>now{M3}</tool_call>"),
    Transcript("deepseek_dsml", "two", 'hm</think>On it.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "On it.", "hm", (PARIS, NOW), inside=True),
    Transcript("deepseek_dsml", "v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', calls=(("f", {"a": "1"}),)),
    Transcript("deepseek_v3", "v3.1", f'<think>hm</think>On it.{DS["calls"]}{DS["call"]}get_weather{DS["sep"]}{{"city": "Paris", "days": 2}}{DS["done"]}{DS["call"]}now{DS["sep"]}{{}}{DS["done"]}{DS["end"]}',
        "On it.", "hm", (PARIS, NOW)),
    Transcript("deepseek_v3", "r1", f'{DS["calls"]}{DS["call"]}function{DS["sep"]}get_weather\n```json\n{{"city": "Paris", "days": 2}}\n```{DS["done"]}\n{DS["call"]}function{DS["sep"]}now\n```json\n{{}}\n```{DS["done"]}{DS["end"]}', calls=(PARIS, NOW)),
    Transcript("kimi", "own ids", 'On it. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
        "On it.", calls=(PARIS, NOW), ids=("functions.get_weather:0", "functions.now:1")),
    Transcript("mistral", "list", '[THINK]hm[/THINK]On it.[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, {"name": "now", "arguments": {}}]', "On it.", "hm", (PARIS, NOW)),
    Transcript("mistral", "named", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]now[CALL_ID]abcdef123[ARGS]{}', calls=(PARIS, NOW)),
    Transcript("llama3", "bare", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; {"name": "now", "parameters": {}}', calls=(PARIS, NOW)),
    Transcript("llama3", "tag", '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}', calls=(NOW,)),
    Transcript("llama3", "function tag", 'Sure. <function=now>{}</function>', "Sure.", calls=(NOW,)),
    Transcript("llama3", "bare JSON that is an answer", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    Transcript("llama3", "JSON in a text", 'See {"name": "now", "parameters": {}}', 'See {"name": "now", "parameters": {}}'),
    Transcript("granite", "list", '<think>hm</think><|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, {"name": "now", "arguments": {}}]', "", "hm", (PARIS, NOW)),
    Transcript("granite", "hermes marks", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', calls=(NOW,)),
    Transcript("gemma", "nested", '<|channel>thought\nhm\n<channel|>On it.<|tool_call>call:get_weather{city:<|"|>Par,{is}<|"|>,days:2,where:{x:1.5,l:[1,<|"|>b<|"|>,true]},note:null}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "On it.", "hm", (("get_weather", {"city": "Par,{is}", "days": 2, "where": {"x": 1.5, "l": [1, "b", True]}, "note": None}), NOW)),
    Transcript("gemma", "functiongemma", "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>", calls=(PARIS,)),
    Transcript("command", "two", '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>', "", "hm", (PARIS, NOW)),
    Transcript("command", "one", 'On it.<|START_ACTION|>\n{"tool_name": "now", "parameters": {}}\n<|END_ACTION|>', "On it.", calls=(NOW,)),
    Transcript("command", "answer", "hm<|END_THINKING|><|START_TEXT|>Yes. 1 < 2\n<|END_TEXT|>", "Yes. 1 < 2", "hm", inside=True),
    Transcript("command", "response", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes."),
    Transcript("command", "broken", "<|START_ACTION|>[now]<|END_ACTION|>", "<|START_ACTION|>[now]<|END_ACTION|>"),
    Transcript("hy3", "two", "hm</think:opensource>On it.\n<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", "On it.", "hm", (PARIS, NOW), inside=True),
    Transcript("hy3", "broken", "<tool_calls:opensource>now</tool_calls:opensource>", "<tool_calls:opensource>now</tool_calls:opensource>"),
    Transcript("hunyuan", "call", '<think>\nhm\n</think>\n<answer>\nOn it.\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, {"name": "now", "arguments": {}}]</tool_calls>\n</answer>', "On it.", "hm", (PARIS, NOW)),
    Transcript("hunyuan", "answer", "<think>\nhm\n</think>\n<answer>\nYes.\n\nNo.\n</answer>", "Yes.\n\nNo.", "hm"),
    Transcript("hunyuan", "no marks", "Yes. </ans\n", "Yes. </ans\n"),
    Transcript("jamba", "list", 'On it.\n<tool_calls>[\n  {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},\n  {"name": "now", "arguments": {}}\n]</tool_calls>', "On it.", calls=(PARIS, NOW)),
    Transcript("jamba", "objects", '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n{"name": "now", "arguments": {}}\n</tool_calls>', calls=(PARIS, NOW)),
    Transcript("jamba", "broken", "<tool_calls>now()</tool_calls>", "<tool_calls>now()</tool_calls>"),
    Transcript("muse", "answer", " to=self<|message|>hm, so<|eom|><|start|>assistant to=user<|message|>Hello 1 < 2<|eot|>", "Hello 1 < 2", "hm, so"),
    Transcript("muse", "calls", ' to=self<|message|>hm<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls><|eot|>', "", "hm", (PARIS, NOW)),
    Transcript("muse", "broken", " to=now<|message|><atem:function_calls>now</atem:function_calls>", "<atem:function_calls>now</atem:function_calls>"),
    Transcript("muse", "no receiver", "<|message|>Yes.", "Yes."),
    Transcript("muse", "continued", "going on<|eot|>", "going on"),
    Transcript("solar", "answer", "<|think|>hm<|end|><|begin|>assistant<|content|>Yes. 1 < 2<|end|>", "Yes. 1 < 2", "hm"),
    Transcript("solar", "two", '<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris", "days": 2}<|tool_call:end|><|tool_call:begin|>c2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>', "", "hm", (PARIS, NOW), ids=("c1", "c2")),
    Transcript("solar", "broken", "<|tool_calls|><|tool_call:begin|>now<|tool_call:end|>", "<|tool_call:begin|>now<|tool_call:end|>"),
    Transcript("lfm2", "two", """<think>hm</think>On it.<|tool_call_start|>[get_weather(city='Paris', days=2), now()]<|tool_call_end|>""", "On it.", "hm", (PARIS, NOW)),
    Transcript("lfm2", "values", r"""<|tool_call_start|>[get_weather(city="New\n\"York\" \x41\ud83d\ude00\q", where={"x": 1.5, 'l': [1, 'b', True, None,]}, note=None, exact=False, days = -3, t=("a", ), s='')]<|tool_call_end|>Done.""", "Done.",
        calls=(("get_weather", {"city": 'New\n"York" A😀\\q', "where": {"x": 1.5, "l": [1, "b", True, None]}, "note": None, "exact": False, "days": -3, "t": ["a"], "s": ""}),)),
    Transcript("lfm2", "three quotes", '<|tool_call_start|>[get_weather(city=\'\'\'New\n"York"\'\'\')]<|tool_call_end|>', calls=(("get_weather", {"city": 'New\n"York"'}),)),
    Transcript("lfm2", "quotes as templates write them", """<|tool_call_start|>[get_weather(city='l'Isle 'd' "Abeau"', where={'l': "a" })]<|tool_call_end|>""", calls=(("get_weather", {"city": "l'Isle 'd' \"Abeau\"", "where": {"l": "a"}}),)),
    Transcript("lfm2", "JSON", '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, {"name": "now", "arguments": {}}]<|tool_call_end|>', calls=(PARIS, NOW)),
    Transcript("lfm2", "broken before its first argument", "a <|tool_call_start|>[f(1)]<|tool_call_end|> b", "a <|tool_call_start|>[f(1)]<|tool_call_end|> b"),
    Transcript("llama4", "bare", '[get_weather(city="Paris", days=2), now()]', calls=(PARIS, NOW)),
    Transcript("llama4", "marks", "On it.<|python_start|>[get_weather(city='Paris', days=2)]<|python_end|>", "On it.", calls=(PARIS,)),
    Transcript("llama4", "JSON", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}', calls=(PARIS,)),
    Transcript("llama4", "JSON in marks", '<|python_start|>{"type": "function", "name": "now", "parameters": {}}<|python_end|>', calls=(NOW,)),
    Transcript("llama4", "a list that is an answer", "[1, 2] and [see](x)", "[1, 2] and [see](x)"),
    Transcript("llama4", "what is no tool is an answer", "[link(a=1)](x)", "[link(a=1)](x)"),
    Transcript("llama4", "a list in a text", "See [now()]", "See [now()]"),
    Transcript("harmony", "answer", "<|channel|>analysis<|message|>hm, so<|end|><|start|>assistant<|channel|>final<|message|>Hello 1 < 2", "Hello 1 < 2", "hm, so"),
    Transcript("harmony", "call", '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>On it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>',
        "On it.", "hm", (PARIS,)),
    Transcript("harmony", "receiver first", ' to=functions.now<|channel|>commentary json<|message|>{}', calls=(NOW,)),
    Transcript("harmony", "continued", "going on<|end|>", "going on"),
)  # fmt: skip
