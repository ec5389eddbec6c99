"""A grammar over a vocabulary: the state that all sequences constrained by the grammar share.

Parser states and masks are computed on demand and cached. Both caches have a memory limit: masks are
dropped oldest first; tables of parser states that have grown too large are replaced by new tables, in which
each sequence replays its tokens at its next step.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from threading import Lock

import numpy as np

from oxillama._kernels.grammar.matcher import Matcher
from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama.errors import GrammarError
from oxillama.text.grammar.program import Program
from oxillama.text.grammar.vocabulary import Vocabulary

TABLE_BYTES = 48 << 20  # size of the parser states at which the tables are replaced
HARD_BYTES = 256 << 20  # size of the parser states at which an operation fails
MASK_BYTES = 32 << 20
MOST_KEPT_BYTES = 256 << 20  # size of the states and masks of the grammars that an engine keeps, together
MASK_WORK = 5_000_000  # limit of work units for one mask or token; see ParserStates
REQUEST_WORK = 50_000_000  # limit of work units for one sequence ...
TOKEN_WORK = 250_000  # ... plus this for each accepted token

DEAD = 0


class Tables:
    """Parser states, and the masks of some of them."""

    def __init__(self, program: Program, vocabulary: Vocabulary) -> None:
        self.states: ParserStates = ParserStates(program, HARD_BYTES, MASK_WORK)
        self.matcher: Matcher = Matcher(vocabulary.trie, self.states)
        self.start: int = self.states.start()
        self.masks: dict[int, np.ndarray] = {}
        self.followed: int = 0  # bytes of parser states made by replays of sequences from older tables


class Constraint:
    """A grammar's program over a vocabulary. Threads may share a constraint.

    Raises:
        GrammarError: The grammar names a token that the vocabulary does not have.
    """

    def __init__(self, program: Program, vocabulary: Vocabulary) -> None:
        self.program: Program = program
        self.vocabulary: Vocabulary = vocabulary
        self._lock = Lock()
        self._most_masks = max(16, MASK_BYTES // (4 * vocabulary.n_words))
        self._token_masks = [self._token_mask(i) for i in range(len(program.token_sets))]
        self._end_mask = vocabulary.empty_mask()
        for id in vocabulary.end_ids:
            self._end_mask[id >> 5] |= np.uint32(1 << (id & 31))
        self._tables = Tables(program, vocabulary)

    def _token_mask(self, index: int) -> np.ndarray:
        """The tokens that a token terminal accepts, without end-of-generation tokens: uint32 (n_words,)."""
        terminal, n = self.program.token_sets[index], self.vocabulary.n_vocab
        for id in terminal.ids:
            if id >= n:
                raise GrammarError(f"grammar: names token {id}, the vocabulary has {n} tokens")
        bits = np.zeros(32 * self.vocabulary.n_words, bool)
        if terminal.negated:
            bits[:n] = [self.vocabulary.is_text(id) for id in range(n)]
        bits[list(terminal.ids)] = not terminal.negated
        bits[list(self.vocabulary.end_ids)] = False
        packed: np.ndarray = np.packbits(bits, bitorder="little").view(np.uint32)
        return packed

    # ------------------------------------------------------------------ tables

    @property
    def table_bytes(self) -> int:
        """Bytes of its parser states and masks."""
        return self._tables.states.n_bytes + 4 * self.vocabulary.n_words * len(self._tables.masks)

    def tables(self) -> Tables:
        """The current tables; new tables if the old ones have grown too large."""
        tables = self._tables
        if tables.states.n_bytes - tables.followed > TABLE_BYTES:
            with self._lock:
                if self._tables is tables:
                    self._tables = Tables(self.program, self.vocabulary)
                tables = self._tables
        return tables

    def followed(self, tables: Tables, tokens: Iterable[int]) -> array[int]:
        """The parser states in new tables after 0, 1, ... tokens that a sequence accepted in older tables."""
        before = tables.states.n_bytes
        found = array("i", [tables.start])
        for token in tokens:
            state = self.advance(tables, found[-1], token)
            assert state is not None
            found.append(state)
        tables.followed += tables.states.n_bytes - before
        return found

    # ------------------------------------------------------------------ steps

    def advance(self, tables: Tables, state: int, token: int) -> int | None:
        """The parser state after a token; None if it is not allowed, DEAD after an end of generation."""
        if token in self.vocabulary.end_ids:
            return DEAD if self._may_end(tables, state, token) else None
        after: int = tables.matcher.advance(state, token)
        if self.program.token_sets:
            hits = self._hits(token, self.vocabulary.is_text(token))
            after = tables.states.advance_token(state, after, hits)
        return after or None

    def _hits(self, token: int, is_text: bool) -> bytes:
        """A byte for each token terminal: 1 if the terminal accepts this token."""
        return bytes(
            [token not in t.ids and is_text if t.negated else token in t.ids for t in self.program.token_sets]
        )

    def _may_end(self, tables: Tables, state: int, token: int) -> bool:
        """Whether this token may end generation: the grammar is complete, or names the token here."""
        if tables.states.accepts(state):
            return True
        hits = self._hits(token, False)
        if not any(hits):
            return False
        return tables.states.accepts(tables.states.advance_token(state, DEAD, hits))

    # ------------------------------------------------------------------ masks

    def new_mask(self, tables: Tables, state: int) -> np.ndarray:
        """The bitmask of allowed next tokens: uint32 (n_words,), read-only; cached in ``tables.masks``."""
        mask = self.vocabulary.empty_mask()
        tables.matcher.compute_bitmask(state, mask)
        if self._token_masks:
            for i in tables.states.next_token_sets(state):
                mask |= self._token_masks[i]
        if tables.states.accepts(state):
            mask |= self._end_mask
        elif self._token_masks:
            for id in self.vocabulary.end_ids:
                if self._may_end(tables, state, id):
                    mask[id >> 5] |= np.uint32(1 << (id & 31))
        mask = self.vocabulary.shared(mask)
        with self._lock:
            while len(tables.masks) >= self._most_masks:
                del tables.masks[next(iter(tables.masks))]
            tables.masks[state] = mask
        return mask
