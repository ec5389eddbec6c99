"""Prompts that several requests have in common, each of which is run once."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Any

from oxillama.engine.features.prefix_layer import PrefixLayer
from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence

SHARED = "shared prompt"
"""The key of `Request.parts`."""


class SharedPrompts(PrefixLayer):
    """A prefix store that shares the prompts of requests (`share_prompt`)."""

    def __init__(self, inner: PrefixStore) -> None:
        super().__init__(inner)
        self._prompts: set[SharedPrompt] = set()  # prompts of requests that wait

    def arrive(self, request: Request) -> None:
        super().arrive(request)
        if request.finish_reason is None:
            self._prompts.update(shared_prompts(request))

    def begin(self, request: Request) -> None:
        sequence = request.sequence
        kept = next((shared for shared in shared_prompts(request) if shared.n_kept), None)
        if kept is None or sequence.cached_len or sequence.state is not SeqState.WAITING:
            self.inner.begin(request)  # the cache may have more of a request that was preempted
        if kept is not None and not sequence.cached_len:
            kept.begin(sequence)

    def admit(self, request: Request) -> None:
        super().admit(request)
        self._leave(request)

    def wait(self, request: Request) -> None:
        super().wait(request)
        for shared in shared_prompts(request):
            shared.join(request)
            self._prompts.add(shared)

    def at_most(self, request: Request, n: int) -> int:
        n = super().at_most(request, n)
        return min([n, *(shared.at_most(request.sequence, n) for shared in shared_prompts(request))])

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        own = shared_prompts(request)
        for other in running if own else ():
            if other.has_room:
                n = other.sequence.cached_len
                if any(shared in own and n < shared.n_tokens for shared in shared_prompts(other)):
                    return True
        return super().is_coming(request, running, batched)

    def insert(self, request: Request) -> None:
        for shared in shared_prompts(request):
            if request.sequence.cached_len == shared.n_tokens:
                shared.keep(request.sequence)
        super().insert(request)

    def end(self, request: Request) -> None:
        super().end(request)
        self._leave(request)
        for shared in shared_prompts(request):
            shared.keep(request.sequence)

    def _leave(self, request: Request) -> None:
        for shared in shared_prompts(request):
            if shared.leave(request):
                self._prompts.discard(shared)

    def reclaim(self, but: Request | None = None) -> bool:
        spared = () if but is None else shared_prompts(but)
        kept = [shared for shared in self._prompts if shared.n_kept and shared not in spared]
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
    """What has been run of the tokens that several requests begin with, for those that wait for admission.

    The first request that is admitted runs these tokens; what follows them, every request runs itself. A fork
    of that sequence is kept here until all have begun, even if the first one ends. The fork is dropped where
    pages are short; the next request then runs the tokens again.

    Attributes:
        n_tokens: the tokens that the requests have in common.
    """

    def __init__(self, first: Sequence, n_tokens: int) -> None:
        """``first`` is the sequence of any of the requests, of which nothing has been run."""
        self.n_tokens = n_tokens
        tokens = first.tokens[:n_tokens]
        self._fork = Sequence(first.pool, tokens, adapters=first.adapters, embeddings=first.embeddings)
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
            self._fork.reclaim()

    def begin(self, sequence: Sequence) -> None:
        """Has a sequence without pages begin with what is kept."""
        sequence.take_fork(self._fork, self.n_kept)

    def drop(self) -> None:
        """Frees what is kept."""
        self._fork.forget()


def shared_prompts(request: Request) -> Listed[SharedPrompt]:
    """The prompts that a request shares with others, the longest first."""
    found: Listed[SharedPrompt] = request.parts.get(SHARED, ())
    return found


def share_prompt(requests: Listed[Request], n_tokens: int | None = None) -> None:
    """Has requests, none of them submitted yet, run the tokens once that they begin with.

    Their scheduler must have a `SharedPrompts`. They may share fewer tokens with others already.

    Args:
        n_tokens: that are the same in all of them; None for their one prompt but its last token, which each
            request runs itself for its logits.
    """
    first = requests[0]
    n_tokens = len(first.prompt) - 1 if n_tokens is None else n_tokens
    if len(requests) < 2 or n_tokens <= max([0, *(shared.n_tokens for shared in shared_prompts(first))]):
        return
    shared = SharedPrompt(first.sequence, n_tokens)
    for request in requests:
        request.parts[SHARED] = (shared, *shared_prompts(request))
        shared.join(request)


def install(model: Any) -> SharedPrompts:
    """Has the scheduler of a `LoadedModel` share prompts."""
    found = model.scheduler.queues.prefixes = SharedPrompts(model.scheduler.queues.prefixes)
    return found
