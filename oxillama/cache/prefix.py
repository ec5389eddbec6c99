"""The prefix cache: a radix tree over pages of keys and values, which sequences share without copying.

A node is a page and its tokens; only leaves may hold less than a full page. A prompt reuses the longest path
of whole pages, and the common tokens of one page more; a sequence copies that page before it writes
(`PagedKvCache`). Keys and values depend on nothing but the tokens before them, so a hit changes no bit.

A prompt of a recurrent model can start only after tokens whose state was kept: a node also holds states after
some of its tokens. States are large, so a prompt keeps few of them, at `Match.marks`: on a grid whose spacing
grows with their size, at the end of the last whole page, and where the prompt leaves a cached path, for later
prompts that do the same (Pan et al., Marconi, 2024). The last state of a sequence is kept, too.

Each key has a tree of its own. A key is the blake3 hash of the model, its adapters and an optional salt.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from blake3 import blake3

from oxillama.cache.pages import PagePool
from oxillama.cache.radix import CachedState, Node, Tokens, last_state, walk

SPACING = 256
"""Least tokens between the states that are kept of a prompt."""


def prefix_key(model: bytes, adapters: Iterable[bytes] = (), salt: str | bytes = b"") -> bytes:
    """The key of a tree: 32 bytes, different for different parts.

    Parameters
    ----------
    model : hash of the model's content.
    adapters : hashes of the adapters, in order.
    salt : separates callers, for example by a tenant's name.
    """
    hashed = blake3()
    for part in (model, salt.encode() if isinstance(salt, str) else salt, *adapters):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


@dataclass(frozen=True)
class Match:
    """The cached prefix of a prompt. The caller owns the references.

    Attributes
    ----------
    pages : the pages of the tokens; the last one may hold more tokens.
    n_tokens : tokens of the prefix.
    slot : of the recurrent state after them; None for no tokens, or a model without recurrent layers.
    marks : positions, in order, whose states shall be kept; None for a model without recurrent layers.
    """

    pages: list[int]
    n_tokens: int
    slot: int | None = None
    marks: Sequence[int] | None = None


class PinnedPrefix:
    """Keeps a prefix of ``n_tokens`` tokens in the cache until `release`."""

    def __init__(self, nodes: Collection[Node], n_tokens: int) -> None:
        self._nodes = nodes
        self.n_tokens = n_tokens
        for node in nodes:
            node.pins += 1

    def release(self) -> None:
        """Allows eviction again. A second call does nothing."""
        nodes, self._nodes = self._nodes, ()
        for node in nodes:
            node.pins -= 1

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("PinnedPrefix: cannot be copied or pickled")


class PrefixKvCache:
    """Pages of prefixes for reuse; the least recently used are evicted first.

    Parameters
    ----------
    pool : the pool of the pages and states; it calls `reclaim` when it runs out.
    max_bytes : limit of pages and states; 0 keeps none.
    spacing : least tokens between the grid's states, a power of two.
    grain : states are kept after multiples of it, a power of two, or of the size of a page.

    Attributes
    ----------
    n_pages : pages in the cache.
    hits, misses : prompts with and without a cached prefix.
    hit_tokens, looked_up_tokens : tokens of cached prefixes, and of all prompts.
    evicted_pages : pages evicted so far.
    """

    def __init__(self, pool: PagePool, max_bytes: int, spacing: int = SPACING, grain: int = 1) -> None:
        self.pool = pool
        self.grain = grain
        self.max_bytes = max_bytes
        self.spacing = spacing
        self.n_pages = 0
        self.hits = self.misses = self.hit_tokens = self.looked_up_tokens = self.evicted_pages = 0
        self._roots: dict[bytes, Node] = {}
        self._leaves: set[Node] = set()
        self._states: dict[int, CachedState] = {}  # by slot
        self._clock = 0
        pool.reclaim_from(self.reclaim)

    @property
    def n_states(self) -> int:
        """Recurrent states in the cache."""
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages and states, including those that sequences use, too."""
        slot_bytes = 0 if self.pool.recurrent_states is None else self.pool.recurrent_states.slot_bytes
        return self.n_pages * self.pool.stride + self.n_states * slot_bytes

    @property
    def n_idle(self) -> int:
        """Pages that no sequence uses; a state counts as the pages of its memory."""
        # copied at once: a thread that asks for metrics is not the one that changes them
        states = sum(self._weight(state, only_free=True) for state in [*self._states.values()])
        return states + sum(self.pool.references(node.page) == 1 for node in self.nodes())

    def match(self, key: bytes, tokens: Sequence[int]) -> Match:
        """The longest cached prefix of ``tokens`` that a sequence can continue."""
        path, known = walk(self._roots.get(key), tokens, self.pool.page_size)
        self._clock += 1
        n, slot, marks = known, None, None
        if self.pool.recurrent_states is not None:
            state = last_state(path, known)
            if state is not None:
                state.used = self._clock
                self.pool.recurrent_states.retain(state.slot)
            n, slot = (0, None) if state is None else (state.end, state.slot)
            marks = self._marks(n, known, len(tokens))
        path = path[: self.pool.pages_for(n)]
        for node in path:
            node.used = self._clock
        pages = [node.page for node in path]
        self.pool.retain(pages)
        return Match(pages, n, slot, marks)

    def known(self, key: bytes, tokens: Sequence[int]) -> tuple[list[int], int, int]:
        """The longest cached prefix of ``tokens``, which is not retained: its pages and its tokens, and how
        many of those `match` would give."""
        path, n = walk(self._roots.get(key), tokens, self.pool.page_size)
        pages = [node.page for node in path]
        if self.pool.recurrent_states is None:
            return pages, n, n
        state = last_state(path, n)
        return pages, n, 0 if state is None else state.end

    def count(self, n_tokens: int, n_known: int) -> None:
        """Counts a prompt of ``n_tokens`` tokens with a cached prefix of ``n_known``."""
        self.hits += n_known > 0
        self.misses += n_known == 0
        self.hit_tokens += n_known
        self.looked_up_tokens += n_tokens

    def insert(
        self,
        key: bytes,
        tokens: Sequence[int],
        pages: list[int],
        after: Node | None = None,
        slot: int | None = None,
    ) -> Node | None:
        """Adds the pages of ``tokens``, of which the last may be partly filled.

        New pages get a reference. In ``pages``, full pages of cached tokens are replaced by the cached pages.
        A partly filled page must not be written afterwards, except after a copy.

        Parameters
        ----------
        after : the result of an earlier call for a prefix of these tokens, to start from.
        slot : of the state after these tokens, which gets a reference if it is kept; None for none.

        Returns
        -------
        The last node whose page is full; None for none.
        """
        size = self.pool.page_size
        if after is None or after.page < 0 or after.end > len(tokens):
            after = None  # it was evicted, or lies beyond the tokens: start from the root
        node = after or self._roots.get(key) or Node(key=key)
        self._clock += 1
        node.used = self._clock
        for start in range(node.end, len(tokens), size):
            part = tuple(tokens[start : start + size])
            child, same = node.longest(part)
            if child is None or same < min(len(part), len(child.tokens)):
                if not self._make_room(1):
                    break
                child = self._add(node, part, pages[start // size])
            elif same < len(part):  # a leaf with fewer tokens of this page
                self.pool.retain([pages[start // size]])
                self.pool.release([child.page])
                child.tokens, child.page, child.end = part, pages[start // size], start + len(part)
            elif len(part) == size:
                self._exchange(pages, start // size, child.page)
            child.used = self._clock
            node = child
        if slot is not None and node.end >= len(tokens):
            self._keep(node, len(tokens), slot)
        if node.parent is not None and len(tokens) // size * size < node.end:
            node = node.parent  # another sequence may fill a partly filled page differently
        return None if node.parent is None else node

    def pin(self, key: bytes, tokens: Sequence[int]) -> PinnedPrefix | None:
        """Keeps a cached prefix until it is released; None if ``tokens`` are not all cached."""
        path, known = walk(self._roots.get(key), tokens, self.pool.page_size)
        if not path or known < len(tokens):
            return None
        pinned = {path[-1]}
        if self.pool.recurrent_states is not None:
            if known not in path[-1].states:
                return None
            before = last_state(path, known - 1)  # for a text that merges with the last token
            pinned |= {before.node} if before is not None else set()
        return PinnedPrefix(pinned, known)

    def reclaim(self, n: int) -> int:
        """Evicts ``n`` pages that no sequence uses, or states of as much memory; returns how many."""
        self._clock += 1
        return self._evict(n, only_free=True)

    def clear(self) -> None:
        """Evicts everything that is not pinned."""
        self._clock += 1
        self._evict(self._n_held, only_free=False)

    def nodes(self) -> Iterator[Node]:
        """All nodes with a page."""
        waiting = [*self._roots.values()]
        while waiting:
            node = waiting.pop()
            if node.page >= 0:
                yield node
            for siblings in [*node.children.values()]:
                waiting += siblings

    def pages(self) -> list[int]:
        """Its pages, one reference each."""
        return [node.page for node in self.nodes()]

    def slots(self) -> list[int]:
        """The slots of its states, one reference each."""
        return [state.slot for node in self.nodes() for state in node.states.values()]

    def check_integrity(self) -> None:
        """Asserts that inner pages are full, leaves are listed, and pages and states are counted once."""
        found = list(self.nodes())
        assert len(found) == self.n_pages
        assert {id(node) for node in found if not node.children} == {id(node) for node in self._leaves}
        for node in found:
            assert node.parent is not None
            assert node in node.parent.children[node.tokens[0]]
            assert node.end == node.parent.end + len(node.tokens)
            assert len(node.tokens) == self.pool.page_size or not node.children
            assert 0 < len(node.tokens) <= self.pool.page_size
            for end, state in node.states.items():
                assert state.node is node and state.end == end
                assert node.parent.end < end <= node.end
        assert sorted(self.slots()) == sorted(self._states), "a state is kept twice, or not known"
        assert self._n_held <= max(self._most, 0), "more is kept than may be"
        assert all(root.children for root in self._roots.values()), "a tree without pages is kept"

    def _marks(self, start: int, known: int, end: int) -> list[int]:
        """Positions from ``start`` to ``end`` whose states to keep; pages are cached up to ``known``.

        Each is at the end of a page, and of a grain. A pass ends there, so none is near another.
        """
        room = self.pool.max_pages - 2 * self._slot_pages  # a running sequence needs two slots
        most = min(self._most, room) // self._slot_pages
        if not most:
            return []
        size = max(self.pool.page_size, self.grain)
        spacing = max(self.spacing, size)
        while end // spacing > max(1, most // 2):  # the grid of a prompt takes at most half of the cache
            spacing *= 2
        gap, turn, last = self.spacing // 4, known // size * size, end // size * size
        near = [start, turn] if turn - start >= gap else [start]
        grid = range(start // spacing * spacing + spacing, end + 1, spacing)
        marks = sorted([*near, *(n for n in grid if all(abs(n - other) >= gap for other in near))])
        if last - marks[-1] >= gap:
            marks.append(last)
        return marks[1:]

    def _exchange(self, pages: list[int], at: int, known: int) -> None:
        """Replaces a sequence's page by the cached page of the same tokens."""
        self.pool.retain([known])
        self.pool.release([pages[at]])
        pages[at] = known

    def _keep(self, node: Node, end: int, slot: int) -> None:
        """Adds a state, if there is room and it is not cached yet."""
        assert self.pool.recurrent_states is not None
        if end not in node.states and slot not in self._states and self._make_room(self._slot_pages):
            self.pool.recurrent_states.retain(slot)
            node.states[end] = self._states[slot] = CachedState(node, end, slot, self._clock)
        elif end in node.states:
            node.states[end].used = self._clock

    @property
    def _slot_pages(self) -> int:
        """Pages of a state's memory."""
        return 0 if self.pool.recurrent_states is None else self.pool.recurrent_states.slot_pages

    @property
    def _n_held(self) -> int:
        """Pages in the cache; a state counts as the pages of its memory."""
        return self.n_pages + self.n_states * self._slot_pages

    @property
    def _most(self) -> int:
        """Limit of `_n_held`."""
        return self.max_bytes // self.pool.stride

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

    def _make_room(self, n: int) -> bool:
        """Whether there is room for ``n`` more pages, after evicting others."""
        over = self._n_held + n - self._most
        if over > 0 and n <= self._most:
            self._evict(over, only_free=False)
        return self._n_held + n <= self._most

    def _evict(self, n: int, only_free: bool) -> int:
        """Evicts ``n`` pages, leaves first, or states of as much memory; nothing pinned or just used.

        Evicts a few more leaves, because every call scans all leaves. Returns how many pages."""

        def may_go(item: Node | CachedState) -> bool:
            node = item.node if isinstance(item, CachedState) else item
            return not node.pins and item.used < self._clock and self._weight(item, only_free) > 0

        def entry(item: Node | CachedState) -> tuple[int, bool, int, int, Node | CachedState]:
            return item.used, isinstance(item, CachedState), -item.end, id(item), item

        items: list[Node | CachedState] = [*self._leaves, *self._states.values()]
        heap = [entry(item) for item in items if may_go(item)]
        heapq.heapify(heap)
        given, cushion = 0, self.n_pages // 32
        while heap and given < n + cushion:
            item = heapq.heappop(heap)[-1]
            if isinstance(item, CachedState):
                if given >= n:
                    break
                if item.slot in self._states:  # not evicted with its page
                    given += self._weight(item, only_free)
                    self._forget(item)
                continue
            if given >= n and item.states:
                break
            parent = item.parent
            assert parent is not None
            given += 1 + sum(self._weight(state, only_free) for state in item.states.values())
            self._remove(item, parent)
            self.evicted_pages += 1
            if parent.page >= 0 and not parent.children and may_go(parent):
                heapq.heappush(heap, entry(parent))
        return given

    def _weight(self, item: Node | CachedState, only_free: bool) -> int:
        """Pages of memory that an eviction releases; with ``only_free``, 0 for what a sequence uses."""
        if isinstance(item, Node):
            return 0 if only_free and self.pool.references(item.page) > 1 else 1
        assert self.pool.recurrent_states is not None
        held = only_free and self.pool.recurrent_states.references(item.slot) > 1
        return 0 if held else self.pool.recurrent_states.slot_pages

    def _forget(self, state: CachedState) -> None:
        assert self.pool.recurrent_states is not None
        self.pool.recurrent_states.release(state.slot)
        del self._states[state.slot], state.node.states[state.end]

    def _remove(self, node: Node, parent: Node) -> None:
        for state in [*node.states.values()]:
            self._forget(state)
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
