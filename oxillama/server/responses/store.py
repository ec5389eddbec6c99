"""Responses that were given, for those that go on from them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.server.callers import context
from oxillama.server.errors import ApiError
from oxillama.server.stream import as_json

ITEM_BYTES = 64
"""Counted for each item of a conversation, beside the text of those that are new in it."""


@dataclass(frozen=True)
class Stored:
    """A response.

    Attributes
    ----------
    response : as clients have got it.
    items : the conversation up to its end, its output included.
    n_bytes : that it takes.
    """

    response: dict[str, Any]
    items: tuple[Any, ...]
    n_bytes: int


class ResponseStore:
    """Keeps responses in memory, up to a number of bytes.

    The key that has the most bytes makes room, with those that were not used longest: no key loses what it
    keeps because another one keeps more.

    For the event loop alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.n_bytes: int = 0
        self._found: dict[str, OrderedDict[str, Stored]] = {}  # by the name of the key
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def put(self, response: dict[str, Any], before: Sequence[Any], new: Sequence[Any]) -> None:
        """Keeps a response.

        Parameters
        ----------
        before, new : items of the earlier conversation, and those that came with the request.
        """
        items = (*before, *new, *response["output"])
        n_bytes = len(as_json([response, new])) + ITEM_BYTES * len(items)
        owner = context().caller.name
        self._found.setdefault(owner, OrderedDict())[response["id"]] = Stored(response, items, n_bytes)
        self._count(owner, n_bytes)
        while self.n_bytes > self.most_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            _, gone = self._found[largest].popitem(last=False)
            self._count(largest, -gone.n_bytes)

    def _count(self, owner: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._bytes[owner] += n_bytes
        if not self._found[owner]:
            del self._found[owner], self._bytes[owner]

    def get(self, id: str, status: int = 404, param: str | None = None) -> Stored:
        """A response of this key by its id. Raises ApiError of ``status`` if it is not there."""
        found = self._found.get(context().caller.name, OrderedDict())
        if id not in found:
            raise ApiError(
                status,
                f"{param or 'response'}: expected the id of a response that is kept, got {id[:200]!r}",
                param=param,
                code="previous_response_not_found" if param else "response_not_found",
            )
        found.move_to_end(id)
        return found[id]

    def remove(self, id: str) -> None:
        """Forgets a response. Raises ApiError if it is not there."""
        owner, gone = context().caller.name, self.get(id)
        del self._found[owner][id]
        self._count(owner, -gone.n_bytes)
