"""Which value of an option counts: request, model, generation config, dialect. No I/O but one read.

Options are Ollama's; what the engine is told is a Sampling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftengine.protocol import ProtocolError, Sampling
from ftman import files
from ftman.catalog.model import Model
from ftman.chat.types import Options
from ftman.errors import UsageError
from ftman.names import printable

NATIVE = Options(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.0,
    typical_p=1.0,
    repeat_penalty=1.0,
    repeat_last_n=64,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    num_predict=-1,
    num_keep=4,
    stop=(),
)
"""Ollama's own defaults."""

Read = Callable[[Path], bytes]
MIN_CONTEXT = 4
DEFAULT_CONTEXT = 32768
SMALL_CONTEXT = 4096
KV_SHARE = 0.25
"""Part of the machine's memory that a default context may claim for its KV cache."""

_SEED_MASK = (1 << 63) - 1
_GENERATION_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
}
_NOT_APPLIED: dict[str, int | float] = {
    "bad_words_ids": 0,
    "begin_suppress_tokens": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "forced_bos_token_id": -1,
    "forced_eos_token_id": -1,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "sequence_bias": 0,
}
"""Keys of a generation config, each with the value that means nothing, besides null and []."""
INTS = ("top_k", "repeat_last_n", "seed", "num_predict", "num_ctx", "num_keep", "num_thread")
FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
FOREIGN_INTS = ("num_batch", "num_gpu", "main_gpu", "draft_num_predict")
FOREIGN_BOOLS = ("use_mmap",)
"""Load settings of another engine: their types are checked, their values mean nothing here."""


def options_of_parameters(parameters: Mapping[str, Any]) -> Options:
    """A model's PARAMETERs as options.   Raises: UsageError (500) naming a key of a wrong type."""
    values: dict[str, Any] = {}
    for key in (*INTS, *FLOATS):
        value = parameters.get(key)
        if value is None:
            continue
        kind = "integer" if key in INTS else "float32"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_option(key, kind)
        values[key] = int(value) if key in INTS else float(value)
    stop = parameters.get("stop")
    if stop is not None:
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list | tuple) or not all(isinstance(s, str) for s in stop):
            raise bad_option("stop", "of an array of strings")
        values["stop"] = tuple(stop)
    return Options(**values)


def bad_option(key: str, kind: str) -> UsageError:
    """Ollama's error for an option of the wrong type; its status is 500 there, so here too."""
    words = kind if kind.startswith("of ") else f"of type {kind}"
    return UsageError(f'option "{key}" must be {words}', status=500, code="bad_option")


def option_notes(values: Mapping[str, Any]) -> list[str]:
    """What must be said about options that were given and have no effect here."""
    given = [key for key, value in values.items() if value is not None]
    foreign = [key for key in given if key in (*FOREIGN_INTS, *FOREIGN_BOOLS)]
    known = (*INTS, *FLOATS, "stop", *foreign)
    unknown = [printable(key[:80]) for key in given if key not in known]
    notes = []
    if foreign:
        notes.append(f"without effect in this engine: option {', '.join(foreign)}")
    if unknown:
        notes.append(f"unknown and without effect: option {', '.join(unknown[:8])}")
    return notes


def generation_defaults(model: Model, read: Read = files.read_bytes) -> Options:
    """Sampling defaults that the model's authors published with it; none is fine."""
    value = _published(model, read)
    never = value.get("suppress_tokens")
    never = never if isinstance(never, list) and all(type(idx) is int for idx in never) else []
    options = Options(suppress_tokens=tuple(idx for idx in never if 0 <= idx < 1 << 31) or None)
    if value.get("do_sample") is False:
        return options
    picked: dict[str, Any] = {}
    for theirs, ours in _GENERATION_KEYS.items():
        number = value.get(theirs)
        if isinstance(number, int | float) and not isinstance(number, bool):
            picked[ours] = int(number) if ours in INTS else float(number)
    return Options(**picked).over(options)


def not_applied(model: Model) -> dict[str, Any]:
    """What its authors published that would change its answers, and that is not done here."""
    value = _published(model, files.read_bytes)
    return {
        key: value[key]
        for key, neutral in _NOT_APPLIED.items()
        if value.get(key) not in (None, False, [], {}, neutral)
    }


def _published(model: Model, read: Read) -> dict[str, Any]:
    try:
        value = json.loads(read(model.ftw_path / "generation_config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def own_options(model: Model, read: Read = files.read_bytes) -> Options:
    """What the model itself asks for: its PARAMETERs over its published defaults."""
    return options_of_parameters(model.parameters).over(generation_defaults(model, read))


def choose_context(
    asked: int | None,
    model: Model,
    *,
    configured: int,
    running: int,
    num_parallel: int,
    memory_bytes: int,
    kv_bytes_per_token: int = 0,
) -> tuple[int, str]:
    """The context window in tokens, and a note if it is smaller than asked for.

    asked: by request or model. running: window of an engine already loaded, 0 = none; who has no
    wish gets it when it is larger than the default, so that clients with and without a wish do not
    reload in turn, and never less, so that one client's small window is not everybody's.
    kv_bytes_per_token 0 = in bf16.
    """
    trained = model.details.context_length or SMALL_CONTEXT
    per_token = (kv_bytes_per_token or model.kv_bytes_per_token) * num_parallel
    default = configured or max(running, _affordable(model, per_token, memory_bytes))
    wanted = asked or default
    window = max(MIN_CONTEXT, min(wanted, trained))
    if asked and asked > trained:
        return window, f"num_ctx {asked} is above the {trained} tokens this model was trained on"
    if not asked and configured > trained:
        limit = f"above the {trained} tokens this model was trained on"
        return window, f"the context length that is set ({configured}) is {limit}"
    return window, ""


def _affordable(model: Model, per_token: int, memory_bytes: int) -> int:
    window = min(DEFAULT_CONTEXT, model.details.context_length or SMALL_CONTEXT)
    while window > SMALL_CONTEXT and window * per_token > KV_SHARE * memory_bytes:
        window //= 2
    return window


def sampling_of(options: Options) -> Sampling:
    """Options, completed, as the engine wants them.   Raises: UsageError naming the option."""
    full = options.over(NATIVE)
    seed = full.seed
    try:
        return Sampling(
            temperature=max(0.0, full.temperature or 0.0),
            top_k=max(0, full.top_k or 0),
            top_p=min(1.0, max(1e-6, _given(full.top_p, 1.0))),
            min_p=min(1.0, max(0.0, full.min_p or 0.0)),
            typical_p=min(1.0, max(1e-6, _given(full.typical_p, 1.0))),
            repeat_penalty=_given(full.repeat_penalty, 1.0),
            repeat_last_n=max(-1, int(_given(full.repeat_last_n, 64))),
            presence_penalty=full.presence_penalty or 0.0,
            frequency_penalty=full.frequency_penalty or 0.0,
            seed=None if seed is None or seed < 0 else seed & _SEED_MASK,
            logit_bias=full.logit_bias or (),
            suppress_tokens=full.suppress_tokens or (),
        )
    except ProtocolError as error:
        raise UsageError(f"option {error}".replace("sampling.", "")) from None


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
