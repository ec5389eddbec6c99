"""Drafts with the block for next-token prediction that the model's own file has."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

import numpy as np

from oxillama.config import EngineConfig
from oxillama.engine.building import new_pool
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import KvCacheFullError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.next_token import NextTokenHead, load_next_token_head
from oxillama.speculation.drafters import common_length
from oxillama.speculation.sampling import DraftSampler
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.weights.loader import Weights

EAGER = 64
"""Rows that wait before they are run without a draft being asked for: a prompt's states are not all kept."""

RECENT = 16
"""Rows that the block begins with again where no draft was asked for while `EAGER` tokens were chosen."""


@dataclass
class Followed:
    """What is kept of a sequence. Row r of the block belongs to position ``base + r`` of the text.

    Attributes
    ----------
    base : position of the first row; rows before it were not seen by the model that is drafted for.
    rows : the block's own sequence.
    confirmed : rows that were run with states of the model.
    first : position of the first of the states.
    parts : float32 (n, n_embd) each, states of the model that are still needed, up to the last one that was
        seen: as the passes brought them, or joined.
    n_states : rows of all parts.
    idle : passes of one row since the last draft.
    """

    rows: Sequence
    base: int = 0
    confirmed: int = 0
    first: int = 0
    idle: int = 0
    parts: list[np.ndarray] = field(default_factory=list)
    n_states: int = 0

    @property
    def end(self) -> int:
        """The position behind the last state."""
        return self.first + self.n_states

    @property
    def states(self) -> np.ndarray:
        """float32 (n, n_embd): all of them."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]

    def keep(self, first: int, states: np.ndarray) -> None:
        """Has only these states, from position ``first`` on."""
        self.first, self.parts, self.n_states = first, [states], len(states)

    def add(self, start: int, states: np.ndarray) -> None:
        """Adds states from position ``start`` on, in the place of those that are there."""
        if start < self.end:
            self.keep(self.first, self.states[: start - self.first])
        self.parts.append(states)
        self.n_states += len(states)


class NextTokenDrafter:
    """Drafts with a `NextTokenHead`, one pass of the block for each token.

    The first token of a draft comes from the model's own state, each further one from the block's. Rows that
    were run with the block's states are run again with the model's, once they are known. While drafts do not
    pay, the block runs nothing: it forgets the text but for the last rows.

    Parameters
    ----------
    head, runner : the block, and what runs it.
    n_vocab : tokens that may be drafted, the first ones of the block.
    ends : tokens behind which nothing is drafted.
    """

    name = "next-token"
    needs_hidden = True

    def __init__(self, head: NextTokenHead, runner: Runner, n_vocab: int, ends: Collection[int]) -> None:
        self._head = head
        self._n_vocab = n_vocab
        self._ends = ends
        self._runner = runner
        self._known: dict[Sequence, Followed] = {}

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        known = self._known.get(sequence)
        if known is None or not known.first <= start <= known.end:
            self.forget(sequence)
            known = self._begin(sequence, start, hidden.shape[1])
        known.confirmed = min(known.confirmed, max(0, start + 1 - known.base))
        known.add(start, hidden)
        known.idle = known.idle + 1 if len(hidden) == 1 else 0
        if known.end - known.base - known.confirmed >= EAGER:
            if known.idle >= EAGER:
                self._forget_early_rows(sequence, known)
            else:
                self._catch_up([(sequence, known)], certain=known.end)

    def _begin(self, sequence: Sequence, start: int, width: int) -> Followed:
        """Begins with the states from ``start`` on; before the first position of all there are zeros."""
        known = self._known[sequence] = Followed(Sequence(self._runner.pool, checkpoints=0))
        known.base = start + 1 if start else 0
        known.keep(start if start else -1, np.zeros((0 if start else 1, width), np.float32))
        return known

    def _forget_early_rows(self, sequence: Sequence, known: Followed) -> None:
        """Begins again with the last rows, none of which has run."""
        known.rows.truncate(0)
        first = known.end - RECENT
        known.base, known.confirmed = first + 1, 0
        known.keep(first, known.states[-RECENT:].copy())

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sequences]
        active = [
            i
            for i, sequence in enumerate(sequences)
            if sequence in self._known and self._known[sequence].end == sequence.total_len - 1
        ]
        try:
            if active:
                parts = [(sequences[i], self._known[sequences[i]]) for i in active]
                for _, known in parts:
                    known.idle = 0
                states = self._catch_up(parts)
                self._draft(active, states, found, sequences, samplers, counts)
        except KvCacheFullError:  # the texts go on without the rest
            pass
        return found

    def _catch_up(self, parts: list[tuple[Sequence, Followed]], certain: int | None = None) -> np.ndarray:
        """Runs all rows whose states are known; float32 (parts, n_embd), the block's state of each last one.

        ``certain`` : rows of later positions are left.
        """
        given = []
        for sequence, known in parts:
            tokens = sequence.tokens[known.base : certain]
            n = min(known.confirmed, common_length(known.rows.tokens, tokens), len(tokens) - 1)
            known.rows.truncate(n)
            known.rows.tokens += tokens[n:]
            first = known.base + known.rows.cached_len - 1 - known.first  # of the states, for the first row
            given.append(known.states[first : first + known.rows.pending])
        states = self._run([known for _, known in parts], given)
        for _, known in parts:
            known.confirmed = known.rows.cached_len
            known.keep(known.end - 1, known.states[-1:].copy())
        return states

    def _run(self, followed: list[Followed], given: list[np.ndarray]) -> np.ndarray:
        """Runs what is pending; float32 (sequences, n_embd), the block's normed state of each last row."""
        self._head.inputs.given = np.ascontiguousarray(np.concatenate(given))
        parts = [(known.rows, known.rows.pending) for known in followed]
        return self._runner.forward(parts, states=True)

    def _draft(
        self,
        active: list[int],
        states: np.ndarray,
        found: list[list[int]],
        sequences: Listed[Sequence],
        samplers: Listed[DraftSampler],
        counts: Listed[int],
    ) -> None:
        """Adds tokens to what was found for the active sequences, as long as they pay."""
        while active:
            logits, going, kept = self._runner.logits(states), [], []
            for at, i in enumerate(active):
                token = samplers[i].sample(logits[at, : self._n_vocab], sequences[i].tokens + found[i])
                if token is None:
                    continue
                found[i].append(token)
                if len(found[i]) < counts[i] and token not in self._ends and not samplers[i].is_done:
                    going.append(i)
                    kept.append(states[at : at + 1])
                    self._known[sequences[i]].rows.tokens.append(token)
            active = going
            if active:
                states = self._run([self._known[sequences[i]] for i in active], kept)

    def forget(self, sequence: Sequence) -> None:
        known = self._known.pop(sequence, None)
        if known is not None:
            known.rows.release()


def offer_next_token(file: ModelFile, target: Runner, tokenizer: TokenizerBridge) -> NextTokenDrafter | None:
    """What drafts with the block of a model's file; None for a file without one."""
    model = target.model
    weights = Weights(file, model.kernels, target.n_threads)
    head = load_next_token_head(read_spec(file), weights, model)
    if head is None:
        return None
    for linear in head.linears():
        linear.pack()
    pool = new_pool(head, EngineConfig(page_size=target.pool.page_size))
    return NextTokenDrafter(head, Runner(head, pool, target.n_threads), tokenizer.n_vocab, tokenizer.eog_ids)
