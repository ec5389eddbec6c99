"""The state of a `Llama`: tokens, and the logits after them.

The tokens are the whole state: running them gives the same logits at any time. So a completion, which runs
as a request of its own, only stores its tokens here; they are run again when logits are requested.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from oxillama.compat.llama_cpp.llama_cache import common_prefix
from oxillama.engine.engine import InferenceEngine
from oxillama.sessions.session import Session


class Evaluated:
    """Tokens, and a session that runs them when needed. Thread-safe.

    Args:
        all_logits: whether `scores` has the logits after every token, or only after the last.
    """

    def __init__(self, engine: InferenceEngine, all_logits: bool) -> None:
        self._engine = engine
        self._all_logits = all_logits
        self._session: Session | None = None
        self._rows: dict[int, np.ndarray] = {}  # position -> logits
        self.lock = threading.RLock()
        self.tokens: list[int] = []

    def cut(self, n: int) -> None:
        with self.lock:
            self.put(self.tokens[:n])

    def put(self, tokens: Sequence[int]) -> None:
        """Replace the tokens; they are run when their logits are needed."""
        with self.lock:
            n = common_prefix(self.tokens, tokens)
            self._rows = {at: row for at, row in self._rows.items() if at < n}
            self.tokens = [int(token) for token in tokens]

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens and run them. Raises PromptError or KvCacheFullError, and then changes nothing."""
        with self.lock:
            fresh = [int(token) for token in tokens]
            if fresh:
                self._run(self.tokens + fresh)

    def _run(self, tokens: list[int]) -> None:
        """Bring the session to these tokens; always runs at least the last one."""
        if self._session is None:
            self._session = self._engine.session()
        session = self._session
        kept = min(common_prefix(session.tokens, tokens), len(tokens) - 1)
        known = next((at for at in range(kept) if at not in self._rows), kept) if self._all_logits else kept
        session.rewind(known)
        if self._all_logits:
            rows = session.logits(tokens[known:])
            self._rows |= dict(enumerate(rows, known))
        else:
            self._rows = {len(tokens) - 1: session.prefill(tokens[known:])}
        self.tokens = list(tokens)

    def row(self, at: int = -1) -> np.ndarray:
        """float32 (n_vocab,): the logits after token ``at``; -1: the last. Raises IndexError."""
        with self.lock:
            at = len(self.tokens) + at if at < 0 else at
            if not 0 <= at < len(self.tokens):
                raise IndexError(f"idx: expected a token among {len(self.tokens)}, got {at}")
            if at not in self._rows:
                tokens = self.tokens
                self._run(tokens[: at + 1])
                self.tokens = tokens
            return self._rows[at]

    def scores(self, n_vocab: int) -> np.ndarray:
        """float32 (tokens, n_vocab): the logits after each token; zeros where they are not kept."""
        with self.lock:
            if self.tokens:
                self.row()
            if self._all_logits and len(self._rows) < len(self.tokens):
                self._run(self.tokens)
            found = np.zeros((len(self.tokens), n_vocab), np.float32)
            for at, row in self._rows.items():
                if at < len(found):
                    found[at] = row
            return found

    def snapshot(self) -> bytes:
        """A snapshot of the session with these tokens; b"" without tokens."""
        with self.lock:
            if not self.tokens:
                return b""
            if self._session is None or self._session.tokens != self.tokens:
                self._run(self.tokens)
            assert self._session is not None
            return self._session.snapshot()

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot. Raises SnapshotIncompatible, and then changes nothing."""
        with self.lock:
            if not data:
                self.put([])
                return
            session = self._engine.restore(data)
            assert isinstance(session, Session)
            self._session, self._rows, self.tokens = session, {}, session.tokens

    def fork(self, tokens: Sequence[int]) -> Session | None:
        """A new session with ``tokens``, sharing the common prefix; None if there is no common prefix."""
        with self.lock:
            session = self._session
            kept = 0 if session is None else min(common_prefix(session.tokens, tokens), len(tokens) - 1)
            if session is None or not kept:
                return None
            fork = session.fork()
        fork.rewind(kept)
        fork.append(list(tokens[kept:]))
        return fork
