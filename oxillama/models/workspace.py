"""Memory that a forward pass works in."""

from __future__ import annotations

import numpy as np

from oxillama.models.spec import Spec
from oxillama.tensor import Matrices, aligned_empty


class Workspace:
    """Buffers of a forward pass, kept between passes and grown when a batch is larger than any before.

    Parameters
    ----------
    spec : the model's sizes.
    linears : all its matrices, whose scratch it holds.
    ffn_width : the width of its widest feed-forward block.
    """

    def __init__(self, spec: Spec, linears: list[Matrices], ffn_width: int) -> None:
        self.linears = linears
        self.widths = {
            "x": spec.n_embd,
            "h": spec.n_embd,
            "qkv": (spec.n_heads + spec.n_kv_heads) * spec.key_dim + spec.n_kv_heads * spec.value_dim,
            "attended": spec.n_heads * spec.value_dim,
            "gate_up": 2 * ffn_width,
            "fed": ffn_width,
        }
        self.n_rows = 0
        self.linear_bytes = 0
        self.scratch = aligned_empty(0)
        self._buffers: dict[str, np.ndarray] = {}
        self._views: dict[tuple[str, int, int], np.ndarray] = {}

    def reserve(self, n_rows: int, attention_bytes: int) -> None:
        """Makes room for ``n_rows`` rows and for the attention's scratch."""
        if n_rows > self.n_rows:
            self.n_rows = n_rows
            self._views.clear()
            for name, width in self.widths.items():
                self._buffers[name] = aligned_empty(4 * n_rows * width).view(np.float32)
            self.linear_bytes = max(linear.scratch_bytes(n_rows) for linear in self.linears)
        needed = max(self.linear_bytes, attention_bytes)
        if needed > self.scratch.nbytes:
            self.scratch = aligned_empty(needed)

    def rows(self, name: str, n: int, width: int) -> np.ndarray:
        """float32 (n, width): the beginning of a buffer; ``n`` is at most what was reserved."""
        key = (name, n, width)
        if key not in self._views:
            if len(self._views) > 256:
                self._views.clear()
            self._views[key] = self._buffers[name][: n * width].reshape(n, width)
        return self._views[key]
