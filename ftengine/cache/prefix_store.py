"""Takes cached prefixes out of the pools as bytes and puts them back. Between steps only.

Copies that the scheduler has queued must have been done before (Engine does that). Which prefixes
travel, and where to, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftengine.cache.detached import DetachedPrefix
from ftengine.cache.kv_pool import KvPool
from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.cache.policy.radix import Node, RadixTree
from ftengine.cache.state_pool import StateCheckpoint, StatePool


class PrefixStore:
    """The prefix cache of one engine, with what lies in its pages and slots."""

    def __init__(
        self, tree: RadixTree, pages: PageAllocator, pool: KvPool, states: StatePool | None
    ) -> None:
        self._tree = tree
        self._pages = pages
        self._pool = pool
        self._states = states

    def use_pool(self, pool: KvPool) -> None:
        """The pages lie in another pool from now on."""
        self._pool = pool

    def oldest(self) -> tuple[str, tuple[int, ...]] | None:
        """(salt, tokens) of the text whose last page would be evicted next."""
        node = self._tree.oldest()
        return None if node is None else (node.salt, node.text())

    def export(self, salt: str, tokens: Sequence[int]) -> DetachedPrefix | None:
        """Copy the longest cached beginning of a text. None: nothing of it is cached."""
        known = self._tree.lookup(salt, tokens)
        if not known.num_tokens:
            return None
        path = known.path()
        pages = self._pool.read_pages([item.page for item in path])
        kept = tuple(tokens[: known.num_tokens])
        return DetachedPrefix(salt, kept, pages, tuple(self._checkpoints(path, kept)))

    def adopt(self, prefix: DetachedPrefix) -> int:
        """Put a prefix back, in free pages and in pages that are cached for others.

        Returns how many of its tokens are cached now: fewer than it has where memory is short.
        Raises: ValueError for a prefix of another model.
        """
        if prefix.pages.shape[1] != self._pool.bytes_per_page:
            raise ValueError(
                f"a prefix with pages of {prefix.pages.shape[1]} bytes does not fit pages of "
                f"{self._pool.bytes_per_page}"
            )
        lease = self._tree.pin(prefix.salt, prefix.tokens)
        held = [item.page for item in lease.path()]
        self._pages.share(held)
        first = len(held)
        count = pages_for(len(prefix.tokens)) - first
        self._tree.evict(count - self._pages.num_free)
        fresh = self._pages.allocate(min(count, self._pages.num_free)) or []
        self._pool.write_pages(fresh, prefix.pages[first : first + len(fresh)])
        held += fresh
        done = prefix.tokens[: len(held) * PAGE_TOKENS]
        lease = self._tree.extend(lease, done, held)
        self._attach(prefix, lease, len(done))
        self._pages.release(held)
        self._tree.release(lease)
        return len(done)

    def drop(self, salt: str, tokens: Sequence[int]) -> int:
        """Free the pages at the end of a text that nothing else uses. Returns how many."""
        return self._tree.drop(salt, tokens)

    def _checkpoints(
        self, path: list[Node], tokens: tuple[int, ...]
    ) -> list[tuple[int, torch.Tensor]]:
        if self._states is None:
            return []
        found: list[tuple[int, torch.Tensor]] = []
        for node in path:
            assert node.parent is not None
            for tail, slot in node.parent.states.items():
                at = node.parent.depth + len(tail)
                if at <= len(tokens) and tokens[node.parent.depth : at] == tail:
                    found.append((at, self._states.save(slot, at).row))
        return sorted(found, key=lambda item: item[0])

    def _attach(self, prefix: DetachedPrefix, lease: Node, num_tokens: int) -> None:
        for at, row in prefix.checkpoints:
            if self._states is None or at > num_tokens:
                continue
            if self._tree.has_checkpoint(lease, prefix.tokens[:at]):
                continue
            slot = self._tree.take_slot()
            if slot is not None:
                self._states.restore(StateCheckpoint(at, row), slot)
                self._tree.attach(lease, prefix.tokens[:at], slot)
