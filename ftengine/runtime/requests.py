"""One live request: its sequence, where its events go, and what is remembered until it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftengine.protocol import Event, FinishEvent, GenerateRequest, TokenLogprob
from ftengine.sampling.sampler import Draw
from ftengine.scheduler.sequence import Sequence

if TYPE_CHECKING:  # llguidance is loaded when the first constraint comes
    from ftengine.constraints.matcher import Ids, TokenMatcher

Publish = Callable[[Event], None]
"""Called on the engine thread with each event; must return at once and not raise."""


@dataclass
class LiveRequest:
    """State of a request beside its sequence."""

    sequence: Sequence
    publish: Publish
    seed: int
    matcher: TokenMatcher | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)

    @property
    def request(self) -> GenerateRequest:
        """The request as it came."""
        return self.sequence.request

    def draw(self, allowed: Ids | None = None) -> Draw:
        """What the sampler needs for the next token. allowed: as in Draw."""
        return Draw(
            sampling=self.request.sampling,
            seed=self.seed,
            counter=self.sequence.num_generated,
            tokens=self.sequence.tokens,
            logprobs=self.request.logprobs,
            allowed=allowed,
        )

    def finish_event(self, now_s: float) -> FinishEvent:
        """The last event of a sequence that ended with a reason. Units: the engine's clock."""
        sequence = self.sequence
        first_step = now_s if sequence.first_step_s is None else sequence.first_step_s
        first_token = now_s if sequence.first_token_s is None else sequence.first_token_s
        return FinishEvent(
            reason=sequence.reason,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached,
            completion_tokens=sequence.num_generated,
            queue_s=first_step - sequence.arrival_s,
            prefill_s=max(first_token - first_step, 0.0),
            decode_s=now_s - first_token,
            stop_token_id=sequence.stop_token_id,
            prompt_logprobs=tuple(self.prompt_logprobs),
            notes=() if self.matcher is None else self.matcher.notes,
        )
