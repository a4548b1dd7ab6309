"""One generation from request to last event: prepare, lease, stream, account."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftengine.protocol import (
    Constraint,
    FinishEvent,
    GenerateRequest,
    ProgressEvent,
    TokenEvent,
    TokenLogprob,
)
from ftman import caller
from ftman.catalog.model import Model
from ftman.chat.anchors import closing_ids
from ftman.chat.formats.run import ParserEvent
from ftman.chat.parse import token_text
from ftman.chat.remembered import ReplyMemory, Said
from ftman.chat.reply import Reply
from ftman.chat.template import JinjaTemplates
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    CompletionRequest,
    Finish,
    Options,
    TextDelta,
    TokenText,
    Usage,
    Waiting,
)
from ftman.clock import Clock
from ftman.errors import BusyError, EngineDiedError
from ftman.service.ahead import Ahead
from ftman.service.constraints import wire_constraint
from ftman.service.engines import Engines
from ftman.service.options import sampling_of
from ftman.service.prompts import Fitted, chat_prompt, completion_prompt
from ftman.service.requests import Settings
from ftman.service.tokenizers import TokenizerShelf
from ftman.supervisor.supervisor import Lease
from ftman.waits import wait_within

log = logging.getLogger(__name__)

TELL_S = 0.2
"""How long a prompt waits for an engine to be told what to load; usually some milliseconds."""


@dataclass(frozen=True)
class _Job:
    """A generation, fully decided."""

    model: Model
    tokenizer: Tokenizer
    fitted: Fitted
    options: Options
    context_tokens: int
    keep_alive_s: float | None
    logprobs: int | None
    request_id: str
    started_s: float
    echo: bool = False
    notes: tuple[str, ...] = ()
    constraint: Constraint | None = None


@dataclass
class TokenCounts:
    """Tokens of answers that ended, of one model. cached: prompt tokens that were reused."""

    answers: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, prompt: int, cached: int, completion: int) -> None:
        """Count one answer."""
        self.answers += 1
        self.prompt += prompt
        self.cached += cached
        self.completion += completion


class Generator:
    """Runs generations; of their replies it holds the ids, in `memory`."""

    def __init__(
        self,
        engines: Engines,
        shelf: TokenizerShelf,
        templates: JinjaTemplates,
        memory: ReplyMemory,
        clock: Clock,
    ):
        self._prepare_chat = functools.partial(chat_prompt, memory=memory)
        self._engines = engines
        self._shelf = shelf
        self._templates = templates
        self._clock = clock
        self.counts: dict[str, TokenCounts] = {}

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Continue a conversation.   Raises: FtmanError, before the first delta or later."""
        async with contextlib.aclosing(
            self._run(request, self._prepare_chat, request.template_values)
        ) as events:
            async for event in events:
                yield event

    async def complete(
        self, request: CompletionRequest, values: Mapping[str, Any]
    ) -> AsyncGenerator[ChatEvent, None]:
        """Continue a prompt.   Raises: FtmanError, before the first delta or later."""
        async with contextlib.aclosing(self._run(request, completion_prompt, values)) as events:
            async for event in events:
                yield event

    async def _run(
        self,
        request: ChatRequest | CompletionRequest,
        prepare: Callable[..., Awaitable[Fitted]],
        values: Mapping[str, Any],
    ) -> AsyncGenerator[ChatEvent, None]:
        started_s = self._clock.monotonic()
        model = self._engines.usable(request.model)
        settings = self._engines.settings(model, request.options)
        sampling_of(settings.options)  # a bad option is told before anything is loaded
        async with contextlib.AsyncExitStack() as stack:
            ahead = self._lease_ahead(model, settings, request.keep_alive_s)
            if ahead is not None:
                stack.push_async_callback(ahead.aclose)
                await self._until_loading(ahead, model)
            tokenizer = await stack.enter_async_context(
                self._shelf.use(model.ftw_id, model.ftw_path)
            )
            num_keep = settings.options.num_keep
            fitted = await prepare(
                request,
                model,
                self._templates,
                tokenizer,
                settings.context_tokens,
                4 if num_keep is None else num_keep,
                values,
            )
            constraint, noted = await wire_constraint(request, fitted.reply, tokenizer)
            job = _Job(
                model,
                tokenizer,
                fitted,
                settings.options,
                settings.context_tokens,
                request.keep_alive_s,
                request.logprobs,
                request.request_id,
                started_s,
                getattr(request, "echo", False),
                (*settings.notes, *noted),
                constraint,
            )
            async with contextlib.aclosing(self._lease_and_stream(job, ahead)) as events:
                async for event in events:
                    yield event

    def _lease_ahead(
        self, model: Model, settings: Settings, keep_alive_s: float | None
    ) -> Ahead | None:
        """Begin to load a model while its prompt is made, where that takes nobody's place.

        A prompt that turns out to be bad gives the load up.
        """
        if not self._engines.are_idle():
            return None
        spec = self._engines.spec(model, settings.context_tokens, settings.options.num_thread)
        return Ahead(lambda stack: self._engines.lease(stack, spec, keep_alive_s))

    async def _until_loading(self, ahead: Ahead, model: Model) -> None:
        """Return when the engine was told to load, or that takes long.

        A tokenizer that is being read holds up this whole process, for tenths of a second.
        """

        async def told() -> None:
            await ahead.heard()
            await self._engines.begun(model.ftw_id)

        await wait_within(told(), TELL_S, self._clock)

    async def _lease_and_stream(
        self, job: _Job, ahead: Ahead | None
    ) -> AsyncGenerator[ChatEvent, None]:
        wire = _wire_request(job)
        for last_try in (False, True):
            heard = False
            try:
                async with contextlib.aclosing(self._one_lease(job, wire, ahead)) as events:
                    async for event in events:
                        heard = heard or not _is_waiting(event)
                        yield event
                return
            except EngineDiedError as error:
                # It died of another request while this one waited in it: no reason to fail it.
                if heard or last_try or error.code != EngineDiedError.code:
                    raise
                ahead = None
                log.info("%s: asking a new engine, since %s", job.request_id, error.message)

    async def _one_lease(
        self, job: _Job, wire: GenerateRequest, ahead: Ahead | None
    ) -> AsyncGenerator[ChatEvent, None]:
        async with contextlib.AsyncExitStack() as stack:
            items: AsyncGenerator[Waiting | Lease, None]
            if ahead is None:
                spec = self._engines.spec(job.model, job.context_tokens, job.options.num_thread)
                items = self._engines.lease(stack, spec, job.keep_alive_s)
            else:
                stack.push_async_callback(ahead.aclose)
                items = ahead.items()
            lease: Lease | None = None
            # Closed before the stack is: a lease granted after that would be nobody's to give back.
            async with contextlib.aclosing(items):
                async for item in items:
                    if isinstance(item, Waiting):
                        yield item
                    else:
                        lease = item
            assert lease is not None
            load_s = self._clock.monotonic() - job.started_s
            async with contextlib.aclosing(self._stream(job, lease, wire, load_s)) as events:
                async for event in events:
                    yield event

    async def _stream(
        self, job: _Job, lease: Lease, wire: GenerateRequest, load_s: float
    ) -> AsyncGenerator[ChatEvent, None]:
        reply = Reply(job.tokenizer, job.fitted.reply, job.options.stop or ())
        run = _Running(self._clock.monotonic(), keeps=job.fitted.own is not None)
        if job.echo and job.fitted.prompt.text:
            yield TextDelta(job.fitted.prompt.text)
        events = lease.client.generate(wire)
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ProgressEvent):
                    run.cached = event.cached
                    yield Waiting("prefill", event.prefilled, event.total)
                elif isinstance(event, TokenEvent):
                    now_s = lease.client.last_token_s = self._clock.monotonic()
                    run.tokens(event, now_s)
                    for item in run.hears(reply.feed(event)):
                        yield item
                    if reply.enough:
                        break
                elif isinstance(event, FinishEvent):
                    run.finish = event
                    break
        if run.finish is None and not reply.enough:
            raise EngineDiedError(
                f"the engine of {job.model.name.short} ended an answer without finishing it",
                code="engine_protocol",
            )
        for item in run.hears(reply.finish()):
            yield item
        _remember(job, run, reply)
        yield self._finish(job, run, reply, load_s)

    def _finish(self, job: _Job, run: _Running, reply: Reply, load_s: float) -> Finish:
        now = self._clock.monotonic()
        ids = job.fitted.prompt.token_ids
        finish = run.finish
        usage = Usage(
            prompt_tokens=len(ids),
            cached_tokens=finish.cached_tokens if finish else run.cached,
            completion_tokens=finish.completion_tokens if finish else len(run.ids),
            total_s=now - job.started_s,
            load_s=load_s,
            prefill_s=finish.prefill_s if finish else run.first_s - run.started_s,
            decode_s=finish.decode_s if finish else now - run.first_s,
            thinking_tokens=reply.thinking_tokens,
        )
        reason = "stop" if finish is None or reply.enough else finish.reason
        if reason == "abort":
            raise BusyError(
                f"the engine of {job.model.name.short} gave the request up", code="aborted"
            )
        counts = self.counts.setdefault(job.model.name.short, TokenCounts())
        counts.add(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        return Finish(
            reason="length" if reason == "length" else "stop",
            usage=usage,
            context=(*ids, *run.ids),
            notes=(*job.notes, *job.fitted.notes, *reply.notes, *(finish.notes if finish else ())),
            stop_sequence=reply.stopped,
            prompt_tokens=_prompt_tokens(job, finish) if job.echo else (),
        )


@dataclass
class _Running:
    """What is known of a generation while it runs. Units: monotonic seconds.

    keeps: what the reply says will be remembered, so it is collected in `events`.
    """

    started_s: float
    keeps: bool
    first_s: float = 0.0
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    finish: FinishEvent | None = None
    events: list[ParserEvent] = field(default_factory=list)

    def tokens(self, event: TokenEvent, now_s: float) -> None:
        """Count an event's tokens."""
        if not self.ids:
            self.first_s = now_s
        self.ids.extend(event.token_ids)

    def hears(self, events: list[ParserEvent]) -> list[ParserEvent]:
        """Take note of what the reply says, and pass it on."""
        if self.keeps:
            self.events += events
        return events


def _remember(job: _Job, run: _Running, reply: Reply) -> None:
    """Keep the ids of a reply that says no more than its client was told."""
    own = job.fitted.own
    if own is not None and reply.stopped is None:
        own.keep(job.tokenizer, job.fitted.prompt, run.ids, Said.in_events(run.events))


def _is_waiting(event: ChatEvent) -> bool:
    """Whether the engine has not begun; what stands in line there is told as 0 prefilled tokens."""
    return isinstance(event, Waiting) and (event.phase != "prefill" or not event.done)


def _wire_request(job: _Job) -> GenerateRequest:
    ids = job.fitted.prompt.token_ids
    room = job.context_tokens - len(ids)
    wanted = job.options.num_predict
    max_tokens = room if wanted is None or wanted < 0 else min(wanted, room)
    stop_ids = {*job.model.eos_ids, *job.tokenizer.eos_ids}
    return GenerateRequest(
        request_id=job.request_id,
        token_ids=ids,
        sampling=sampling_of(job.options),
        max_tokens=max_tokens,
        stop_token_ids=tuple(sorted(stop_ids)),
        anchors=job.fitted.prompt.anchors,
        logprobs=job.logprobs,
        prompt_logprobs=job.echo and job.logprobs is not None,
        constraint=job.constraint,
        anchor_token_ids=closing_ids(job.tokenizer, job.fitted.reply.format),
        salt=caller.salt.get(),
    )


def _prompt_tokens(job: _Job, finish: FinishEvent | None) -> tuple[TokenText | None, ...]:
    """Log probabilities of the prompt; the first token has none, told as NaN."""
    if finish is None or not finish.prompt_logprobs:
        return ()
    pairs = zip(job.fitted.prompt.token_ids, finish.prompt_logprobs, strict=False)
    return tuple(
        token_text(job.tokenizer, item or TokenLogprob(token_id, math.nan))
        for token_id, item in pairs
    )
