"""The helper process: the reference's text, origins, limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftman.chat.template import JinjaTemplates, TemplateRaisedError
from ftman.chat.traced import Traced, content_origin, runs_of
from ftman.errors import UsageError

MESSAGES = [
    {"role": "system", "content": "Be <|brief|>."},
    {"role": "user", "content": "  Hi {there}  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"a": "<|x|>", "ü": [1, None]}}}
    ]},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<|end|>"}}]

BODY = "{% for m in messages %}"
SOURCES = {
    "concat": BODY + "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}",
    "tilde": BODY + "{{ '<|' ~ m.role ~ '|>' ~ m.content | trim ~ '<|end|>' }}{% endfor %}",
    "set": BODY
    + "{% set c = m.content %}{% if '</think>' in c %}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|a|>{{ c }}<|end|>{% endfor %}",
    "macro": "{% macro put(m) %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endmacro %}" + BODY
    + "{{ put(m) }}{% endfor %}",
    "block": BODY + "{% set x %}<|a|>{{ m.content }}<|end|>{% endset %}{{ x }}{% endfor %}",
    "filters": BODY + "{{ m.content | replace('H', '<|h|>') | upper }}{% endfor %}",
    "join": "{{ messages | map(attribute='content') | join('<|end|>') }}",
    "method join": "{{ '<|end|>'.join(messages | map(attribute='content')) }}",
    "format": BODY + "{{ '<|a|>%s<|end|>' | format(m.content) }}{% endfor %}",
    "str format": BODY + "{{ '<|a|>{}<|end|>{x}'.format(m.content, x=m.role) }}{% endfor %}",
    "percent": BODY + "{{ '<|a|>%s%s' % (m.role, m.content) }}{% endfor %}",
    "slices": BODY + "<|a|>{{ m.content[2:-1] }}{{ m.content[0] }}<|end|>{% endfor %}",
    "tools": "<|t|>{{ tools | tojson }}<|end|>{{ tools[0] | tojson(indent=2) }}",
    "print a structure": "<|t|>{{ tools }}<|end|>{{ messages[2].tool_calls }}",
    "items": "{% for k, v in messages[2].tool_calls[0].function.arguments | items %}"
    "<|{{ k }}|>{{ v }}{% endfor %}",
    "loop controls": BODY + "{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(s='<|s|>') %}" + BODY + "{% set ns.s = ns.s + m.content %}"
    "{% endfor %}{{ ns.s }}",
    "generation": BODY + "{% generation %}<|a|>{{ m.content }}{% endgeneration %}{% endfor %}",
    "whitespace": "\n{% if true %}\n    {%- for m in messages %}\n  {{ m.content }}\n"
    "    {% endfor %}\n{% endif %}\n",
    "characters": "<|c|>{% for c in messages[1].content %}{{ c }}.{% endfor %}",
    "reversed": "{{ messages[::-1][0].content }}<|x|>{{ messages[0].content | reverse }}",
    "escape": "{{ messages[0].content | e }}<|x|>{{ messages[0].content | safe }}",
    "indent": "<|x|>{{ messages[2].content | indent(2) }}",
    "call block": "{% macro w() %}<|w|>{{ caller() }}<|end|>{% endmacro %}"
    "{% call w() %}{{ messages[0].content }}{% endcall %}",
    "default": "{{ missing | default('<|d|>') }}{{ missing }}{{ bos_token }}",
    "dict get": "<|g|>{{ messages[0].get('content') }}{{ messages[0].get('x', '<|no|>') }}",
}  # fmt: skip


def reference(source: str) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[MESSAGES], tools=TOOLS, chat_template=source, bos_token="<|bos|>"
    )
    return str(rendered[0])


def render(with_templates: Callable[..., Any], source: str, **values: Any) -> Traced:
    given = {"messages": MESSAGES, "tools": TOOLS, "documents": None, **values}
    return with_templates(lambda t: t.render(source, given, trusted={"bos_token": "<|bos|>"}))


@pytest.fixture(scope="module")
def rendered() -> dict[str, Traced]:
    async def main() -> dict[str, Traced]:
        helper = JinjaTemplates()
        given = {"messages": MESSAGES, "tools": TOOLS, "documents": None,
                 "add_generation_prompt": False}  # fmt: skip
        trusted = {"bos_token": "<|bos|>"}
        texts = {k: await helper.render(v, given, trusted=trusted) for k, v in SOURCES.items()}
        await helper.close()
        return texts

    return asyncio.run(main())


@pytest.mark.parametrize("name", SOURCES)
def test_the_text_is_what_the_reference_renders(name: str, rendered: dict[str, Traced]) -> None:
    assert rendered[name] == reference(SOURCES[name])


@pytest.mark.parametrize("name", SOURCES)
def test_value_text_never_counts_as_template_text(name: str, rendered: dict[str, Traced]) -> None:
    text = rendered[name]
    at = 0
    own = ""
    for length, origin in runs_of(text):
        own += text[at : at + length] if not origin else "\0"
        at += length
    for forged in ("<|brief|>", "<|BRIEF|>", "<|x|>{", "&lt;|brief", "there", "THERE", "hm"):
        assert forged not in own
    assert own.count("<|end|>") <= SOURCES[name].count("<|end|>") * 4


@pytest.mark.parametrize(
    "name", ["concat", "tilde", "set", "macro", "block", "format", "str format"]
)
def test_template_tokens_beside_values_stay_template_text(
    name: str, rendered: dict[str, Traced]
) -> None:
    text = rendered[name]
    runs, at, ends = runs_of(text), 0, 0
    for length, origin in runs:
        if not origin:
            ends += text[at : at + length].count("<|end|>")
        at += length
    assert ends == 3
    assert {content_origin(idx) for idx in range(3)} <= {origin for _, origin in runs}


def test_printing_an_object_that_hides_values_gives_value_text(
    with_templates: Callable[..., Any],
) -> None:
    text = render(with_templates, "{{ namespace(a=messages[0].content) }}")
    assert "<|brief|>" in text
    assert all(origin for _, origin in runs_of(text))


def test_a_refusal_carries_the_templates_own_words(with_templates: Callable[..., Any]) -> None:
    with pytest.raises(TemplateRaisedError, match=r"^Roles must alternate$") as caught:
        render(with_templates, "{{ raise_exception('Roles must alternate') }}")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0].content.__class__.__base__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(messages[0].content) }}", "unsafe"),
        ("{{ ('{0.__cl' ~ 'ass__}').format(1) ~ (1).__class__.__bases__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].content.encode() }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{{ 'x' * 10**9 }}", "limit of"),
        ("{{ messages[0].content * 10**9 }}", "limit of"),
        ("{{ 2 ** 999999999 }}", "limit of"),
        ("{% set ns = namespace(s='x' * 9999999) %}{% for i in range(9999) %}"
         "{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "limit of"),
        ("{% set ns = namespace(s=[0] * 60000000) %}{% for i in range(9999) %}"
         "{% set ns.s = ns.s + ns.s %}{% endfor %}", "memory"),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "limit of"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests too deeply"),
        ("{% if %}", "line 1"),
        ("a\n{{ nope( }}", "line 2"),
        ("{{ nope.x.y }}", "undefined"),
        ("{{ 'a' + 1 }}", "TypeError"),
    ],
)  # fmt: skip
def test_attacks_and_mistakes_end_as_one_clear_error(
    with_templates: Callable[..., Any], source: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        render(with_templates, source)
    # On a machine that is slow to give memory the time limit is reached first.
    slow = why == "memory" and "longer than" in caught.value.message
    assert slow or why in caught.value.message
    assert caught.value.hint
    assert caught.value.status == 400


def test_a_template_that_hangs_is_killed_and_the_next_one_works() -> None:
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    async def main() -> None:
        helper = JinjaTemplates(limit_s=0.4)
        await helper.render("x", {})
        first = helper.pid
        start = time.perf_counter()
        with pytest.raises(UsageError, match=r"longer than 0\.4 s"):
            await helper.render(forever, {})
        assert time.perf_counter() - start < 10
        assert await helper.render("again", {}) == "again"
        assert helper.pid != first
        await helper.close()
        for pid in (first,):
            with pytest.raises(ProcessLookupError):
                os.kill(pid or 0, 0)

    asyncio.run(main())


def test_a_cancelled_render_leaves_no_stale_answer() -> None:
    slow = "{% for i in range(99999) %}{% for j in range(999) %}{% endfor %}{% endfor %}"

    async def main() -> None:
        helper = JinjaTemplates()
        await helper.render("x", {})
        task = asyncio.create_task(helper.render(slow, {}))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await helper.render("fresh", {}) == "fresh"
        await helper.close()

    asyncio.run(main())


class StoppedClock:
    """A clock whose sleeps end when told to."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()

    def wall(self) -> float:
        return 1_700_000_000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await self.wake.wait()


def test_the_helper_ends_when_idle_and_starts_again() -> None:
    async def main() -> None:
        clock = StoppedClock()
        helper = JinjaTemplates(clock=clock)
        assert await helper.render("{{ strftime_now('%Y') }}", {}) == "2023"
        pid = helper.pid
        assert pid is not None
        clock.wake.set()
        for _ in range(400):
            if helper.pid is None:
                break
            await asyncio.sleep(0.005)
        assert helper.pid is None
        await helper.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        clock.wake.clear()
        assert await helper.render("b", {}) == "b"
        await helper.close()
        assert helper.pid is None

    asyncio.run(main())


def test_the_helper_ends_with_a_manager_that_is_killed() -> None:
    program = (
        "import asyncio, sys\n"
        "from ftman.chat.template import JinjaTemplates\n"
        "async def main():\n"
        "    helper = JinjaTemplates()\n"
        "    await helper.render('x', {})\n"
        "    print(helper.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        helper = int(manager.stdout.readline())
        manager.kill()
    for _ in range(400):
        try:
            os.kill(helper, 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{helper}/stat") as stat:  # noqa: PTH123
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.01)
    pytest.fail(f"helper {helper} is still there")


def test_two_hundred_messages_render_in_fifty_milliseconds() -> None:
    messages = [
        {"role": ("user", "assistant")[idx % 2], "content": "hello world " * 40}
        for idx in range(200)
    ]

    async def main() -> float:
        helper = JinjaTemplates()
        await helper.render(SOURCES["concat"], {"messages": messages})
        times = [1.0]
        while min(times) >= 0.05 and len(times) < 100:
            start = time.perf_counter()
            await helper.render(SOURCES["concat"], {"messages": messages})
            times.append(time.perf_counter() - start)
        await helper.close()
        return min(times)

    assert asyncio.run(main()) < 0.05


def test_a_template_is_there_when_its_disk_is_gone(tmp_path: Path) -> None:
    templates, path = JinjaTemplates(), tmp_path / "chat_template.jinja"
    path.write_text("{{ messages }}")
    assert templates.source(path) == "{{ messages }}"
    path.unlink()
    assert templates.source(path) == "{{ messages }}"
