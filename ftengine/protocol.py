"""Wire types between the manager and one engine process; standard library only, no torch.

What travels is token ids, never words: the manager owns templates, tokenizing, stop strings and
dialects. Requests are one JSON object; a generation answers with one JSON object per line.
Golden JSON for every message lives in tests/contract/.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

PROTOCOL_VERSION = (1, 3)
"""(major, minor). A manager refuses an engine of another major version or an older minor one.
1.1: constraint, notes, /embed. 1.2: salt, anchor_token_ids, cache. 1.3: suppress_tokens."""

CONTROL_TOKEN = re.compile(
    r"[<\[]/?(?:[^<>\[\]\s]*[|\uff5c_][^<>\[\]\s]*"
    r"|think|thinking|thought|reasoning|tools?|inst|args|image|audio|video|channel|turn|message)"
    r"[>\]]",
    re.IGNORECASE,
)
"""Added tokens that steer a chat though their files do not call them special. Both ends treat them
as special. HTML tags, which some vocabularies add too, are ordinary text."""

CONSTRAINT_KINDS = ("json", "json_schema", "regex", "lark")
POOLINGS = ("mean", "last", "cls")

CHECKSUM_WRONG = "its checksum is wrong"
"""Part of an error's text when a model's bytes have changed at rest: a pull repairs them."""

LINE_LIMIT_BYTES = 8_000_000
"""No NDJSON line is longer than this; a longer one is a protocol error."""


class ProtocolError(ValueError):
    """A message does not have the shape this module describes; the text names the field."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; 0 or 1.0 switch the other filters off.

    Units: repeat_last_n in tokens, -1 = the whole context, 0 = off. seed None = from the system.
    suppress_tokens: never chosen; ids that the model does not have mean nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    suppress_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.temperature >= 0, "sampling.temperature", "must be 0 or more")
        _check(self.top_k >= 0, "sampling.top_k", "must be 0 (off) or more")
        _check(0 < self.top_p <= 1, "sampling.top_p", "must be in (0, 1]")
        _check(0 <= self.min_p <= 1, "sampling.min_p", "must be in [0, 1]")
        _check(0 < self.typical_p <= 1, "sampling.typical_p", "must be in (0, 1]")
        _check(self.repeat_penalty > 0, "sampling.repeat_penalty", "must be above 0")
        _check(self.repeat_last_n >= -1, "sampling.repeat_last_n", "must be -1 or more")
        known = all(0 <= token_id < 1 << 31 for token_id in self.suppress_tokens)
        _check(known, "sampling.suppress_tokens", "must hold token ids")


@dataclass(frozen=True)
class Constraint:
    """What a reply must look like, from its first token on.

    kind "json": any JSON object, without text. "json_schema", "regex", "lark": text is the schema,
    a regular expression of the whole reply, or a grammar in llguidance's dialect of Lark. There a
    special token (also one that matches CONTROL_TOKEN) is written <name>, or <[id]> whatever its
    name; no regular expression matches it. A stop token is allowed once the grammar is fulfilled. A
    text that cannot be compiled is refused with code "bad_constraint" and the reason.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        _check(
            self.kind in CONSTRAINT_KINDS,
            "constraint.kind",
            "must be one of " + ", ".join(CONSTRAINT_KINDS),
        )


@dataclass(frozen=True)
class GenerateRequest:
    """POST /generate: continue `token_ids`.

    Units: anchors are token offsets (block boundaries inside the prompt); max_tokens -1 = until the
    context is full; logprobs = number of alternatives to report, None = none at all, 0 = only the
    chosen token; deadline_s counts from arrival. anchor_token_ids: ids that close a block in the
    answer. salt: requests of different salts share nothing that was computed.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = -1
    stop_token_ids: tuple[int, ...] = ()
    anchors: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    deadline_s: float | None = None
    constraint: Constraint | None = None
    anchor_token_ids: tuple[int, ...] = ()
    salt: str = ""

    def __post_init__(self) -> None:
        _check(len(self.token_ids) > 0, "token_ids", "must not be empty")
        _check(self.max_tokens >= -1, "max_tokens", "must be -1 or more")
        _check(self.logprobs is None or 0 <= self.logprobs <= 20, "logprobs", "must be 0 to 20")


@dataclass(frozen=True)
class TokenLogprob:
    """Log probability of one token under the model's own distribution.

    That is before bias, penalties, constraint, filters and temperature.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ProgressEvent:
    """Sign of life before the first token. Units: prompt tokens done, prompt tokens in all.

    cached: those of the done ones that were reused; told before the first token at the latest.
    """

    prefilled: int
    total: int
    cached: int = 0
    type: str = "progress"


@dataclass(frozen=True)
class TokenEvent:
    """One or more generated ids, in order. The end-of-sequence id itself is not sent."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    type: str = "token"


@dataclass(frozen=True)
class FinishEvent:
    """Last line of a generation that ended well. reason: "stop", "length" or "abort".

    Units: seconds; prompt_tokens includes cached_tokens. stop_token_id is the id that ended it; a
    reply that fulfilled its constraint ends with "stop" without one. notes: for the user, what of a
    constraint was not enforced.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    stop_token_id: int | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    notes: tuple[str, ...] = ()
    type: str = "finish"


@dataclass(frozen=True)
class ErrorEvent:
    """Last line of a generation that failed. code is stable; retryable: worth another try."""

    code: str
    message: str
    retryable: bool = False
    type: str = "error"


Event = ProgressEvent | TokenEvent | FinishEvent | ErrorEvent


@dataclass(frozen=True)
class EmbedRequest:
    """POST /embed: one vector for each of `inputs`, lists of token ids.

    pooling: over the hidden states after the last norm of an input's own tokens: "mean", "last" or
    "cls" (the first token's). normalize: to length 1. dimensions: keep the first so many numbers
    and, where normalize is set, normalise again; None = all.
    """

    request_id: str
    inputs: tuple[tuple[int, ...], ...]
    pooling: str = "mean"
    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        _check(len(self.inputs) > 0, "inputs", "must not be empty")
        _check(all(len(item) > 0 for item in self.inputs), "inputs", "must not hold an empty list")
        _check(self.pooling in POOLINGS, "pooling", "must be one of " + ", ".join(POOLINGS))
        _check(self.dimensions is None or self.dimensions >= 1, "dimensions", "must be 1 or more")


@dataclass(frozen=True)
class EmbedReply:
    """Answer of POST /embed. vectors: base64 of little-endian float32, in the order of the inputs.

    Units: dimensions numbers a vector; prompt_tokens over all inputs; seconds.
    """

    vectors: tuple[str, ...]
    dimensions: int
    prompt_tokens: int
    queue_s: float
    compute_s: float


@dataclass(frozen=True)
class Health:
    """GET /health (200 ready, 503 loading or failed).

    state: "loading", "ready", "draining" or "failed". Units: bytes; seconds since the last
    finished step (None before the first), so a wedged engine can be told from an idle one.
    """

    state: str
    loaded_bytes: int = 0
    total_bytes: int = 0
    running: int = 0
    waiting: int = 0
    last_step_s: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class ExpertStats:
    """Routed experts of an engine: the device's slots now, and counts since the start.

    strategy: who computes misses. slots of total experts are on the device, resident of them
    filled. Experts are counted once per layer and step: hits + misses = experts asked for; misses
    become fills (copied to slots) or on_cpu; streamed = copied whole layers at a time in prefill.
    Units: bytes; passes = further rounds of steps that asked for more experts than there are slots;
    stall_s = seconds waited for copies.
    """

    strategy: str
    slots: int
    resident: int
    total: int
    slot_bytes: int
    hits: int = 0
    misses: int = 0
    fills: int = 0
    on_cpu: int = 0
    streamed: int = 0
    link_bytes: int = 0
    passes: int = 0
    stall_s: float = 0.0


@dataclass(frozen=True)
class CacheStats:
    """Prefix cache of an engine: what it holds now, and counts since the start.

    enabled: prefixes are reused. Units: pages of 16 tokens; checkpoints of recurrent states, used
    of all; tokens: looked_up in prompts, hit of them reused, recomputed though computed before.
    parked: given up and kept in host memory, limit 0 = nothing is; parked_file: in files, limit 0 =
    there are none; returned: tokens that came back from either.
    """

    enabled: bool
    pages: int = 0
    checkpoints_used: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    looked_up_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    evicted_pages: int = 0
    evicted_checkpoints: int = 0
    parked_bytes: int = 0
    parked_limit_bytes: int = 0
    parked_file_bytes: int = 0
    parked_file_limit_bytes: int = 0
    returned_tokens: int = 0


@dataclass(frozen=True)
class MemoryRequest:
    """POST /memory: divide memory anew between steps; exactly one of the two is given.

    Units: expert_slots whole experts; kv_bytes bytes of KV pages.
    """

    expert_slots: int | None = None
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        both = (self.expert_slots is None) == (self.kv_bytes is None)
        _check(not both, "expert_slots, kv_bytes", "must be given one at a time")
        _check(
            self.expert_slots is None or self.expert_slots >= 0, "expert_slots", "must be 0 or more"
        )
        _check(self.kv_bytes is None or self.kv_bytes >= 1, "kv_bytes", "must be 1 or more")


@dataclass(frozen=True)
class MemoryState:
    """Answer of POST /memory: how memory is divided now.

    Units: bytes; kv_pages of 16 tokens; device_bytes in all and device_free_bytes, both 0 without
    a device; preempted = requests whose KV pages went back and that are computed again.
    """

    expert_slots: int
    slot_bytes: int
    kv_bytes: int
    kv_pages: int
    device_bytes: int
    device_free_bytes: int
    preempted: int = 0


@dataclass(frozen=True)
class EngineInfo:
    """GET /info, once ready: what was loaded and what it may use. Units: bytes, tokens.

    kv_format: how keys and values are kept, two names by a comma where layers differ.
    """

    protocol: tuple[int, int]
    version: str
    ftw_id: str
    family: str
    device: str
    compute: str
    context_tokens: int
    max_sequences: int
    vocab_size: int
    weights_bytes: int
    kv_bytes: int
    num_experts: int
    kernels: dict[str, str]
    pid: int
    started_wall_s: float
    notes: tuple[str, ...] = ()
    experts: ExpertStats | None = None
    cache: CacheStats | None = None
    kv_format: str = ""


@dataclass(frozen=True)
class Hello:
    """The JSON line an engine prints on stdout when it listens. address: unix:PATH or
    tcp:HOST:PORT. What it prints later says that asking for its health is worth while."""

    address: str
    protocol: tuple[int, int]
    pid: int


T = TypeVar("T")

_EVENTS: dict[str, type] = {
    "progress": ProgressEvent,
    "token": TokenEvent,
    "finish": FinishEvent,
    "error": ErrorEvent,
}


def encode(message: Any) -> bytes:
    """Encode a wire dataclass as one JSON object without a newline."""
    return json.dumps(_plain(message), separators=(",", ":")).encode()


def encode_line(message: Any) -> bytes:
    """Encode a wire dataclass as one NDJSON line."""
    return encode(message) + b"\n"


def decode(kind: type[T], data: bytes | str | dict[str, Any]) -> T:
    """Decode one wire object; others are ignored.   Raises: ProtocolError with the field."""
    value = _parse(data)
    return _build(kind, value, kind.__name__)


def decode_event(data: bytes | str) -> Event:
    """Decode one line of a generation. Raises: ProtocolError."""
    value = _parse(data)
    kind = _EVENTS.get(str(value.get("type")))
    if kind is None:
        raise ProtocolError(f"unknown event type {value.get('type')!r}")
    event: Event = _build(kind, value, kind.__name__)
    return event


def _check(ok: bool, name: str, rule: str) -> None:
    if not ok:
        raise ProtocolError(f"{name} {rule}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        if all(type(item) is int for item in value):
            return list(value)
        return [_plain(item) for item in value]
    return value


def _parse(data: bytes | str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(data, dict):
        return data
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def _build(kind: type[T], value: dict[str, Any], where: str) -> T:
    hints = _field_types(kind)
    arguments: dict[str, Any] = {}
    for name, (convert, required) in hints.items():
        if name not in value:
            if required:
                raise ProtocolError(f"{where}.{name} is missing")
            continue
        try:
            arguments[name] = convert(value[name])
        except ProtocolError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            raise ProtocolError(f"{where}.{name} has the wrong type") from None
    return kind(**arguments)


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _optional_int(value: Any) -> int | None:
    return None if value is None else _int(value)


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _optional_float(value: Any) -> float | None:
    return None if value is None else _float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_str(value: Any) -> str | None:
    return None if value is None else _str(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
        raise TypeError
    return tuple(value)


def _lists_of_ints(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return tuple(_ints(item) for item in value)


def _version(value: Any) -> tuple[int, int]:
    major, minor = _ints(value)
    return major, minor


def _pairs(value: Any) -> tuple[tuple[int, float], ...]:
    return tuple((_int(key), _float(number)) for key, number in value)


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(_str(item) for item in value)


def _string_map(value: Any) -> dict[str, str]:
    return {_str(key): _str(item) for key, item in value.items()}


def _sampling(value: Any) -> Sampling:
    return value if isinstance(value, Sampling) else _build(Sampling, dict(value), "sampling")


def _optional_constraint(value: Any) -> Constraint | None:
    if value is None or isinstance(value, Constraint):
        return value
    return _build(Constraint, dict(value), "constraint")


def _logprob(value: Any) -> TokenLogprob:
    return _build(TokenLogprob, dict(value), "logprobs")


def _logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    return tuple(_logprob(item) for item in value)


def _optional_logprobs(value: Any) -> tuple[TokenLogprob | None, ...]:
    return tuple(None if item is None else _logprob(item) for item in value)


def _optional_experts(value: Any) -> ExpertStats | None:
    return None if value is None else _build(ExpertStats, dict(value), "experts")


def _optional_cache(value: Any) -> CacheStats | None:
    return None if value is None else _build(CacheStats, dict(value), "cache")


_CONVERTERS: dict[str, Any] = {
    "int": _int,
    "int | None": _optional_int,
    "float": _float,
    "float | None": _optional_float,
    "str": _str,
    "str | None": _optional_str,
    "bool": _bool,
    "tuple[int, ...]": _ints,
    "tuple[int, int]": _version,
    "tuple[tuple[int, float], ...]": _pairs,
    "tuple[str, ...]": _strings,
    "dict[str, str]": _string_map,
    "tuple[tuple[int, ...], ...]": _lists_of_ints,
    "Sampling": _sampling,
    "Constraint | None": _optional_constraint,
    "ExpertStats | None": _optional_experts,
    "CacheStats | None": _optional_cache,
    "tuple[TokenLogprob, ...]": _logprobs,
    "tuple[TokenLogprob | None, ...]": _optional_logprobs,
}


def _field_types(kind: type) -> dict[str, tuple[Any, bool]]:
    missing = dataclasses.MISSING
    return {
        f.name: (
            _CONVERTERS[str(f.type)],
            f.default is missing and f.default_factory is missing,
        )
        for f in dataclasses.fields(kind)
    }
