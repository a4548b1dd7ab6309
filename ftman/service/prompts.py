"""From a request to token ids that fit the window: effective messages, rendering, truncation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman import caller
from ftman.catalog.model import Model
from ftman.chat.conversation import canonical
from ftman.chat.formats.base import ChatFormat
from ftman.chat.own_turns import OwnReplies
from ftman.chat.remembered import ReplyMemory
from ftman.chat.render import ChatTemplate, render_chat, render_generate
from ftman.chat.reply import ReplyRules
from ftman.chat.template import JinjaTemplates
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import ChatRequest, CompletionRequest, Message, Prompt
from ftman.errors import IntegrityError, UsageError
from ftman.service.replies import format_of, refuse_unable, reply_rules, template_values

Renderer = Callable[[Sequence[Message]], Awaitable[Prompt]]


class ContextLengthError(UsageError):
    """The prompt does not fit the context window. The text holds the phrases clients look for."""

    code = "context_length_exceeded"

    def __init__(self, num_tokens: int, context_tokens: int, param: str = "messages"):
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, your "
            f"{param} resulted in {num_tokens} tokens "
            f"(prompt is too long: {num_tokens} tokens > {context_tokens} maximum)."
        )
        self.param = param
        self.extra = {"n_prompt_tokens": num_tokens, "n_ctx": context_tokens}


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits, and what had to be done for it. own: where its reply is remembered."""

    prompt: Prompt
    notes: tuple[str, ...] = ()
    reply: ReplyRules = field(default_factory=ReplyRules)
    own: OwnReplies | None = None


def effective_messages(model: Model, messages: Sequence[Message]) -> tuple[Message, ...]:
    """The model's SYSTEM (unless the request brings one), its MESSAGEs, then the request's."""
    system: tuple[Message, ...] = ()
    if model.system and not (messages and messages[0].role == "system"):
        system = (Message("system", model.system),)
    return (*system, *model.messages, *messages)


def template_of(
    model: Model, templates: JinjaTemplates, override: str | None = None
) -> ChatTemplate:
    """The model's template: a Go one if it has one, and the checkpoint's Jinja one."""
    if override:
        return ChatTemplate(go=override)
    return ChatTemplate(go=model.template, jinja=jinja_text(model, templates))


def jinja_text(model: Model, templates: JinjaTemplates) -> str:
    """The checkpoint's own Jinja template, "" when it has none."""
    if model.jinja_path is None:
        return ""
    try:
        return templates.source(model.jinja_path)
    except OSError as error:
        raise IntegrityError(
            f"the chat template of {model.name.short} cannot be read: {error.strerror}"
        ) from None


async def chat_prompt(
    request: ChatRequest,
    model: Model,
    templates: JinjaTemplates,
    tokenizer: Tokenizer,
    context_tokens: int,
    num_keep: int,
    values: Mapping[str, Any],
    memory: ReplyMemory | None = None,
) -> Fitted:
    """Render a conversation so that at least one token can follow. memory: of earlier replies.

    Raises: ContextLengthError when it is too long and the request forbids shortening.
    """
    template = template_of(model, templates)
    fmt = format_of(model, template)
    unable = refuse_unable(request, model, template)
    variables, noted = template_values(request, fmt, template, values)

    own = own_replies(memory, model, tokenizer, request, fmt) if memory is not None else None

    async def render(messages: Sequence[Message]) -> Prompt:
        return await render_chat(
            templates, template, tokenizer, messages, values=variables, own=own
        )

    messages = canonical(effective_messages(model, request.messages), fmt)
    prompt = await render(messages)
    rules = reply_rules(request, fmt, prompt)
    notes = [*unable, *noted]
    if len(prompt.token_ids) < context_tokens:
        return Fitted(prompt, tuple(notes), rules, own)
    if request.strict_length:
        raise ContextLengthError(len(prompt.token_ids), context_tokens)
    prompt, dropped = await _drop_oldest(render, messages, prompt, context_tokens)
    if dropped:
        turns = "message was" if dropped == 1 else "messages were"
        notes.append(
            f"the conversation is longer than the context window of {context_tokens} tokens: "
            f"the {dropped} oldest {turns} left out"
        )
    fitted = cut_tokens(prompt, tokenizer, context_tokens, num_keep)
    return Fitted(fitted.prompt, (*notes, *fitted.notes), rules, own)


def own_replies(
    memory: ReplyMemory,
    model: Model,
    tokenizer: Tokenizer,
    request: ChatRequest,
    fmt: ChatFormat,
) -> OwnReplies:
    """What is remembered for this model and this caller."""
    stops = sorted({*model.eos_ids, *tokenizer.eos_ids})
    ends = {tokenizer.token_text(idx) for idx in stops} | {*fmt.ends}
    scope = f"{model.ftw_id} {caller.salt.get()}"
    return OwnReplies(memory, scope, fmt, request.tools, tuple(sorted(ends - {""})))


async def _drop_oldest(
    render: Renderer, messages: Sequence[Message], whole: Prompt, context_tokens: int
) -> tuple[Prompt, int]:
    """Leave out as few of the oldest messages as it takes; system and last message stay.

    A rendering costs, and shorter histories never render longer: so the number is bisected.
    """
    droppable = [i for i, m in enumerate(messages[:-1]) if m.role != "system"]
    low, high, best = 1, len(droppable), whole
    if not droppable:
        return whole, 0
    while low <= high:
        middle = (low + high) // 2
        gone = set(droppable[:middle])
        prompt = await render(_without(messages, gone))
        if len(prompt.token_ids) < context_tokens or middle == len(droppable):
            best, high = prompt, middle - 1
            dropped = middle
        else:
            low = middle + 1
    return best, dropped


def _without(messages: Sequence[Message], gone: set[int]) -> list[Message]:
    """The other messages; results whose calls are gone go too, since templates refuse them."""
    kept: list[Message] = []
    for idx, message in enumerate(messages):
        orphan = message.role == "tool" and not any(m.role in ("assistant", "tool") for m in kept)
        if idx not in gone and (not orphan or idx == len(messages) - 1):
            kept.append(message)
    return kept


def cut_tokens(prompt: Prompt, tokenizer: Tokenizer, context_tokens: int, num_keep: int) -> Fitted:
    """Cut the middle out of a prompt that is too long by itself: the first `num_keep` tokens and
    the newest ones stay, and half of the window is left for the answer.
    """
    ids = prompt.token_ids
    if len(ids) < context_tokens:
        return Fitted(prompt)
    keep = max(0, num_keep) + (
        1 if tokenizer.bos_id is not None and ids[0] == tokenizer.bos_id else 0
    )
    keep = min(keep, context_tokens // 2)
    target = context_tokens - max((context_tokens - keep) // 2, 1)
    kept = (*ids[:keep], *ids[len(ids) - (target - keep) :])
    note = (
        f"the prompt of {len(ids)} tokens is longer than the context window of {context_tokens} "
        f"tokens: {len(ids) - len(kept)} tokens were cut out of its beginning"
    )
    return Fitted(Prompt(kept, (), prompt.text), (note,))


async def completion_prompt(
    request: CompletionRequest,
    model: Model,
    templates: JinjaTemplates,
    tokenizer: Tokenizer,
    context_tokens: int,
    num_keep: int,
    values: Mapping[str, Any],
) -> Fitted:
    """Token ids of a completion: given ids, raw text, or a prompt through the template.

    Raises: UsageError for ids outside the vocabulary, ContextLengthError.
    """
    rules = ReplyRules()
    notes: tuple[str, ...] = ()
    if request.raw or request.token_ids is not None:
        prompt = _as_given(request, tokenizer)
    else:
        template = template_of(model, templates, request.template)
        fmt = format_of(model, template)
        notes = refuse_unable(request, model, template)
        variables, noted = template_values(request, fmt, template, values)
        notes += noted
        prompt = await _rendered(request, model, templates, template, tokenizer, variables)
        rules = ReplyRules() if request.suffix else reply_rules(request, fmt, prompt)
    if not prompt.token_ids:
        raise UsageError("the prompt holds no tokens; send some text")
    if len(prompt.token_ids) < context_tokens:
        return Fitted(prompt, notes, rules)
    if request.strict_length:
        raise ContextLengthError(len(prompt.token_ids), context_tokens, "prompt")
    fitted = cut_tokens(prompt, tokenizer, context_tokens, num_keep)
    return Fitted(fitted.prompt, (*notes, *fitted.notes), rules)


def _as_given(request: CompletionRequest, tokenizer: Tokenizer) -> Prompt:
    if request.token_ids is not None:
        ids = checked_ids(request.token_ids, tokenizer, "prompt")
        return Prompt(ids, (), tokenizer.decode(ids) if request.echo else "")
    # The writer of a raw prompt is the author of its template, so special tokens are meant.
    ids = tuple(tokenizer.encode(request.prompt, special=True, bos=tokenizer.adds_bos))
    return Prompt(ids, (), request.prompt)


async def _rendered(
    request: CompletionRequest,
    model: Model,
    templates: JinjaTemplates,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    values: Mapping[str, Any],
) -> Prompt:
    prompt = await render_generate(
        templates,
        template,
        tokenizer,
        request.prompt,
        system=model.system if request.system is None else request.system,
        history=() if request.context else model.messages,
        suffix=request.suffix,
        values=values,
    )
    if not request.context:
        return prompt
    earlier = checked_ids(request.context, tokenizer, "context")
    ids = prompt.token_ids
    if ids and tokenizer.bos_id is not None and ids[0] == tokenizer.bos_id:
        ids = ids[1:]
    return Prompt((*earlier, *ids), (len(earlier),), prompt.text)


def checked_ids(ids: Sequence[int], tokenizer: Tokenizer, name: str) -> tuple[int, ...]:
    """The ids as given in field `name`.   Raises: UsageError for one outside the vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise UsageError(
                f"'{name}' holds token id {token_id}; this model's ids are 0 to "
                f"{tokenizer.vocab_size - 1}"
            )
    return tuple(ids)
