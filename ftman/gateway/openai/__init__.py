"""OpenAI's routes, with and without /v1. Read chat.py first; encode.py writes both answers."""

from ftman.gateway.errors import ANTHROPIC, OPENAI
from ftman.gateway.openai.chat import chat_completions
from ftman.gateway.openai.completions import completions
from ftman.gateway.openai.models import list_models, one_model
from ftman.gateway.openai.unbuilt import refusing
from ftman.gateway.routes import Handler, Route

_POSTS: tuple[tuple[str, str, Handler], ...] = (
    ("/chat/completions", OPENAI, chat_completions),
    ("/completions", OPENAI, completions),
    ("/embeddings", OPENAI, refusing("embeddings (/v1/embeddings)")),
    ("/responses", OPENAI, refusing("the responses API (/v1/responses)")),
    ("/responses/input_tokens", OPENAI, refusing("the responses API (/v1/responses)")),
    ("/audio/transcriptions", OPENAI, refusing("transcription (/v1/audio/transcriptions)")),
    ("/messages", ANTHROPIC, refusing("the messages API (/v1/messages)")),
    ("/messages/count_tokens", ANTHROPIC, refusing("the messages API (/v1/messages)")),
)

ROUTES: tuple[Route, ...] = (
    *(
        Route("POST", prefix + path, handler, dialect, "whole")
        for prefix in ("/v1", "")
        for path, dialect, handler in _POSTS
    ),
    *(
        route
        for prefix in ("/v1", "")
        for route in (
            Route("GET", f"{prefix}/models", list_models, OPENAI),
            Route("GET", f"{prefix}/models/*", one_model, OPENAI),
        )
    ),
)


def dialect_of(path: str) -> str:
    """Whose error envelope a path gets; "" for paths that are not of this family."""
    bare = path.removeprefix("/v1")
    if bare == "/messages" or bare.startswith("/messages/"):
        return ANTHROPIC
    if path == "/v1" or path.startswith("/v1/"):
        return OPENAI
    heads = ("/chat/", "/completions", "/embeddings", "/responses", "/models")
    return OPENAI if path.startswith(heads) else ""
