"""Feed-forward blocks: x += feed(h), dense or by routed experts."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.workspace import Workspace
from oxillama.tensor import Matrices


class GatedFeed:
    """down(silu(gate h) * up h) (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    def __init__(self, kernels: Kernels, gate_up: Matrices, down: Matrices) -> None:
        self.kernels = kernels
        self.gate_up = gate_up
        self.down = down
        self.width = down.cols
        self.linears = [gate_up, down]

    def add(self, h: np.ndarray, x: np.ndarray, work: Workspace, n_threads: int) -> None:
        """x (n, d) += the block's output for h (n, d)."""
        n = len(h)
        gate_up, fed = work.rows("gate_up", n, 2 * self.width), work.rows("fed", n, self.width)
        self.gate_up.apply(h, gate_up, work.scratch, n_threads)
        self.kernels.vector.gate(gate_up, "silu", fed, n_threads)
        self.down.apply(fed, x, work.scratch, n_threads, True)


class InputScaledExperts:
    """Llama 4's experts: the router's sigmoid scales what goes into one; one more sees every token.

    The ``n_used`` experts with the highest router logits are taken. A token adds its experts' outputs in
    order of their numbers, so that its sum does not depend on the batch.
    """

    def __init__(
        self, kernels: Kernels, router: Matrices, experts: list[GatedFeed], shared: GatedFeed, n_used: int
    ) -> None:
        self.kernels = kernels
        self.router = router
        self.experts = experts
        self.shared = shared
        self.n_used = n_used
        self.width = max(feed.width for feed in (shared, *experts))
        self.linears = [router, *(linear for feed in (shared, *experts) for linear in feed.linears)]

    def add(self, h: np.ndarray, x: np.ndarray, work: Workspace, n_threads: int) -> None:
        """x (n, d) += the block's output for h (n, d)."""
        logits = np.empty((len(h), len(self.experts)), np.float32)
        self.router.apply(h, logits, work.scratch, n_threads)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self.n_used]
        weights = np.empty_like(logits)
        self.kernels.vector.activate(logits, "sigmoid", weights, 1)
        for number, expert in enumerate(self.experts):
            rows = np.flatnonzero((chosen == number).any(axis=1))
            if len(rows):
                out = np.zeros((len(rows), x.shape[1]), np.float32)
                expert.add(h[rows] * weights[rows, number, None], out, work, n_threads)
                x[rows] += out
        self.shared.add(h, x, work, n_threads)
