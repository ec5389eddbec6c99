"""The store of responses, for requests that continue them.

Responses and items are kept as JSON, so the bytes that are counted are the bytes that are held.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, fault
from oxillama.apps.server.json_text import written

ITEM_BYTES = 256
"""Counted for each item and turn besides the JSON: the objects that hold the JSON, and the item's id."""

RESPONSE_BYTES = 1024
"""Counted for each response besides its JSON."""


def is_reference(item: Any) -> bool:
    """Whether an item names an item of an earlier response by its id; the type may be left out."""
    is_one = isinstance(item, dict) and "id" in item and set(item) <= {"id", "type"}
    return is_one and item.get("type") in (None, "item_reference")


@dataclass(eq=False)
class Turn:
    """The items of one request and of its response, in a conversation.

    Attributes:
        items: the JSON of each item.
        before: the turn that this one continues.
        n_holders: responses and later turns that refer to this turn. Its bytes are counted while there are
            any.
    """

    items: tuple[bytes, ...]
    before: Turn | None = None
    n_holders: int = 0

    @property
    def n_bytes(self) -> int:
        return sum(map(len, self.items)) + ITEM_BYTES * (1 + len(self.items))

    def conversation(self) -> list[Any]:
        """All items from the first turn to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return [json.loads(item) for turn in reversed(turns) for item in turn.items]


def elsewhere(id: Any) -> str:
    """Why an id is unknown, if another process made it: requests that name its ids are sent to it."""
    tag = context().id_tag
    has_ended = tag and not str(id).partition("_")[2].startswith(tag)
    return ", which no replica has, or one that has ended" if has_ended else ""


@dataclass(frozen=True)
class Stored:
    """A response.

    Attributes:
        pieces: the JSON that clients got, in pieces.
        turn: the last turn of the conversation, with the output of the response.
        output_ids: ids of the items of the output.
    """

    pieces: list[bytes]
    turn: Turn
    output_ids: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes beside the turns."""
        return RESPONSE_BYTES + sum(map(len, self.pieces))


class ResponseStore:
    """Keeps responses in memory, up to a number of bytes.

    The key with the largest share makes room, by its least recently used responses: no key loses a response
    because another key keeps more. A turn of a conversation takes its bytes once, however many responses
    continue the turn, and as long as one of them is kept.

    For the event loop alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._found: dict[str, OrderedDict[str, Stored]] = {}  # keyed by the name of the key
        self._items: dict[str, dict[str, bytes]] = {}  # by the name of the key and the ids of output items
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    @property
    def n_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(self._bytes.values())

    async def put(self, response: dict[str, Any], before: Turn | None, new: Sequence[Any]) -> None:
        """Keeps a response.

        Args:
            before: the turn that the request continues.
            new: the items of the request.
        """
        pieces = await written(response)
        items = [b"".join(await written(item)) for item in (*new, *response["output"])]
        ids = tuple(item["id"] for item in response["output"])
        stored = Stored(pieces, Turn(tuple(items), before), ids)
        owner = context().caller.name
        self._found.setdefault(owner, OrderedDict())[response["id"]] = stored
        outputs = items[len(new) :]
        self._items.setdefault(owner, {}).update(zip(ids, outputs))
        self._bytes[owner] += stored.n_bytes
        self._hold(owner, stored.turn)
        while self.n_bytes > self.most_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._drop(largest, next(iter(self._found[largest])))

    def _hold(self, owner: str, turn: Turn | None) -> None:
        """Counts one more holder of a turn, and the bytes of turns that had none."""
        while turn is not None:
            turn.n_holders += 1
            if turn.n_holders > 1:
                return
            self._bytes[owner] += turn.n_bytes
            turn = turn.before

    def _drop(self, owner: str, id: str) -> None:
        """Deletes a response, and counts one holder less of its turn."""
        gone = self._found[owner].pop(id)
        self._bytes[owner] -= gone.n_bytes
        for each in gone.output_ids:
            self._items[owner].pop(each, None)
        turn: Turn | None = gone.turn
        while turn is not None:
            turn.n_holders -= 1
            if turn.n_holders:
                break
            self._bytes[owner] -= turn.n_bytes
            turn = turn.before
        if not self._found[owner]:
            del self._found[owner], self._items[owner], self._bytes[owner]

    def get(self, id: str, status: int = 404, param: str | None = None) -> Stored:
        """A response of this key by its id. Raises ApiError of ``status`` for an unknown id."""
        found = self._found.get(context().caller.name, OrderedDict())
        if id not in found:
            raise ApiError(
                status,
                f"{param or 'response'}: expected the id of a response that is kept, got {id[:200]!r}"
                f"{elsewhere(id)}",
                param=param,
                code="previous_response_not_found" if param else "response_not_found",
            )
        found.move_to_end(id)
        return found[id]

    def with_references(self, items: Sequence[Any]) -> list[Any]:
        """Items of a request with the items of kept responses in the places of references to them.

        Raises ApiError for the id of no kept item.
        """
        places = [i for i, item in enumerate(items) if is_reference(item)]
        found = list(items)
        if not places:
            return found
        by_id = self._items.get(context().caller.name, {})
        for i in places:
            id = items[i].get("id")
            if not isinstance(id, str) or id not in by_id:
                wanted = "expected the id of an item of a response that is kept"
                what = f"{wanted}, got {repr(id)[:200]}{elsewhere(id)}"
                raise fault(f"input[{i}].id", what, "item_not_found")
            found[i] = json.loads(by_id[id])
        return found

    def remove(self, id: str) -> None:
        """Deletes a response. Raises ApiError for an unknown id."""
        self.get(id)
        self._drop(context().caller.name, id)
