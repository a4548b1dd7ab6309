"""Page allocator with reference counts; pure bookkeeping, no tensors.

A page holds PAGE_TOKENS tokens of every layer. What lies in a page is not known here. Sharing pages
between sequences goes through `share`, so that a prefix tree can hold references of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

PAGE_TOKENS = 16
"""Tokens of one KV page."""


def pages_for(num_tokens: int) -> int:
    """Pages that `num_tokens` tokens occupy, the last one counted whole."""
    return -(-num_tokens // PAGE_TOKENS)


class PageAllocator:
    """Hands out page ids 0 .. num_pages - 1. The lowest free ids of the free list come first.

    Raises: ValueError when made without a page.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a KV pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages, all or none. Returns None when fewer are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to pages that somebody holds already."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Give one reference back; a page without references is free again."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} released twice"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def resize(self, num_pages: int) -> dict[int, int]:
        """Change the number of pages. Returns old -> new id of held pages that had to move.

        Raises: ValueError when more pages are held than there would be.
        """
        held = [page for page, count in enumerate(self._references) if count]
        if num_pages < 1 or len(held) > num_pages:
            raise ValueError(f"{len(held)} pages are held, a pool of {num_pages} is too small")
        kept = {page for page in held if page < num_pages}
        holes = iter([page for page in range(num_pages) if page not in kept])
        moves = {page: next(holes) for page in held if page >= num_pages}
        references = [0] * num_pages
        for page in held:
            references[moves.get(page, page)] = self._references[page]
        self.num_pages = num_pages
        self._references = references
        self._free = [page for page in range(num_pages - 1, -1, -1) if not references[page]]
        return moves

    def check_integrity(self) -> None:
        """Assert that the free list and the reference counts tell the same story."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is in the free list twice"
        for page, count in enumerate(self._references):
            assert count >= 0, f"page {page} has {count} references"
            assert (count == 0) == (page in free), f"page {page}: {count} references, free list"
