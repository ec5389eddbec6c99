"""The frequencies of a model's rotations, with the factors of its file."""

from __future__ import annotations

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.rope import MAX_ANGLE
from oxillama.models.spec import Spec
from oxillama.models.weights.loader import Weights


def load_frequencies(spec: Spec, i: int, weights: Weights, context: int) -> np.ndarray:
    """float64 (n_rot / 2,): radians per position of rotation ``i``, divided by the file's rotary factors."""
    rope, name = spec.ropes[i], "rope_freqs.weight"
    names = [name] if weights.has(name) else []
    if not names and (spec.family.longrope or rope.kind == "longrope"):
        names = [f"rope_factors_{length}.weight" for length in ("short", "long")]
        names = [name for name in names if weights.has(name)]
        name = f"rope_factors_{'long' if context > rope.original_context else 'short'}.weight"
    # some files have factors for dimensions that do not rotate, too
    n, whole = rope.n_rot // 2, spec.key_dim // 2
    sizes = {name: whole if weights.shape(name) == (whole,) else n for name in names}
    factors = {name: weights.vector(name, sizes[name])[:n] for name in names}
    for other, values in factors.items():
        if not (np.isfinite(values) & (values > 0)).all():
            raise LoadError(f"{other}: expected finite numbers above 0")
    plain = i > 0 and spec.family.local_rope == "plain"
    found = rope.frequencies(context, None if plain else factors.get(name))
    most = MAX_ANGLE / min(context, MAX_ANGLE)
    if not (found <= most).all():
        key = name if name in factors else f"{spec.family.name}.rope.scaling.factor"
        wanted = f"at most {most:g} radians per position in a context of {context}"
        raise LoadError(f"{key}: expected {wanted}, got {found.max()}")
    return found
