"""Errors of the engine: one tree with a stable code and a retry flag.

EngineError
├── LoadError        a model's files cannot be used as they are
├── FormatError      a foreign file (safetensors, GGUF, FTW) is malformed
├── CapacityError    a request or a model needs more memory than there is
└── RequestError     a request cannot be honoured as written
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose. The text is one line for the user."""

    code = "engine_error"
    retryable = False

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None):
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class LoadError(EngineError):
    """A model's files cannot be used as they are."""

    code = "load_failed"


class FormatError(LoadError):
    """A foreign file is malformed; the message names the file and the place."""

    code = "bad_format"


class CapacityError(EngineError):
    """More memory or context is needed than there is; the message holds both numbers."""

    code = "capacity"


class RequestError(EngineError):
    """A request cannot be honoured as written; the message names the field."""

    code = "bad_request"
