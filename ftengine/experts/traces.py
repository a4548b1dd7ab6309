"""Routing traces: which experts each token asked of each layer. Synthetic ones, and JSON lines.

Recorded traces have the same shape; benchmarks/record_trace.py makes them. No torch.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, Any

from ftengine.errors import FormatError

TRACE_VERSION = 1
_TOKENS_LIMIT = 1 << 20

Token = tuple[tuple[int, ...], ...]
"""Experts of one token, by layer."""


@dataclass(frozen=True)
class Trace:
    """One session: the tokens of a prompt, then decode steps of one token each."""

    num_layers: int
    num_experts: int
    num_experts_per_tok: int
    prompt: tuple[Token, ...]
    steps: tuple[Token, ...]
    source: str


@dataclass(frozen=True)
class Locality:
    """How routing behaves in time.

    stay: probability that a choice repeats one of the layer's choices of the step before.
    focus: exponent of the Zipf law the others are drawn from. drift: probability per step and
    layer that the popular experts change (one rank moves to the front).
    """

    stay: float
    focus: float
    drift: float


@dataclass(frozen=True)
class Shape:
    """Size of a synthetic trace."""

    num_layers: int
    num_experts: int
    num_experts_per_tok: int
    prompt_tokens: int
    steps: int


def synthetic(shape: Shape, locality: Locality, seed: int) -> Trace:
    """A seeded trace of a layer-independent process; the same arguments give the same trace."""
    rng = random.Random(seed)
    layers = [_Layer(shape, locality, rng) for _ in range(shape.num_layers)]
    tokens = [
        tuple(layer.step(rng) for layer in layers) for _ in range(shape.prompt_tokens + shape.steps)
    ]
    return Trace(
        shape.num_layers,
        shape.num_experts,
        shape.num_experts_per_tok,
        tuple(tokens[: shape.prompt_tokens]),
        tuple(tokens[shape.prompt_tokens :]),
        f"synthetic, {locality}, seed {seed}",
    )


class _Layer:
    """The process of one layer: popularity ranks that drift, and repetition."""

    def __init__(self, shape: Shape, locality: Locality, rng: random.Random) -> None:
        self._locality = locality
        self._count = shape.num_experts_per_tok
        self._ranks = list(range(shape.num_experts))
        rng.shuffle(self._ranks)
        weights = [(rank + 1) ** -locality.focus for rank in range(shape.num_experts)]
        self._sums = list(accumulate(weights))
        self._last: list[int] = []

    def step(self, rng: random.Random) -> tuple[int, ...]:
        """Distinct experts of the next token."""
        if rng.random() < self._locality.drift:
            self._ranks.insert(0, self._ranks.pop(rng.randrange(len(self._ranks))))
        chosen = [e for e in self._last if rng.random() < self._locality.stay]
        while len(chosen) < self._count:
            rank = bisect(self._sums, rng.random() * self._sums[-1])
            expert = self._ranks[min(rank, len(self._ranks) - 1)]
            if expert not in chosen:
                chosen.append(expert)
        self._last = chosen
        return tuple(chosen)


def write_trace(trace: Trace, stream: IO[str]) -> None:
    """One JSON header line, then one line per token: {"phase": ..., "experts": [[...], ...]}."""
    header = {
        "trace": TRACE_VERSION,
        "num_layers": trace.num_layers,
        "num_experts": trace.num_experts,
        "num_experts_per_tok": trace.num_experts_per_tok,
        "source": trace.source,
    }
    stream.write(json.dumps(header) + "\n")
    for phase, tokens in (("prompt", trace.prompt), ("decode", trace.steps)):
        for token in tokens:
            stream.write(json.dumps({"phase": phase, "experts": token}) + "\n")


def read_trace(lines: Iterable[str], where: str) -> Trace:
    """Raises: FormatError naming the file and the line."""
    numbered = enumerate(lines, 1)
    header = _header(numbered, where)
    phases: dict[str, list[Token]] = {"prompt": [], "decode": []}
    for number, line in numbered:
        if number > _TOKENS_LIMIT:
            raise FormatError(f"{where} holds more than {_TOKENS_LIMIT} tokens; cut it")
        value = _object(line, where, number)
        if value.get("phase") not in phases:
            raise FormatError(f"{where}:{number}: phase must be prompt or decode")
        phases[value["phase"]].append(_token(value.get("experts"), header, where, number))
    return Trace(
        header["num_layers"],
        header["num_experts"],
        header["num_experts_per_tok"],
        tuple(phases["prompt"]),
        tuple(phases["decode"]),
        str(header.get("source", where)),
    )


def _header(numbered: Iterator[tuple[int, str]], where: str) -> dict[str, Any]:
    number, line = next(numbered, (1, "{}"))
    header = _object(line, where, number)
    if header.get("trace") != TRACE_VERSION:
        raise FormatError(f"{where} is not a routing trace of version {TRACE_VERSION}")
    for key in ("num_layers", "num_experts", "num_experts_per_tok"):
        if not isinstance(header.get(key), int) or header[key] < 1:
            raise FormatError(f"{where}:{number}: {key} must be a positive number")
    return header


def _object(line: str, where: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise FormatError(f"{where}:{number} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}:{number} is not an object")
    return value


def _token(value: Any, header: dict[str, Any], where: str, number: int) -> Token:
    if not isinstance(value, list) or len(value) != header["num_layers"]:
        raise FormatError(f"{where}:{number}: experts must list {header['num_layers']} layers")
    for layer in value:
        good = isinstance(layer, list) and all(
            type(e) is int and 0 <= e < header["num_experts"] for e in layer
        )
        if not good:
            raise FormatError(
                f"{where}:{number}: expert numbers must be below {header['num_experts']}"
            )
    return tuple(tuple(layer) for layer in value)
