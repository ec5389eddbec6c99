"""A sequence: its tokens, its state in the scheduler, and its keys and values."""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence as Tokens
from typing import TYPE_CHECKING, Any

from oxillama.engine.cache.kv import CHECKPOINTS, PagedKvCache, new_cache
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.prefix import Match

if TYPE_CHECKING:
    from oxillama.models.adapters.stack import Adaptation


class SeqState(enum.Enum):
    """The state of a sequence in the scheduler.

    Waiting has no pages yet; Prefilling and Decoding do; Preempted had them and waits for new ones;
    Finished never runs again.
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Output(enum.Enum):
    """The rows that a sequence gets from a pass, as logits or as hidden states."""

    # `Enum.__hash__` is a Python function, and each step looks a layout up by its outputs.
    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]

    NONE = "none"
    LAST_LOGITS = "logits of the last row, or of the last accepted row and of each draft"
    ALL_LOGITS = "logits of every row"
    LAST_HIDDEN = "hidden states of the last row"
    ALL_HIDDEN = "hidden states of every row"

    @property
    def is_logits(self) -> bool:
        """Whether the rows are logits."""
        return self in (Output.LAST_LOGITS, Output.ALL_LOGITS)

    @property
    def is_all(self) -> bool:
        """Whether every row is returned."""
        return self in (Output.ALL_LOGITS, Output.ALL_HIDDEN)


class Sequence:
    """Tokens of which the first `cached_len` are in `kv`.

    ``0 <= cached_len <= scheduled_len <= total_len`` and ``cached_len <= kv.capacity`` always hold. Between
    `schedule` and `commit` the tokens from `cached_len` to `scheduled_len` are being run.

    Args:
        checkpoints: earlier states of a recurrent model to keep, for `truncate`; above 0, some pages that
            windows have passed are kept, too.
        adapters: applied to its tokens; None without adapters.
        embeddings: embeddings of media in place of some tokens' own (`InputEmbeddings`); None without media.

    Attributes:
        tokens: ids; grows as they are sampled.
        kv: its keys and values, a `SequenceState`.
        state: in the scheduler.
        cache_points: positions whose recurrent state goes into the prefix cache: a pass ends at each. None
            for models without recurrent layers.
        in_one_pass: whether all its tokens must be run together, since they see each other.
    """

    def __init__(
        self,
        pool: CachePool,
        tokens: Tokens[int] = (),
        checkpoints: int = CHECKPOINTS,
        adapters: Adaptation | None = None,
        embeddings: Any = None,
    ) -> None:
        self.pool = pool
        self.adapters = adapters
        self.embeddings = embeddings
        self.tokens: list[int] = list(tokens)
        self.kv: PagedKvCache = new_cache(pool, checkpoints)
        self.state: SeqState = SeqState.WAITING
        self.cache_points: Tokens[int] | None = None
        self.in_one_pass: bool = False
        self.n_drafts: int = 0
        self.cached_len: int = 0
        self.scheduled_len: int = 0

    @property
    def pages(self) -> list[list[int]]:
        """The page numbers of each group, in order of position."""
        return self.kv.pages

    @property
    def total_len(self) -> int:
        """All its tokens, run or not, drafted ones included."""
        return len(self.tokens)

    @property
    def accepted(self) -> list[int]:
        """Its tokens without the drafted ones."""
        return self.tokens[: len(self.tokens) - self.n_drafts] if self.n_drafts else self.tokens

    @property
    def n_accepted(self) -> int:
        """Its tokens without the drafted ones."""
        return len(self.tokens) - self.n_drafts

    @property
    def pending(self) -> int:
        """Tokens that have not been run."""
        return len(self.tokens) - self.cached_len

    @property
    def is_scheduled(self) -> bool:
        """Whether tokens are scheduled that have not been run."""
        return self.scheduled_len > self.cached_len

    def path(self, n: int) -> list[int]:
        """The first ``n`` tokens as the prefix cache knows them: with the adapters that they are run with."""
        tokens = self.tokens[:n]
        tokens = tokens if self.adapters is None else self.adapters.marked(tokens)
        return tokens if self.embeddings is None else self.embeddings.marked(tokens)

    def check(self) -> None:
        """Asserts what always holds of the lengths."""
        assert 0 <= self.cached_len <= self.scheduled_len <= len(self.tokens)
        assert self.cached_len <= self.kv.capacity
        assert 0 <= self.n_drafts <= len(self.tokens)

    def adopt(self, known: Match) -> None:
        """Begins with pages of the prefix cache; takes over the references of ``known``."""
        assert self.cached_len == 0
        self.kv.adopt(known.pages, known.n_tokens, known.slot)
        self.cached_len = self.scheduled_len = known.n_tokens
        self.cache_points = known.cache_points
        self.check()

    @property
    def next_shared(self) -> float:
        """The next position up to which others can share its pages: a page's end, or a cache point."""
        if self.cache_points is None:
            return (self.cached_len // self.pool.page_size + 1) * self.pool.page_size
        following = bisect_right(self.cache_points, self.cached_len)
        return self.cache_points[following] if following < len(self.cache_points) else math.inf

    def at_most(self, n: int) -> int:
        """How many of ``n`` tokens the next pass may run."""
        n = min(n, self.pending)
        return n if self.cache_points is None else int(min(n, self.next_shared - self.cached_len))

    def extend_to_span(self, n: int) -> int:
        """``n`` tokens for the next pass, or more of them where those see later ones."""
        least = self.pending if self.in_one_pass else n
        return least if self.embeddings is None else int(self.embeddings.extend_to_span(self, least))

    def shortage(self, n: int) -> int:
        """Bytes that must be allocated before ``n`` more tokens can be run."""
        return self.kv.shortage(self.cached_len, self.cached_len + n, self._open(n) if self.n_drafts else 0)

    def _open(self, n: int) -> int:
        """How many of the tokens up to the next ``n`` are drafted and may be taken back."""
        return max(0, self.cached_len + n - len(self.tokens) + self.n_drafts)

    def demand(self, rows: int) -> int:
        """Bytes that it will have allocated when all its tokens have been run, ``rows`` at a time at most."""
        rows = max(rows, self.extend_to_span(rows))
        return self.kv.demand(self.cached_len, self.total_len, rows, self.next_shared <= self.total_len)

    def schedule(self, n: int) -> None:
        """Announces that ``n`` more tokens are run now, and makes place for them. Raises KvCacheFullError."""
        start, end = self.cached_len, self.cached_len + n
        assert self.scheduled_len == start < end <= len(self.tokens)
        self.kv.reserve(start, end, self._open(n) if self.n_drafts else 0)
        self.scheduled_len = end

    def commit(self) -> None:
        """Notes that the scheduled tokens have been run."""
        self.cached_len = self.scheduled_len

    def free_out_of_window(self, before: float = math.inf) -> None:
        """Frees the pages whose positions no later row sees; those from position ``before`` on are kept."""
        if self.pool.has_windows:
            self.kv.free_out_of_window(int(min(before, self.cached_len, len(self.tokens) - self.n_drafts)))

    def rollback(self) -> None:
        """Notes that what was scheduled has not been run; drafts are forgotten."""
        self.cached_len = self.scheduled_len = self.kv.truncate(self.cached_len)
        self.drop_drafts()

    def cancel_pass(self) -> None:
        """Notes that what was scheduled, if anything, has not been run; drafts are forgotten."""
        if self.is_scheduled:
            self.rollback()
        self.drop_drafts()

    def draft(self, tokens: Tokens[int]) -> None:
        """Adds tokens that may follow; the next pass runs them with what is pending.

        Those that it has run may be taken back by `append` or `truncate`, and none of the others runs again.
        """
        self.tokens += tokens
        self.n_drafts += len(tokens)

    def append(self, token: int) -> bool:
        """Adds an accepted token: the next drafted one if that is the same, else in the place of all drafts.

        Returns whether the token was drafted.
        """
        if self.n_drafts:
            if self.tokens[-self.n_drafts] == token:
                self.n_drafts -= 1
                return True
            self.drop_drafts()
        self.tokens.append(token)
        return False

    def keep_drafts(self) -> None:
        """Accepts all drafted tokens."""
        self.n_drafts = 0

    def drop_drafts(self) -> None:
        """Forgets the drafted tokens that were not accepted, run or not."""
        if self.n_drafts:
            self.truncate(len(self.tokens) - self.n_drafts)

    @property
    def can_reclaim(self) -> bool:
        """Whether it has drafts, or records of drafts, to free."""
        return self.n_drafts > 0 or bool(self.kv.all_records)

    def reclaim(self) -> bool:
        """Frees drafts, else checkpoints, else what has run since its state; whether there was any."""
        n = self.cached_len
        if self.n_drafts:
            self.drop_drafts()
            return True
        if self.kv.drop_checkpoints(n):
            return True
        self.settle()
        return self.cached_len < n

    def settle(self) -> None:
        """Goes back to its last recurrent state; the tokens since then run again."""
        self.cached_len = self.scheduled_len = self.kv.truncate(self.kv.settled_of(self.cached_len))

    def fork(self) -> Sequence:
        """Another sequence that has run the same tokens; pages are shared until one of them writes."""
        other = Sequence(self.pool, self.tokens, adapters=self.adapters, embeddings=self.embeddings)
        other.take_fork(self, self.cached_len)
        return other

    def take_fork(self, other: Sequence, n_tokens: int) -> None:
        """Begins with what ``other`` has run of its first ``n_tokens`` tokens, which must be the same."""
        assert self.cached_len == 0
        assert self.adapters == other.adapters
        assert self.tokens[:n_tokens] == other.tokens[:n_tokens]
        self.kv, kept = other.kv.fork(n_tokens)
        self.cached_len = self.scheduled_len = kept
        self.check()

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens`` tokens and frees the pages behind them.

        Of a recurrent model's, some of those may have to be run again.
        """
        if not 0 <= n_tokens <= len(self.tokens):
            raise ValueError(f"truncate: expected 0 to {len(self.tokens)}, got {n_tokens}")
        self.n_drafts = max(0, self.n_drafts - (len(self.tokens) - n_tokens))
        del self.tokens[n_tokens:]
        self.cached_len = self.scheduled_len = self.kv.truncate(min(self.cached_len, n_tokens))

    def forget(self) -> None:
        """Frees the pages and keeps the tokens but for drafts; they must all be run again."""
        self.drop_drafts()
        self.kv.release()
        self.cached_len = 0
        self.scheduled_len = 0

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)


def reclaim_one(sequences: Tokens[Sequence]) -> bool:
    """Has the first sequence that can free drafts do so, else the first that can free anything; whether there
    was one."""
    return any(s.n_drafts and s.reclaim() for s in sequences) or any(s.reclaim() for s in sequences)
