"""`GrammarState`: the progress of one sequence through a grammar."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oxillama.errors import GrammarError
from oxillama.text.grammar.constraint import REQUEST_WORK, TOKEN_WORK, Tables
from oxillama.text.grammar.grammar import Grammar
from oxillama.text.grammar.vocabulary import Vocabulary

Timer = Callable[[float, float], object]


class GrammarState:
    """The progress of one sequence: its tokens, and the number of the parser state after each.

    A sequence may use `REQUEST_WORK` units of work, and `TOKEN_WORK` for each token. Only the work that its
    masks and tokens add to the shared tables counts: a cached mask costs nothing.

    Args:
        grammar: Grammar
        vocabulary: Vocabulary
        timer: called with the times before and after each mask (`time.perf_counter`); forks keep it.

    Raises:
        GrammarError: The grammar names a token that the vocabulary does not have.
    """

    __slots__ = (
        "_constraint", "_left", "_states", "_tables", "_timer", "_tokens", "grammar", "vocabulary",
    )  # fmt: skip

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, timer: Timer | None = None) -> None:
        self.grammar: Grammar = grammar
        self.vocabulary: Vocabulary = vocabulary
        self._timer = timer
        self._constraint = grammar.constraint(vocabulary)
        self._tables = self._constraint.tables()
        self._tokens = array("i")
        self._states = array("i", [self._tables.start])  # after 0, 1, ... tokens
        self._left = REQUEST_WORK

    # ------------------------------------------------------------------ facts

    @property
    def tokens(self) -> list[int]:
        """The tokens accepted so far."""
        return self._tokens.tolist()

    @property
    def has_ended(self) -> bool:
        """Whether the last token was an end of generation; then no token can follow."""
        return bool(self._tokens) and self._tokens[-1] in self.vocabulary.end_ids

    @property
    def is_complete(self) -> bool:
        """Whether the text so far belongs to the language."""
        return self.has_ended or self._current().states.accepts(self._states[-1])

    def allows_token(self, token: int) -> bool:
        """Whether this token may come next."""
        tables = self._current()
        return not self.has_ended and self._constraint.advance(tables, self._states[-1], token) is not None

    def mask(self) -> np.ndarray:
        """The tokens that may come next, as a bitmask.

        Returns:
            uint32 (n_words,): Bit t % 32 of word t // 32 is set if token t is allowed. Read-only, shared with
                other sequences.

        Raises:
            GrammarError: The mask, or the whole sequence, exceeded its limit of work.
        """
        started = 0.0 if self._timer is None else time.perf_counter()
        tables, work = self._current(), 0
        mask = tables.masks.get(self._states[-1])
        if mask is None:
            work = -tables.states.work
            mask = self._constraint.new_mask(tables, self._states[-1])
            work += tables.states.work
        if self._timer is not None:
            self._timer(started, time.perf_counter())
        if work or self._left < 0:  # without work left, cached masks are refused too
            self._spend(work)
        return mask

    # ------------------------------------------------------------------ moves

    def advance(self, token: int) -> None:
        """Accept a token; raises GrammarError, and changes nothing, if it is forbidden or too much work."""
        tables = self._current()
        before = tables.states.work
        after = None if self.has_ended else self._constraint.advance(tables, self._states[-1], token)
        if after is None:
            raise GrammarError(f"grammar: token {token} is not allowed after {len(self._tokens)} tokens")
        self._spend(tables.states.work - before - TOKEN_WORK)
        self._tokens.append(token)
        self._states.append(after)

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` tokens."""
        if not 0 <= n <= len(self._tokens):
            raise GrammarError(f"n: expected 0 to {len(self._tokens)} tokens to take back, got {n}")
        if n == 0:
            return
        del self._tokens[-n:]
        del self._states[-n:]

    def fork(self) -> GrammarState:
        """An independent copy."""
        other = GrammarState.__new__(GrammarState)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._tokens, other._states = self._tokens[:], self._states[:]
        return other

    # ------------------------------------------------------------------ snapshots

    def state(self) -> dict[str, Any]:
        """The state as plain values: the grammar's digest and the accepted tokens."""
        return {"grammar": self.grammar.digest.hex(), "tokens": self.tokens}

    @classmethod
    def restore(cls, grammar: Grammar, vocabulary: Vocabulary, state: Mapping[str, Any]) -> GrammarState:
        """The inverse of `state`. Raises GrammarError if the state belongs to another grammar."""
        if state.get("grammar") != grammar.digest.hex():
            raise GrammarError("grammar state: belongs to another grammar")
        new = cls(grammar, vocabulary)
        for token in state["tokens"]:
            new.advance(token)
        return new

    # ------------------------------------------------------------------ tables

    def _current(self) -> Tables:
        """The tables in use; after a replacement, the parser states are recomputed in the new tables."""
        tables = self._constraint.tables()
        if tables is not self._tables:
            self._states = self._constraint.followed(tables, self._tokens)
            self._tables = tables
        return tables

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            error = GrammarError(
                f"grammar: expected at most {REQUEST_WORK} units of work, and {TOKEN_WORK} a token, "
                f"got more within {len(self._tokens)} tokens"
            )
            raise self._tables.states.located(error, self._states[-1])
