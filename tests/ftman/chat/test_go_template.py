"""Go's template language: actions, functions, printing, errors with their line."""
# ruff: noqa: E501 - tables of templates and what they give

from __future__ import annotations

from typing import Any

import pytest

from ftman.chat.go_template import GoTemplate
from ftman.chat.traced import join, runs_of, trace
from ftman.errors import UsageError

DATA: dict[str, Any] = {
    "Name": "Ann", "Empty": "", "N": 3, "F": 2.5, "Yes": True, "No": False, "Nil": None,
    "List": ["a", "b", "c"], "Map": {"b": 2, "a": 1}, "Deep": {"One": {"Two": "x"}},
    "People": [{"Name": "A", "Age": 1}, {"Name": "B", "Age": 2}], "Text": 'é"<&>\n',
}  # fmt: skip


class DayClock:
    def wall(self) -> float:
        return 1_700_000_000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


def render(source: str, data: dict[str, Any] | None = None) -> str:
    whole = GoTemplate.parse(source + "{{ .Response }}", clock=DayClock())
    return whole.render({"Response": "", **(DATA if data is None else data)})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("plain { text }}", "plain { text }}"),
        ("a {{ .Name }} b", "a Ann b"),
        ("a {{- .Name -}} b", "aAnnb"),
        ("a\n\n {{- /* note */ -}} \n b", "ab"),
        ("{{/* only */}}x", "x"),
        ("{{ .Deep.One.Two }}{{ .Deep.Nope.Two }}", "x<no value>"),
        ("{{ .Missing }}", "<no value>"),
        ("{{ if .Missing }}a{{ else }}b{{ end }}", "b"),
        ("{{ if .Yes }}a{{ end }}{{ if .No }}b{{ end }}", "a"),
        ("{{ if .No }}a{{ else if .Empty }}b{{ else if .N }}c{{ else }}d{{ end }}", "c"),
        ("{{ with .Deep }}{{ .One.Two }}{{ else }}none{{ end }}", "x"),
        ("{{ with .Empty }}a{{ else with .Name }}{{ . }}{{ else }}c{{ end }}", "Ann"),
        ("{{ range .List }}[{{ . }}]{{ end }}", "[a][b][c]"),
        ("{{ range $i, $e := .List }}{{ $i }}{{ $e }}{{ end }}", "0a1b2c"),
        ("{{ range $k, $v := .Map }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
        ("{{ range .Missing }}x{{ else }}none{{ end }}", "none"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range .List }}{{ if eq . \"b\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
        ("{{ range .List }}{{ if eq . \"b\" }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
        ("{{ range .People }}{{ .Name }}{{ $.N }}{{ end }}", "A3B3"),
        ("{{ $x := .N }}{{ if .Yes }}{{ $x = 5 }}{{ end }}{{ $x }}", "5"),
        ("{{ $x := 1 }}{{ if .Yes }}{{ $x := 2 }}{{ end }}{{ $x }}", "1"),
        ("{{ $d := .Deep }}{{ $d.One.Two }}{{ (index .People 1).Name }}", "xB"),
        ("{{ define \"t\" }}<{{ . }}>{{ end }}{{ template \"t\" .Name }}", "<Ann>"),
        ("{{ block \"u\" .N }}({{ . }}){{ end }}", "(3)"),
        ("{{ .Name | printf \"%s-%s\" \"x\" }}", "x-Ann"),
        ("{{ printf \"%d|%5d|%-5d|%05d\" 3 3 3 3 }}", "3|    3|3    |00003"),
        ("{{ printf \"%v %v %v %v\" .List .Map .Nil .F }}", "[a b c] map[a:1 b:2] <nil> 2.5"),
        ("{{ printf \"%q %x %t %c %U\" \"a\\\"b\" 255 true 65 65 }}", "\"a\\\"b\" ff true A U+0041"),
        ("{{ printf \"%.2f %6.1f %e\" 2.345 2.0 1.5 }}", "2.35    2.0 1.500000e+00"),
        ("{{ printf \"%d %s\" \"x\" 1 }}", "%!d(string=x) %!s(int=1)"),
        ("{{ printf \"%d\" }}{{ printf \"a\" 1 }}", "%!d(MISSING)a%!(EXTRA int=1)"),
        ("{{ printf \"%%\" }}", "%"),
        ("{{ print 1 2 \"a\" \"b\" 3 }}", "1 2a b3".replace("a b", "ab")),
        ("{{ println 1 \"a\" }}", "1 a\n"),
        ("{{ and .Yes .Name }}{{ and .Empty .Name }}|{{ or .Empty .Name }}", "Ann|Ann"),
        ("{{ or .Yes (index .List 99) }}", "true"),
        ("{{ not .Yes }}{{ not .Empty }}", "falsetrue"),
        ("{{ eq .N 1 2 3 }}{{ ne .N 3 }}{{ lt 1 2 }}{{ le 2 2 }}{{ gt \"b\" \"a\" }}{{ ge 1 2 }}",
         "truefalsetruetruetruefalse"),
        ("{{ len .List }}{{ len .Name }}{{ len \"é\" }}{{ len .Map }}", "3322"),
        ("{{ index .Map \"a\" }}{{ index .List 1 }}{{ index .People 0 \"Age\" }}", "1b1"),
        ("{{ slice .Name 1 2 }}{{ slice .List 1 }}{{ slice .Name }}", "n[b c]Ann"),
        ("{{ html .Text }}", "é&#34;&lt;&amp;&gt;\n"),
        ("{{ js .Text }}", "é\\\"\\u003C\\u0026\\u003E\\u000A"),
        ("{{ urlquery \"a b&é\" }}", "a+b%26%C3%A9"),
        ("{{ json .Map }}{{ json .List }}{{ json .Text }}", '{"a":1,"b":2}["a","b","c"]"é\\"\\u003c\\u0026\\u003e\\n"'),
        ("{{ json 1.0 }}{{ json nil }}{{ json true }}", "1nulltrue"),
        ("{{ currentDate }} {{ currentDate \"x\" }}", "2023-11-14 2023-11-14"),
        ("{{ yesterdayDate }}", "2023-11-13"),
        ("{{ `raw \"x\" \\n` }}{{ \"a\\tb\\u00e9\\x41\" }}{{ 'A' }}", "raw \"x\" \\na\tbéA65"),
        ("{{ 0x10 }} {{ 1_000 }} {{ -5 }} {{ 1e3 }} {{ 1.5 }} {{ 017 }} {{ 1e6 }}",
         "16 1000 -5 1000 1.5 15 1e+06"),
        ("{{ .Yes }}{{ .Nil }}{{ .N }}{{ .F }}", "true<no value>32.5"),
        ("{{- if .Yes }}\n  x\n{{- end }}", "\n  x"),
        ("{{ if and .Yes (not .No) (eq .N 3) }}ok{{ end }}", "ok"),
        ("{{ range $i, $_ := .List }}{{ if eq (len (slice $.List $i)) 1 }}last{{ end }}{{ end }}", "last"),
        ("{{ if\n.Yes\n}}x{{ end }}", "x"),
        ("{{ .Name|len }}", "3"),
        ("{{ define \"r\" }}{{ if . }}x{{ template \"r\" (slice . 1) }}{{ end }}{{ end }}"
         "{{ template \"r\" .List }}", "xxx"),
    ],
)  # fmt: skip
def test_templates_render_as_in_go(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("string", "string"), ("integer", "number"), ("array", "any[]"), ("weird", "any"),
        (["string", "null"], "string | null"), ("object", "Record<string, any>"), ([], "any"),
    ],
)  # fmt: skip
def test_typescript_types(kind: Any, expected: str) -> None:
    assert render("{{ toTypeScriptType .P }}", {"P": {"Type": kind}}) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ .X", "line 2: unclosed action"),
        ("{{ if .X }}", "an {{end}} is missing"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("\n\n{{ nope .X }}", 'line 3: function "nope" not defined'),
        ("{{ $x }}", 'undefined variable "$x"'),
        ("{{ if .Yes }}{{ $x := 1 }}{{ end }}{{ $x }}", 'undefined variable "$x"'),
        ("{{ break }}", "outside {{range}}"),
        ("{{ }}", "missing value for command"),
        ("{{ if }}x{{ end }}", "missing value for if"),
        ("{{ nil }}", "nil is not a command"),
        ("{{ .X | 1 }}", "non executable command in pipeline stage 2"),
        ('{{ "abc }}', "unterminated quoted string"),
        ("{{ /* x }}", "unclosed comment"),
        ("{{ .X ! }}", "unexpected character '!'"),
        ("{{ (.X }}", "in parenthesized pipeline"),
        ("{{ template .X }}", "needs a quoted name"),
        ('{{ template "nope" }}', 'template "nope" not defined'),
        ("{{ index .List 9 }}", "error calling index: index out of range: 9"),
        ("{{ len .N }}", "error calling len"),
        ('{{ lt 1 "a" }}', "incompatible types for comparison"),
        ("{{ eq .N }}", "missing argument for comparison"),
        ("{{ not }}", "wrong number of args for not"),
        ("{{ and }}", "wrong number of args for and"),
        ("{{ .Name.Nope }}", "can't evaluate field Nope"),
        ("{{ .Name .N }}", "can't give arguments"),
        ("{{ range .Yes }}x{{ end }}", "range can't iterate"),
        ("{{ slice .Name 2 1 }}", "invalid slice index"),
        ("{{ call .Name }}", "error calling call"),
        ("{{ range 1000000000 }}x{{ end }}", "limit of 2000000 steps"),
        ('{{ define "r" }}{{ template "r" }}{{ end }}{{ template "r" }}', "100 deep"),
        ('{{ range 100000 }}{{ printf "%1000s" "x" }}{{ end }}', "above the limit of"),
        ("{{" + "(" * 200 + ".X" + ")" * 200 + "}}", "nested more than 100 deep"),
        ("{{ if 1 }}" * 200, "nested more than 100 deep"),
    ],
)
def test_mistakes_are_one_error_with_the_line(source: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        GoTemplate.parse(source).render(DATA)
    assert caught.value.message.startswith("template error: line ")
    assert message in caught.value.message


def test_value_text_is_known_from_template_text() -> None:
    text = render(
        '<a>{{ .Name }}<b>{{ printf "%s!%s" .Name "<c>" }}{{ json .Map }}<d>{{ slice .Name 1 }}',
        {"Name": trace("<x>", 2), "Map": {"k": trace("<y>", 4)}},
    )
    assert text == '<a><x><b><x>!<c>{"k":"\\u003cy\\u003e"}<d>x>'
    own, at = "", 0
    for length, origin in runs_of(text):
        own += text[at : at + length] if not origin else "·"
        at += length
    assert own == "<a>·<b>·!<c>·<d>·"
    assert join([text]) == text


def test_a_template_without_reply_or_messages_gets_the_reply_at_its_end() -> None:
    assert GoTemplate.parse("{{ .Prompt }}\n").render({"Prompt": "p", "Response": "r"}) == "p\nr"
    assert GoTemplate.parse("{{ .Response }}!").render({"Response": "r"}) == "r!"


def test_mentions_looks_everywhere() -> None:
    template = GoTemplate.parse(
        "{{ if (and .A $.B (index .C.D 0)) }}{{ with .E }}{{ end }}{{ end }}"
    )
    for name in (".A", ".B", ".C", ".D", ".E", ".Response"):
        assert template.mentions(name)
    assert not template.mentions(".Messages")


def test_rendering_open_cuts_behind_the_first_reply() -> None:
    template = GoTemplate.parse(
        "{{ .Prompt }}{{ if .Response }}?{{ end }}[{{ if .Prompt }}{{ .Response }}!{{ end }}]{{ .Prompt }}"
    )
    assert template.render({"Prompt": "p", "Response": "r"}) == "p?[r!]p"
    assert template.render_open({"Prompt": "p", "Response": "r"}) == "p?[r"
    assert template.render_open({"Prompt": "p", "Response": ""}) == "p["
