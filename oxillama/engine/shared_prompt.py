"""A prompt that several requests begin with, which is run once for all of them."""

from __future__ import annotations

from oxillama.engine.sequence import Sequence


class SharedPrompt:
    """What has been run of a prompt, for those of its requests that wait for admission.

    The first that is admitted runs the prompt but for its last token, which every request runs itself for its
    logits. A fork of that sequence is kept here until all have begun, whatever becomes of the first. The
    scheduler drops the fork where pages are short; the next request then runs the prompt again.

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

    def leave(self, request: object) -> None:
        """Notes that a request does not wait any more; without others nothing is kept."""
        self._waiting.discard(request)
        if not self._waiting:
            self.drop()

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
