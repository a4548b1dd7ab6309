"""Texts and token ids without a generation: counting, tokenizing, the names of special tokens.

No engine is asked and nothing is queued: a tokenizer is all it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ftman.catalog.model import Model
from ftman.chat.remembered import ReplyMemory
from ftman.chat.template import JinjaTemplates
from ftman.chat.types import ChatRequest, CompletionRequest, Prompt
from ftman.service.engines import Engines
from ftman.service.prompts import chat_prompt, checked_ids, completion_prompt, jinja_text
from ftman.service.tokenizers import TokenizerShelf

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class TokenizerInfo:
    """What a client needs to know in order to tokenize as the model does; "" = has none."""

    bos_token: str
    eos_token: str
    pad_token: str
    chat_template: str


class Tokens:
    """Use cases about tokens."""

    def __init__(
        self,
        engines: Engines,
        shelf: TokenizerShelf,
        templates: JinjaTemplates,
        memory: ReplyMemory,
    ):
        self._memory = memory
        self._engines = engines
        self._shelf = shelf
        self._templates = templates

    async def prompt(self, request: ChatRequest | CompletionRequest) -> Prompt:
        """The prompt a request makes, however long.   Raises: FtmanError."""
        model = self._engines.usable(request.model)
        if isinstance(request, CompletionRequest):
            return await self._completion(request, model)
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            fitted = await chat_prompt(
                request,
                model,
                self._templates,
                tokenizer,
                _NO_LIMIT,
                0,
                request.template_values,
                self._memory,
            )
            return fitted.prompt

    async def _completion(self, request: CompletionRequest, model: Model) -> Prompt:
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            fitted = await completion_prompt(
                request, model, self._templates, tokenizer, _NO_LIMIT, 0, {}
            )
            return fitted.prompt

    async def encode(self, model: Model, text: str, *, bos: bool) -> tuple[int, ...]:
        """Token ids of a text; special tokens in it are recognised.   Raises: FtmanError."""
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            put_bos = bos and tokenizer.adds_bos
            ids = await asyncio.to_thread(tokenizer.encode, text, special=True, bos=put_bos)
            return tuple(ids)

    async def decode(self, model: Model, ids: Sequence[int]) -> str:
        """The text of token ids.   Raises: UsageError for an id outside the vocabulary."""
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            return tokenizer.decode(checked_ids(ids, tokenizer, "tokens"))

    async def texts(self, model: Model, ids: Sequence[int]) -> list[str]:
        """The text of each id by itself.   Raises: FtmanError."""
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            return [tokenizer.token_text(idx) for idx in ids]

    async def info(self, model: Model) -> TokenizerInfo:
        """Special tokens and template of a model.   Raises: FtmanError."""
        async with self._shelf.use(model.ftw_id, model.ftw_path) as tokenizer:
            named = tokenizer.special_tokens
            eos = [tokenizer.token_text(idx) for idx in tokenizer.eos_ids[:1]]
            return TokenizerInfo(
                bos_token=named.get("bos_token", ""),
                eos_token=named.get("eos_token") or "".join(eos),
                pad_token=named.get("pad_token", ""),
                chat_template=jinja_text(model, self._templates) or model.template,
            )
