"""The engine loop: receive, schedule, run, publish. Owns the scheduler, the runner, the requests.

Everything here happens on one thread, the engine thread, which is also native worker 0; other
threads send intents through `submit`, `abort`, `drain` and `stop`. Loading: assemble.py.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from ftengine.config import PARK_S, EngineConfig
from ftengine.errors import EngineError, RequestError
from ftengine.protocol import (
    EmbedReply,
    EmbedRequest,
    EngineInfo,
    ErrorEvent,
    Event,
    FinishEvent,
    GenerateRequest,
    Health,
    MemoryRequest,
    MemoryState,
    ProgressEvent,
    TokenEvent,
)
from ftengine.runtime.assemble import Assembled, Progress, assemble
from ftengine.runtime.constrained import Grammars, Pending
from ftengine.runtime.embedding import Embeddings
from ftengine.runtime.metrics import Metrics, expert_text, prometheus_text
from ftengine.runtime.outcomes import Result, error_event, result_of
from ftengine.runtime.park import write_all
from ftengine.runtime.requests import LiveRequest, Publish
from ftengine.runtime.runner import PromptLogits, Runner
from ftengine.runtime.settle import Settling
from ftengine.sampling.partial import Logits, choose
from ftengine.sampling.sampler import Choice, Draw, token_logprobs
from ftengine.sampling.uniform import new_seed
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.scheduler import Scheduler
from ftman.clock import SYSTEM, Clock

if TYPE_CHECKING:  # llguidance is loaded when the first constraint comes
    from ftengine.constraints.compiler import Compiled
    from ftengine.constraints.matcher import TokenMatcher

log = logging.getLogger(__name__)

_FOLLOW_S = 1.0
"""How often expert slots follow the device's free memory."""


class Engine:
    """One model. Call `load` once, then `run` on the same thread, or `generate_sync`."""

    def __init__(self, config: EngineConfig, clock: Clock = SYSTEM) -> None:
        self.config = config
        self.metrics = Metrics()
        self.progress = Progress()
        self._clock = clock
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[str, LiveRequest] = {}
        self._assembled: Assembled | None = None
        self._embeddings: Embeddings | None = None
        self._grammars: Grammars | None = None
        self._state = "loading"
        self._error: str | None = None
        self._last_step_s: float | None = None
        self._stopping = False
        self._followed_s = 0.0
        self._settling: Settling | None = None

    def load(self) -> None:
        """Read the model and make the pools. Raises: LoadError, CapacityError."""
        try:
            self._assembled = assemble(self.config, self.progress, self._clock.wall())
        except EngineError as error:
            self.fail(error.message)
            raise
        runner, scheduler = self._assembled.runner, self._assembled.scheduler
        self._embeddings = Embeddings(
            scheduler, self.info.vocab_size, runner.hidden_size, self.config.num_parallel
        )
        self._grammars = Grammars(
            self.config.ftw,
            self.info.vocab_size,
            scheduler.eos_ids,
            self._commands.put,
            self._clock,
        )
        self._state = "ready"
        self._count()
        late = self._assembled.late_pages
        first = None if late is None else late.begin
        self._settling = Settling(self._assembled.borrowed, self._is_busy, first)
        self._settling.start()

    def settle(self) -> None:
        """Have all weights in own memory now; for tests and benchmarks."""
        if self._settling is not None:
            self._settling.finish()

    @property
    def info(self) -> EngineInfo:
        """What was loaded, and how memory and experts stand now. Only after load."""
        loaded = self._loaded
        return dataclasses.replace(
            loaded.info,
            kernels={**loaded.info.kernels, "step": loaded.runner.step_described},
            kv_bytes=loaded.runner.pool.total_bytes,
            notes=(*loaded.info.notes, *loaded.memory.placement.notes),
            experts=loaded.memory.experts(loaded.info.num_experts),
            cache=loaded.memory.cache(),
        )

    def metrics_text(self) -> str:
        """Everything counted, in Prometheus' text format."""
        text = prometheus_text(self.metrics)
        return text if self._assembled is None else text + expert_text(self._loaded.memory.counters)

    @property
    def runner(self) -> Runner:
        """The runner, for tests and benchmarks that need logits. Only after load."""
        return self._loaded.runner

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for tests. Only after load, and only on the engine thread."""
        return self._loaded.scheduler

    def health(self) -> Health:
        """State for /health; may be called from any thread."""
        last = self._last_step_s
        return Health(
            state=self._state,
            loaded_bytes=self.progress.loaded_bytes,
            total_bytes=self.progress.total_bytes,
            running=self.metrics.running,
            waiting=self.metrics.waiting,
            last_step_s=None if last is None else max(self._clock.monotonic() - last, 0.0),
            error=self._error,
        )

    def submit(self, request: GenerateRequest, publish: Publish) -> None:
        """Queue a request from any thread.

        The first event is a ProgressEvent once it is accepted, else an ErrorEvent and nothing more.
        """
        arrival_s = self._clock.monotonic()
        self._commands.put(lambda: self._accept(request, publish, arrival_s))

    def embed(
        self, request: EmbedRequest, answer: Callable[[EmbedReply | ErrorEvent], None]
    ) -> None:
        """Queue an embedding request from any thread; answered once, on the engine thread."""
        arrival_s = self._clock.monotonic()
        self._commands.put(lambda: self._accept_embed(request, answer, arrival_s))

    def abort(self, request_id: str) -> None:
        """End a request from any thread; it takes effect before the next step."""
        self._commands.put(lambda: self._abort(request_id))

    def resize(
        self, request: MemoryRequest, answer: Callable[[MemoryState | ErrorEvent], None]
    ) -> None:
        """Divide memory anew, from any thread; done and answered before the next step."""
        self._commands.put(lambda: self._resize(request, answer))

    def resize_sync(self, request: MemoryRequest) -> MemoryState:
        """The same on the engine thread itself; for tests. Raises: EngineError."""
        state = self._loaded.memory.apply(request)
        self._count()
        return state

    def close(self) -> None:
        """End the threads that experts and their device use; after the last step."""
        if self._grammars is not None:
            self._grammars.close()
        if self._settling is not None:
            self._settling.close()
        if self._assembled is not None:
            self._assembled.memory.parked.close()
            self._assembled.runner.close()
            self._assembled.memory.placement.close()

    def drain(self) -> None:
        """Refuse new requests from now on, from any thread; running ones go on."""
        if self._state == "ready":
            self._state = "draining"

    def fail(self, message: str) -> None:
        """Say on /health that the engine is of no use any more; by whoever saw it end."""
        self._state, self._error = "failed", message

    def stop(self) -> None:
        """Abort everything and leave `load` or `run`, from any thread."""
        self.progress.cancelled = True
        self._commands.put(self._stop)

    def run(self) -> None:
        """Serve until `stop`; blocks without using the CPU while there is nothing to do."""
        while not self._stopping:
            self._receive(wait=not self._loaded.scheduler.has_work)
            if not self._stopping:
                self.step()
        if self._state == "draining":
            self.park()
        self.close()

    def park(self) -> None:
        """Put what the prefix cache holds in files, where a folder is set; while nothing runs."""
        until_s = self._clock.monotonic() + PARK_S
        loaded = self._loaded
        write_all(
            loaded.memory.parked,
            loaded.scheduler,
            lambda: (until_s - self._clock.monotonic()) / PARK_S,
        )

    def step(self) -> bool:
        """Run one step and publish what it gave. False when there was nothing to run."""
        scheduler = self._loaded.scheduler
        self._expire()
        started = self._clock.monotonic()
        self._follow(started)
        batch = scheduler.next_batch(started)
        self._loaded.runner.copy(scheduler.take_copies())
        if batch is None:
            self._count()
            return False
        try:
            tokens = self._compute(batch)
        except Exception as error:  # the root of this step's requests
            self._fail(batch, error)
        else:
            self._commit(batch, tokens, started)
        self._count()
        return True

    def generate_sync(self, requests: Items[GenerateRequest]) -> list[Result]:
        """Run requests together to their end on this thread; for tests and benchmarks."""
        events: list[list[Event]] = [[] for _ in requests]
        for request, into in zip(requests, events, strict=True):
            self.submit(request, into.append)
        self._receive(wait=False)
        while self._loaded.scheduler.has_work or len(self._compiling):
            self.step()
            self._receive(wait=not self._loaded.scheduler.has_work and len(self._compiling) > 0)
        return [result_of(item) for item in events]

    def embed_sync(self, request: EmbedRequest) -> EmbedReply | ErrorEvent:
        """Run one embedding request to its end on this thread; for tests and benchmarks."""
        found: list[EmbedReply | ErrorEvent] = []
        self.embed(request, found.append)
        self._receive(wait=False)
        while not found:
            self.step()
            self._receive(wait=False)
        return found[0]

    @property
    def _compiling(self) -> Grammars:
        assert self._grammars is not None, "load comes first"
        return self._grammars

    @property
    def _pooling(self) -> Embeddings:
        assert self._embeddings is not None, "load comes first"
        return self._embeddings

    @property
    def _loaded(self) -> Assembled:
        if self._assembled is None:
            raise EngineError("the model is not loaded; call load first", code="loading")
        return self._assembled

    def _is_busy(self) -> bool:
        return self.metrics.running + self.metrics.waiting > 0

    def _receive(self, wait: bool) -> None:
        if wait:
            self._wait()()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _wait(self) -> Callable[[], None]:
        """The next command; meanwhile the device's memory is watched, where slots follow it."""
        self._loaded.memory.parked.park_ahead(self._commands.empty)
        while self._loaded.memory.follows:
            try:
                return self._commands.get(timeout=_FOLLOW_S)
            except queue.Empty:
                self._follow(self._clock.monotonic())
        return self._commands.get()

    def _follow(self, now_s: float) -> None:
        if now_s - self._followed_s >= _FOLLOW_S:
            self._followed_s = now_s
            self._loaded.memory.follow()

    def _accept(self, request: GenerateRequest, publish: Publish, arrival_s: float) -> None:
        self.metrics.requests += 1
        scheduler = self._loaded.scheduler
        try:
            self._refuse_when_draining()
            scheduler.check(request, self.info.vocab_size)
            if request.constraint is None:
                self._admit(request, publish, arrival_s)
            else:
                pending = Pending(request, publish, arrival_s)
                self._compiling.start(pending, self._compiled, self.config.max_waiting)
        except RequestError as error:
            self._refuse(publish, error)
        self._count()

    def _admit(
        self,
        request: GenerateRequest,
        publish: Publish,
        arrival_s: float,
        matcher: TokenMatcher | None = None,
    ) -> None:
        sequence = self._loaded.scheduler.add(request, arrival_s)
        seed = new_seed() if request.sampling.seed is None else request.sampling.seed
        self._live[request.request_id] = LiveRequest(sequence, publish, seed, matcher)
        publish(ProgressEvent(0, sequence.num_prompt))

    def _refuse(self, publish: Publish, error: EngineError) -> None:
        self.metrics.refused += 1
        publish(ErrorEvent(error.code, error.message, error.retryable))

    def _compiled(self, pending: Pending, outcome: Compiled | EngineError) -> None:
        if isinstance(outcome, EngineError):
            self._refuse(pending.publish, outcome)
            self._count()
            return
        self.metrics.constraints += 1
        self.metrics.constraint_compile_s += outcome.seconds
        try:
            self._admit(pending.request, pending.publish, pending.arrival_s, outcome.matcher)
        except RequestError as error:
            self._refuse(pending.publish, error)
        self._count()

    def _accept_embed(
        self,
        request: EmbedRequest,
        answer: Callable[[EmbedReply | ErrorEvent], None],
        arrival_s: float,
    ) -> None:
        self.metrics.requests += 1
        try:
            self._refuse_when_draining()
            self._pooling.accept(request, answer, arrival_s)
        except RequestError as error:
            self.metrics.refused += 1
            answer(ErrorEvent(error.code, error.message, error.retryable))
        self._count()

    def _refuse_when_draining(self) -> None:
        if self._state != "ready":
            raise RequestError(
                "the engine is shutting down; send the request to a new one",
                code="draining",
                retryable=True,
            )

    def _resize(
        self, request: MemoryRequest, answer: Callable[[MemoryState | ErrorEvent], None]
    ) -> None:
        try:
            state = self.resize_sync(request)
        except EngineError as error:
            answer(ErrorEvent(error.code, error.message, error.retryable))
            return
        log.info("memory: %d expert slots, %d KV pages", state.expert_slots, state.kv_pages)
        answer(state)

    def _abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is None:
            self._abort_other(request_id)
            return
        self._loaded.scheduler.finish(live.sequence, "abort")
        self.metrics.aborted += 1
        self._end(live, live.finish_event(self._clock.monotonic()))
        self._count()

    def _abort_other(self, request_id: str) -> None:
        """A request that is no sequence of its own: it embeds, or waits for its grammar."""
        pending = self._compiling.drop(request_id)
        if pending is not None:
            pending.publish(ErrorEvent("aborted", "the request was aborted"))
            self.metrics.aborted += 1
        self.metrics.aborted += self._pooling.abort(request_id)
        self._count()

    def _stop(self) -> None:
        others = (*self._pooling.request_ids(), *self._compiling.request_ids())
        for request_id in (*self._live, *others):
            self._abort(request_id)
        self._stopping = True

    def _expire(self) -> None:
        for sequence in self._loaded.scheduler.expired(self._clock.monotonic()):
            limit = sequence.request.deadline_s
            self._loaded.scheduler.finish(sequence, "deadline")
            self.metrics.failed += 1
            self._end(
                self._live[sequence.request.request_id],
                ErrorEvent(
                    "deadline_exceeded",
                    f"the request's deadline of {limit} s passed after "
                    f"{sequence.num_generated} tokens; allow more time or ask for fewer tokens",
                    retryable=True,
                ),
            )

    def _compute(self, batch: Batch) -> dict[str, Choice]:
        runner = self._loaded.runner
        wanting = [item for item in batch.work if _wants_rows(item)]
        logits: Logits
        if wanting:
            rows = runner.run_with_rows(batch, wanting)
            logits = rows.logits
            for prompt in rows.prompts:
                self._keep_prompt_logprobs(prompt)
            for hidden in rows.hidden:
                self._pooling.take(hidden)
        else:
            logits = runner.run(batch)
        ids = [item.sequence.request.request_id for item in batch.work if item.samples]
        draws = {row: self._draw(request_id) for row, request_id in enumerate(ids)}
        good = {row: draw for row, draw in draws.items() if draw is not None}
        if len(good) < len(ids):
            logits, ids = logits[list(good)], [ids[row] for row in good]
        choices = choose(logits, list(good.values()))
        return dict(zip(ids, choices, strict=True))

    def _draw(self, request_id: str) -> Draw | None:
        """What to sample; None for a request that its constraint has just ended."""
        live = self._live[request_id]
        if live.matcher is None:
            return live.draw()
        started_s = self._clock.monotonic()
        try:
            mask = live.matcher.mask()
        except EngineError as error:
            self._fail_one(live, error_event(error))
            return None
        self.metrics.constraint_wait_s += self._clock.monotonic() - started_s
        self.metrics.constraint_masks += 1
        self.metrics.constraint_mask_s += mask.seconds
        return live.draw(mask.allowed)

    def _advance(self, choices: dict[str, Choice]) -> set[str]:
        """Tell grammars what was chosen; returns the requests that nothing can follow any more."""
        complete: set[str] = set()
        for request_id, choice in choices.items():
            live = self._live[request_id]
            if live.matcher is None or choice.token_id in live.sequence.stop_ids:
                continue
            started_s = self._clock.monotonic()
            try:
                if live.matcher.advance(choice.token_id):
                    complete.add(request_id)
            except EngineError as error:
                self._fail_one(live, error_event(error))
            self.metrics.constraint_wait_s += self._clock.monotonic() - started_s
        return complete

    def _fail_one(self, live: LiveRequest, event: ErrorEvent) -> None:
        self._loaded.scheduler.finish(live.sequence, "error")
        self.metrics.failed += 1
        self._end(live, event)

    def _keep_prompt_logprobs(self, prompt: PromptLogits) -> None:
        """Row i tells the chance of prompt token start + i + 1."""
        live = self._live[prompt.sequence.request.request_id]
        if not live.prompt_logprobs:
            live.prompt_logprobs = [None] * prompt.sequence.num_prompt
        first = prompt.start + 1
        targets = live.request.token_ids[first : first + prompt.logits.shape[0]]
        if targets:
            count = [live.request.logprobs or 0] * len(targets)
            found = token_logprobs(prompt.logits[: len(targets)], targets, count)
            live.prompt_logprobs[first : first + len(targets)] = found

    def _commit(self, batch: Batch, choices: dict[str, Choice], started_s: float) -> None:
        now = self._clock.monotonic()
        before = {item.sequence: item.sequence.num_generated for item in batch.work if item.samples}
        self._measure(batch, now - started_s)
        tokens = {request_id: choice.token_id for request_id, choice in choices.items()}
        complete = self._advance(choices)
        ended = self._loaded.scheduler.commit(batch, tokens, now, complete)
        self._last_step_s = now
        self.metrics.finished += self._pooling.settle(ended, now)
        for item in batch.work:
            live = self._live.get(item.sequence.request.request_id)
            if live is None or item.sequence.embeds:  # pooled, or ended by its constraint
                continue
            if not item.samples:
                done = min(item.sequence.num_computed, item.sequence.num_prompt)
                live.publish(
                    ProgressEvent(done, item.sequence.num_prompt, item.sequence.num_cached)
                )
                continue
            choice = choices[live.request.request_id]
            if item.sequence.num_cached and not before[item.sequence]:
                num_prompt = item.sequence.num_prompt
                live.publish(ProgressEvent(num_prompt, num_prompt, item.sequence.num_cached))
            if item.sequence.num_generated > before[item.sequence]:
                logprobs = () if choice.logprob is None else (choice.logprob,)
                live.publish(TokenEvent((choice.token_id,), logprobs))
                self.metrics.completion_tokens += 1
            if item.sequence.reason:
                self.metrics.finished += 1
                self._end(live, live.finish_event(now))
            elif live.matcher is not None:
                live.matcher.prepare()

    def _measure(self, batch: Batch, seconds: float) -> None:
        self.metrics.steps += 1
        prompt = sum(item.num_tokens for item in batch.work if item.sequence.is_prefilling)
        self.metrics.prompt_tokens += prompt
        if prompt:
            self.metrics.prefill_s += seconds
        else:
            self.metrics.decode_s += seconds

    def _fail(self, batch: Batch, error: Exception) -> None:
        log.exception("a step of %d sequences failed", len(batch.work))
        event = error_event(error)
        for item in batch.work:
            if item.sequence.embeds:
                self.metrics.failed += self._pooling.fail(item.sequence, event)
                continue
            live = self._live.get(item.sequence.request.request_id)
            if live is not None:  # else its constraint ended it a moment before
                self._fail_one(live, event)
        # whatever the step has left in pages and states is not built upon
        self._loaded.scheduler.reuse.forget()

    def _end(self, live: LiveRequest, event: FinishEvent | ErrorEvent) -> None:
        del self._live[live.request.request_id]
        live.publish(event)
        log.info(
            "request %s: %s, %d prompt tokens, %d generated",
            live.request.request_id,
            event.reason if isinstance(event, FinishEvent) else event.code,
            live.sequence.num_prompt,
            live.sequence.num_generated,
        )

    def _count(self) -> None:
        if self._assembled is None:
            return
        scheduler, pages = self._assembled.scheduler, self._assembled.pages
        self.metrics.running = scheduler.num_running
        self.metrics.waiting = scheduler.num_waiting + len(self._compiling)
        self.metrics.preemptions = scheduler.num_preemptions
        self.metrics.kv_pages = pages.num_pages
        self.metrics.kv_pages_free = scheduler.reuse.num_available
        self.metrics.count_cache(scheduler.reuse)


def _wants_rows(item: Work) -> bool:
    if item.sequence.embeds:
        return True
    return item.sequence.request.prompt_logprobs and item.start < item.sequence.num_prompt
