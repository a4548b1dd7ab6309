"""How much prompt may be computed beside running streams, so that these keep their rate; pure.

An account of measured time. While streams run, prompts earn a fixed share of it and pay for what
they make steps longer; without credit a step only decodes. What a step takes without a prompt is
the median of recent ones: a machine that stops for a moment must not make long steps look normal,
or prompts would seem to cost nothing. Steps without a prompt come often enough to know it. With
nobody decoding prompts take all they want.
"""

from __future__ import annotations

import statistics
from collections import deque

LEAST_TOKENS = 64
"""Fewer prompt tokens than this at a time are not worth a pass over the weights."""
_MOST_CREDIT_S = 0.25
"""So long may one chunk delay the streams, as far as costs can be foretold."""
_QUIET_CREDIT_S = 0.1
"""What there is after a time without prompts: enough for a short one at once."""
_RECENT = 9
"""Steps without a prompt that the median is of."""
_MOST_IN_A_ROW = 4
"""Steps with a prompt, then one without, so that the median is of now."""
_GROWTH = 2
"""A chunk is at most so many times as long as the one before: a wrong guess of a token's cost must
not become one long stop of the streams."""
_FORGET = 0.3
"""Weight of the newest chunk in a token's cost."""


class PrefillShare:
    """share: part of the time that prompts get while streams run, above 0 and up to 1.

    1 = all they want, as long as every stream gets its token each step.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit_s = self._cap_s = _QUIET_CREDIT_S
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._in_a_row = 0
        self._token_s: float | None = None
        self._chunk = 0

    def allowed(self, num_decodes: int, num_pending: int, budget: int) -> int:
        """Prompt tokens that the next step may compute, of those pending, at most `budget`."""
        if not num_decodes or self._share >= 1:
            return budget
        self._cap_s = _MOST_CREDIT_S if num_pending else _QUIET_CREDIT_S
        if self._credit_s < 0 or self._in_a_row >= _MOST_IN_A_ROW:
            return 0
        least = min(LEAST_TOKENS, num_pending, budget)
        if self._token_s is None:
            return least
        most = min(budget, max(_GROWTH * self._chunk, LEAST_TOKENS))
        if self._token_s * most <= self._credit_s:
            return most
        tokens = int(self._credit_s / self._token_s)
        if tokens < least:  # what costs more than all credit there can be still gets its turn
            return least if least * self._token_s > _MOST_CREDIT_S else 0
        return tokens

    def took(self, seconds: float, num_decodes: int, num_prompt: int) -> None:
        """Record a step. Units: tokens of streams and of prompts that it computed."""
        if not num_decodes:
            return
        if not num_prompt:
            self._recent.append(seconds)
            self._in_a_row = 0
            self._earn(seconds)
            return
        base = min(seconds, statistics.median(self._recent)) if self._recent else 0.0
        extra = seconds - base
        self._in_a_row += 1
        self._chunk = num_prompt
        cost = extra / num_prompt
        before = cost if self._token_s is None else self._token_s
        self._token_s = before + _FORGET * (cost - before)
        self._earn(base)
        self._credit_s -= extra

    def _earn(self, seconds: float) -> None:
        if self._share < 1:
            earned = seconds * self._share / (1 - self._share)
            self._credit_s = min(self._credit_s + earned, self._cap_s)
