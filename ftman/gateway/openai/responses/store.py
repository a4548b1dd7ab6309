"""Responses that a later request may refer to: in memory only, bounded in number, bytes and age.

They are kept as JSON texts: parsed, they would take several times the bytes that are counted.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ftman.clock import Clock
from ftman.gateway.body import FieldError
from ftman.gateway.errors import to_json
from ftman.names import printable

if TYPE_CHECKING:
    from ftman.service import Service

MAX_RESPONSES = 1000
MAX_BYTES = 32 << 20
EXPIRY_S = 12 * 3600.0

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """One response. earlier, given, output: JSON arrays of items; size_bytes counts all of them."""

    response: bytes
    earlier: tuple[bytes, ...]
    given: bytes
    output: bytes
    size_bytes: int
    expires_s: float

    def value(self) -> dict[str, Any]:
        """The response object."""
        return dict(json.loads(self.response))

    def input_items(self) -> list[Item]:
        """Every item this response answered, oldest first."""
        return [item for part in (*self.earlier, self.given) for item in json.loads(part)]

    def parts(self) -> tuple[bytes, ...]:
        """What a following request continues."""
        return (*self.earlier, self.given, self.output)


class ResponseStore:
    """Keeps responses by id; the oldest go first."""

    def __init__(self, clock: Clock, max_bytes: int = MAX_BYTES, max_count: int = MAX_RESPONSES):
        self._clock = clock
        self._max_count = max_count
        self._bytes = 0
        self._found: OrderedDict[str, Stored] = OrderedDict()
        self.max_bytes = max_bytes

    def put(self, response: Item, earlier: tuple[bytes, ...], given: Sequence[Item]) -> bool:
        """Keep a response; False when it is larger than everything that may be kept."""
        self._expire()
        texts = to_json(response), to_json(list(given)), to_json(response["output"])
        size_bytes = sum(map(len, (*texts, *earlier)))
        if size_bytes > self.max_bytes:
            return False
        until_s = self._clock.monotonic() + EXPIRY_S
        stored = Stored(texts[0], earlier, texts[1], texts[2], size_bytes, until_s)
        self._found[response["id"]] = stored
        self._bytes += size_bytes
        while self._bytes > self.max_bytes or len(self._found) > self._max_count:
            self._drop(next(iter(self._found)))
        return True

    def get(self, response_id: str, param: str = "") -> Stored:
        """A response by its id.   Raises: FieldError 404 for one that is not (or no more) here."""
        self._expire()
        stored = self._found.get(response_id)
        if stored is None:
            code = "previous_response_not_found" if param else "not_found"
            raise FieldError(
                f"response '{printable(response_id[:80])}' is not here: it was never stored, was "
                "deleted, or is older than what is kept in memory; send the whole input again",
                param,
                code=code,
                status=404,
            )
        return stored

    def item(self, item_id: str) -> Item | None:
        """An item of any response that is kept, newest first."""
        self._expire()
        quoted = to_json(item_id)
        for stored in reversed(self._found.values()):
            for part in (stored.output, stored.given):
                if quoted not in part:
                    continue
                for item in json.loads(part):
                    if item.get("id") == item_id:
                        return dict(item)
        return None

    def delete(self, response_id: str) -> None:
        """Forget a response.   Raises: FieldError 404."""
        self.get(response_id)
        self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        self._bytes -= self._found.pop(response_id).size_bytes

    def _expire(self) -> None:
        now_s = self._clock.monotonic()
        while self._found:
            oldest = next(iter(self._found))
            if self._found[oldest].expires_s > now_s:
                return
            self._drop(oldest)


_STORES: WeakKeyDictionary[Service, ResponseStore] = WeakKeyDictionary()


def store_of(service: Service) -> ResponseStore:
    """The store of one manager; it goes with it."""
    if service not in _STORES:
        _STORES[service] = ResponseStore(service.clock)
    return _STORES[service]
