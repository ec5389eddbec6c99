"""Operations on rows: norms, rotations, activations, softmax, choice of experts."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np

from oxillama.reference import floats
from oxillama.reference.floats import (
    F32,
    erfc,
    exp,
    fma,
    in_lanes,
    over_logistic,
    select_max,
    sine_cosine,
    softplus,
    strided_sum,
    tanh,
    tree,
    tree_max,
)

# --- norms --------------------------------------------------------------------------------------------


def mean(x: np.ndarray) -> np.ndarray:
    """Means over the last axis: float32 sums, divided in float64."""
    found: np.ndarray = (strided_sum(x).astype(np.float64) / x.shape[-1]).astype(F32)
    return found


def squares_about(centre: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sums of (x - centre)^2 over the last axis, one fused product for each element."""
    sums = np.zeros((*x.shape[:-1], floats.LANES), F32)
    for step in in_lanes(x - centre[..., None]):  # padding of the last step is 0, as centre - centre is
        sums = fma(step, step, sums)
    return tree(sums)


def norm(
    x: np.ndarray,
    eps: float,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    centred: bool = False,
) -> np.ndarray:
    """(x - centre) * (1 / sqrt(mean square + eps)) * weight + bias over the last axis.

    The centre is 0, or the mean for a layer norm.
    """
    centre = mean(x) if centred else np.zeros(x.shape[:-1], F32)
    square = squares_about(centre, x).astype(np.float64) / x.shape[-1] + float(F32(eps))
    scale = (1.0 / np.sqrt(square)).astype(F32)
    out: np.ndarray = (x - centre[..., None]) * scale[..., None]
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out


# --- activations --------------------------------------------------------------------------------------


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU's tanh form: x sigmoid(x (1.59576912 + 0.0713548163 x^2))."""
    return over_logistic(x, x * fma(x * x, F32(0.0713548163), F32(1.59576912)))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    """x / 2 * erfc(-x / sqrt(2))."""
    found: np.ndarray = (x * F32(0.5)) * erfc(x * F32(-0.707106781))
    return found


def squared_relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)^2."""
    y: np.ndarray = select_max(np.zeros_like(x), x)
    y *= y
    return y


def clamped_silu(x: np.ndarray) -> np.ndarray:
    """y sigmoid(1.702 y) with y = min(x, 7)."""
    y = np.where(F32(7) < x, F32(7), x)
    return over_logistic(y, y * F32(1.702))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: over_logistic(x, x),
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "gelu_quick": lambda x: over_logistic(x, x * F32(1.702)),
    "relu": lambda x: select_max(np.zeros_like(x), x),
    "relu_squared": squared_relu,
    "sigmoid": lambda x: over_logistic(np.ones_like(x), x),
    "tanh": tanh,
    "softplus": softplus,
    "exp": exp,
    "erfc": erfc,
    "silu_clamped": clamped_silu,
}


def gate(name: str, gates: np.ndarray, up: np.ndarray) -> np.ndarray:
    """activation(gates) * up; "silu_clamped" limits ``up`` to [-7, 7] and adds 1."""
    if name == "silu_clamped":
        up = np.where(F32(7) < up, F32(7), up)
        up = np.where(up < F32(-7), F32(-7), up) + F32(1)
    found: np.ndarray = ACTIVATIONS[name](gates) * up
    return found


def limited_gate(
    name: str, gates: np.ndarray, up: np.ndarray, limit: float, first: bool = False
) -> np.ndarray:
    """min(activation(gates), limit) * clip(up, -limit, limit); `gate` if the limit is 0.

    ``first`` : gates are limited before their activation.
    """
    if not limit:
        return gate(name, gates, up)
    if first:
        return gate(name, np.minimum(gates, F32(limit)), np.clip(up, -F32(limit), F32(limit)))
    found: np.ndarray = np.minimum(ACTIVATIONS[name](gates), F32(limit)) * np.clip(
        up, -F32(limit), F32(limit)
    )
    return found


def situ(gates: np.ndarray, up: np.ndarray, bound: float, bound_up: float) -> np.ndarray:
    """sigmoid(g) * (b tanh(g / b)) * (l tanh(u / l)); u itself for l <= 0."""
    bounded = tanh(up / F32(bound_up)) * F32(bound_up) if bound_up > 0 else up
    found: np.ndarray = ACTIVATIONS["sigmoid"](gates) * (tanh(gates / F32(bound)) * F32(bound)) * bounded
    return found


def cut(gates: np.ndarray, scale: float) -> np.ndarray:
    """max(0, g - (mean + scale * deviation)) of a row's gates: few remain positive (Gemma 3n, 2025).

    The deviation is the sample deviation (n - 1). It and the bound are computed in double.
    """
    centre = mean(gates)
    deviation = np.sqrt(squares_about(centre, gates).astype(np.float64) / max(1, gates.shape[-1] - 1))
    least = (centre.astype(np.float64) + float(F32(scale)) * deviation).astype(F32)
    return select_max(np.zeros_like(gates), gates - least[..., None])


def soft_cap(x: np.ndarray, cap: float) -> np.ndarray:
    """cap tanh(x / cap)."""
    found: np.ndarray = tanh(x / F32(cap)) * F32(cap)
    return found


# --- rotations ----------------------------------------------------------------------------------------


def frequencies(n_rot: int, base: float) -> np.ndarray:
    """float64 (n_rot / 2,): base^(-2i / n_rot) in decimal arithmetic of 30 digits, rounded to float64."""
    with localcontext() as context:
        context.prec = 30
        log = Decimal(base).ln()
        return np.array([float((log * (-2 * i) / n_rot).exp()) for i in range(n_rot // 2)])


def rotation_table(positions: np.ndarray, turns: np.ndarray, magnitude: float = 1.0) -> np.ndarray:
    """float32 (n, 2, pairs): cosines, then sines, of position * frequency, times the magnitude."""
    sine, cosine = sine_cosine(positions[:, None].astype(np.float64) * turns)
    return np.stack([cosine.astype(F32), sine.astype(F32)], axis=1) * F32(magnitude)


def rotate(x: np.ndarray, table: np.ndarray, neox: bool) -> np.ndarray:
    """Heads (n, heads, dim) with their first 2 m dimensions rotated by ``table`` (n, 2, m): (a c - b s, a s +
    b c).

    Nothing is fused. Pairs are (i, i + m) if ``neox``, else (2i, 2i + 1).
    """
    m, out = table.shape[2], x.copy()
    i = np.arange(m)
    one, two = (i, i + m) if neox else (2 * i, 2 * i + 1)
    c, s = table[:, None, 0], table[:, None, 1]
    a, b = x[..., one], x[..., two]
    out[..., one], out[..., two] = a * c - b * s, a * s + b * c
    return out


# --- softmax and experts ------------------------------------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x - max(x)) * (1 / sum) over the last axis."""
    top = np.full((*x.shape[:-1], floats.LANES), -np.inf, F32)
    for step in in_lanes(x, -np.inf):
        top = select_max(step, top)
    powers = exp(x - tree_max(top)[..., None])
    sums = np.zeros_like(top)
    for step in in_lanes(powers):
        sums = sums + step
    powers *= (F32(1) / tree(sums))[..., None]
    return powers


def best(score: np.ndarray, k: int) -> np.ndarray:
    """bool (n,): the k highest; the first among equals, NaN last."""
    order = np.lexsort((np.arange(len(score)), np.where(np.isnan(score), np.inf, -score)))
    taken = np.zeros(len(score), bool)
    taken[order[:k]] = True
    return taken


def best_groups(score: np.ndarray, groups: int, kept: int) -> np.ndarray:
    """Scores, -inf outside of the ``kept`` groups of neighbours with the largest sums of two highest."""
    by_group = np.sort(score.reshape(groups, -1), axis=1)[:, ::-1]
    sums = by_group[:, 0] + by_group[:, 1] if by_group.shape[1] > 1 else by_group[:, 0]
    return np.where(np.repeat(best(sums, kept), len(score) // groups), score, F32(-np.inf))


def normalized(weights: np.ndarray) -> np.ndarray:
    """Weights divided by their sum, in order, or by the smallest normal half float."""
    total = F32(0)
    for weight in weights:
        total = total + weight
    found: np.ndarray = weights / max(total, F32(6.103515625e-5))
    return found


def route(
    logits: np.ndarray,
    k: int,
    gating: str,
    *,
    bias: np.ndarray | None = None,
    groups: int = 1,
    kept: int = 1,
    normalize: bool = False,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The experts of one row in ascending order (k,), and their weights (k,), from its logits (experts,).

    ``gating``: "softmax" over all, "sigmoid" or "sqrt_softplus" of each, or "chosen": softmax over the chosen
    ones.
    """
    probability = logits
    if gating == "softmax":
        probability = softmax(logits)
    elif gating == "sigmoid":
        probability = ACTIVATIONS["sigmoid"](logits)
    elif gating == "sqrt_softplus":
        probability = np.sqrt(softplus(logits))
    score = logits if bias is None and groups == 1 else probability if bias is None else probability + bias
    if groups > 1:
        score = best_groups(score, groups, kept)
    chosen = np.flatnonzero(best(score, k))
    weights = softmax(logits[chosen]) if gating == "chosen" else probability[chosen]
    weights = normalized(weights) if normalize else weights
    return chosen, weights * F32(scale)
