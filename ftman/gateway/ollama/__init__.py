"""Ollama's native routes. Read generate.py first; values.py holds what they share."""

from ftman.gateway.ollama.create import ROUTES as CREATE_ROUTES
from ftman.gateway.ollama.embed import ROUTES as EMBED_ROUTES
from ftman.gateway.ollama.generate import ROUTES as GENERATE_ROUTES
from ftman.gateway.ollama.models import ROUTES as MODEL_ROUTES
from ftman.gateway.ollama.server import ROUTES as SERVER_ROUTES
from ftman.gateway.ollama.transfer import ROUTES as TRANSFER_ROUTES
from ftman.gateway.routes import Route

ROUTES: tuple[Route, ...] = (
    *SERVER_ROUTES,
    *GENERATE_ROUTES,
    *EMBED_ROUTES,
    *MODEL_ROUTES,
    *CREATE_ROUTES,
    *TRANSFER_ROUTES,
)
