"""Chooses the replica that is likely to have the keys and values of a prompt's prefix.

A replica keeps what it has run in its prefix cache. So a prompt goes to the replica that ran the longest part
of its prefix, unless that replica has much more load than another. A prompt with an unknown prefix goes to
the replica with the fewest pages, so that all caches fill evenly; ties are broken by rendezvous hashing of
the first page (Thaler and Ravishankar, 1996), for which routers need no communication.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from blake3 import blake3

R = TypeVar("R", bound=Hashable)

PAGE = 256
"""The length of a page in characters."""

MOST_PAGES = 64
"""The maximum number of pages of a prompt that are compared."""

MOST_KEYS = 1 << 16
"""The maximum number of keys that are remembered, least recently used dropped first."""


def page_keys(body: Mapping[str, Any]) -> list[bytes]:
    """A key for each full page of a request's prompt, which identifies the page and all pages before it.

    Args:
        body: of a request of any of the server's interfaces. A body without a prompt has no keys.
    """
    text, salt = prompt_of(body), body.get("cache_salt") or body.get("salt") or ""
    keys, hashed = [], blake3(json.dumps(salt).encode())
    for first in range(0, min(len(text), MOST_PAGES * PAGE) - PAGE + 1, PAGE):
        hashed.update(text[first : first + PAGE].encode("utf-8", "surrogatepass"))
        keys.append(hashed.digest(16))
    return keys


def prompt_of(body: Mapping[str, Any]) -> str:
    """A text for a body's prompt: prompts with a common prefix have texts with a common prefix."""
    for name in ("prompt", "input", "input_prefix", "content", "query"):
        value = body.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            return json.dumps(value, separators=(",", ":"))
    parts = [body[name] for name in ("tools", "system", "messages") if body.get(name)]
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)[1:] if parts else ""


class PrefixMap:
    """Remembers which replicas have run which pages.

    Args:
        imbalance: a replica with this many more requests than the least loaded one is not preferred.
    """

    def __init__(self, imbalance: int, most: int = MOST_KEYS) -> None:
        self.imbalance: int = imbalance
        self.most: int = most
        self._known: OrderedDict[bytes, set[Any]] = OrderedDict()
        self._n_pages: Counter[Any] = Counter()  # replica -> number of known pages

    def note(self, keys: Iterable[bytes], replica: Hashable) -> None:
        """Record that a prompt with these keys was sent to a replica."""
        for key in keys:
            having = self._known.setdefault(key, set())
            self._n_pages[replica] += replica not in having
            having.add(replica)
            self._known.move_to_end(key)
        while len(self._known) > self.most:
            self._n_pages -= Counter(self._known.popitem(last=False)[1])

    def keep_only(self, replicas: Iterable[Hashable]) -> None:
        alive = set(replicas)
        self._n_pages = Counter({one: n for one, n in self._n_pages.items() if one in alive})
        for key, having in list(self._known.items()):
            having &= alive
            if not having:
                del self._known[key]

    def ranked(self, keys: Sequence[bytes], loads: Mapping[R, int]) -> list[R]:
        """The replicas in order of preference.

        Args:
            keys: keys of the prompt; a short prompt has none, and goes to the least loaded replica.
            loads: number of requests of each replica.
        """
        least = min(loads.values(), default=0)
        matched = dict.fromkeys(loads, 0)
        for n, key in enumerate(keys, 1):
            having = self._known.get(key)
            if not having:
                break
            for replica in having & loads.keys():
                matched[replica] = n
        draws = {replica: weight(keys[0], replica) if keys else 0 for replica in loads}

        def place(replica: R) -> tuple[Any, ...]:
            is_busy = loads[replica] - least >= self.imbalance
            if keys and not any(matched.values()):
                return is_busy, self._n_pages[replica], draws[replica]
            return is_busy, -matched[replica], loads[replica], draws[replica]

        return sorted(loads, key=place)


def weight(key: bytes, replica: Hashable) -> int:
    """A pseudorandom number that is the same in every process."""
    return int.from_bytes(blake3(key + str(replica).encode()).digest(8), "little")
