"""Raw scores of decision models: labels at the last position, or one of three heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oxillama.reference.attention import View, attend
from oxillama.reference.floats import F32, total
from oxillama.reference.kv import store
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source

Spans = Sequence[tuple[int, int]]
"""Beginnings and ends of texts in a prompt."""


def use_keys(source: Source) -> None:
    """Mark the keys of a file's decisions as used: temperatures and limits change no score."""
    prefix = f"{source.name}."
    for key in source.file.metadata:
        if key.startswith(f"{prefix}decision."):
            source.key(key.removeprefix(prefix))


def layer_norm(source: Source, name: str, x: np.ndarray) -> np.ndarray:
    """A layer norm with a bias."""
    eps = source.key("attention.layer_norm_epsilon")
    return norm(x, eps, source.vector(f"{name}.weight"), source.vector(f"{name}.bias"), True)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
    """float32 (n, width): all rows of q attend to all rows of k and v."""
    q, k, v = (x.reshape(len(x), heads, -1) for x in (q, k, v))
    return attend(q, store(k, v, "f32"), q.shape[2] ** -0.5, View(causal=False)).reshape(len(q), -1)


def means(x: np.ndarray, spans: Spans) -> np.ndarray:
    """The mean of the rows of each span."""
    return np.stack([total(x[first:end]) / F32(end - first) for first, end in spans])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32 (n,): the cosine of each row of a with the same row of b, in double."""
    wide = [x.astype(np.float64) for x in (a, b)]
    units = [x / np.maximum(np.sqrt(total((x * x).T)), 1e-12)[:, None] for x in wide]
    return total((units[0] * units[1]).T).astype(F32)


def marked(source: Source, x: np.ndarray, kind: str, marks: Sequence[int]) -> np.ndarray:
    """Scores of options at their marks (Laya, LFM2-D1-Omni)."""
    h = x + source.vector("token_types.weight")[("choice", "score", "noul").index(kind)]
    heads = source.per_layer("attention.head_count", source.n_layers + 1)[-1]
    for i in range(source.n_layers, source.key("block_count")):
        block = f"blk.{i}"
        q, k, v = np.split(
            source.linear(f"{block}.attn_qkv", layer_norm(source, f"{block}.attn_norm", h)), 3, 1
        )
        h = h + source.linear(f"{block}.attn_output", attended(q, k, v, heads))
        fed = source.linear(f"{block}.ffn_up", layer_norm(source, f"{block}.ffn_norm", h))
        h = h + source.linear(f"{block}.ffn_down", ACTIVATIONS["relu"](fed))
    h = ACTIVATIONS["gelu_erf"](source.linear("cls", layer_norm(source, "cls.norm", h)))
    found: np.ndarray = source.linear("cls.output", h)[list(marks), 0]
    return found


def pointed(source: Source, x: np.ndarray, marks: Sequence[int]) -> np.ndarray:
    """Scores of options by products of their ends with the last token (Kev)."""
    z = source.linear("cls.output", x)
    half = source.key("embedding_length_out") // 2
    products = z[-1, :half] * z[list(marks), half:]
    found: np.ndarray = total(products.T) / F32(np.sqrt(half))
    return found


def joint(
    source: Source,
    x: np.ndarray,
    tokens: Sequence[int],
    kinds: Sequence[str],
    questions: Spans,
    options: Spans,
    n_options: Sequence[int],
) -> np.ndarray:
    """Scores of the options of all questions (Clef)."""
    owner = [i for i, n in enumerate(n_options) for _ in range(n)]
    heads = source.key("decision.head_count")
    x = layer_norm(source, "decision.hidden_norm", x)
    table = "output.weight" if source.has("output.weight") else "token_embd.weight"
    lexical = means(source.embeddings(table, np.array(tokens)), options)
    q = means(x, questions)
    memory = source.linear("decision.proj_memory", x)

    def cross(name: str, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        q, k, v = (
            source.linear(f"{name}_{part}", x) for part, x in (("q", rows), ("k", others), ("v", others))
        )
        return source.linear(f"{name}_o", attended(q, k, v, heads))

    def feed(block: str, rows: np.ndarray) -> np.ndarray:
        up = source.linear(f"{block}.ffn_up", layer_norm(source, f"{block}.ffn_norm", rows))
        found: np.ndarray = rows + source.linear(f"{block}.ffn_down", ACTIVATIONS["gelu_erf"](up))
        return found

    o = source.linear("decision.proj_option_context", means(x, options))
    o = o + source.linear("decision.proj_option_lexical", lexical)
    o = o + source.linear("decision.proj_option_question", q)[owner]
    routing = source.key("decision.routing_block_count")
    for i in range(routing):
        block = f"dec.blk.{i}.cross_attn"
        o = o + cross(
            block, layer_norm(source, f"{block}_norm", o), layer_norm(source, f"{block}_norm_kv", memory)
        )
        o = feed(f"dec.blk.{i}", o)
    f, at, summaries = source.linear("decision.proj_question", q), 0, []
    for j, n in enumerate(n_options):
        summaries.append(attended(f[j : j + 1], o[at : at + n], o[at : at + n], 1))
        at += n
    f = f + layer_norm(source, "decision.option_summary_norm", np.concatenate(summaries))
    f = f + source.linear("decision.proj_global", x[-1:])
    f = f + source.vector("token_types.weight")[[("noul", "choice", "score").index(kind) for kind in kinds]]
    for i in range(routing, routing + source.key("decision.block_count")):
        block = f"dec.blk.{i}"
        y = layer_norm(source, f"{block}.attn_norm", f)
        f = f + cross(f"{block}.attn", y, y)
        f = f + cross(f"{block}.cross_attn", layer_norm(source, f"{block}.cross_attn_norm", f), memory)
        f = feed(block, f)
    f, o = layer_norm(source, "decision.field_norm", f)[owner], layer_norm(source, "decision.option_norm", o)
    pairs = np.concatenate([f, o, f * o, abs(f - o)], axis=1)
    rest = source.linear(
        "decision.scorer_out", ACTIVATIONS["gelu_erf"](source.linear("decision.scorer", pairs))
    )
    scales = source.vector("decision.scales")
    prior = cosines(lexical, (q + x[-1])[owner])
    found: np.ndarray = scales[0] * prior + scales[2] * (scales[1] * cosines(f, o) + rest[:, 0])
    return found


HEADS: dict[str, Callable[..., np.ndarray]] = {
    "laya": marked,
    "lfm2-d1-omni": marked,
    "kev": pointed,
    "clef": joint,
}
"""By ``decision.type``; others read labels."""

ONE = [(0, 1)]
TRIALS: dict[Any, dict[str, Any]] = {
    marked: {"kind": "noul", "marks": [0]},
    pointed: {"marks": [0]},
    joint: {"tokens": [0], "kinds": ["noul"], "questions": ONE, "options": ONE, "n_options": [1]},
}
"""Arguments for a prompt of one token, with which a head uses each of its tensors."""
