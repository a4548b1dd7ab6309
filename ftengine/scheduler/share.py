"""How much prompt may be computed beside running streams, so that these keep their rate; pure.

An account of time. While streams run, prompts earn a fixed share of it and pay for what they make
steps longer; without credit a step only decodes. Times are measured, so a wrong estimate of what a
token costs corrects itself. With nobody decoding prompts take all they want.
"""

from __future__ import annotations

LEAST_TOKENS = 64
"""Fewer prompt tokens than this at a time are not worth a pass over the weights."""
_MOST_CREDIT_S = 0.25
"""So long may one chunk delay the streams after a quiet time, as far as costs can be foretold."""
_FORGET = 0.1
"""Weight of the newest measurement in a running mean."""


class PrefillShare:
    """share: part of the time that prompts get while streams run, above 0 and up to 1.

    1 = all they want, as long as every stream gets its token each step.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit_s = _MOST_CREDIT_S
        self._decode_s: float | None = None
        self._token_s: float | None = None

    def allowed(self, num_decodes: int, num_pending: int, budget: int) -> int:
        """Prompt tokens that the next step may compute, of those pending, at most `budget`."""
        if not num_decodes or self._share >= 1:
            return budget
        if self._credit_s < 0:
            return 0
        least = min(LEAST_TOKENS, num_pending, budget)
        if self._token_s is None:
            return least
        if self._token_s == 0:
            return budget
        tokens = int(self._credit_s / self._token_s)
        if tokens < least:  # what costs more than all credit there can be still gets its turn
            return least if least * self._token_s > _MOST_CREDIT_S else 0
        return min(tokens, budget)

    def took(self, seconds: float, num_decodes: int, num_prompt: int) -> None:
        """Record a step. Units: tokens of streams and of prompts that it computed."""
        if not num_decodes:
            return
        if not num_prompt:
            self._decode_s = _mean(self._decode_s, seconds)
            self._earn(seconds)
            return
        base = min(seconds, self._decode_s or 0.0)
        extra = seconds - base
        self._token_s = _mean(self._token_s, extra / num_prompt)
        self._earn(base)
        self._credit_s -= extra

    def _earn(self, seconds: float) -> None:
        if self._share < 1:
            earned = seconds * self._share / (1 - self._share)
            self._credit_s = min(self._credit_s + earned, _MOST_CREDIT_S)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _FORGET * (now - before)
