"""Drafts with a layer that reads the model's hidden states, such as the MTP layer (next-token prediction)
in its own file."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.engine.building import new_pool
from oxillama.engine.cache.radix import common_length
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import KvCacheFullError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.next_token import NextTokenHead, load_next_token_head
from oxillama.models.weights.loader import Weights
from oxillama.speculation.drafters import sample_each
from oxillama.speculation.sampling import DraftSampler
from oxillama.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.models.drafts.dflash import DFlash
    from oxillama.models.drafts.eagle3 import Eagle3

EAGER = 64
"""Number of waiting rows that are run even without a draft, so that a prompt's states are not all kept."""

RECENT = 16
"""Number of rows that the layer restarts from if nothing was drafted for `EAGER` tokens."""


@dataclass
class Followed:
    """The state of a sequence. Row r of the layer belongs to position ``base + r`` of the text.

    Attributes:
        base: position of the first row; earlier positions have no row.
        rows: the layer's own sequence.
        confirmed: number of rows that were run with the target's hidden states.
        first: position of the first hidden state in ``parts``.
        parts: float32 (n, n_embd) each, the target's hidden states that are still needed, up to the latest;
            as received, or joined.
        n_states: number of rows of all parts.
        idle: passes of one row since the last draft.
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
        """The position after the last hidden state."""
        return self.first + self.n_states

    @property
    def states(self) -> np.ndarray:
        """float32 (n, n_embd): all parts joined."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]

    def keep(self, first: int, states: np.ndarray) -> None:
        """Replace all hidden states by these, which begin at position ``first``."""
        self.first, self.parts, self.n_states = first, [states], len(states)

    def add(self, start: int, states: np.ndarray) -> None:
        """Add hidden states from position ``start`` on; replaces existing ones from there on."""
        if start < self.end:
            self.keep(self.first, self.states[: start - self.first])
        self.parts.append(states)
        self.n_states += len(states)


class NextTokenDrafter:
    """Drafts with a layer that reads the target's hidden states, one pass of the layer for each token.

    The first token of a draft is computed from the target's hidden state, further tokens from the layer's own
    states. Rows that were run with the layer's states are run again once the target's states are known. While
    drafts do not pay, the layer does not run, and only the last rows are kept.

    Args:
        head, runner: the layer, and the runner that runs it.
        tokenizer: has the tokens that may be drafted, and those after which a draft ends.
        follows_zeros: whether the first token of a text has a row, whose state is zero.
    """

    needs_hidden = True
    lag = 1
    """How many positions before a row's token its state lies."""

    def __init__(
        self,
        head: NextTokenHead | Eagle3 | DFlash,
        runner: Runner,
        tokenizer: Tokenizer,
        name: str = "next-token",
        follows_zeros: bool = True,
    ) -> None:
        self.name = name
        self.tapped: tuple[int, ...] = head.tapped
        self._head = head
        self._follows_zeros = follows_zeros
        self._n_vocab: int = tokenizer.n_vocab
        self._ends = tokenizer.eog_ids
        self._runner = runner
        self._known: dict[Sequence, Followed] = {}

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        known = self._known.get(sequence)
        if known is None or not known.first <= start <= known.end:
            self.forget(sequence)
            known = self._begin(sequence, start, hidden.shape[1])
        known.confirmed = min(known.confirmed, max(0, start + self.lag - known.base))
        known.add(start, hidden)
        known.idle = known.idle + 1 if len(hidden) == 1 else 0
        if known.end - known.base - known.confirmed >= EAGER:
            if known.idle >= EAGER:
                self._forget_early_rows(sequence, known)
            else:
                self._catch_up([(sequence, known)], certain=known.end)

    def _begin(self, sequence: Sequence, start: int, width: int) -> Followed:
        """Start a sequence's state at position ``start``."""
        known = self._known[sequence] = Followed(Sequence(self._runner.pool, checkpoints=0))
        first, n = (-1, 1) if start == 0 and self._follows_zeros else (start, 0)
        known.base = first + self.lag
        known.keep(first, np.zeros((n, width), np.float32))
        return known

    def _forget_early_rows(self, sequence: Sequence, known: Followed) -> None:
        """Restart with the last `RECENT` rows; none of them has been run."""
        known.rows.truncate(0)
        first = known.end - RECENT
        known.base, known.confirmed = first + self.lag, 0
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
        except KvCacheFullError:  # the drafts so far are still valid
            pass
        return found

    def _catch_up(self, parts: list[tuple[Sequence, Followed]], certain: int | None = None) -> np.ndarray:
        """Run all rows whose hidden states are known; float32 (sequences, n_embd), the states of the last
        rows.

        ``certain`` : only tokens before this position are run.
        """
        hidden = []
        for sequence, known in parts:
            tokens = sequence.tokens[known.base : certain]
            n = min(known.confirmed, common_length(known.rows.tokens, tokens), len(tokens) - 1)
            known.rows.truncate(n)
            known.rows.keep_drafts()
            known.rows.tokens += tokens[n:-1]
            known.rows.draft(tokens[-1:])  # runs again, unless the text goes on
            first = known.base + known.rows.cached_len - 1 - known.first  # index of the first row's state
            hidden.append(known.states[first : first + known.rows.pending])
        states = self._run([known for _, known in parts], hidden, observed=True)
        for _, known in parts:
            known.confirmed = known.rows.cached_len
            known.keep(known.end - 1, known.states[-1:].copy())
        return states

    def _run(self, followed: list[Followed], hidden: list[np.ndarray], observed: bool) -> np.ndarray:
        """Run the pending rows; float32 (sequences, n_embd), the layer's state of each last row.

        ``observed`` : the hidden states are the target's, not the layer's.
        """
        self._head.inputs.hidden = np.ascontiguousarray(np.concatenate(hidden))
        self._head.inputs.observed = observed
        parts = [(known.rows, known.rows.pending) for known in followed]
        counts = [1 + min(rows.n_drafts, n - 1) for rows, n in parts]  # states that a sequence gets
        states: np.ndarray = self._runner.forward(parts, states=True)[np.cumsum(counts) - 1]
        return states

    def _draft(
        self,
        active: list[int],
        states: np.ndarray,
        found: list[list[int]],
        sequences: Listed[Sequence],
        samplers: Listed[DraftSampler],
        counts: Listed[int],
    ) -> None:
        """Append drafted tokens to ``found`` for the active sequences, while further tokens pay."""
        while active:
            logits = self._runner.logits(states)[:, : self._n_vocab]
            going = sample_each(logits, active, found, sequences, samplers, counts, self._ends)
            kept, active = [states[at : at + 1] for at in going], [active[at] for at in going]
            for i in active:
                self._known[sequences[i]].rows.draft(found[i][-1:])
            if active:
                states = self._run([self._known[sequences[i]] for i in active], kept, observed=False)

    def forget(self, sequence: Sequence) -> None:
        known = self._known.pop(sequence, None)
        if known is not None:
            known.rows.release()


def offer_next_token(file: ModelFile, target: Runner, tokenizer: Tokenizer) -> NextTokenDrafter | None:
    """The drafter of the MTP layer in a model's file; None if the file has no such layer."""
    model = target.model
    weights = Weights(file, model.kernels, target.n_threads)
    head = load_next_token_head(read_spec(file), weights, model)
    if head is None:
        return None
    for linear in head.linears():
        linear.pack()
    pool = new_pool(head, EngineConfig(page_size=target.pool.page_size))
    target.tapped = tuple(sorted({*target.tapped, *head.tapped}))
    return NextTokenDrafter(head, Runner(head, pool, target.n_threads), tokenizer)
