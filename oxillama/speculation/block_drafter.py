"""Drafts of a whole block in one pass, with a DFlash model."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.engine.building import new_pool
from oxillama.engine.cache.radix import common_length
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.models.drafts.dflash import DFlash
from oxillama.speculation.drafters import sample_each
from oxillama.speculation.mtp import Followed, NextTokenDrafter
from oxillama.speculation.sampling import DraftSampler
from oxillama.text.tokenizer.tokenizer import Tokenizer


class BlockRunner(Runner):
    """Runs a `DFlash` model."""

    model: DFlash

    def chosen(
        self, logits: np.ndarray, states: np.ndarray, previous: Listed[int]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """As `Choice.rows`, of rows of the last pass."""
        step = self.model.linear_pass(self._work, self.tuner)
        return self.model.choice.rows(logits, states, np.array(previous, np.int32), step)


class BlockDrafter(NextTokenDrafter):
    """Drafts with a `DFlash` model: one pass over a block, however many tokens of it are drafted.

    Rows of the text are injected where the states of the target are known; the rows of a block are dropped
    before the next pass. ``name`` is the file's.
    """

    lag = 0

    def __init__(
        self, name: str, head: DFlash, target: Runner, config: EngineConfig, tokenizer: Tokenizer
    ) -> None:
        self._blocks = BlockRunner(head, new_pool(head, config), target.n_threads)
        super().__init__(head, self._blocks, tokenizer, name, follows_zeros=False)
        self._model = head

    def _catch_up(self, parts: list[tuple[Sequence, Followed]], certain: int | None = None) -> np.ndarray:
        """Inject all rows whose states are known; no states."""
        behind, hidden = [], []
        for sequence, known in parts:
            tokens = sequence.tokens[known.base : known.end]
            n = min(known.confirmed, common_length(known.rows.tokens, tokens))
            known.rows.truncate(n)
            known.rows.tokens += tokens[n:]
            if known.rows.pending:
                behind.append(known)
                hidden.append(known.states[known.base + known.rows.cached_len - known.first :])
        if behind:
            self._run(behind, hidden, observed=True)
        for known in behind:
            known.confirmed = known.rows.cached_len
            known.keep(known.end, known.states[:0])
        return np.zeros((0, 0), np.float32)

    def _draft(
        self,
        active: list[int],
        states: np.ndarray,
        found: list[list[int]],
        sequences: Listed[Sequence],
        samplers: Listed[DraftSampler],
        counts: Listed[int],
    ) -> None:
        """Append the tokens of a block to ``found`` for each active sequence, while further tokens pay."""
        model, rows = self._model, [self._known[sequences[i]].rows for i in active]
        first, size = model.choice.first, model.block_size
        n = min(size - first, max(counts[i] for i in active))
        model.inputs.observed = False
        for i, sequence in zip(active, rows):  # the next call of `_catch_up` takes the block back
            sequence.tokens += [sequences[i].tokens[-1], *[model.mask] * (size - 1)]
        of_blocks = self._blocks.forward([(each, size) for each in rows], all_logits=True, states=True)
        of_drafts = of_blocks.reshape(len(active), size, -1)[:, first : first + n]
        width = of_drafts.shape[2]
        logits = self._blocks.logits(np.ascontiguousarray(of_drafts.reshape(-1, width)))
        logits = logits.reshape(len(active), n, -1)
        at = list(range(len(active)))  # active sequences that draft another token
        for depth in range(n):
            previous = [(found[active[k]] or sequences[active[k]].tokens)[-1] for k in at]
            chosen, chances = self._blocks.chosen(logits[at, depth], of_drafts[at, depth], previous)
            going = sample_each(
                chosen[:, : self._n_vocab], [active[k] for k in at], found, sequences, samplers, counts,
                self._ends, chances,
            )  # fmt: skip
            at = [at[k] for k in going]
            if not at:
                break
