"""Embeddings of n-grams, found by hashes, which one layer adds to its streams of hidden states (Qwen 3.8).

The last 2, ..., n tokens are hashed, each by several heads; an embedding e is made of the rows of all heads.
A stream X_s adds V_s = sigmoid(root(k_s q_s / sqrt(d))) W_v e and a causal convolution of the normed V_s. k
is the normed W_k e, q the normed X_s, and root(x) = sign(x) sqrt(max(|x|, 1e-6)).
"""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.history import TokenHistory
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.sizes import Ngrams
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Batch, Step

TABLE = "per_layer_token_embd.weight"

BLOCK = 64
"""Rows that are computed together: their arrays stay in the cache, and the allocator reuses them."""


class NgramEmbedding(RecurrentBlock):
    """The embeddings of layer ``i``. Its state has the last tokens and the last inputs of the convolution."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        assert spec.ngrams is not None and spec.connections is not None
        sizes, block, n, d = spec.ngrams, f"blk.{i}.ple", spec.connections.streams, spec.n_embd
        self.sizes: Ngrams = sizes
        self.n: int = n
        self.d: int = d
        self.kernels: Kernels = weights.kernels
        self.table: Embedding = weights.embedding(TABLE, sizes.rows, sizes.width)
        self.key_and_value: Linear = weights.linear([(f"{block}_key", n * d), (f"{block}_value", d)], d)
        self.norms: list[HeadNorm] = [
            load_head_norm(spec, weights, f"{block}_norm_{name}.weight", n, d, each=True)
            for name in ("key", "query", "conv")
        ]
        taps = weights.matrix(f"{block}_conv1d.weight", n * d, sizes.kernel)
        self.taps: np.ndarray = np.ascontiguousarray(taps.T)
        self.tokens: TokenHistory = TokenHistory(sizes.size - 1, 1)
        reach = (sizes.kernel - 1) * sizes.size
        self.inputs: TokenHistory = TokenHistory(
            max(1, reach), n * d, self.tokens.floats, self.tokens.record_floats
        )
        self.state_floats: int = self.tokens.floats + self.inputs.floats
        self.record_floats: int = self.tokens.record_floats + self.inputs.record_floats

    def linears(self) -> list[Linear]:
        return [self.key_and_value]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, streams d) = what is added to the streams h, or out + that; out may be h."""
        rows, n, d = len(h), self.n, self.d
        e = np.empty((rows * self.sizes.n_heads, self.sizes.width), np.float32)
        self.table.lookup(self.numbers(step.batch).reshape(-1), e)
        both = np.empty((rows, n * d + d), np.float32)
        self.key_and_value.apply(e.reshape(rows, d), both, step)
        values = np.empty((rows, n, d), np.float32)
        for i in range(0, rows, BLOCK):
            part = slice(i, i + BLOCK)
            roots = self.gates(both[part, : n * d], h[part], step.n_threads)
            np.multiply(roots[:, :, None], both[part, None, n * d :], out=values[part])
        flat = values.reshape(rows, n * d)
        normed = flat.copy()
        self.norms[2].apply(normed, step.n_threads)
        flat += self.convolved(normed, step)
        if accumulate:
            out += flat
        else:
            out[:] = flat

    def gates(self, key: np.ndarray, h: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (rows, streams): the factor of W_v e in each stream, from W_k e (rows, streams d) and h."""
        key, query = np.ascontiguousarray(key), h.copy()
        for norm, x in zip(self.norms, (key, query)):
            norm.apply(x, n_threads)
        products = np.multiply(key, query, dtype=np.float64).reshape(-1, self.n, self.d)
        sums = np.cumsum(products, axis=2)[:, :, -1]  # adds the products in order
        scores = (sums / np.sqrt(self.d)).astype(np.float32)
        roots: np.ndarray = np.sign(scores) * np.sqrt(np.maximum(np.abs(scores), np.float32(1e-6)))
        self.kernels.vector.activate(roots, "sigmoid", roots, n_threads)
        return roots

    def numbers(self, batch: Batch) -> np.ndarray:
        """int32 (n, heads): the rows of the table for each row of the batch."""
        sizes = self.sizes
        given = batch.tokens.astype(np.float32)[:, None]  # exact: there are fewer than 2^24 tokens
        context = np.full((len(batch), sizes.size), sizes.eos, np.int64)
        for rows, start, first, seen in self.tokens.seen(self, given, batch, 1, sizes.size - 1):
            tokens = seen[:, 0].astype(np.int64)
            own = np.arange(start - first, len(tokens))
            context[rows, 0] = tokens[own]
            alive = np.ones(len(own), bool)
            for back in range(1, sizes.size):
                there = own >= back
                before = np.where(there, tokens[np.maximum(own - back, 0)], sizes.eos)
                alive &= before != sizes.eos
                context[rows, back] = np.where(alive, before, sizes.eos)
        hashed = context.astype(np.uint64) * np.array(sizes.multipliers, np.uint64)  # modulo 2^64
        found = []
        for length in range(2, sizes.size + 1):
            mixed = np.bitwise_xor.reduce(hashed[:, :length], axis=1)
            for k in range(sizes.heads):
                head = (length - 2) * sizes.heads + k
                found.append(mixed % np.uint64(sizes.sizes[head]) + np.uint64(sizes.offsets[head]))
        return np.stack(found, axis=1).astype(np.int32)

    def convolved(self, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, streams d): SiLU of the convolution of x, whose taps are n-gram lengths apart."""
        sizes, out = self.sizes, np.zeros_like(x)
        reach = (sizes.kernel - 1) * sizes.size
        for rows, start, first, seen in self.inputs.seen(self, x, step.batch, 1, reach):
            own, missing = out[rows], reach - (start - first)  # inputs before the sequence, which are 0
            for i in range(0, len(own), BLOCK):
                for tap, weight in enumerate(self.taps):
                    to = own[max(i, missing - tap * sizes.size) : i + BLOCK]
                    end = tap * sizes.size - missing + min(i + BLOCK, len(own))
                    to += weight * seen[end - len(to) : end]
        self.kernels.vector.activate(out, "silu", out, step.n_threads)
        return out
