"""Responses that were given, for those that go on from them."""

from __future__ import annotations

from collections import OrderedDict
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
    owner : name of the key that it belongs to.
    """

    response: dict[str, Any]
    items: tuple[Any, ...]
    n_bytes: int
    owner: str = ""


class ResponseStore:
    """Keeps responses in memory, up to a number of bytes; those that were not used longest go first.

    For the event loop alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.n_bytes: int = 0
        self._found: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def put(self, response: dict[str, Any], before: Sequence[Any], new: Sequence[Any]) -> None:
        """Keeps a response.

        Parameters
        ----------
        before, new : items of the earlier conversation, and those that came with the request.
        """
        items = (*before, *new, *response["output"])
        n_bytes = len(as_json([response, new])) + ITEM_BYTES * len(items)
        self._found[response["id"]] = Stored(response, items, n_bytes, context().caller.name)
        self.n_bytes += n_bytes
        while self.n_bytes > self.most_bytes:
            _, gone = self._found.popitem(last=False)
            self.n_bytes -= gone.n_bytes

    def get(self, id: str, status: int = 404, param: str | None = None) -> Stored:
        """A response of this key by its id. Raises ApiError of ``status`` if it is not there."""
        if id not in self._found or self._found[id].owner != context().caller.name:
            raise ApiError(
                status,
                f"{param or 'response'}: expected the id of a response that is kept, got {id[:200]!r}",
                param=param,
                code="previous_response_not_found" if param else "response_not_found",
            )
        self._found.move_to_end(id)
        return self._found[id]

    def remove(self, id: str) -> None:
        """Forgets a response. Raises ApiError if it is not there."""
        self.n_bytes -= self.get(id).n_bytes
        del self._found[id]
