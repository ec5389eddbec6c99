"""The radix tree of the prefix cache, and the order of eviction.

A node has a page of each group, and states after some of its tokens.
"""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from oxillama.engine.cache.kv import NO_PAGE
from oxillama.engine.cache.pages import CachePool

Tokens = tuple[int, ...]


@dataclass(eq=False, repr=False)
class CachedState:
    """A recurrent state in the prefix cache."""

    node: Node
    end: int  # its tokens
    slot: int
    used: int


@dataclass(eq=False, repr=False)
class Node:
    """The tokens of a page, and the page of each group. Roots have no pages, evicted nodes no parent.

    A page that only rows within a window see may be missing (`NO_PAGE`).
    """

    tokens: Tokens = ()
    pages: list[int] = field(default_factory=list)
    parent: Node | None = None
    key: bytes = b""  # identifies the tree; only its root has one
    end: int = 0  # tokens from the root, its own included
    used: int = 0  # time of the last use, on the cache's clock
    seen: int = 0  # time of the last use of its pages of windowed groups
    pins: int = 0
    children: dict[int, list[Node]] = field(default_factory=dict)  # key: the first token; sorted
    states: dict[int, CachedState] = field(default_factory=dict)  # keys: ends, positions in this page

    def longest(self, tokens: Tokens) -> tuple[Node | None, int]:
        """The child with the longest common prefix with ``tokens``, and its length."""
        siblings = self.children.get(tokens[0], []) if tokens else []
        at = bisect_left(siblings, tokens, key=_tokens)
        best, most = None, 0
        for child in siblings[max(at - 1, 0) : at + 1]:  # no other has a longer one than the neighbours
            n = common_length(child.tokens, tokens)
            if n > most:
                best, most = child, n
        return best, most


def _tokens(node: Node) -> Tokens:
    return node.tokens


def walk(root: Node | None, tokens: Sequence[int], page_size: int) -> tuple[list[Node], int]:
    """The path with the longest common prefix with ``tokens``, and its length."""
    path: list[Node] = []
    n, node = 0, root
    while node is not None:
        child, same = node.longest(tuple(tokens[n : n + page_size]))
        if child is None:
            break
        path.append(child)
        n += same
        node = child if same == page_size else None
    return path, n


def last_state(path: Sequence[Node], n: int) -> CachedState | None:
    """The last state on a path within ``n`` tokens."""
    states = (state for node in path for state in node.states.values() if state.end <= n)
    return max(states, key=lambda state: state.end, default=None)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two lists, or of two tuples."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Kind(enum.IntEnum):
    """What can be evicted, in the order in which it is at equal times."""

    WINDOWS = 0  # the pages of groups with a window, at an inner node
    LEAF = 1
    STATE = 2


class RadixTree:
    """The cached pages and states of prefixes, and their eviction.

    Args:
        pool: of the pages and states; its limit calls `reclaim` when it runs out.
        max_bytes: limit of pages and states; 0 keeps none.

    Attributes:
        n_pages: pages that are held.
        evicted_pages: pages evicted so far.
    """

    def __init__(self, pool: CachePool, max_bytes: int) -> None:
        self.pool = pool
        self.max_bytes = max_bytes
        self.n_pages: int = 0
        self.evicted_pages: int = 0
        self._roots: dict[bytes, Node] = {}
        self._leaves: set[Node] = set()
        self._states: dict[int, CachedState] = {}  # by slot
        self._held_bytes = 0  # of its pages
        self._windowed = [i for i, group in enumerate(pool.groups) if group.has_window]
        self._clock = 0
        pool.limit.reclaim_from(self.reclaim)

    @property
    def n_states(self) -> int:
        """Recurrent states in the cache."""
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages and states, including those that sequences use, too."""
        return self._held_bytes + self.n_states * self._slot_bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes of those that no sequence uses."""
        # copied at once: a thread that asks for metrics is not the one that changes them
        states = sum(self._weight(Kind.STATE, state, only_free=True) for state in [*self._states.values()])
        return states + sum(self._weight(Kind.LEAF, node, only_free=True) for node in self.nodes())

    def reclaim(self, n_bytes: int) -> int:
        """Evicts pages and states of so many bytes that no sequence uses; returns how many bytes."""
        self._clock += 1
        return self._evict(n_bytes, only_free=True)

    def clear(self) -> None:
        """Evicts everything that is not pinned."""
        self._clock += 1
        self._evict(self.memory_bytes, only_free=False)

    def lose(self) -> None:
        """Drops everything, pinned or not; the contents of its pages and states are no longer valid."""
        for node in sorted(self.nodes(), key=lambda node: -node.end):
            assert node.parent is not None
            self._remove(node, node.parent)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots."""
        waiting = [*self._roots.values()]
        while waiting:
            node = waiting.pop()
            if node.parent is not None:
                yield node
            for siblings in [*node.children.values()]:
                waiting += siblings

    def pages(self) -> list[list[int]]:
        """Its pages of each group, one reference each."""
        return [
            [node.pages[group] for node in self.nodes() if node.pages[group] != NO_PAGE]
            for group in range(len(self.pool.groups))
        ]

    def slots(self) -> list[int]:
        """The slots of its states, one reference each."""
        return [state.slot for node in self.nodes() for state in node.states.values()]

    def check_integrity(self) -> None:
        """Asserts that inner pages are full, leaves are listed, and pages and states are counted once."""
        found = list(self.nodes())
        assert sum(page != NO_PAGE for node in found for page in node.pages) == self.n_pages
        assert sum(self._bytes_of(node.pages) for node in found) == self._held_bytes
        assert {id(node) for node in found if not node.children} == {id(node) for node in self._leaves}
        for node in found:
            assert node.parent is not None
            siblings = node.parent.children[node.tokens[0]]
            assert node in siblings and siblings == sorted(siblings, key=_tokens)
            assert node.end == node.parent.end + len(node.tokens)
            assert len(node.tokens) == self.pool.page_size or not node.children
            assert 0 < len(node.tokens) <= self.pool.page_size
            for group, page in enumerate(node.pages):
                assert page != NO_PAGE or group in self._windowed, "only windows pass pages"
            for end, state in node.states.items():
                assert state.node is node and state.end == end
                assert node.parent.end < end <= node.end
        assert sorted(self.slots()) == sorted(self._states), "a state is kept twice, or not known"
        assert self.memory_bytes <= max(self.max_bytes, 0), "more is kept than may be"
        assert all(root.children for root in self._roots.values()), "a tree without pages is kept"

    def _put(self, node: Node, pages: list[int]) -> None:
        """Gives a node other pages."""
        for group, page in zip(self.pool.groups, pages):
            group.retain([page] if page != NO_PAGE else [])
        self._drop(node, range(len(node.pages)))
        node.pages = pages
        self.n_pages += sum(page != NO_PAGE for page in pages)
        self._held_bytes += self._bytes_of(pages)

    def _drop(self, node: Node, groups: Iterable[int]) -> None:
        """Releases a node's pages of some groups."""
        for group in groups:
            if node.pages[group] != NO_PAGE:
                self.pool.groups[group].release([node.pages[group]])
                node.pages[group] = NO_PAGE
                self.n_pages -= 1
                self._held_bytes -= self.pool.groups[group].stride

    def _bytes_of(self, pages: Iterable[int]) -> int:
        """Bytes of pages, one of each group."""
        return sum(g.stride for g, page in zip(self.pool.groups, pages) if page != NO_PAGE)

    def _keep(self, node: Node, end: int, slot: int) -> None:
        """Adds a state, if there is room and it is not cached yet."""
        assert self.pool.recurrent_states is not None
        if end not in node.states and slot not in self._states and self._make_room(self._slot_bytes):
            self.pool.recurrent_states.retain(slot)
            node.states[end] = self._states[slot] = CachedState(node, end, slot, self._clock)
        elif end in node.states:
            node.states[end].used = self._clock

    @property
    def _slot_bytes(self) -> int:
        """Bytes of a state."""
        return 0 if self.pool.recurrent_states is None else self.pool.recurrent_states.slot_bytes

    def _add(self, parent: Node, tokens: Tokens, pages: list[int]) -> Node:
        node = Node(tokens, [], parent, end=parent.end + len(tokens), used=self._clock, seen=self._clock)
        self._put(node, pages)
        insort(parent.children.setdefault(tokens[0], []), node, key=_tokens)
        if parent.parent is None:
            self._roots[parent.key] = parent
        self._leaves.discard(parent)
        self._leaves.add(node)
        return node

    def _make_room(self, n_bytes: int) -> bool:
        """Evicts others until there is room for so many more bytes; returns whether there is."""
        over = self.memory_bytes + n_bytes - self.max_bytes
        if over > 0 and n_bytes <= self.max_bytes:
            self._evict(over, only_free=False)
        return self.memory_bytes + n_bytes <= self.max_bytes

    def _evict(self, n_bytes: int, only_free: bool) -> int:
        """Evicts pages, leaves first, or states of so many bytes; nothing pinned or just used.

        Evicts a few more pages, because every call scans all leaves. Returns how many bytes."""

        def may_go(kind: Kind, item: Node | CachedState) -> bool:
            node = item.node if isinstance(item, CachedState) else item
            weight = self._weight(kind, item, only_free)
            return (
                not node.pins
                and _time(kind, item) < self._clock
                and (weight > 0 or (kind is Kind.LEAF and not self._bytes_of(node.pages)))
            )

        def entry(kind: Kind, item: Node | CachedState) -> tuple[int, Kind, int, int, Node | CachedState]:
            return _time(kind, item), kind, -item.end, id(item), item

        items: list[tuple[Kind, Node | CachedState]] = [(Kind.LEAF, leaf) for leaf in self._leaves]
        items += [(Kind.STATE, state) for state in self._states.values()]
        if self._windowed:
            items += [(Kind.WINDOWS, node) for node in self.nodes() if node.children]
        heap = [entry(kind, item) for kind, item in items if may_go(kind, item)]
        heapq.heapify(heap)
        freed, cushion = 0, self.n_pages // 32 * self.pool.groups[0].stride
        while heap and freed < n_bytes + cushion:
            _, kind, _, _, item = heapq.heappop(heap)
            if isinstance(item, CachedState):
                if freed >= n_bytes:
                    break
                if item.slot in self._states:  # not evicted with its page
                    freed += self._weight(kind, item, only_free)
                    self._forget(item)
                continue
            if freed >= n_bytes and item.states:
                break
            parent = item.parent
            if parent is None or (kind is Kind.WINDOWS and not item.children):
                continue  # an evicted node, or a leaf that will be evicted
            freed += self._weight(kind, item, only_free)
            if kind is Kind.WINDOWS:
                n_before = self.n_pages
                self._drop(item, self._windowed)
                self.evicted_pages += n_before - self.n_pages
                continue
            freed += sum(self._weight(Kind.STATE, state, only_free) for state in item.states.values())
            self._remove(item, parent)
            if parent.parent is not None and not parent.children and may_go(Kind.LEAF, parent):
                heapq.heappush(heap, entry(Kind.LEAF, parent))
        return freed

    def _weight(self, kind: Kind, item: Node | CachedState, only_free: bool) -> int:
        """Bytes of memory that an eviction releases; with ``only_free``, 0 for what a sequence uses."""
        if isinstance(item, Node):
            groups = self._windowed if kind is Kind.WINDOWS else range(len(item.pages))
            found = ((self.pool.groups[group], item.pages[group]) for group in groups)
            return sum(
                group.stride
                for group, page in found
                if page != NO_PAGE and not (only_free and group.references(page) > 1)
            )
        assert self.pool.recurrent_states is not None
        held = only_free and self.pool.recurrent_states.references(item.slot) > 1
        return 0 if held else self._slot_bytes

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
        n_before = self.n_pages
        self._drop(node, range(len(node.pages)))
        self.evicted_pages += n_before - self.n_pages
        node.parent = None


def _time(kind: Kind, item: Node | CachedState) -> int:
    """The time at which a node or a state was last used."""
    return item.seen if isinstance(item, Node) and kind is Kind.WINDOWS else item.used
