"""The homes of stored responses: which replica keeps the responses that a request names.

The ids of a replica's responses, and of the items in them, hold the tag of the replica, so that every ingress
knows where a request belongs, also one that was started later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from oxillama.apps.ray.prefixes import page_keys
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.responses.store import is_reference

PATHS = re.compile(r"(?:/v1)?/responses(?:/.*)?")
TAGGED = re.compile(r"[a-z]+_([0-9a-f]{16})[0-9a-f]{32}")


@dataclass(frozen=True)
class Route:
    """What the router chooses a replica by.

    Attributes:
        keys: of the pages of the prompt.
        home: tag of the replica that keeps the responses that the request names; "" for any replica.
    """

    keys: tuple[bytes, ...] = ()
    home: str = ""


def tag_of(replica: object) -> str:
    """The tag of a replica, by its unique id: 16 hexadecimal digits."""
    return blake3(str(replica).encode()).hexdigest(8)


def route_of(path: str, body: bytes) -> Route:
    """The route of a request.

    Raises ApiError if it names responses of several replicas, which no replica can continue.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    found = found if isinstance(found, dict) else {}
    homes = {match[1] for id in ids_of(path, found) if (match := TAGGED.fullmatch(id))}
    if len(homes) > 1:
        message = "input: expected references to items of responses that one replica keeps, got several"
        raise ApiError(400, message, param="input", code="several_replicas")
    return Route(tuple(page_keys(found)), homes.pop() if homes else "")


def ids_of(path: str, body: Mapping[str, Any]) -> list[str]:
    """The ids of responses and of their items that a request names."""
    if not PATHS.fullmatch(path):
        return []
    items = body.get("input")
    references = [item["id"] for item in items if is_reference(item)] if isinstance(items, list) else []
    found = [*path.split("/"), body.get("previous_response_id"), *references]
    return [id for id in found if isinstance(id, str)]
