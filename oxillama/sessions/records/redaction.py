"""Removes keys and credentials from the body of a request before it is recorded."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

SECRET = frozenset(
    {
        *("authorization", "proxyauthorization", "authorizationtoken", "headers", "env", "cookie"),
        *("apikey", "xapikey", "accesstoken", "refreshtoken", "bearertoken", "password", "clientsecret"),
    }
)
"""Keys whose values are credentials, as in MCP tools; lower case, without "-" and "_"."""

REMOVED = "[removed]"
"""Replaces a credential."""


def without_secrets(value: Any, at: str = "") -> tuple[Any, list[str]]:
    """A JSON value with the values of all `SECRET` keys replaced by `REMOVED`, and their paths."""
    removed: list[str] = []
    if isinstance(value, dict):
        made = {}
        for name, part in value.items():
            path = f"{at}.{name}".lstrip(".")
            if name.lower().replace("-", "").replace("_", "") in SECRET and part not in (None, "", {}, []):
                made[name] = REMOVED
                removed.append(path)
            else:
                made[name], inner = without_secrets(part, path)
                removed += inner
        return made, removed
    if isinstance(value, list):
        items = [without_secrets(part, f"{at}[{i}]") for i, part in enumerate(value)]
        return [item for item, _ in items], [path for _, inner in items for path in inner]
    return value, removed


def body_of(data: bytes) -> tuple[Any, list[str]]:
    """The parsed body without secrets, and the paths of secrets; None for a body that is not JSON."""
    try:
        return without_secrets(json.loads(data))
    except (ValueError, RecursionError):
        return None, ["."] if data else []


def digest(data: bytes | str) -> str:
    """BLAKE3 of bytes, or of a text in UTF-8: 64 hexadecimal digits."""
    return blake3(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data).hexdigest()
