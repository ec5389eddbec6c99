"""The prefix cache on the disk: what other processes, or earlier ones, have computed of a prompt.

When the folder has more of a request's prompt than memory has, the request waits while a thread
reads those blocks and lays them out as pages. The engine thread then puts the pages into the prefix cache,
where the request finds them like any others. All other requests run meanwhile.

Of a prompt that is run, the engine thread copies the blocks that the folder lacks, after the step that ended
them; another thread writes them. If it falls behind by more than `MOST_PENDING` bytes, blocks are left out.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from blake3 import blake3

from oxillama.base.faults import note
from oxillama.base.locks import ForkedOpen
from oxillama.base.version import __version__
from oxillama.engine.cache.kv import held
from oxillama.engine.cache.kv_pool import KvLayout
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.positions import from_positions, joined_positions, position_bytes, to_positions
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.features.disk_prefixes.background import Background
from oxillama.engine.features.disk_prefixes.folder import BLOCK, KV, STATE, BlockFolder, chain
from oxillama.engine.features.prefix_layer import PrefixLayer
from oxillama.engine.loading import LoadedModel
from oxillama.engine.protocols import PrefixStore
from oxillama.engine.request import Request

log: logging.Logger = logging.getLogger(__name__)

MOST_PENDING = 256 << 20
"""Bytes of copies that wait to be written."""

PART_BYTES = 64 << 20
"""Bytes of blocks that are read before they are laid out and go into the prefix cache."""


class DiskPrefixes(PrefixLayer):
    """Keeps prompts of an engine in a folder, too. Its methods are for the engine thread.

    Args:
        folder: of the blocks.
        root: hash of all that decides bits but the tokens and the key of a request, 32 bytes.
        layouts: of the keys and values of each page group; none for a model without keys.
        prefix: where blocks are put that are read.
        post: has the engine thread run a command after its step.
        inner: the stores in memory.

    Attributes:
        n_tokens: read so far.
    """

    GRAIN = BLOCK
    """Tokens between states that are kept in memory, so that they are also kept on the disk."""

    @classmethod
    def of(cls, model: LoadedModel, inner: PrefixStore) -> DiskPrefixes:
        """The store of a model that is being loaded, in the folder that its options name."""
        config, path, decoder = model.config, model.config.prefix_cache_dir, model.runner.model
        assert path is not None
        model.prefix_cache.grain = cls.GRAIN
        folder, kv_type = BlockFolder(path, config.prefix_cache_dir_bytes), config.kv_type
        groups = decoder.page_groups if model.spec.attending else ()
        # bits may change from version to version
        shape = f"{__version__} {kv_type} {[(group.layers, group.sizes) for group in groups]}"
        layouts = [KvLayout(*group.sizes, kv_type) for group in groups]
        root = blocks_root(model.fingerprint.digest, shape.encode())
        return cls(folder, root, layouts, model.pool, model.prefix_cache, model.thread.post, inner)

    def __init__(
        self,
        folder: BlockFolder,
        root: bytes,
        layouts: Sequence[KvLayout],
        pool: CachePool,
        prefix: PrefixKvCache,
        post: Callable[[Callable[[], object]], None],
        inner: PrefixStore,
    ) -> None:
        super().__init__(inner)
        self.folder = folder
        self.n_tokens: int = 0
        self._root = root
        self._pool = pool
        self._prefix = prefix
        self._layouts = layouts
        self._post = post
        self._sizes = [
            BLOCK * position_bytes(layout) for layout in layouts
        ]  # bytes of a block, for each group
        self._block_bytes = sum(self._sizes)
        self._reader, self._writer = (
            Background("oxillama-prefix-reader"),
            Background("oxillama-prefix-writer"),
        )
        self._reading: dict[str, list[Request]] = {}  # key: the first block to read
        self._process = os.getpid()
        self._pending = 0  # bytes
        self._counting = ForkedOpen()

    # --- from the folder ------------------------------------------------------------------------------

    @property
    def fetched_tokens(self) -> int:
        return self.n_tokens + super().fetched_tokens

    def arrive(self, request: Request) -> None:
        """Has a request that arrives wait, if the folder has more of its prompt than memory has."""
        super().arrive(request)
        if self._process != os.getpid():  # what was under way is the parent's
            self._process, self._reading, self._pending = os.getpid(), {}, 0
        if request.key is not None and len(request.prompt) >= BLOCK:
            root = blake3(self._root + request.key).digest()
            request.parts[BLOCKS] = Blocks(chain(root, request.sequence.path(len(request.prompt))))
            self._begin_reading(request)

    def _begin_reading(self, request: Request) -> None:
        """Begins to read what the folder has, or waits for another request that reads the same."""
        first, end = self._plan(request)
        request.is_held = end > 0
        if not request.is_held:
            return
        name = blocks_of(request).names[min(first, end - 1)]
        if name in self._reading:
            self._reading[name].append(request)
            return
        self._reading[name] = [request]
        self._reader.submit(partial(self._read, request, name, first, end))

    def _plan(self, request: Request) -> tuple[int, int]:
        """The blocks to read; the second is 0 for none."""
        tokens = request.sequence.path(len(request.prompt) - 1)  # the last is run: its logits are wanted
        _, n_paged, n_known = self._prefix.known(request.key or b"", tokens)
        size, states = self._pool.page_size, self._pool.recurrent_states
        room = self._prefix.max_bytes - (0 if states is None else states.slot_bytes)
        blocks = blocks_of(request).names[
            : max(0, min(len(tokens), room // self._pool.page_stride * size)) // BLOCK
        ]
        align = max(BLOCK, size)
        first = end = n_paged // align * align // BLOCK  # a page is read whole
        if self._block_bytes:
            while end < len(blocks) and self.folder.has(blocks[end] + KV):
                end += 1
        else:  # pages hold nothing
            end = len(blocks)
        if states is not None:
            while end * BLOCK > n_known and not self.folder.has(blocks[end - 1] + STATE):
                end -= 1
        return (min(first, end), end) if end * BLOCK > n_known else (0, 0)

    def _read(self, request: Request, name: str, first: int, end: int) -> None:
        """Reads blocks and lays them out, a part after the other; in the reader's thread."""
        size, states = self._pool.page_size, self._pool.recurrent_states
        align = max(1, size // BLOCK)  # blocks to a page
        step = max(align, PART_BYTES // max(1, self._block_bytes) // align * align)
        names = blocks_of(request).names
        try:
            state = None
            if states is not None:
                data = self.folder.read(names[end - 1] + STATE, states.slot_bytes)
                state = None if data is None else data.view("<f4")
                end = first if data is None else end
            stops = range(first + step, end, step)
            for start, stop in pairwise((first, *stops, end)):
                blocks = self._blocks(names[start:stop])
                n = len(blocks) if self._block_bytes else stop - start
                last = state if stop == end == start + n else None
                pages = self._laid_out(blocks, n * BLOCK)
                self._post(partial(self._insert, request, start * BLOCK, (start + n) * BLOCK, pages, last))
                if n < stop - start:
                    break
        except Exception:
            note(log, logging.ERROR, "prefix cache: blocks could not be read", exc_info=True)
        self._post(partial(self._go_on, request, name))

    def _blocks(self, names: Sequence[str]) -> list[np.ndarray]:
        """Keys and values of blocks, up to the first that is not there."""
        found: list[np.ndarray] = []
        for name in names if self._block_bytes else ():
            data = self.folder.read(name + KV, self._block_bytes)
            if data is None:
                break
            found.append(data)
        return found

    def _laid_out(self, blocks: list[np.ndarray], n_tokens: int) -> list[np.ndarray]:
        """The keys and values of blocks: uint8 (pages, bytes of a page) for each group."""
        if not blocks:
            return [
                np.zeros((group.pages_for(n_tokens), group.page_bytes), np.uint8)
                for group in self._pool.groups
            ]
        found, at = [], 0
        for layout, size in zip(self._layouts, self._sizes):
            data = joined_positions(layout, [block[at : at + size] for block in blocks])
            found.append(from_positions(layout, self._pool.page_size, data, 0, n_tokens))
            at += size
        return found

    def _go_on(self, request: Request, name: str) -> None:
        """Has the requests go on whose blocks were read."""
        for other in self._reading.pop(name, []):
            if other is request:
                other.is_held = False
            else:
                self._begin_reading(other)

    def _insert(
        self, request: Request, start: int, end: int, data: list[np.ndarray], state: np.ndarray | None
    ) -> None:
        """Puts pages into the prefix cache; on the engine thread."""
        if (end == start and state is None) or request.finish_reason is not None:
            return
        try:
            self._keep(request, start, end, data, state)
        except Exception as error:  # no memory: the request runs these tokens itself
            note(log, logging.WARNING, "prefix cache: %d tokens could not be kept: %s", end - start, error)

    def _keep(
        self, request: Request, start: int, end: int, data: list[np.ndarray], state: np.ndarray | None
    ) -> None:
        pool, states = self._pool, self._pool.recurrent_states
        tokens, key = request.sequence.path(end), request.key or b""
        known, n_known, _ = self._prefix.known(key, tokens[:start])
        if n_known < start:
            return  # the block was evicted meanwhile
        pages, slot = [numbers[: pool.pages_for(start)] for numbers in known], None
        for group, numbers in zip(pool.groups, pages):
            group.retain(held(numbers))  # allocating may evict
        try:
            if state is not None and states is not None:
                slot = states.allocate()
                states.write(slot, state)
            fresh = pool.allocate(len(sources) for sources in data)
            for group, numbers, more, sources in zip(pool.groups, pages, fresh, data):
                numbers += more
                group.write_pages(more, sources)
            self._prefix.insert(key, tokens, pages, slot=slot)
            self.n_tokens += end - start
        finally:
            for group, numbers in zip(pool.groups, pages):
                group.release(held(numbers))
            if slot is not None and states is not None:
                states.release(slot)

    # --- to the folder --------------------------------------------------------------------------------

    def insert(self, request: Request) -> None:
        super().insert(request)
        self.offer(request)

    def offer(self, request: Request) -> None:
        """Has the blocks written that a step has ended of a prompt, where the folder lacks them."""
        sequence, folder, blocks = request.sequence, self.folder, blocks_of(request)
        n, n_prompt = sequence.cached_len, len(request.prompt)
        if not blocks.names or blocks.n_offered >= len(blocks.names):
            return
        end = min(n, n_prompt) // BLOCK
        new = range(blocks.n_offered, end)
        blocks.n_offered = end
        if folder.is_writable and self._block_bytes:
            least = max(table.first for table in sequence.kv.tables) * self._pool.page_size
            lacking = [i for i in new if i * BLOCK >= least and blocks.names[i] + KV not in folder.present]
            if lacking:
                self._copy_pages(request, lacking)
        if folder.is_writable and self._pool.recurrent_states is not None and n == end * BLOCK and new:
            self._copy_state(request, end)
        if end == len(blocks.names):
            has_states = sequence.cache_points is not None
            kinds = [KV] * bool(self._block_bytes) + [STATE] * has_states
            names = [name + kind for name in blocks.names for kind in kinds]
            # after those that wait have been written
            self._writer.submit(lambda: folder.touch([name for name in names if name in folder.present]))

    def needed_from(self, request: Request) -> float:
        """The first token of a prompt that is still to be offered; inf for none."""
        blocks = blocks_of(request)
        return blocks.n_offered * BLOCK if blocks.n_offered < len(blocks.names) else math.inf

    def _copy_pages(self, request: Request, blocks: list[int]) -> None:
        """Copies the pages of blocks of a prompt, to write the blocks."""
        pool, size = self._pool, self._pool.page_size
        first, end = blocks[0] * BLOCK // size, pool.pages_for((blocks[-1] + 1) * BLOCK)
        if not self._count((end - first) * pool.page_stride):
            return
        copies = [
            group.read_pages(table.pages[first:end])
            for group, table in zip(pool.groups, request.sequence.kv.tables)
        ]
        parts = [(blocks_of(request).names[i] + KV, i * BLOCK) for i in blocks]
        self._writer.submit(partial(self._write_blocks, copies, first, parts))

    def _write_blocks(self, pages: list[np.ndarray], first: int, parts: list[tuple[str, int]]) -> None:
        """Writes blocks, each with its name and its first token; in the writer's thread.

        ``pages`` are copies of each group's, from the page number ``first`` of the sequence on.
        """
        size = self._pool.page_size
        try:
            for name, start in parts:
                end = start + BLOCK
                span = slice(start // size - first, self._pool.pages_for(end) - first)
                data = [
                    to_positions(layout, size, copies[span], start, end)
                    for layout, copies in zip(self._layouts, pages)
                ]
                self.folder.write(name, np.concatenate(data))
        finally:
            self._count(-len(pages[0]) * self._pool.page_stride)

    def _copy_state(self, request: Request, end: int) -> None:
        """Copies the state after the blocks up to ``end``, to write it."""
        kv, states = request.sequence.kv, self._pool.recurrent_states
        name, slot = blocks_of(request).names[end - 1] + STATE, kv.state_after(end * BLOCK)
        wanted = slot is not None and end * BLOCK in (request.sequence.cache_points or ())
        if not wanted or name in self.folder.present:
            return
        assert states is not None and slot is not None
        if self._count(states.slot_bytes):
            self._writer.submit(partial(self._write_state, name, states.read(slot).astype("<f4")))

    def _write_state(self, name: str, state: np.ndarray) -> None:
        try:
            self.folder.write(name, state.view(np.uint8))
        finally:
            self._count(-state.nbytes)

    def _count(self, n: int) -> bool:
        """Counts bytes that wait to be written; whether there is room for them."""
        with self._counting.lock:
            if n > 0 and self._pending + n > MOST_PENDING:
                return False
            self._pending += n
            return True

    def flush(self) -> None:
        """Waits until all is written; for any thread."""
        self._writer.flush()

    def close(self) -> None:
        super().close()
        self.flush()


BLOCKS = "disk blocks"
"""The key of `Request.parts`."""


@dataclass
class Blocks:
    """The whole blocks of a prompt.

    Attributes:
        names: of all blocks.
        n_offered: blocks that were offered to be written.
    """

    names: list[str] = field(default_factory=list)
    n_offered: int = 0


def blocks_of(request: Request) -> Blocks:
    """The blocks of a request's prompt; none for a request that keeps out of the prefix cache."""
    found: Blocks = request.parts.setdefault(BLOCKS, Blocks())
    return found


def blocks_root(*parts: bytes) -> bytes:
    """A hash of parts, of which each is hashed after its length."""
    hashed = blake3(b"oxillama blocks 1")
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()
