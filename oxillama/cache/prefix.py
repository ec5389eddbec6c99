"""Prefixes that were computed before: a radix tree over pages, which are shared and not copied.

A node is a page and the tokens whose keys and values it holds; only leaves may hold less than a full
page. What can be reused of a prompt is the longest path of whole pages, and of one page more the
tokens it has in common: the sequence that takes it copies that page before it writes (`PagedKvCache`).
Keys and values depend on the tokens before them and on nothing else, so a hit changes no bit.

Trees are kept apart by a key: the blake3 hash of the model, its adapters and an optional salt.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from oxillama.cache.pages import PagePool

Tokens = tuple[int, ...]


def prefix_key(model: bytes, adapters: Iterable[bytes] = (), salt: str | bytes = b"") -> bytes:
    """The key of a tree: 32 bytes that differ where any part does.

    Parameters
    ----------
    model : what tells models apart, a hash of their content.
    adapters : the same for each adapter, in order.
    salt : whatever the caller wants kept apart, a tenant's name say.
    """
    hashed = blake3()
    for part in (model, salt.encode() if isinstance(salt, str) else salt, *adapters):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


@dataclass(eq=False)
class Node:
    """A page of the tree; a root has none, nor has one that was given up."""

    tokens: Tokens = ()
    page: int = -1
    parent: Node | None = None
    key: bytes = b""  # of the tree, at its root
    end: int = 0  # tokens up to here, its own included
    used: int = 0  # when, on the tree's own clock
    pins: int = 0
    children: dict[int, list[Node]] = field(default_factory=dict)  # by their first token

    def longest(self, tokens: Tokens) -> tuple[Node | None, int]:
        """The child that has most of ``tokens`` in common, and how many."""
        best, most = None, 0
        for child in self.children.get(tokens[0], ()) if tokens else ():
            n = common(child.tokens, tokens)
            if n > most:
                best, most = child, n
        return best, most


def common(a: Tokens, b: Tokens) -> int:
    """How many tokens two begin with together."""
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class PinnedPrefix:
    """Keeps the first ``n_tokens`` tokens of something in the cache until it is released."""

    def __init__(self, node: Node, n_tokens: int) -> None:
        self._node: Node | None = node
        self.n_tokens = n_tokens

    def release(self) -> None:
        """Lets the prefix be evicted like any other. Does nothing the second time."""
        if self._node is not None:
            self._node.pins -= 1
            self._node = None


class PrefixKvCache:
    """The pages of prefixes that may come again, the least recently used given up first.

    Parameters
    ----------
    pool : whose pages they are; it asks for pages back when it runs out.
    max_bytes : most bytes of pages kept; 0 keeps none.

    Attributes
    ----------
    hits, misses : prompts that were looked up and began, or did not begin, with something known.
    hit_tokens, looked_up_tokens : the tokens that need not be run, of those looked up.
    evicted_pages : pages given up so far.
    """

    def __init__(self, pool: PagePool, max_bytes: int) -> None:
        self.pool = pool
        self.max_bytes = max_bytes
        self.n_pages = 0
        self.hits = self.misses = self.hit_tokens = self.looked_up_tokens = self.evicted_pages = 0
        self._roots: dict[bytes, Node] = {}
        self._leaves: set[Node] = set()
        self._clock = 0
        pool.reclaim = self.reclaim

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages kept, those in use by sequences included."""
        return self.n_pages * self.pool.stride

    @property
    def n_idle(self) -> int:
        """Pages that no sequence uses."""
        return sum(self.pool.references(node.page) == 1 for node in self.nodes())

    def match(self, key: bytes, tokens: Sequence[int]) -> tuple[list[int], int]:
        """The pages that hold the longest known beginning of ``tokens``, and how many tokens that is.

        The caller gets a reference to each page; the last may hold more than those tokens.
        """
        pages, n, node = [], 0, self._roots.get(key)
        self._clock += 1
        while node is not None:
            child, same = node.longest(tuple(tokens[n : n + self.pool.page_size]))
            if child is None:
                break
            child.used = self._clock
            pages.append(child.page)
            n += same
            node = child if same == self.pool.page_size else None
        self.pool.retain(pages)
        return pages, n

    def count(self, n_tokens: int, n_known: int) -> None:
        """Notes that of a prompt of ``n_tokens`` tokens ``n_known`` need not be run."""
        self.hits += n_known > 0
        self.misses += n_known == 0
        self.hit_tokens += n_known
        self.looked_up_tokens += n_tokens

    def insert(
        self, key: bytes, tokens: Sequence[int], pages: Sequence[int], after: Node | None = None
    ) -> Node | None:
        """Keeps the pages that hold ``tokens``, of which the last may be partly filled.

        Only pages that are not known yet are taken; each gets a reference more. A page that is not full must
        not be written any more, unless by copying it.

        Parameters
        ----------
        after : what an earlier call for the beginning of these tokens returned, to go on from there.

        Returns
        -------
        The node of the last tokens that are kept; None if none are.
        """
        size = self.pool.page_size
        node = after if after is not None and after.page >= 0 and after.end % size == 0 else None
        node = node or self._roots.get(key) or Node(key=key)
        self._clock += 1
        node.used = self._clock
        for start in range(node.end, len(tokens), size):
            part = tuple(tokens[start : start + size])
            child, same = node.longest(part)
            if child is None or same < min(len(part), len(child.tokens)):
                if not self._make_room():
                    break
                child = self._add(node, part, pages[start // size])
            elif same < len(part):  # a leaf that holds the beginning of this page: now it holds more
                self.pool.retain([pages[start // size]])
                self.pool.release([child.page])
                child.tokens, child.page, child.end = part, pages[start // size], start + len(part)
            child.used = self._clock
            node = child
        return node if node.parent is not None else None

    def pin(self, key: bytes, tokens: Sequence[int]) -> PinnedPrefix | None:
        """Keeps a prefix, all of which must be known, until it is released; None if it is not."""
        n, node = 0, self._roots.get(key)
        while node is not None and n < len(tokens):
            node, same = node.longest(tuple(tokens[n : n + self.pool.page_size]))
            if same < min(self.pool.page_size, len(tokens) - n):
                return None
            n += same
        if node is None:
            return None
        node.pins += 1
        return PinnedPrefix(node, n)

    def reclaim(self, n: int) -> int:
        """Gives up ``n`` pages that nobody else holds, if there are, the least recently used; how many."""
        self._clock += 1
        return self._evict(n + self.n_pages // 32, only_free=True)

    def clear(self) -> None:
        """Gives up everything that is not pinned."""
        self._clock += 1
        self._evict(self.n_pages, only_free=False)

    def nodes(self) -> Iterator[Node]:
        """All nodes that hold a page."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            if node.page >= 0:
                yield node
            waiting += (child for siblings in node.children.values() for child in siblings)

    def pages(self) -> list[int]:
        """The pages it holds a reference to."""
        return [node.page for node in self.nodes()]

    def check_integrity(self) -> None:
        """Asserts that the tree is one: full pages inside, leaves known, every page counted once."""
        found = list(self.nodes())
        assert len(found) == self.n_pages
        assert {id(node) for node in found if not node.children} == {id(node) for node in self._leaves}
        for node in found:
            assert node.parent is not None
            assert node in node.parent.children[node.tokens[0]]
            assert node.end == node.parent.end + len(node.tokens)
            assert len(node.tokens) == self.pool.page_size or not node.children
            assert 0 < len(node.tokens) <= self.pool.page_size
        assert all(root.children for root in self._roots.values()), "a tree without pages is kept"

    def _add(self, parent: Node, tokens: Tokens, page: int) -> Node:
        node = Node(tokens, page, parent, end=parent.end + len(tokens))
        self.pool.retain([page])
        parent.children.setdefault(tokens[0], []).append(node)
        if parent.parent is None:
            self._roots[parent.key] = parent
        self._leaves.discard(parent)
        self._leaves.add(node)
        self.n_pages += 1
        return node

    def _make_room(self) -> bool:
        """Whether there is room for a page more, after giving up others."""
        most = self.max_bytes // self.pool.stride
        if self.n_pages >= most:
            self._evict(self.n_pages + 1 - most + most // 32, only_free=False)
        return self.n_pages < most

    def _evict(self, n: int, only_free: bool) -> int:
        """Gives up ``n`` pages from the leaves inwards, but none that is pinned or used by this very call."""

        def may_go(node: Node) -> bool:
            held = only_free and self.pool.references(node.page) > 1
            return not node.pins and node.used < self._clock and not held

        heap = [(node.used, -node.end, id(node), node) for node in self._leaves if may_go(node)]
        heapq.heapify(heap)
        given = 0
        while heap and given < n:
            node = heapq.heappop(heap)[-1]
            parent = node.parent
            assert parent is not None
            self._remove(node, parent)
            given += 1
            if parent.page >= 0 and not parent.children and may_go(parent):
                heapq.heappush(heap, (parent.used, -parent.end, id(parent), parent))
        self.evicted_pages += given
        return given

    def _remove(self, node: Node, parent: Node) -> None:
        siblings = parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.tokens[0]]
        self._leaves.discard(node)
        if not parent.children:
            if parent.parent is None:
                self._roots.pop(parent.key, None)
            else:
                self._leaves.add(parent)
        self.pool.release([node.page])
        node.page, node.parent = -1, None
        self.n_pages -= 1
