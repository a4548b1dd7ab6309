"""Embedding requests: their inputs run as sequences that generate nothing, and are pooled here.

A request's inputs enter the scheduler a few at a time, so that generations that come later are not
behind all of them. Called by the engine thread only.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from ftengine.errors import RequestError
from ftengine.protocol import (
    LINE_LIMIT_BYTES,
    EmbedReply,
    EmbedRequest,
    ErrorEvent,
    GenerateRequest,
)
from ftengine.runtime.runner import HiddenRows
from ftengine.scheduler.scheduler import Scheduler
from ftengine.scheduler.sequence import Sequence

Answer = Callable[[EmbedReply | ErrorEvent], None]
"""Called on the engine thread, once; must return at once and not raise."""
Doubles = npt.NDArray[np.float64]

_ENVELOPE_BYTES = 65536
_NOT_A_NUMBER = ErrorEvent(
    "not_a_number",
    "an embedding holds numbers that are NaN or infinite; the model's weights may be damaged: "
    "verify the model",
)


@dataclass
class _Job:
    """One request. waiting: numbers of inputs that are in no sequence yet."""

    request: EmbedRequest
    answer: Answer
    arrival_s: float
    waiting: deque[int]
    running: dict[Sequence, int] = field(default_factory=dict)
    vectors: list[str] = field(default_factory=list)
    first_step_s: float | None = None

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self.running


class Embeddings:
    """All embedding requests under way."""

    def __init__(self, scheduler: Scheduler, vocab_size: int, hidden: int, num_parallel: int):
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._hidden = hidden
        self._num_parallel = num_parallel
        self._jobs: dict[str, _Job] = {}
        self._owners: dict[Sequence, _Job] = {}
        self._pools: dict[Sequence, Pool] = {}
        self._starved: set[str] = set()

    def accept(self, request: EmbedRequest, answer: Answer, now_s: float) -> None:
        """Take a request; `answer` is called when it is done. Raises: RequestError."""
        if request.request_id in self._jobs:
            raise RequestError(
                f"request_id {request.request_id!r} is in use; choose a new one",
                code="duplicate_request",
            )
        self._check_size(request)
        for token_ids in request.inputs:
            self._scheduler.check_input(token_ids, self._vocab_size)
        job = _Job(request, answer, now_s, deque(range(len(request.inputs))))
        job.vectors = [""] * len(request.inputs)
        try:
            self._feed(job)
        except RequestError:
            if not job.running:
                raise
        self._jobs[request.request_id] = job

    def take(self, hidden: HiddenRows) -> None:
        """Add the rows of a step to their input's pool."""
        if hidden.start == 0:  # the first chunk, or everything again after a preemption
            pooling = self._owners[hidden.sequence].request.pooling
            self._pools[hidden.sequence] = Pool(pooling)
        self._pools[hidden.sequence].add(hidden.rows)

    def settle(self, ended: list[Sequence], now_s: float) -> int:
        """After a step: vectors of what ended, answers of what is done, and the next inputs.

        Returns the number of requests that were answered well.
        """
        for sequence in ended:
            if sequence in self._owners:  # else its request ended with another input of this step
                self._keep(sequence)
        for request_id in list(self._starved):
            self._feed_later(self._jobs[request_id])
        done = [job for job in self._jobs.values() if job.is_done]
        for job in done:
            self._end(job, self._reply(job, now_s))
        return len(done)

    def fail(self, sequence: Sequence, event: ErrorEvent) -> bool:
        """End the request of an input with an error. False: it had ended already."""
        job = self._owners.get(sequence)
        if job is None:
            return False
        self._end(job, event)
        return True

    def abort(self, request_id: str) -> bool:
        """End a request that nobody waits for. False: there is none of that id."""
        job = self._jobs.get(request_id)
        if job is None:
            return False
        self._end(job, ErrorEvent("aborted", "the request was aborted"))
        return True

    def request_ids(self) -> list[str]:
        """Requests under way."""
        return list(self._jobs)

    def _check_size(self, request: EmbedRequest) -> None:
        numbers = min(request.dimensions or self._hidden, self._hidden)
        size = len(request.inputs) * (numbers * 16 // 3 + 8) + _ENVELOPE_BYTES
        if size > LINE_LIMIT_BYTES:
            raise RequestError(
                f"{len(request.inputs)} vectors of {numbers} numbers would be an answer of {size} "
                f"bytes and {LINE_LIMIT_BYTES} are the limit; send fewer inputs at a time",
                code="too_large",
            )

    def _feed(self, job: _Job) -> None:
        """Put inputs in the queue. Raises: RequestError when it is full."""
        while job.waiting and len(job.running) < self._num_parallel:
            number = job.waiting[0]
            part = GenerateRequest(
                f"{job.request.request_id}/{number}", job.request.inputs[number], max_tokens=0
            )
            sequence = self._scheduler.add(part, job.arrival_s, embeds=True)
            job.running[sequence] = job.waiting.popleft()
            self._owners[sequence] = job

    def _feed_later(self, job: _Job) -> None:
        self._starved.discard(job.request.request_id)
        try:
            self._feed(job)
        except RequestError:
            if not job.running:
                self._starved.add(job.request.request_id)

    def _keep(self, sequence: Sequence) -> None:
        job = self._owners.pop(sequence)
        number = job.running.pop(sequence)
        if job.first_step_s is None:
            job.first_step_s = sequence.first_step_s
        vector = self._pools.pop(sequence).vector(job.request)
        if not np.isfinite(vector).all():
            self._end(job, _NOT_A_NUMBER)
            return
        job.vectors[number] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        self._feed_later(job)

    def _reply(self, job: _Job, now_s: float) -> EmbedReply:
        first_s = now_s if job.first_step_s is None else job.first_step_s
        return EmbedReply(
            vectors=tuple(job.vectors),
            dimensions=min(job.request.dimensions or self._hidden, self._hidden),
            prompt_tokens=sum(map(len, job.request.inputs)),
            queue_s=first_s - job.arrival_s,
            compute_s=now_s - first_s,
        )

    def _end(self, job: _Job, reply: EmbedReply | ErrorEvent) -> None:
        for sequence in job.running:
            self._scheduler.finish(sequence, "abort")
            self._owners.pop(sequence)
            self._pools.pop(sequence, None)
        job.running.clear()
        self._starved.discard(job.request.request_id)
        if self._jobs.pop(job.request.request_id, None) is not None:
            job.answer(reply)


class Pool:
    """Hidden states of one input on their way to a vector. Rows come in order, in any pieces."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._kept: Doubles | None = None
        self._count = 0

    def add(self, rows: torch.Tensor) -> None:
        """The next tokens' hidden states. Shape: float32 [n, hidden]."""
        values = rows.numpy().astype(np.float64)
        self._count += values.shape[0]
        if self._pooling == "last":
            self._kept = values[-1].copy()
        elif self._pooling == "cls":
            self._kept = values[0].copy() if self._kept is None else self._kept
        else:
            # row after row from the sum so far: the same bits however the text was cut in chunks
            parts = values if self._kept is None else np.vstack([self._kept[None], values])
            self._kept = np.add.accumulate(parts, axis=0)[-1].copy()

    def vector(self, request: EmbedRequest) -> Doubles:
        """Pooled, cut and normalised. Shape: [dimensions]."""
        assert self._kept is not None, "an input has at least one token"
        pooled = self._kept / self._count if self._pooling == "mean" else self._kept
        pooled = pooled[: request.dimensions]
        if not request.normalize:
            return pooled
        length = float(np.sqrt(np.square(pooled).sum()))
        return pooled / length if length > 0 else pooled
