"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from ftman.gateway.anthropic.encode import answer
from ftman.gateway.anthropic.request import parse_request
from ftman.gateway.errors import to_json
from ftman.gateway.routes import Call, Reply, StreamReply


async def create_message(call: Call) -> Reply | StreamReply:
    """Continue a conversation, whole or as events."""
    asked = parse_request(call)
    return await answer(call, asked, call.service.chat(asked.chat))


async def count_tokens(call: Call) -> Reply:
    """The tokens that the same body would have as a prompt; nothing is generated or queued."""
    asked = parse_request(call)
    prompt = await call.service.tokens.prompt(asked.chat)
    call.tally.prompt_tokens = len(prompt.token_ids)
    return Reply(
        to_json({"input_tokens": len(prompt.token_ids)}) + b"\n", media_type="application/json"
    )
