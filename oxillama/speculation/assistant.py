"""Drafts with an assistant of Gemma 4, on the keys and values of the text itself."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.models.drafts.assistant import Assistant
from oxillama.models.workspace import Batch
from oxillama.speculation.drafters import sample_each
from oxillama.speculation.sampling import DraftSampler
from oxillama.text.tokenizer.tokenizer import Tokenizer


class AssistantRunner(Runner):
    """Runs an `Assistant` behind the tokens that its target's sequences have run; ``pool`` is theirs."""

    model: Assistant

    def step(self, sequences: Listed[Sequence], tokens: Listed[int], hidden: np.ndarray) -> np.ndarray:
        """float32 (sequences, n_embd): normed states, for a token and a state of each sequence.

        ``hidden`` are the states, float32 (sequences, width). All pages of the sequences' run tokens must be
        there; no page changes.
        """
        positions = np.array([sequence.cached_len for sequence in sequences], np.int32)
        row_start = np.arange(len(sequences) + 1, dtype=np.int32)
        caches, paged = [sequence.kv for sequence in sequences], self.model.kernels.attention.PagedBatch
        kv = [
            # up to the last positions that have keys
            paged(group.shape, group.table, table.of(caches), row_start, positions - 1)
            for group, table in zip(self.pool.groups, self._tables)
        ]
        batch = Batch(np.array(tokens, np.int32), positions, row_start, row_start[:-1].astype(np.int64))
        self.model.inputs.hidden = hidden
        return self.model.hidden_states(batch, kv, self._work, self.tuner)

    def next_states(self, normed: np.ndarray) -> np.ndarray:
        """As `Assistant.next_states`, of the last pass."""
        return self.model.next_states(normed, self._work, self.tuner)


class AssistantDrafter:
    """Drafts with an assistant, one pass for each token, which reads the pages of the target's sequence.

    It keeps no more than the state of a sequence's last row, so it has nothing to catch up with.

    Args:
        name: file name of the assistant.
        head: its model.
        target: runs the model that it drafts for.
    """

    needs_hidden = True

    def __init__(
        self, name: str, head: Assistant, target: Runner, config: EngineConfig, tokenizer: Tokenizer
    ) -> None:
        self.name = name
        self._n_vocab: int = tokenizer.n_vocab
        self._ends = tokenizer.eog_ids
        self._runner = AssistantRunner(head, target.pool, target.n_threads)
        self._last: dict[Sequence, tuple[int, np.ndarray]] = {}  # position and state of the last row

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        self._last[sequence] = start + len(hidden), hidden[-1:].copy()

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sequences]
        active = [i for i, sequence in enumerate(sequences) if self._is_ready(sequence)]
        tokens = [sequences[i].tokens[-1] for i in active]
        states = [self._last[sequences[i]][1] for i in active]
        while active:
            normed = self._runner.step([sequences[i] for i in active], tokens, np.concatenate(states))
            logits = self._runner.logits(normed)[:, : self._n_vocab]
            going = sample_each(logits, active, found, sequences, samplers, counts, self._ends)
            active, states = [active[at] for at in going], [self._runner.next_states(normed[going])]
            tokens = [found[i][-1] for i in active]
        return found

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether all but the last token of a sequence have run, and the state of the last row is known."""
        known = self._last.get(sequence)
        return known is not None and known[0] == sequence.cached_len == sequence.total_len - 1

    def forget(self, sequence: Sequence) -> None:
        self._last.pop(sequence, None)
