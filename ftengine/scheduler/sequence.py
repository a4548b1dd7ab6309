"""One request on its way: its tokens, how far they are computed, and the pages it holds.

No torch, no clocks: times are given. Changed only by the scheduler, except `tokens`, which grows in
Scheduler.commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftengine.cache.policy.radix import Node
from ftengine.protocol import GenerateRequest

WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"


def common_tokens(first: list[int], second: list[int]) -> int:
    """How many tokens two texts have in common from their beginning on."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is much faster than comparing items
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(eq=False)
class Sequence:
    """A prompt and what was generated after it.

    Units: seconds on the caller's monotonic clock; num_computed = tokens whose K and V are in the
    pages; limit_tokens = most tokens (prompt included) this sequence may ever hold. embeds: only
    the prompt's hidden states are wanted, and nothing is generated. state_slot = where recurrent
    layers keep its state while it runs, -1 while it does not.

    Of the prefix cache: num_cached = prompt tokens that were not computed for this request; lease =
    how far its pages are the cache's; joined_at = what it began with; anchors = where in the prompt
    its state is wanted, asked = the same for those it leads; saved = (position, slot) of states
    kept and not yet handed over. leader = an older sequence that is computing the first `shared`
    tokens of this one too; num_lost = what was computed before the last preemption.
    """

    request: GenerateRequest
    order: int
    arrival_s: float
    limit_tokens: int
    stop_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    state_slot: int = -1
    state: str = WAITING
    reason: str = ""
    stop_token_id: int | None = None
    first_step_s: float | None = None
    first_token_s: float | None = None
    preemptions: int = 0
    embeds: bool = False
    num_cached: int = 0
    lease: Node | None = None
    joined_at: int = 0
    anchors: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)
    leader: Sequence | None = None
    shared: int = 0
    num_lost: int = 0

    @property
    def salt(self) -> str:
        """Texts of different salts share nothing."""
        return self.request.salt

    @property
    def num_prompt(self) -> int:
        """Tokens of the request itself."""
        return len(self.request.token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens chosen so far, the stop token not counted."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens still to compute before the next one can be chosen."""
        return len(self.tokens) - self.num_computed

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last token is still to compute (also after a preemption)."""
        return self.num_pending > 1 or self.num_generated == 0

    @property
    def is_led(self) -> bool:
        """Whether its leader is still on the way to the end of what both share."""
        leader = self.leader
        if leader is None or leader.state != RUNNING:
            return False
        return leader.is_prefilling and leader.num_computed < self.shared

    @property
    def deadline_s(self) -> float | None:
        """When the request must be done, on the clock of arrival_s."""
        limit = self.request.deadline_s
        return None if limit is None else self.arrival_s + limit
