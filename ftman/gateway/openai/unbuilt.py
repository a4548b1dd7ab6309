"""Routes of this family that are known and not served yet."""

from __future__ import annotations

from typing import NoReturn

from ftman.errors import UnsupportedError
from ftman.gateway.routes import Call, Handler


def refusing(what: str) -> Handler:
    """A handler that says what is missing, in the envelope of its route."""

    async def refuse(call: Call) -> NoReturn:
        raise UnsupportedError(
            f"{what} is not built yet in this version",
            hint="Built: /v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings.",
        )

    return refuse
