"""How drafted tokens are chosen from the logits of a block: by a row alone, or by the token before, too."""

from __future__ import annotations

import numpy as np

from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear, Pass
from oxillama.models.weights.loader import Weights


class Choice:
    """Each token is chosen by the logits of its row alone.

    Attributes:
        first: the first row of a block whose logits are drafts.
    """

    first: int = 1

    def linears(self) -> list[Linear]:
        """Its linear layers."""
        return []

    def rows(
        self, logits: np.ndarray, states: np.ndarray, previous: np.ndarray, step: Pass
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The logits to choose from, and estimates of the acceptance of what is chosen.

        Args:
            logits: float32 (n, vocab), of one row of each of n blocks.
            states: float32 (n, n_embd), their hidden states after the last norm.
            previous: int32 (n,), the tokens before them.

        Returns:
            float32 (n, vocab), and float32 (n,) or None
        """
        return logits, None


class MarkovChoice(Choice):
    """DSpark: logits += W_2 w_1(previous token); a confidence head may estimate the acceptance, as
    sigmoid(w [state | w_1(previous token)] + b).

    Args:
        n_vocab, ids: tokens of the target, and ids among them of the drafter's tokens (`DraftModel.ids`).
    """

    def __init__(
        self, weights: Weights, read: Reader, n_vocab: int, spec: Spec, ids: np.ndarray | None
    ) -> None:
        self.first = 0 if read.flag("sample_from_anchor", True) else 1
        self.rank: int = weights.shape("markov_w1.weight")[0]
        self.table: Embedding = weights.embedding("markov_w1.weight", n_vocab, self.rank)
        self.bias: Linear = weights.linear([("markov_w2", spec.n_vocab)], self.rank)
        self.confidence: Linear | None = None
        if weights.has("conf_proj.weight"):
            self.confidence = weights.linear([("conf_proj", 1)], spec.n_embd + self.rank)
        self._ids: np.ndarray | slice = slice(None) if ids is None else ids

    def linears(self) -> list[Linear]:
        return [self.bias, *([self.confidence] if self.confidence else [])]

    def rows(
        self, logits: np.ndarray, states: np.ndarray, previous: np.ndarray, step: Pass
    ) -> tuple[np.ndarray, np.ndarray | None]:
        n = len(logits)
        before, bias = np.empty((n, self.rank), np.float32), np.empty((n, self.bias.rows), np.float32)
        self.table.lookup(previous, before)
        self.bias.apply(before, bias, step)
        found = logits.copy()
        found[:, self._ids] += bias
        if self.confidence is None:
            return found, None
        odds = np.empty((n, 1), np.float32)
        self.confidence.apply(np.concatenate([states, before], axis=1), odds, step)
        return found, 1 / (1 + np.exp(-odds[:, 0]))


class SelectorChoice(Choice):
    """DFlash 2: the best tokens of a row, scored after the token before.

    With h = W_h state, the score of a candidate c after p is its logit plus the sum over r of
    successor(c)_r predecessor(p)_r h_r.
    """

    def __init__(self, weights: Weights, read: Reader, n_vocab: int, n_embd: int) -> None:
        rank = read.size("selector_rank")
        self.top_k: int = read.size("selector_top_k")
        read.expect(self.top_k <= n_vocab, "selector_top_k", f"at most {n_vocab} tokens", self.top_k)
        self.predecessors: Embedding = weights.embedding("selector_predecessor.weight", n_vocab, rank)
        self.successors: Embedding = weights.embedding("selector_successor.weight", n_vocab, rank)
        self.hidden: Linear = weights.linear([("selector_hidden", rank)], n_embd)

    def linears(self) -> list[Linear]:
        return [self.hidden]

    def rows(
        self, logits: np.ndarray, states: np.ndarray, previous: np.ndarray, step: Pass
    ) -> tuple[np.ndarray, np.ndarray | None]:
        n, k = len(logits), self.top_k
        h, before = (np.empty((n, self.hidden.rows), np.float32) for _ in range(2))
        self.hidden.apply(np.ascontiguousarray(states), h, step)
        self.predecessors.lookup(previous, before)
        best = np.argpartition(logits, -k, axis=1)[:, -k:]
        after = np.empty((n * k, h.shape[1]), np.float32)
        self.successors.lookup(best.reshape(-1).astype(np.int32), after)
        scores = (after.reshape(n, k, -1) * (before * h)[:, None]).sum(axis=2)
        found = np.full_like(logits, -np.inf)
        np.put_along_axis(found, best, np.take_along_axis(logits, best, axis=1) + scores, axis=1)
        return found, None
