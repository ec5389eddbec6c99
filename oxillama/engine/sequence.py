"""One sequence: its tokens, where it stands, and the state that holds what has been computed of them."""

from __future__ import annotations

import enum
from collections.abc import Sequence as Tokens

from oxillama.cache.pages import PagePool
from oxillama.cache.recurrent import new_cache


class SeqState(enum.Enum):
    """Where a sequence stands.

    Waiting has no pages yet; Prefilling and Decoding do; Preempted had them and waits for new ones;
    Finished never runs again.
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Sequence:
    """Tokens of which the first `cached_len` are in `kv`.

    ``0 <= cached_len <= scheduled_len <= total_len`` and ``cached_len <= kv.capacity`` always hold. Between
    `schedule` and `commit` the tokens from `cached_len` to `scheduled_len` are being run.

    Attributes
    ----------
    tokens : ids; grows as they are sampled.
    kv : its keys and values, a `SequenceState`.
    state : where it stands with the scheduler.
    """

    def __init__(self, pool: PagePool, tokens: Tokens[int] = ()) -> None:
        self.pool = pool
        self.tokens = list(tokens)
        self.kv = new_cache(pool)
        self.state = SeqState.WAITING
        self.cached_len = 0
        self.scheduled_len = 0

    @property
    def pages(self) -> list[int]:
        """Page numbers in order of position."""
        return self.kv.pages

    @property
    def total_len(self) -> int:
        """All its tokens, run or not."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens that have not been run."""
        return len(self.tokens) - self.cached_len

    def check(self) -> None:
        """Asserts what always holds of the lengths."""
        assert 0 <= self.cached_len <= self.scheduled_len <= len(self.tokens)
        assert self.cached_len <= self.kv.capacity

    def adopt(self, pages: list[int], n_tokens: int) -> None:
        """Begins with pages that hold its first ``n_tokens`` tokens; the references are the caller's gift."""
        assert self.cached_len == 0
        self.kv.adopt(pages)
        self.cached_len = self.scheduled_len = n_tokens
        self.check()

    def shortage(self, n: int) -> int:
        """Pages that must be allocated before ``n`` more tokens can be run."""
        return self.kv.shortage(self.cached_len, self.cached_len + n)

    def schedule(self, n: int) -> None:
        """Announces that ``n`` more tokens are run now, and makes place for them. Raises KvCacheFullError."""
        assert self.scheduled_len == self.cached_len and 0 < n <= self.pending
        self.kv.reserve(self.cached_len, self.cached_len + n)
        self.scheduled_len = self.cached_len + n
        self.check()

    def commit(self) -> None:
        """Notes that what was scheduled has been run."""
        self.cached_len = self.scheduled_len
        self.check()

    def rollback(self) -> None:
        """Notes that what was scheduled has not been run."""
        self.cached_len = self.scheduled_len = self.kv.truncate(self.cached_len)

    def fork(self) -> Sequence:
        """Another sequence that has run the same tokens; pages are shared until one of them writes."""
        other = Sequence(self.pool, self.tokens)
        other.kv, kept = self.kv.fork(self.cached_len)
        other.cached_len = other.scheduled_len = kept
        return other

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens`` tokens and frees the pages behind them.

        Of a recurrent model's, some of those may have to be run again.
        """
        if not 0 <= n_tokens <= len(self.tokens):
            raise ValueError(f"truncate: needs 0 to {len(self.tokens)}, got {n_tokens}")
        del self.tokens[n_tokens:]
        self.cached_len = self.scheduled_len = self.kv.truncate(min(self.cached_len, n_tokens))

    def forget(self) -> None:
        """Frees the pages and keeps the tokens, which must all be run again."""
        self.kv.release()
        self.cached_len = self.scheduled_len = 0

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)
