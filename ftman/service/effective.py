"""What a request without wishes of its own gets from a model, and who says so.

The layers themselves are options.py's and the configuration's business; here they are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ftman.catalog.model import Model
from ftman.chat.types import Options
from ftman.config import Config, settings_of
from ftman.errors import FtmanError
from ftman.service.options import NATIVE, generation_defaults, not_applied, options_of_parameters

MODEL, PUBLISHED, DEFAULT = "the model (PARAMETER)", "generation_config.json", "default"
WINDOW = "num_ctx"
_OF_ENGINES = (
    *("keep_alive", "num_parallel", "device", "compute", "activations", "threads", "strategy"),
    *("expert_slots", "tier", "prefix_cache", "park_bytes", "park_disk", "park_disk_bytes"),
    "kv_cache_type",
)


@dataclass(frozen=True)
class Effective:
    """One setting in force. origin: the variable, file, model or default that decides it."""

    name: str
    value: Any
    origin: str


def effective_settings(model: Model, config: Config, context_tokens: int) -> tuple[Effective, ...]:
    """Every option and setting that counts for this model, with its origin.

    context_tokens: the window as it is chosen.
    """
    known = settings_of(config)
    found = [*_options(model), _window(model, config, context_tokens)]
    found += [Effective(key, *known[key]) for key in _OF_ENGINES if key in known]
    return tuple(found)


def _options(model: Model) -> list[Effective]:
    try:
        own = options_of_parameters(model.parameters)
    except FtmanError:
        own = Options()  # a chat with it tells the error
    published, ignored = generation_defaults(model), not_applied(model)
    found = []
    for item in fields(Options):
        layers = ((own, MODEL), (published, PUBLISHED), (NATIVE, DEFAULT))
        values = ((getattr(layer, item.name), origin) for layer, origin in layers)
        value, origin = next(((v, o) for v, o in values if v is not None), (None, DEFAULT))
        if value is not None and item.name != WINDOW:
            shown = list(value) if isinstance(value, tuple) else value
            found.append(Effective(item.name, shown, origin))
    return found + [Effective(*item, f"{PUBLISHED}, not applied") for item in ignored.items()]


def _window(model: Model, config: Config, context_tokens: int) -> Effective:
    origin = "default, by this machine's memory"
    if model.parameters.get(WINDOW):
        origin = MODEL
    elif config.engine.context_length:
        origin = config.said_by.get("context_length", DEFAULT)
    if context_tokens == model.details.context_length and origin != MODEL:
        origin += "; all that the model was trained on"
    return Effective(WINDOW, context_tokens, origin)
