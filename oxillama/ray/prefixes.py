"""Which replica is likely to have the keys and values of a prompt's beginning.

A replica keeps what it has run in its prefix cache. So a prompt goes where the longest part of its beginning
went before, unless that replica has much more to do than another one. A prompt of which nothing is known goes
to the replica that has got the fewest pages, so that all caches are filled alike; among equals its first page
decides by rendezvous hashing (Thaler and Ravishankar, 1996), for which routers need not ask each other.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from blake3 import blake3

R = TypeVar("R", bound=Hashable)

PAGE = 256
"""Characters of a page."""

MOST_PAGES = 64
"""Pages of a prompt that are looked at."""

MOST_KEYS = 1 << 16
"""Keys that are remembered; those used longest ago go first."""


def page_keys(body: bytes) -> list[bytes]:
    """A key for each whole page of the prompt of a request: it stands for the page and all before it.

    Parameters
    ----------
    body : JSON of any of the server's interfaces. One that is none, or has no prompt, has no keys.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    text, salt = prompt_of(found), found.get("cache_salt") or found.get("salt") or ""
    keys, hashed = [], blake3(json.dumps(salt).encode())
    for first in range(0, min(len(text), MOST_PAGES * PAGE) - PAGE + 1, PAGE):
        hashed.update(text[first : first + PAGE].encode("utf-8", "surrogatepass"))
        keys.append(hashed.digest(16))
    return keys


def prompt_of(body: Mapping[str, Any]) -> str:
    """What stands for the prompt of a body: equal beginnings of prompts have equal beginnings here."""
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

    Parameters
    ----------
    imbalance : a replica that has so many more requests than the one with the fewest is not preferred.
    """

    def __init__(self, imbalance: int, most: int = MOST_KEYS) -> None:
        self.imbalance: int = imbalance
        self.most: int = most
        self._known: OrderedDict[bytes, set[Any]] = OrderedDict()
        self._n_pages: Counter[Any] = Counter()  # of those that are known

    def note(self, keys: Iterable[bytes], replica: Hashable) -> None:
        """A prompt with these keys was sent to a replica."""
        for key in keys:
            having = self._known.setdefault(key, set())
            self._n_pages[replica] += replica not in having
            having.add(replica)
            self._known.move_to_end(key)
        while len(self._known) > self.most:
            self._n_pages -= Counter(self._known.popitem(last=False)[1])

    def keep_only(self, replicas: Iterable[Hashable]) -> None:
        """Forgets all other replicas."""
        alive = set(replicas)
        self._n_pages = Counter({one: n for one, n in self._n_pages.items() if one in alive})
        for key, having in list(self._known.items()):
            having &= alive
            if not having:
                del self._known[key]

    def ranked(self, keys: Sequence[bytes], loads: Mapping[R, int]) -> list[R]:
        """The replicas in the order in which they are to be asked.

        Parameters
        ----------
        keys : of the prompt; none for a short one, which goes where there is the least to do.
        loads : requests of each replica.
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
    """A number that looks drawn at random, and is the same everywhere."""
    return int.from_bytes(blake3(key + str(replica).encode()).digest(8), "little")
