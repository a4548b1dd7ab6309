"""Logit bias, repetition penalties and what is suppressed, applied to one row in place; numpy only.

Over the last repeat_last_n tokens, prompt included: a token seen there has its logit divided by
repeat_penalty when positive and multiplied by it otherwise, then loses frequency_penalty per
occurrence and presence_penalty once. Semantics as in llama.cpp and Ollama.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ftengine.protocol import Sampling
from ftengine.sampling.filters import Floats, Ids

_NEVER = np.float32(-1e30)
"""No probability is left of it, but filters can still compute with it; a constraint may leave no
other token."""


def changes_logits(sampling: Sampling) -> bool:
    """Whether `adjust` would do anything."""
    return bool(sampling.suppress_tokens) or reorders(sampling)


def reorders(sampling: Sampling) -> bool:
    """Whether logits change in ways that only whole rows can tell."""
    return bool(sampling.logit_bias) or _penalises(sampling)


@functools.lru_cache(maxsize=64)
def never(token_ids: tuple[int, ...]) -> Ids:
    """`suppress_tokens` as an array: asked for with each token, the same for a whole request."""
    found: Ids = np.asarray(token_ids, dtype=np.int64)
    found.flags.writeable = False
    return found


def adjust(logits: Floats, sampling: Sampling, tokens: Sequence[int]) -> None:
    """Apply bias, then penalties, to one row. Shape: logits [vocab_size]; tokens = all so far.

    What is suppressed is so whatever its bias.
    """
    for token_id, bias in sampling.logit_bias:
        logits[token_id] += np.float32(bias)
    if _penalises(sampling):
        _penalise(logits, sampling, tokens)
    if sampling.suppress_tokens:
        ids = never(sampling.suppress_tokens)
        logits[ids[ids < logits.shape[0]]] = _NEVER


def _penalise(logits: Floats, sampling: Sampling, tokens: Sequence[int]) -> None:
    last_n = len(tokens) if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    recent = np.asarray(tokens[-last_n:], dtype=np.int64)
    ids, counts = np.unique(recent, return_counts=True)
    values = logits[ids]
    repeat = np.float32(sampling.repeat_penalty)
    values = np.where(values > 0, values / repeat, values * repeat)
    values = values - counts.astype(np.float32) * np.float32(sampling.frequency_penalty)
    logits[ids] = values - np.float32(sampling.presence_penalty)


def _penalises(sampling: Sampling) -> bool:
    active = (
        sampling.repeat_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )
    return active and sampling.repeat_last_n != 0
