"""Conversations that are edited the way agents edit them, as random scripts of token blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ftengine.protocol import GenerateRequest, Sampling

Block = tuple[str, tuple[int, ...]]
"""(kind, tokens). kind: system, user, think, answer or tool."""

CLOSERS = (40, 41, 42)
NO_SPECIALS = ((0, -100.0), (1, -100.0), (2, -100.0))
SAMPLING = Sampling(logit_bias=NO_SPECIALS, presence_penalty=50.0, repeat_last_n=-1)
MOST_TOKENS = 120


@dataclass
class Script:
    """One conversation and its branches. Same seed and same replies: same edits."""

    seed: int
    blocks: list[Block] = field(default_factory=list)
    branches: list[list[Block]] = field(default_factory=list)
    turn: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        shared = random.Random(self.seed % 5)  # several scripts have one system prompt
        self.blocks = [("system", self._draw(20, shared)), ("user", self._draw(12))]

    def request(self) -> GenerateRequest:
        """The next turn."""
        self.turn += 1
        ids = tuple(token for _, tokens in self.blocks for token in tokens)
        edges, at = [], 0
        for _, tokens in self.blocks:
            at += len(tokens)
            edges.append(at)
        return GenerateRequest(
            f"s{self.seed}-{self.turn}",
            ids,
            SAMPLING,
            max_tokens=self.rng.randint(2, 7),
            anchors=tuple(edges[:-1]),
            anchor_token_ids=CLOSERS,
            salt="ab"[self.seed % 2],
        )

    def go_on(self, reply: tuple[int, ...]) -> None:
        """Take the reply in, and edit."""
        cut = self.rng.randint(0, len(reply))
        self.blocks += [("think", reply[:cut]), ("answer", reply[cut:])]
        agents = (self.append, self.cut_thinking, self.replace_tool, self.keep_last)
        users = (self.append, self.branch, self.come_back, self.retry)
        edit = self.rng.choice((*agents, *users))
        edit()
        while sum(len(tokens) for _, tokens in self.blocks) > MOST_TOKENS:
            del self.blocks[1]
        if not any(tokens for _, tokens in self.blocks):
            self.append()

    def append(self) -> None:
        """The user says more, or a tool does."""
        self.blocks.append((self.rng.choice(("user", "tool")), self._draw(14)))

    def cut_thinking(self) -> None:
        """All thinking but that of the newest turn goes."""
        self.blocks = [b for b in self.blocks[:-2] if b[0] != "think"] + self.blocks[-2:]
        self.append()

    def replace_tool(self) -> None:
        """The oldest output of a tool becomes a placeholder."""
        for number, (kind, _) in enumerate(self.blocks):
            if kind == "tool":
                self.blocks[number] = ("note", (50, 51))
                break
        self.append()

    def keep_last(self) -> None:
        """Only the system prompt and the newest blocks stay."""
        self.blocks = self.blocks[:1] + self.blocks[1:][-self.rng.randint(1, 4) :]
        self.append()

    def branch(self) -> None:
        """Another agent goes on from an earlier point."""
        self.branches.append(list(self.blocks))
        self.blocks = self.blocks[: self.rng.randint(1, len(self.blocks))]
        self.append()

    def come_back(self) -> None:
        """An earlier branch goes on."""
        if self.branches:
            self.blocks = self.branches.pop(self.rng.randrange(len(self.branches)))
        self.append()

    def retry(self) -> None:
        """The same prompt is asked again."""
        self.blocks = self.blocks[:-2]

    def _draw(self, most: int, rng: random.Random | None = None) -> tuple[int, ...]:
        rng = rng or self.rng
        return tuple(rng.randint(3, 60) for _ in range(rng.randint(1, most)))
