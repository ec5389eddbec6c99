"""The prefix cache: a radix tree over pages of keys and values, which sequences share without copying.

A node is a page of each group and its tokens; only leaves may hold less than a full page. A prompt
reuses the longest path of whole pages, and the common tokens of one further page; a sequence copies that page
before it writes (`PagedKvCache`). Keys and values depend on nothing but the tokens before them, so a hit
changes no bit.

Pages of groups with a window are needed only near the end of a prefix. Those that no prompt used for long are
evicted alone; a prompt then starts at the last position for which all pages within its windows are cached.

A prompt of a recurrent model can start only after tokens whose state was kept: a node also holds states after
some of its tokens. States are large, so few of them are kept, at `Match.cache_points`: on a grid whose
spacing grows with their size, at the end of the last whole page, and where the prompt branches off a cached
path, for later prompts that do the same (Pan et al., Marconi, 2024). A sequence's last state is kept, too.

Each key has a tree of its own. A key is the blake3 hash of the model, its adapters and an optional salt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from blake3 import blake3

from oxillama.engine.cache.kv import NO_PAGE
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.radix import CachedState, Node, RadixTree, last_state, walk

SPACING = 256
"""Minimum number of tokens between the states that are kept of a prompt."""


def prefix_key(model: bytes, adapters: Iterable[bytes] = (), salt: str | bytes = b"") -> bytes:
    """The key of a tree: 32 bytes, different for different parts.

    Args:
        model: hash of the model's content.
        adapters: hashes of the adapters, in order.
        salt: separates callers, for example by a tenant's name.
    """
    hashed = blake3()
    for part in (model, salt.encode() if isinstance(salt, str) else salt, *adapters):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


@dataclass(frozen=True, repr=False)
class Match:
    """The cached prefix of a prompt. The caller owns the references.

    Attributes:
        pages: for each group the pages of the tokens; the last one may hold more tokens. `NO_PAGE` for pages
            that no later row sees.
        n_tokens: number of tokens of the prefix.
        slot: of the recurrent state after them; None without tokens or without recurrent layers.
        cache_points: positions, in order, whose states to keep; None for a model without recurrent layers.
    """

    pages: list[list[int]]
    n_tokens: int
    slot: int | None = None
    cache_points: Sequence[int] | None = None


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


class PrefixKvCache(RadixTree):
    """Pages of prefixes for reuse; the least recently used are evicted first.

    Args:
        pool: of the pages and states; its limit calls `reclaim` when it runs out.
        max_bytes: limit of pages and states; 0 keeps none.
        spacing: minimum number of tokens between the grid's states, a power of two.
        grain: states are kept after multiples of it, a power of two, or of the size of a page.

    Attributes:
        hits: prompts with a cached prefix.
        misses: prompts without one.
        hit_tokens: tokens of cached prefixes.
        looked_up_tokens: tokens of all prompts.
    """

    def __init__(self, pool: CachePool, max_bytes: int, spacing: int = SPACING, grain: int = 1) -> None:
        super().__init__(pool, max_bytes)
        self.grain = grain
        self.spacing = spacing
        self.hits: int = 0
        self.misses: int = 0
        self.hit_tokens: int = 0
        self.looked_up_tokens: int = 0

    def match(self, key: bytes, tokens: Sequence[int]) -> Match:
        """The longest cached prefix of ``tokens`` that a sequence can continue."""
        path, known = walk(self._roots.get(key), tokens, self.pool.page_size)
        self._clock += 1
        n, slot, cache_points = 0, None, None
        if self.pool.recurrent_states is None:
            n = next(self._continuable(path, known), 0)
        else:
            states = (s for node in path for s in node.states.values() if s.end <= known)
            state = max((s for s in states if self._reaches(path, s.end)), key=_end, default=None)
            if state is not None:
                n, slot, state.used = state.end, state.slot, self._clock
                self.pool.recurrent_states.retain(slot)
            cache_points = self._cache_points(n, known, len(tokens))
        return Match(self._take(path[: self.pool.pages_for(n)], n), n, slot, cache_points)

    def _continuable(self, path: list[Node], known: int) -> Iterator[int]:
        """Numbers of tokens after which a prompt can continue, the highest first, one for each page."""
        for n_pages in range(len(path), 0, -1):
            n = min(known, n_pages * self.pool.page_size)
            if self._reaches(path, n):
                yield n

    def _reaches(self, path: list[Node], n: int) -> bool:
        """Whether all pages that a row at position ``n`` sees are cached."""
        for group in self._windowed:
            first = self.pool.groups[group].reach.first_seen(n) // self.pool.page_size
            for node in reversed(path[first : self.pool.pages_for(n)]):
                if node.pages[group] == NO_PAGE:
                    return False
        return True

    def _take(self, path: list[Node], n: int) -> list[list[int]]:
        """Takes references to the pages of a path that rows from position ``n`` on see; pages by group."""
        for node in path:
            node.used = self._clock
        found = []
        for number, group in enumerate(self.pool.groups):
            first = 0
            if group.has_window:
                first = min(group.reach.first_seen(n) // self.pool.page_size, len(path))
            pages = [node.pages[number] for node in path[first:]]
            group.retain(pages)
            found.append([NO_PAGE] * first + pages)
            if group.has_window:
                for node in path[first:]:
                    node.seen = self._clock
        return found

    def known(self, key: bytes, tokens: Sequence[int]) -> tuple[list[list[int]], int, int]:
        """The longest cached prefix of ``tokens`` whose pages a row behind it can see, which is not retained.

        Returns its pages of each group, its number of tokens, and how many of these `match` would return.
        """
        path, most = walk(self._roots.get(key), tokens, self.pool.page_size)
        n = next(self._continuable(path, most), 0)
        path = path[: self.pool.pages_for(n)]
        pages = [[node.pages[group] for node in path] for group in range(len(self.pool.groups))]
        if self.pool.recurrent_states is None:
            return pages, n, n
        ends = (end for node in path for end in node.states if end <= n and self._reaches(path, end))
        return pages, n, max(ends, default=0)

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
        pages: Sequence[list[int]],
        after: Node | None = None,
        slot: int | None = None,
    ) -> Node | None:
        """Adds the pages of ``tokens``, of which the last may be partly filled.

        New pages get a reference. In ``pages``, full pages of cached tokens are replaced by the cached pages.
        A partly filled page must not be written afterwards, except after a copy.

        Args:
            pages: of each group; `NO_PAGE` for freed ones.
            after: the result of an earlier call for a prefix of these tokens, to start from.
            slot: of the state after these tokens, which gets a reference if it is kept; None keeps no state.

        Returns:
            The last node whose page is full; None if no page is full.
        """
        size = self.pool.page_size
        if after is None or after.parent is None or after.end > len(tokens):
            after = None  # an evicted node, or one beyond the tokens: start from the root
        node = after or self._roots.get(key) or Node(key=key)
        self._clock += 1
        node.used = self._clock
        for start in range(node.end, len(tokens), size):
            part = tuple(tokens[start : start + size])
            own = [table[start // size] for table in pages]
            child, same = node.longest(part)
            if child is None or same < min(len(part), len(child.tokens)):
                if not self._make_room(self._bytes_of(own)):
                    break
                node = self._add(node, part, own)
                continue
            child.used = self._clock  # so that making room does not evict it
            if same < len(part):  # a leaf with fewer tokens of this page
                if not self._make_room(self._bytes_of(own) - self._bytes_of(child.pages)):
                    break
                self._put(child, own)
                child.tokens, child.end = part, start + len(part)
            elif len(part) == size:
                self._exchange(pages, start // size, child)
            node = child
        if slot is not None and node.end >= len(tokens):
            self._keep(node, len(tokens), slot)
        if node.parent is not None and len(tokens) // size * size < node.end:
            node = node.parent  # another sequence may fill a partly filled page differently
        return None if node.parent is None else node

    def pin(self, key: bytes, tokens: Sequence[int]) -> PinnedPrefix | None:
        """Keeps a cached prefix until it is released; None if ``tokens`` are not all cached."""
        path, known = walk(self._roots.get(key), tokens, self.pool.page_size)
        if not path or known < len(tokens) or not self._reaches(path, known):
            return None
        pinned = {path[-1]}
        for group in self._windowed:
            # leave out a last token with which later text may merge
            first = self.pool.groups[group].reach.first_seen(known - 1) // self.pool.page_size
            pinned.update(path[first:])
        if self.pool.recurrent_states is not None:
            if known not in path[-1].states:
                return None
            before = last_state(path, known - 1)  # a longer text may merge with the last token
            pinned |= {before.node} if before is not None else set()
        return PinnedPrefix(pinned, known)

    def _cache_points(self, start: int, known: int, end: int) -> list[int]:
        """Positions from ``start`` to ``end`` whose states to keep; pages are cached up to ``known``.

        Each is at the end of a page, and of a grain. A pass ends there, so none is near another.
        """
        room = self.pool.limit.max_bytes - 2 * self._slot_bytes  # a running sequence needs two slots
        most = min(self.max_bytes, room) // self._slot_bytes
        if most < 1:
            return []
        size = max(self.pool.page_size, self.grain)
        spacing = max(self.spacing, size)
        while end // spacing > max(1, most // 2):  # the grid of a prompt takes at most half of the cache
            spacing *= 2
        gap, turn, last = self.spacing // 4, known // size * size, end // size * size
        near = [start, turn] if turn - start >= gap else [start]
        grid = range(start // spacing * spacing + spacing, end + 1, spacing)
        cache_points = sorted([*near, *(n for n in grid if all(abs(n - other) >= gap for other in near))])
        if last - cache_points[-1] >= gap:
            cache_points.append(last)
        return cache_points[1:]

    def _exchange(self, pages: Sequence[list[int]], at: int, known: Node) -> None:
        """Replaces a sequence's pages by cached ones of the same tokens, and caches the others."""
        own = [table[at] for table in pages]
        lacking = [NO_PAGE if cached != NO_PAGE else page for page, cached in zip(own, known.pages)]
        if self._bytes_of(lacking) and self._make_room(self._bytes_of(lacking)):
            self._put(
                known, [cached if page == NO_PAGE else page for page, cached in zip(lacking, known.pages)]
            )
            known.seen = self._clock
        for group, table, page, cached in zip(self.pool.groups, pages, own, known.pages):
            if NO_PAGE not in (page, cached) and page != cached:
                group.retain([cached])
                group.release([page])
                table[at] = cached


def _end(state: CachedState) -> int:
    return state.end
