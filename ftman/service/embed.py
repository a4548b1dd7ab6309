"""Texts to vectors: encode, shorten, lease an engine, ask it in pieces that fit its wire limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import Usage, Waiting
from ftman.clock import Clock
from ftman.errors import EngineDiedError, UsageError
from ftman.service.engines import Engines
from ftman.service.prompts import ContextLengthError
from ftman.service.requests import EmbedInput, EmbedResult, Vector
from ftman.service.tokenizers import TokenizerShelf
from ftman.supervisor.client import LINE_LIMIT_BYTES, POOLINGS, EmbedReply, EmbedRequest
from ftman.supervisor.policy_events import EngineSpec
from ftman.supervisor.supervisor import Lease

log = logging.getLogger(__name__)

DEFAULT_POOLING = "mean"
"""Of models that declare none: generative ones, whose hidden states nobody trained to be pooled."""
_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
_ID_BYTES = 8
_VECTOR_BYTES_PER_NUMBER = 16 / 3
_UNKNOWN_SIZE = 16384
_FILL = 0.5
"""Part of the wire's line limit that one piece may take by our reckoning."""


@dataclass
class _Prepared:
    """Inputs as ids, and what had to be done for them."""

    ids: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Gathered:
    """What the engine answered so far. Units: seconds, tokens."""

    vectors: list[Vector] = field(default_factory=list)
    prompt_tokens: int = 0
    compute_s: float = 0.0


class Embedder:
    """Runs embedding requests; holds nothing of them between two."""

    def __init__(self, engines: Engines, shelf: TokenizerShelf, catalog: Catalog, clock: Clock):
        self._engines = engines
        self._shelf = shelf
        self._catalog = catalog
        self._clock = clock

    async def embed(self, request: EmbedInput) -> EmbedResult:
        """Vectors of all inputs.

        Raises: FtmanError; ContextLengthError for an input that is too long and may not be cut;
        UsageError "not_a_number" for a vector that holds NaN or infinity.
        """
        started_s = self._clock.monotonic()
        model = self._engines.usable(request.model)
        settings = self._engines.settings(model, request.options)
        pooling = await self._pooling(request, model)
        _check_dimensions(request, model.details.embedding_length)
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            prepared = prepare(request, tokenizer, settings.context_tokens)
        spec = self._engines.spec(model, settings.context_tokens, settings.options.num_thread)
        for last_try in (False, True):
            try:
                async with contextlib.AsyncExitStack() as stack:
                    lease = await self._lease(stack, spec, request.keep_alive_s)
                    load_s = self._clock.monotonic() - started_s
                    found = await self._ask(lease, model, request, prepared.ids, pooling)
                break
            except EngineDiedError as error:
                if last_try or error.code != EngineDiedError.code:
                    raise
                log.info("%s: asking a new engine, since %s", request.request_id, error.message)
        usage = Usage(
            prompt_tokens=found.prompt_tokens,
            total_s=self._clock.monotonic() - started_s,
            load_s=load_s,
            prefill_s=found.compute_s,
        )
        notes = (*settings.notes, *prepared.notes, *_size_notes(request, found))
        return EmbedResult(tuple(found.vectors), found.prompt_tokens, pooling, usage, notes)

    async def pooling_of(self, model: Model) -> str:
        """The pooling a model declares, "" when it declares none."""
        info = await asyncio.to_thread(self._catalog.info, model)
        for key, value in info.model_info.items():
            if key.endswith(".pooling_type"):
                return _GGUF_POOLINGS.get(value, "")
        return ""

    async def _pooling(self, request: EmbedInput, model: Model) -> str:
        if not request.pooling:
            return await self.pooling_of(model) or DEFAULT_POOLING
        if request.pooling not in POOLINGS:
            raise UsageError(
                f"pooling {request.pooling!r} is not known; it is one of {', '.join(POOLINGS)}"
            )
        return request.pooling

    async def _lease(
        self, stack: contextlib.AsyncExitStack, spec: EngineSpec, keep_alive_s: float | None
    ) -> Lease:
        lease: Lease | None = None
        async for item in self._engines.lease(stack, spec, keep_alive_s):
            if not isinstance(item, Waiting):
                lease = item
        assert lease is not None
        return lease

    async def _ask(
        self,
        lease: Lease,
        model: Model,
        request: EmbedInput,
        ids: Sequence[tuple[int, ...]],
        pooling: str,
    ) -> _Gathered:
        found = _Gathered()
        size = model.details.embedding_length
        for number, piece in enumerate(pieces(ids, size or _UNKNOWN_SIZE)):
            wire = EmbedRequest(
                request_id=f"{request.request_id or 'embed'}.{number}",
                inputs=piece,
                pooling=pooling,
                normalize=request.normalize,
                dimensions=request.dimensions or None,
            )
            reply = await lease.client.embed(wire)
            found.vectors += _vectors(reply, model)
            found.prompt_tokens += reply.prompt_tokens
            found.compute_s += reply.compute_s
        return found


def prepare(request: EmbedInput, tokenizer: Tokenizer, context_tokens: int) -> _Prepared:
    """Inputs as ids that fit the context.   Raises: UsageError, ContextLengthError."""
    prepared = _Prepared()
    cut = 0
    for item in request.inputs:
        ids = tokenizer.encode_input(item) if isinstance(item, str) else _checked(item, tokenizer)
        if not ids:
            prepared.notes.append("an input without tokens was embedded as one end-of-text token")
            ids = (tokenizer.eos_ids or (0,))[:1]
        if len(ids) > context_tokens:
            if not request.truncate:
                raise ContextLengthError(len(ids), context_tokens, "input")
            cut += 1
            ids = _cut(ids, context_tokens, tokenizer)
        prepared.ids.append(ids)
    if cut:
        inputs = "1 input was" if cut == 1 else f"{cut} inputs were"
        prepared.notes.append(
            f"{inputs} longer than the context window of {context_tokens} tokens and cut at the end"
        )
    prepared.notes = list(dict.fromkeys(prepared.notes))
    return prepared


def pieces(
    ids: Sequence[tuple[int, ...]], numbers_per_vector: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Consecutive inputs whose request and answer stay well below the wire's line limit."""
    room = LINE_LIMIT_BYTES * _FILL
    piece: list[tuple[int, ...]] = []
    asked = answered = 0.0
    for item in ids:
        asks, answers = _ID_BYTES * len(item), _VECTOR_BYTES_PER_NUMBER * numbers_per_vector
        if piece and max(asked + asks, answered + answers) > room:
            yield tuple(piece)
            piece, asked, answered = [], 0.0, 0.0
        piece.append(item)
        asked, answered = asked + asks, answered + answers
    if piece:
        yield tuple(piece)


def _checked(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    for token_id in ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise UsageError(
                f"'input' holds token id {token_id}; this model's ids are 0 to "
                f"{tokenizer.vocab_size - 1}"
            )
    return tuple(ids)


def _cut(ids: tuple[int, ...], limit: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The beginning; a mark that ends every input of this model still ends it."""
    if ids[-1] in tokenizer.eos_ids:
        return (*ids[: limit - 1], ids[-1])
    return ids[:limit]


def _check_dimensions(request: EmbedInput, size: int) -> None:
    if request.strict_dimensions and size and request.dimensions > size:
        raise UsageError(
            f"dimensions {request.dimensions} is more than the {size} this model has; ask for "
            f"{size} or fewer",
            code="bad_dimensions",
        )


def _vectors(reply: EmbedReply, model: Model) -> list[Vector]:
    found: list[Vector] = []
    for text in reply.vectors:
        try:
            vector = Vector(base64.b64decode(text, validate=True))
            total = sum(vector.floats())
        except (binascii.Error, ValueError):
            raise EngineDiedError(
                f"the engine of {model.name.short} broke its protocol: a vector is no base64 of "
                f"float32 numbers",
                code="engine_protocol",
            ) from None
        if not math.isfinite(total):
            raise UsageError("embedding contains NaN or Inf values", code="not_a_number")
        found.append(vector)
    return found


def _size_notes(request: EmbedInput, found: _Gathered) -> tuple[str, ...]:
    size = len(found.vectors[0].data) // 4 if found.vectors else 0
    if not size or request.dimensions <= size:
        return ()
    return (f"dimensions {request.dimensions} asked for; this model's vectors have {size}",)
