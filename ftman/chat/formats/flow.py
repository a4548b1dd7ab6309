"""The order most replies have: reasoning first, then text, with calls in it or after it."""

from __future__ import annotations

from ftman.chat.formats.base import ChatFormat, Marks
from ftman.chat.formats.reader import BrokenCallError, Steps
from ftman.chat.formats.run import Run


def marked(run: Run, fmt: ChatFormat) -> Steps:
    """Read a reply in which marks tell reasoning and calls from text."""
    if fmt.reasoning is not None:
        yield from reasoning(run, fmt.reasoning)
    opens = fmt.calls.opens if fmt.calls is not None and run.parses_calls else ()
    if fmt.calls is not None and fmt.calls.bare and opens:
        yield from _bare_calls(run, fmt, fmt.calls.bare)
    while True:
        mark = yield from run.reader.until((*opens, *fmt.wraps), run.events.text)
        if not mark:
            return
        if mark in fmt.wraps:
            run.events.pass_layout()
            yield from run.reader.space()
            run.events.pass_mark()
        else:
            yield from one_call(run, fmt, mark)


def one_call(run: Run, fmt: ChatFormat, mark: str) -> Steps:
    """Read a call whose opening text was read; a broken one is given up."""
    calls = fmt.calls
    assert calls is not None
    run.begin_call(mark)
    try:
        yield from calls.parse(run, mark)
    except BrokenCallError as error:
        if run.give_up(error) and calls.closes:
            yield from run.reader.until(calls.closes, _ignore)
    run.reader.recorded()
    run.events.pass_mark()


def reasoning(run: Run, marks: Marks) -> Steps:
    """Read reasoning at the start of a reply, if there is some: text in its opening mark, or the
    prompt's last words were that mark."""
    reader, events = run.reader, run.events
    if not run.thinking:
        space = yield from reader.space()
        if not (yield from reader.literal(marks.start)):
            events.text(space)
            return
        run.thinking = True
    else:
        # some models write the mark although the prompt ended with it
        yield from reader.space()
        yield from reader.literal(marks.start)
    yield from reader.space()
    events.pass_mark()
    ended = yield from reader.until((marks.end,), events.thinking)
    events.end_thinking()
    run.thinking = bool(not ended)
    yield from reader.space()
    events.pass_mark()


def _bare_calls(run: Run, fmt: ChatFormat, bare: tuple[str, ...]) -> Steps:
    """Calls without a mark are calls only where the reply begins with them."""
    space = yield from run.reader.space()
    mark = yield from run.reader.one_of(bare)
    if not mark:
        run.events.text(space)
    while mark:
        yield from one_call(run, fmt, mark)
        mark = yield from run.reader.one_of(bare)


def _ignore(text: str) -> None:
    """Text that belongs to a call that was given up."""
