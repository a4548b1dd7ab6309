"""Four kinds of agent work as conversations of token ids, made from a seed: no file, no network.

W1 maths questions of one turn; W2 a coding agent whose old tool outputs become placeholders; W3
sub-agents that start together from one prefix; W4 a mail and calendar agent of 13 turns that keeps
only its newest thinking, behind a system prompt as long as the published one. Sizes are for scale
1; a reply's length is what a client would ask for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

PLACEHOLDER = 8
"""Tokens of what stands for an old tool output."""
KEPT_OUTPUTS = 3


@dataclass
class Block:
    """kind: system, user, header, think, answer or tool."""

    kind: str
    tokens: list[int]


@dataclass
class Conversation:
    """One agent. script: for each turn (tokens of input, of thinking, of the answer)."""

    name: str
    script: Sequence[tuple[int, int, int]]
    blocks: list[Block]
    rng: random.Random
    vocab: tuple[int, int]
    input_kind: str = "user"
    cuts_thinking: bool = False
    cuts_outputs: bool = False
    turn: int = 0
    header: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether every turn was taken."""
        return self.turn >= len(self.script)

    def prompt(self) -> tuple[list[int], list[int], int]:
        """The next turn: ids, anchors, tokens to generate."""
        given, think, answer = self.script[self.turn]
        self.blocks.append(Block(self.input_kind, words(self.rng, given, self.vocab)))
        self._edit()
        self.blocks.append(Block("header", self.header))
        ids: list[int] = []
        anchors = []
        for block in self.blocks:
            anchors.append(len(ids))
            ids += block.tokens
        return ids, [at for at in anchors if at], max(think + answer, 1)

    def reply(self, tokens: Sequence[int]) -> None:
        """What the model said, thinking first."""
        _, think, _ = self.script[self.turn]
        self.blocks.append(Block("think", list(tokens[:think])))
        self.blocks.append(Block("answer", list(tokens[think:])))
        self.turn += 1

    def _edit(self) -> None:
        if self.cuts_thinking:
            thoughts = [block for block in self.blocks if block.kind == "think"]
            for block in thoughts[:-1]:
                block.tokens = []
        if self.cuts_outputs:
            outputs = [block for block in self.blocks if block.kind == "tool"]
            for block in outputs[:-KEPT_OUTPUTS]:
                block.tokens = block.tokens[:PLACEHOLDER]


def words(rng: random.Random, count: int, vocab: tuple[int, int]) -> list[int]:
    """Random ids in [vocab[0], vocab[1])."""
    return [rng.randrange(*vocab) for _ in range(count)]


def workload(name: str, scale: float, vocab: tuple[int, int], seed: int = 1) -> list[Conversation]:
    """The conversations of one kind of work; those of W3 start together."""
    rng = random.Random(f"{name}{seed}")

    def sized(count: int) -> int:
        return max(int(count * scale), 2)

    def agents(
        count: int, system: int, script: Sequence[tuple[int, int, int]], **more: object
    ) -> list[Conversation]:
        prefix = words(rng, sized(system), vocab)
        header = words(rng, 3, vocab)
        sizes = [(sized(given), sized(think), sized(answer)) for given, think, answer in script]
        return [
            Conversation(
                name,
                sizes,
                [Block("system", list(prefix))],
                random.Random(f"{name}{seed}{number}"),
                vocab,
                header=header,
                **more,  # type: ignore[arg-type]
            )
            for number in range(count)
        ]

    if name == "W1":
        return agents(12, 60, [(120, 700, 120)])
    if name == "W2":
        script = [(rng.choice((150, 400, 900, 1500)), 120, 90) for _ in range(16)]
        return agents(1, 4000, script, input_kind="tool", cuts_outputs=True)
    if name == "W3":
        return agents(4, 6000, [(200, 150, 120), (600, 100, 80), (500, 100, 80)], input_kind="tool")
    if name == "W4":
        script = [(rng.choice((60, 200, 500)), 180, 80) for _ in range(13)]
        return agents(1, 24_500, script, cuts_thinking=True)
    raise ValueError(f"no workload {name}; there are W1, W2, W3 and W4")
