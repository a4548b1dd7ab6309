"""/tokenize, /detokenize and /tokenizer_info: vLLM's helpers, with which evaluation tools need no
tokenizer of their own. Errors and paths are of OpenAI's family."""

from __future__ import annotations

from ftman.catalog.model import Model
from ftman.chat.types import ChatRequest
from ftman.gateway.body import OPENAI_TEXTS, FieldError, Fields
from ftman.gateway.errors import OPENAI, to_json
from ftman.gateway.openai.messages import Conversation, chat_messages, check_end
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.tools import chat_tools
from ftman.gateway.routes import Call, Handler, Reply, Route

MAX_TOKENS = 1 << 20
"""Ids that one /detokenize may hold."""


async def tokenize(call: Call) -> Reply:
    """POST /tokenize: a text or a conversation as token ids; special tokens are recognised."""
    fields = call.fields("TokenizeRequest", OPENAI_TEXTS)
    model = await _model(call, fields.text("model"))
    if fields.has("messages"):
        ids = await _chat_ids(call, model, fields)
    else:
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            raise FieldError("'prompt' is missing: send a text, or 'messages'", "prompt")
        bos = fields.flag("add_special_tokens", True)
        ids = await call.service.tokens.encode(model, prompt, bos=bos)
    value = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": call.service.context_tokens(model),
    }
    if fields.flag("return_token_strs", False):
        value["token_strs"] = await call.service.tokens.texts(model, ids)
    return Reply(to_json(value) + b"\n", media_type="application/json")


async def _chat_ids(call: Call, model: Model, fields: Fields) -> tuple[int, ...]:
    name = model.name.short
    messages = chat_messages(fields, Conversation(name))
    check_end(fields, messages)
    request = ChatRequest(
        model=name,
        messages=messages,
        tools=chat_tools(fields).tools,
        template_values=fields.mapping("chat_template_kwargs"),
    )
    return (await call.service.tokens.prompt(request)).token_ids


async def detokenize(call: Call) -> Reply:
    """POST /detokenize: token ids as text."""
    fields = call.fields("DetokenizeRequest", OPENAI_TEXTS)
    ids = fields.items("tokens")
    if "tokens" not in fields.values:
        raise FieldError("'tokens' is missing: send an array of token ids", "tokens")
    if len(ids) > MAX_TOKENS:
        fields.invalid("tokens", f"holds {len(ids)} ids; at most {MAX_TOKENS} fit one request")
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int):
            fields.wrong("tokens", "array of integers", item)
    model = await _model(call, fields.text("model"))
    text = await call.service.tokens.decode(model, ids)
    return Reply(to_json({"prompt": text}) + b"\n", media_type="application/json")


async def tokenizer_info(call: Call) -> Reply:
    """GET /tokenizer_info: special tokens and template; `?model=` where several are installed."""
    model = await _model(call, call.query.get("model", ""))
    info = await call.service.tokens.info(model)
    value = {
        "bos_token": info.bos_token or None,
        "eos_token": info.eos_token or None,
        "pad_token": info.pad_token or None,
        "chat_template": info.chat_template or None,
    }
    return Reply(to_json(value) + b"\n", media_type="application/json")


async def _model(call: Call, given: str) -> Model:
    """The model meant: named, or the only one that runs, or the only one installed.

    Raises: FieldError.
    """
    if given:
        return find_model(call, given)
    running = [item.model for item in call.service.running() if item.model is not None]
    names = {model.name for model in running}
    found = running if len(names) == 1 else await call.service.models()
    if len({model.name for model in found}) == 1:
        call.tally.model = found[0].name.short
        return found[0]
    raise FieldError(
        f"'model' is missing, and {len(found)} models are installed: name one "
        "(in the body, or as ?model=)",
        "model",
    )


_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/tokenizer_info", tokenizer_info),
)
ROUTES: tuple[Route, ...] = tuple(
    Route(method, prefix + path, handler, OPENAI, "whole" if method == "POST" else "none")
    for prefix in ("", "/v1")
    for method, path, handler in _ROUTES
)
