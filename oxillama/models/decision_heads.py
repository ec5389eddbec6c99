"""Heads of decision models: hidden states of a prompt in, one score for each option out.

Models that answer with a token of the vocabulary have no head: their scores are logits. The formulas are
defined by llama.cpp's b11549. All sums are made by the kernels, or one term after the other, so that scores
have the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.flash_attention import batched_flash_attention, flash_attention_forward
from oxillama.models.layers.norm import Norm
from oxillama.models.projection import applied
from oxillama.models.sizes import Decision
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear
from oxillama.models.weights.loader import Weights

COLUMNS = {"choice": 0, "score": 1, "noul": 2}
"""Rows of ``token_types`` of a `MarkerHead`."""

TYPES = {"noul": 0, "choice": 1, "score": 2}
"""Rows of ``token_types`` of a `JointHead`."""

Span = tuple[int, int]
"""The first row of a text, and the one behind its last."""


class Head:
    """What all heads share: tensors with biases, layer norms, and their list of matrices."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        assert spec.decision is not None
        self.decision: Decision = spec.decision
        self.weights = weights
        self.kernels = weights.kernels
        self._linears: list[Linear] = []

    def linears(self) -> list[Linear]:
        """Its matrices, in the order of their use."""
        return self._linears

    def linear(self, name: str, rows: int, cols: int) -> Linear:
        """The matrix ``name``, with the bias that the file has."""
        self._linears.append(self.weights.linear([(name, rows)], cols))
        return self._linears[-1]

    def norm(self, name: str, width: int) -> Norm:
        """The layer norm ``name``, which has a bias."""
        weight, bias = (self.weights.vector(f"{name}.{part}", width) for part in ("weight", "bias"))
        return Norm(self.kernels, True, self.decision.eps, weight, bias)

    def activate(self, x: np.ndarray, name: str, n_threads: int) -> np.ndarray:
        """The activation of x, in place."""
        self.kernels.vector.activate(x, name, x, n_threads)
        return x


class MarkerHead(Head):
    """The score of an option is read at its mark (Laya, LFM2-D1-Omni).

    h = x + token_types[type]; each block adds attention(norm(h)), without a mask, then
    down(relu(up(norm(h)))). The score is out(gelu(dense(norm(h)))) at the mark.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec, weights)
        d = spec.n_embd
        self.types: np.ndarray = weights.matrix("token_types.weight", len(COLUMNS), d)
        self.blocks: list[MarkerBlock] = [
            MarkerBlock(self, f"blk.{spec.n_layers + i}", d, heads, width)
            for i, (heads, width) in enumerate(zip(self.decision.heads, self.decision.widths))
        ]
        self.last_norm: Norm = self.norm("cls.norm", d)
        self.dense: Linear = self.linear("cls", d, d)
        self.out: Linear = self.linear("cls.output", 1, d)

    def run(self, x: np.ndarray, kind: str, marks: Sequence[int], n_threads: int) -> np.ndarray:
        """float32 (marks,): scores of the options of a question.

        Args:
            x: float32 (n, n_embd), hidden states of the whole prompt after the last norm.
            kind: of the question, a key of `COLUMNS`.
            marks: rows of x.
        """
        h, rows = x + self.types[COLUMNS[kind]], np.array(marks, np.int64)
        for block in self.blocks:
            is_last = block is self.blocks[-1]  # nobody reads its other rows
            h = block.run(h, rows if is_last else slice(None), n_threads)
        if not self.blocks:
            h = h[rows]
        h = self.last_norm.apply(h, np.empty_like(h), n_threads)
        h = self.activate(applied(self.dense, h, n_threads), "gelu_erf", n_threads)
        return applied(self.out, h, n_threads)[:, 0]


class MarkerBlock:
    """A block of a `MarkerHead`."""

    def __init__(self, head: Head, block: str, d: int, heads: int, width: int) -> None:
        if d % heads:
            raise LoadError(f"{block}.attn_qkv.weight: expected {heads} equal heads in rows of {d}")
        self.head = head
        self.heads = heads
        self.attn_norm: Norm = head.norm(f"{block}.attn_norm", d)
        self.qkv: Linear = head.linear(f"{block}.attn_qkv", 3 * d, d)
        self.output: Linear = head.linear(f"{block}.attn_output", d, d)
        self.ffn_norm: Norm = head.norm(f"{block}.ffn_norm", d)
        self.up: Linear = head.linear(f"{block}.ffn_up", width, d)
        self.down: Linear = head.linear(f"{block}.ffn_down", d, width)

    def run(self, h: np.ndarray, rows: np.ndarray | slice, n_threads: int) -> np.ndarray:
        """The wanted rows after the block of h, float32 (n, n_embd)."""
        qkv = applied(self.qkv, self.attn_norm.apply(h, np.empty_like(h), n_threads), n_threads)
        q, k, v = np.split(qkv, 3, axis=1)
        attended = attend_to_all(q, k, v, self.heads, n_threads)
        h = h[rows] + applied(self.output, np.ascontiguousarray(attended[rows]), n_threads)
        fed = applied(self.up, self.ffn_norm.apply(h, np.empty_like(h), n_threads), n_threads)
        fed = self.head.activate(fed, "relu", n_threads)
        return np.asarray(h + applied(self.down, fed, n_threads))


class PointerHead(Head):
    """The score of an option is q(last token) . k(end of the option) / sqrt(width) (Kev)."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec, weights)
        width = self.decision.pointer_width
        if width % 2:
            raise LoadError(f"embedding_length_out: expected an even number, got {width}")
        self.out: Linear = self.linear("cls.output", width, spec.n_embd)

    def run(self, x: np.ndarray, marks: Sequence[int], n_threads: int) -> np.ndarray:
        """float32 (marks,): scores of options.

        Args:
            x: float32 (n, n_embd), hidden states after the last norm, the last token's last.
            marks: rows of x.
        """
        z = applied(self.out, np.ascontiguousarray(x[[*marks, -1]]), n_threads)
        half = z.shape[1] // 2
        return summed(z[-1, :half] * z[:-1, half:], 1) / np.float32(np.sqrt(half))


class JointHead(Head):
    """All questions of a request are answered together, from the texts of questions and options (Clef).

    Options read the prompt (routing blocks), questions read their options, then each other and the prompt
    (joint blocks). A score weighs how similar an option is to its question before and after that.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec, weights)
        d, e = spec.n_embd, (*weights.shape("decision.proj_memory.weight"), 0, 0)[1]
        if not e or any(e % heads for heads in self.decision.heads):
            raise LoadError(
                f"decision.proj_memory.weight: expected rows of {self.decision.heads} heads, got {e}"
            )
        self.heads: int = self.decision.heads[0]
        has_output = weights.has("output.weight")
        self.table: Embedding = weights.embedding(
            "output.weight" if has_output else "token_embd.weight", spec.n_vocab, d
        )
        self.types: np.ndarray = weights.matrix("token_types.weight", len(TYPES), e)
        self.scales: np.ndarray = weights.vector("decision.scales", 3)
        self.norms: dict[str, Norm] = {
            name: self.norm(f"decision.{name}_norm", d if name == "hidden" else e)
            for name in ("hidden", "option_summary", "field", "option")
        }
        parts = ("memory", "option_context", "option_lexical", "option_question", "question", "global")
        self.matrices: dict[str, Linear] = {
            name: self.linear(f"decision.proj_{name}", e, d) for name in parts
        }
        routing, joint = self.decision.routing_blocks, self.decision.n_blocks
        self.routing: list[JointBlock] = [JointBlock(self, i, e, False) for i in range(routing)]
        self.joint: list[JointBlock] = [JointBlock(self, routing + i, e, True) for i in range(joint)]
        self.scorer: Linear = self.linear("decision.scorer", e, 4 * e)
        self.scorer_out: Linear = self.linear("decision.scorer_out", 1, e)

    def run(
        self,
        x: np.ndarray,
        tokens: Sequence[int],
        kinds: Sequence[str],
        questions: Sequence[Span],
        options: Sequence[Span],
        n_options: Sequence[int],
        n_threads: int,
    ) -> np.ndarray:
        """float32 (options,): scores of the options of all questions.

        Args:
            x: float32 (n, n_embd), hidden states of the whole prompt after the last norm.
            tokens: its ids.
            kinds: of the questions, keys of `TYPES`.
            questions, options: where their texts are.
            n_options: of each question.
        """
        owner = np.repeat(np.arange(len(questions)), n_options)

        def projected(name: str, y: np.ndarray) -> np.ndarray:
            return applied(self.matrices[name], y, n_threads)

        def normed(name: str, y: np.ndarray) -> np.ndarray:
            return self.norms[name].apply(y, np.empty_like(y), n_threads)

        x = normed("hidden", x)
        rows = np.empty((len(tokens), x.shape[1]), np.float32)
        self.table.lookup(np.array(tokens, np.int64), rows)
        q, c, lexical = means(x, questions), means(x, options), means(rows, options)
        memory = projected("memory", x)
        o = projected("option_context", c) + projected("option_lexical", lexical)
        o = o + projected("option_question", q)[owner]
        for block in self.routing:
            o = block.run(o, memory, n_threads)
        f = projected("question", q)
        of_questions = np.split(o, np.cumsum(n_options)[:-1])
        summary = batched_flash_attention(
            np.split(f, len(f)), of_questions, of_questions, 1, f.shape[1], num_threads=n_threads,
            causal_mask=False,
        )  # fmt: skip
        f = f + normed("option_summary", np.concatenate(summary))
        f = f + projected("global", np.ascontiguousarray(x[-1:]))
        f = f + self.types[[TYPES[kind] for kind in kinds]]
        for block in self.joint:
            f = block.run(f, memory, n_threads)
        f = normed("field", f)[owner]
        prior = cosines(lexical, (q + x[-1])[owner])
        o = normed("option", o)
        pairs = np.concatenate([f, o, f * o, np.abs(f - o)], axis=1)
        rest = self.activate(applied(self.scorer, pairs, n_threads), "gelu_erf", n_threads)
        rest = applied(self.scorer_out, rest, n_threads)[:, 0]
        of_prior, of_cosine, of_all = self.scales
        return np.asarray(of_prior * prior + of_all * (of_cosine * cosines(f, o) + rest), np.float32)


class JointBlock:
    """A block of a `JointHead`: rows read each other (``joint``), then the prompt; a feed-forward block."""

    def __init__(self, head: Head, i: int, e: int, joint: bool) -> None:
        name = f"dec.blk.{i}"
        self.head = head
        self.heads: int = head.decision.heads[0]
        self.own: list[Linear] = self._attention(f"{name}.attn", e) if joint else []
        self.own_norm: Norm | None = head.norm(f"{name}.attn_norm", e) if joint else None
        self.cross: list[Linear] = self._attention(f"{name}.cross_attn", e)
        self.cross_norm: Norm = head.norm(f"{name}.cross_attn_norm", e)
        self.memory_norm: Norm | None = None if joint else head.norm(f"{name}.cross_attn_norm_kv", e)
        self.ffn_norm: Norm = head.norm(f"{name}.ffn_norm", e)
        width = (*head.weights.shape(f"{name}.ffn_up.weight"), 0, 0)[1]
        self.up: Linear = head.linear(f"{name}.ffn_up", width, e)
        self.down: Linear = head.linear(f"{name}.ffn_down", e, width)

    def _attention(self, name: str, e: int) -> list[Linear]:
        return [self.head.linear(f"{name}_{part}", e, e) for part in "qkvo"]

    def _attended(
        self, matrices: list[Linear], x: np.ndarray, memory: np.ndarray, n_threads: int
    ) -> np.ndarray:
        of_q, of_k, of_v, of_output = matrices
        q = applied(of_q, x, n_threads)
        k, v = (applied(matrix, memory, n_threads) for matrix in (of_k, of_v))
        return applied(of_output, attend_to_all(q, k, v, self.heads, n_threads), n_threads)

    def run(self, x: np.ndarray, memory: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, e): the rows x (n, e) after the block; ``memory`` is float32 (tokens, e)."""
        if self.own_norm is not None:
            y = self.own_norm.apply(x, np.empty_like(x), n_threads)
            x = x + self._attended(self.own, y, y, n_threads)
        y = self.cross_norm.apply(x, np.empty_like(x), n_threads)
        if self.memory_norm is not None:
            memory = self.memory_norm.apply(memory, np.empty_like(memory), n_threads)
        x = x + self._attended(self.cross, y, memory, n_threads)
        fed = applied(self.up, self.ffn_norm.apply(x, np.empty_like(x), n_threads), n_threads)
        fed = self.head.activate(fed, "gelu_erf", n_threads)
        return np.asarray(x + applied(self.down, fed, n_threads))


def attend_to_all(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, n_threads: int) -> np.ndarray:
    """float32 (n, width): softmax(q k^T / sqrt(width / heads)) v of each head, for q (n, width)."""
    dim = q.shape[1] // heads
    return flash_attention_forward(q, k, v, heads, dim, causal_mask=False, num_threads=n_threads)


def summed(x: np.ndarray, axis: int) -> np.ndarray:
    """The sums of x along an axis, one term after the other, in the type of x."""
    return np.asarray(np.add.accumulate(x, axis=axis, dtype=x.dtype).take(-1, axis))


def means(x: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """float32 (spans, d): the mean of the rows of each span of x, float32 (n, d)."""
    return np.stack([summed(x[first:end], 0) / np.float32(end - first) for first, end in spans])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32 (n,): the cosine of each row of a with the same row of b, float32 (n, d)."""
    wide = [x.astype(np.float64) for x in (a, b)]
    lengths = [np.maximum(np.sqrt(summed(x * x, 1)), 1e-12)[:, None] for x in wide]
    return summed((wide[0] / lengths[0]) * (wide[1] / lengths[1]), 1).astype(np.float32)


HEADS: dict[str, type[MarkerHead | PointerHead | JointHead]] = {
    "laya": MarkerHead,
    "lfm2-d1-omni": MarkerHead,
    "kev": PointerHead,
    "clef": JointHead,
}


def load_head(spec: Spec, weights: Weights) -> MarkerHead | PointerHead | JointHead | None:
    """The decision head of a model; None where options are read from logits. Raises LoadError."""
    kind = HEADS.get(spec.decision.kind) if spec.decision is not None else None
    return None if kind is None else kind(spec, weights)
