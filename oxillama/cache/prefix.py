"""Prefixes that were computed before: a radix tree over pages, which are shared and not copied.

A node is a page and the tokens whose keys and values it holds; only leaves may hold less than a full
page. What can be reused of a prompt is the longest path of whole pages, and of one page more the
tokens it has in common: the sequence that takes it copies that page before it writes (`PagedKvCache`).
Keys and values depend on the tokens before them and on nothing else, so a hit changes no bit.

Of a recurrent model a beginning can be reused only where its state was kept: a node also holds states after
some of its page's tokens. As states are large, a prompt leaves few of them, at `Match.marks`: on a grid
that is the wider the larger they are, at the end of its last whole page, and where it leaves a path that is
known without a state, which a third prompt will then find (Pan et al., Marconi, 2024). A sequence's last
state is kept too, for it to be continued.

Trees are kept apart by a key: the blake3 hash of the model, its adapters and an optional salt.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from oxillama.cache.pages import PagePool
from oxillama.cache.radix import CachedState, Node, Tokens, last_state, walk

SPACING = 256
"""Tokens between the states that are kept of a prompt; more where they are large."""


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


@dataclass(frozen=True)
class Match:
    """What is known of a prompt; the references are the caller's.

    Attributes
    ----------
    pages : that hold the tokens; the last may hold more.
    n_tokens : that need not be run.
    slot : of the state after them; None if there are none, or pages hold everything.
    marks : where, in order, states of what is run are wanted; None where pages hold everything.
    """

    pages: list[int]
    n_tokens: int
    slot: int | None = None
    marks: Sequence[int] | None = None


class PinnedPrefix:
    """Keeps the first ``n_tokens`` tokens of something in the cache until it is released."""

    def __init__(self, nodes: Collection[Node], n_tokens: int) -> None:
        self._nodes = nodes
        self.n_tokens = n_tokens
        for node in nodes:
            node.pins += 1

    def release(self) -> None:
        """Lets the prefix be evicted like any other. Does nothing the second time."""
        for node in self._nodes:
            node.pins -= 1
        self._nodes = ()


class PrefixKvCache:
    """The pages of prefixes that may come again, the least recently used given up first.

    Parameters
    ----------
    pool : whose pages and states they are; it asks for pages back when it runs out.
    max_bytes : most bytes of pages and states kept; 0 keeps none.
    spacing : least tokens between the grid's states, a power of two.

    Attributes
    ----------
    n_pages : kept now.
    hits, misses : prompts that were looked up and began, or did not begin, with something known.
    hit_tokens, looked_up_tokens : the tokens that need not be run, of those looked up.
    evicted_pages : pages given up so far.
    """

    def __init__(self, pool: PagePool, max_bytes: int, spacing: int = SPACING) -> None:
        self.pool = pool
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
        """States kept."""
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages and states kept, those in use by sequences included."""
        slot_bytes = 0 if self.pool.recurrent_states is None else self.pool.recurrent_states.slot_bytes
        return self.n_pages * self.pool.stride + self.n_states * slot_bytes

    @property
    def n_idle(self) -> int:
        """Pages that no sequence uses, states counted as the pages that take as much memory."""
        states = sum(self._weight(state, only_free=True) for state in self._states.values())
        return states + sum(self.pool.references(node.page) == 1 for node in self.nodes())

    def match(self, key: bytes, tokens: Sequence[int]) -> Match:
        """The longest known beginning of ``tokens`` from which they can be gone on with."""
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

    def count(self, n_tokens: int, n_known: int) -> None:
        """Notes that of a prompt of ``n_tokens`` tokens ``n_known`` need not be run."""
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
        """Keeps the pages that hold ``tokens``, of which the last may be partly filled.

        Only pages that are not known yet are taken; each gets a reference more. Known full ones take the
        place of the same in ``pages``, so that nothing is held twice. A page that is not full must not be
        written any more, unless by copying it.

        Parameters
        ----------
        after : what an earlier call for the beginning of these tokens returned, to go on from there.
        slot : of the state after these tokens, which gets a reference more if it is kept; None for none.

        Returns
        -------
        The last node that is full of these tokens, which it will always be; None if there is none.
        """
        size = self.pool.page_size
        if after is None or after.page < 0 or after.end > len(tokens):
            after = None  # it was given up, or is further on: from the root, then
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
            elif same < len(part):  # a leaf that holds the beginning of this page: now it holds more
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
            node = node.parent  # a page that is not full yet another may fill up differently
        return None if node.parent is None else node

    def pin(self, key: bytes, tokens: Sequence[int]) -> PinnedPrefix | None:
        """Keeps a prefix, all of which must be known, until it is released; None if it is not."""
        path, known = walk(self._roots.get(key), tokens, self.pool.page_size)
        if not path or known < len(tokens):
            return None
        pinned = {path[-1]}
        if self.pool.recurrent_states is not None:
            if known not in path[-1].states:
                return None
            before = last_state(path, known - 1)  # in case what follows joins the last token
            pinned |= {before.node} if before is not None else set()
        return PinnedPrefix(pinned, known)

    def reclaim(self, n: int) -> int:
        """Gives up ``n`` pages, or states of their memory, that nobody else holds, if there are, the least
        recently used; how many."""
        self._clock += 1
        return self._evict(n, only_free=True)

    def clear(self) -> None:
        """Gives up everything that is not pinned."""
        self._clock += 1
        self._evict(self._n_held, only_free=False)

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

    def slots(self) -> list[int]:
        """The slots of states it holds a reference to."""
        return [state.slot for node in self.nodes() for state in node.states.values()]

    def check_integrity(self) -> None:
        """Asserts that the tree is one: full pages inside, leaves known, all that is kept counted once."""
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
        """Where to keep states of what is run from ``start`` to ``end``; pages are known up to ``known``.

        Each is at the end of a page, and worth the pass that it cuts short: not near another.
        """
        room = self.pool.max_pages - 2 * self._slot_pages  # a sequence that runs has two itself
        most = min(self._most, room) // self._slot_pages
        if not most:
            return []
        size = self.pool.page_size
        spacing = max(self.spacing, size)
        while end // spacing > max(1, most // 2):  # no prompt's grid takes more than half
            spacing *= 2
        gap, turn, last = self.spacing // 4, known // size * size, end // size * size
        near = [start, turn] if turn - start >= gap else [start]
        grid = range(start // spacing * spacing + spacing, end + 1, spacing)
        marks = sorted([*near, *(n for n in grid if all(abs(n - other) >= gap for other in near))])
        if last - marks[-1] >= gap:
            marks.append(last)
        return marks[1:]

    def _exchange(self, pages: list[int], at: int, known: int) -> None:
        """Has a sequence use the known page instead of one of its own that holds the same."""
        self.pool.retain([known])
        self.pool.release([pages[at]])
        pages[at] = known

    def _keep(self, node: Node, end: int, slot: int) -> None:
        """Keeps a state, if there is room and it is not kept yet."""
        assert self.pool.recurrent_states is not None
        if end not in node.states and slot not in self._states and self._make_room(self._slot_pages):
            self.pool.recurrent_states.retain(slot)
            node.states[end] = self._states[slot] = CachedState(node, end, slot, self._clock)
        elif end in node.states:
            node.states[end].used = self._clock

    @property
    def _slot_pages(self) -> int:
        """Pages that take as much memory as a state."""
        return 0 if self.pool.recurrent_states is None else self.pool.recurrent_states.slot_pages

    @property
    def _n_held(self) -> int:
        """Pages kept, states counted as so many."""
        return self.n_pages + self.n_states * self._slot_pages

    @property
    def _most(self) -> int:
        """Most of those."""
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
        """Whether there is room for ``n`` pages more, after giving up others."""
        over = self._n_held + n - self._most
        if over > 0 and n <= self._most:
            self._evict(over, only_free=False)
        return self._n_held + n <= self._most

    def _evict(self, n: int, only_free: bool) -> int:
        """Gives up ``n`` pages, from the leaves inwards, or states of as much memory, but none that is pinned
        or used by this very call. A few leaves more go at once, for they are looked through each time."""

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
                if item.slot in self._states:  # it has not gone with its page
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
        """How many pages' memory is had by giving up a page or a state; with ``only_free``, at once."""
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
