"""Prompts that several requests have in common, each of which is run once."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Any

from oxillama.engine.prefix_layer import PrefixLayer
from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence

SHARED = "shared prompt"
"""The key of `Request.parts`."""


class SharedPrompts(PrefixLayer):
    """A prefix store that shares the prompts of requests (`share_prompt`)."""

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
    """What has been run of the tokens that several requests begin with, for those that wait for admission.

    The first request that is admitted runs these tokens; what follows them, every request runs itself. A fork
    of that sequence is kept here until all have begun, even if the first one ends. The fork is dropped where
    pages are short; the next request then runs the tokens again.

    Attributes
    ----------
    n_tokens : the tokens that the requests have in common.
    """

    def __init__(self, first: Sequence, n_tokens: int) -> None:
        """``first`` is the sequence of any of the requests, of which nothing has been run."""
        self.n_tokens = n_tokens
        tokens = first.tokens[:n_tokens]
        self._fork = Sequence(first.pool, tokens, adapters=first.adapters, given=first.given)
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


def share_prompt(requests: Listed[Request], n_tokens: int | None = None) -> None:
    """Has requests, none of them submitted yet, run the tokens once that they begin with.

    Their scheduler must have a `SharedPrompts`.

    Parameters
    ----------
    n_tokens : that are the same in all of them; None for their one prompt but its last token, which each
        request runs itself for its logits.
    """
    first = requests[0]
    n_tokens = len(first.prompt) - 1 if n_tokens is None else n_tokens
    if len(requests) > 1 and n_tokens > 0:
        shared = SharedPrompt(first.sequence, n_tokens)
        for request in requests:
            request.parts[SHARED] = shared
            shared.join(request)


def install(model: Any) -> SharedPrompts:
    """Has the scheduler of a `LoadedModel` share prompts."""
    found = model.scheduler.prefixes = SharedPrompts(model.scheduler.prefixes)
    return found
