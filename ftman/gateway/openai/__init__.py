"""OpenAI's routes, with and without /v1. Read chat.py first; encode.py writes both answers."""

from ftman.gateway.errors import OPENAI
from ftman.gateway.openai.chat import chat_completions
from ftman.gateway.openai.completions import completions
from ftman.gateway.openai.embeddings import embeddings
from ftman.gateway.openai.models import list_models, one_model
from ftman.gateway.openai.responses.route import (
    cancel_response,
    count_input,
    create_response,
    delete_response,
    get_response,
)
from ftman.gateway.openai.unbuilt import refusing
from ftman.gateway.routes import Handler, Route

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/completions", completions),
    ("POST", "/embeddings", embeddings),
    ("POST", "/responses", create_response),
    ("POST", "/responses/input_tokens", count_input),
    ("POST", "/responses/*", cancel_response),
    ("GET", "/responses/*", get_response),
    ("DELETE", "/responses/*", delete_response),
    ("POST", "/audio/transcriptions", refusing("transcription (/v1/audio/transcriptions)")),
    ("GET", "/models", list_models),
    ("GET", "/models/*", one_model),
)

ROUTES: tuple[Route, ...] = tuple(
    Route(method, prefix + path, handler, OPENAI, "whole" if method == "POST" else "none")
    for prefix in ("/v1", "")
    for method, path, handler in _ROUTES
)


def dialect_of(path: str) -> str:
    """Whose error envelope a path gets; "" for paths that are not of this family."""
    if path == "/v1" or path.startswith("/v1/"):
        return OPENAI
    heads = ("/chat/", "/completions", "/embeddings", "/responses", "/models")
    return OPENAI if path.startswith(heads) else ""
