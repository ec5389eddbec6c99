"""Prefix stores in memory: the radix tree of the prefix cache, and prompts that several requests share."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Listed

from oxillama.cache.prefix import PrefixKvCache
from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.faults import note

log = logging.getLogger(__name__)

NODE = "prefix node"
SHARED = "shared prompt"
"""Keys of `Request.parts`."""


class CachedPrefixes(PrefixStore):
    """The prefix cache: pages and states of prompts and texts in a radix tree.

    Parameters
    ----------
    cache : the tree; None keeps nothing.
    """

    fetched_tokens = 0

    def __init__(self, cache: PrefixKvCache | None) -> None:
        self.cache = cache

    def arrive(self, request: Request) -> None:
        """Nothing is fetched."""

    def begin(self, request: Request) -> None:
        sequence = request.sequence
        if self.cache is not None and request.key is not None and not sequence.cached_len:
            sequence.adopt(self.cache.match(request.key, sequence.path(sequence.total_len - 1)))

    def admit(self, request: Request) -> None:
        if self.cache is not None and request.key is not None and request.sequence.state is SeqState.WAITING:
            self.cache.count(len(request.prompt), request.sequence.cached_len)

    def wait(self, request: Request) -> None:
        request.parts.pop(NODE, None)

    def at_most(self, request: Request, n: int) -> int:
        return n

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        if self.cache is None or request.key is None:
            return False
        n_tokens = request.sequence.total_len
        for other in batched:
            first, end = other.sequence, other.sequence.next_shared
            if other.key == request.key and first.state is SeqState.PREFILLING and end < n_tokens:
                n = int(end)
                if first.path(n) == request.sequence.path(n):
                    return True
        return False

    def insert(self, request: Request) -> None:
        n = request.sequence.kv.settled_of(request.sequence.cached_len)
        self._insert(request, n - n % request.sequence.pool.page_size, at_end=False)

    def keep(self, request: Request) -> None:
        self._insert(request, request.sequence.kv.settled_of(request.sequence.cached_len), at_end=True)

    def _insert(self, request: Request, n: int, at_end: bool) -> None:
        """Puts the pages of the first ``n`` tokens into the tree, and the state after them."""
        if self.cache is None or request.key is None or not n:
            return
        sequence, kv, node = request.sequence, request.sequence.kv, request.parts.get(NODE)
        slot = kv.state_after(n) if at_end or n in (sequence.cache_points or ()) else None
        kv.version += 1  # some of its pages may be known ones afterwards
        try:
            pages = [table.pages for table in kv.tables]
            request.parts[NODE] = self.cache.insert(request.key, sequence.path(n), pages, node, slot)
        except Exception:  # a text does not depend on what is kept for others
            request.parts[NODE] = None
            note(
                log, logging.ERROR, "request %d: its pages could not be kept for later prompts",
                request.id, request=request.name, exc_info=True,
            )  # fmt: skip

    def end(self, request: Request) -> None:
        """Nothing is kept for a request alone."""

    def needed_from(self, request: Request) -> float:
        return math.inf

    def reclaim(self, but: Request | None = None) -> bool:
        return False  # the tree gives pages up by itself

    def lose(self) -> None:
        if self.cache is not None:
            self.cache.lose()

    def close(self) -> None:
        """Nothing lasts."""

    def holders(self) -> list[Holder]:
        if self.cache is None:
            return []
        self.cache.check_integrity()
        return [Holder(self.cache.pages(), self.cache.slots(), [])]


class PrefixLayer(PrefixStore):
    """A store that wraps another one; methods that it does not change are those of the other."""

    def __init__(self, inner: PrefixStore) -> None:
        self.inner = inner

    @property
    def fetched_tokens(self) -> int:
        return self.inner.fetched_tokens

    def arrive(self, request: Request) -> None:
        self.inner.arrive(request)

    def begin(self, request: Request) -> None:
        self.inner.begin(request)

    def admit(self, request: Request) -> None:
        self.inner.admit(request)

    def wait(self, request: Request) -> None:
        self.inner.wait(request)

    def at_most(self, request: Request, n: int) -> int:
        return self.inner.at_most(request, n)

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        return self.inner.is_coming(request, running, batched)

    def insert(self, request: Request) -> None:
        self.inner.insert(request)

    def keep(self, request: Request) -> None:
        self.inner.keep(request)

    def end(self, request: Request) -> None:
        self.inner.end(request)

    def needed_from(self, request: Request) -> float:
        return self.inner.needed_from(request)

    def reclaim(self, but: Request | None = None) -> bool:
        return self.inner.reclaim(but)

    def lose(self) -> None:
        self.inner.lose()

    def close(self) -> None:
        self.inner.close()

    def holders(self) -> list[Holder]:
        return self.inner.holders()


class SharedPrompts(PrefixLayer):
    """Prompts that several requests have in common (`share_prompt`), each of which is run once."""

    def __init__(self, inner: PrefixStore) -> None:
        super().__init__(inner)
        self._prompts: set[SharedPrompt] = set()  # of requests that wait

    def arrive(self, request: Request) -> None:
        super().arrive(request)
        shared = shared_prompt(request)
        if shared is not None and request.finish_reason is None:
            self._prompts.add(shared)

    def begin(self, request: Request) -> None:
        sequence, shared = request.sequence, shared_prompt(request)
        if shared is None or sequence.cached_len:
            self.inner.begin(request)
            return
        if not (sequence.state is SeqState.WAITING and shared.n_kept):
            self.inner.begin(request)  # the cache may have more of a request that was preempted
        if shared.n_kept and not sequence.cached_len:
            shared.begin(sequence)

    def admit(self, request: Request) -> None:
        super().admit(request)
        self._leave(request)

    def wait(self, request: Request) -> None:
        super().wait(request)
        shared = shared_prompt(request)
        if shared is not None:
            shared.join(request)
            self._prompts.add(shared)

    def at_most(self, request: Request, n: int) -> int:
        shared, n = shared_prompt(request), super().at_most(request, n)
        return n if shared is None else shared.at_most(request.sequence, n)

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        shared = shared_prompt(request)
        if shared is not None and any(
            shared_prompt(other) is shared and other.wanted and other.sequence.cached_len < shared.n_tokens
            for other in running
        ):
            return True
        return super().is_coming(request, running, batched)

    def insert(self, request: Request) -> None:
        shared = shared_prompt(request)
        if shared is not None and request.sequence.cached_len == shared.n_tokens:
            shared.keep(request.sequence)
        super().insert(request)

    def end(self, request: Request) -> None:
        super().end(request)
        shared = shared_prompt(request)
        if shared is not None:
            self._leave(request)
            shared.keep(request.sequence)

    def _leave(self, request: Request) -> None:
        shared = shared_prompt(request)
        if shared is not None and shared.leave(request):
            self._prompts.discard(shared)

    def reclaim(self, but: Request | None = None) -> bool:
        spared = None if but is None else shared_prompt(but)
        kept = [shared for shared in self._prompts if shared.n_kept and shared is not spared]
        for shared in kept:
            shared.drop()
        return super().reclaim(but) or bool(kept)

    def lose(self) -> None:
        for shared in self._prompts:
            shared.drop()
        super().lose()

    def holders(self) -> list[Holder]:
        sequences = [shared.sequence for shared in self._prompts if shared.n_kept]
        return [*super().holders(), *map(Holder.of, sequences)]


class SharedPrompt:
    """What has been run of a prompt, for those of its requests that wait for admission.

    The first request that is admitted runs the prompt but for its last token, which every request runs itself
    for its logits. A fork of that sequence is kept here until all have begun, even if the first one ends. The
    fork is dropped where pages are short; the next request then runs the prompt again.

    Attributes
    ----------
    n_tokens : all tokens of the prompt but the last.
    """

    def __init__(self, first: Sequence) -> None:
        """``first`` is the sequence of any of the requests, which holds the prompt alone."""
        self.n_tokens = first.total_len - 1
        self._fork = Sequence(first.pool, first.tokens[:-1], adapters=first.adapters)
        self._waiting: set[object] = set()

    @property
    def n_kept(self) -> int:
        """Tokens whose state is kept."""
        return self._fork.cached_len

    @property
    def sequence(self) -> Sequence:
        """The sequence that holds the pages that are kept."""
        return self._fork

    def join(self, request: object) -> None:
        """Notes that a request waits."""
        self._waiting.add(request)

    def leave(self, request: object) -> bool:
        """Notes that a request does not wait any more; whether none does, and nothing is kept."""
        self._waiting.discard(request)
        if not self._waiting:
            self.drop()
        return not self._waiting

    def at_most(self, sequence: Sequence, n: int) -> int:
        """How many of ``n`` tokens a sequence may run at once: others take over the state before the last."""
        left = self.n_tokens - sequence.cached_len
        return min(n, left) if self._waiting and left > 0 else n

    def keep(self, sequence: Sequence) -> None:
        """Forks a sequence of these tokens, if a request waits for it and less is kept."""
        n = min(sequence.cached_len, self.n_tokens)
        if self._waiting and n > self.n_kept:
            self.drop()
            self._fork.take_fork(sequence, n)
            self._fork.spare()

    def begin(self, sequence: Sequence) -> None:
        """Has a sequence without pages begin with what is kept."""
        sequence.take_fork(self._fork, self.n_kept)

    def drop(self) -> None:
        """Frees what is kept."""
        self._fork.forget()


def shared_prompt(request: Request) -> SharedPrompt | None:
    """The prompt that a request shares with others; None for none."""
    found: SharedPrompt | None = request.parts.get(SHARED)
    return found


def share_prompt(requests: Listed[Request]) -> None:
    """Has requests of one prompt, none of them submitted yet, run it once."""
    first = requests[0]
    if len(requests) > 1 and len(first.prompt) > 1:
        shared = SharedPrompt(first.sequence)
        for request in requests:
            request.parts[SHARED] = shared
            shared.join(request)
