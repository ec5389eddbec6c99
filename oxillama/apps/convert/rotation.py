"""Rotations of a config.json as GGUF metadata and tensors.

The kinds are Hugging Face's (modeling_rope_utils.py), their names in GGUF llama.cpp's. "dynamic" is our own
name, because llama.cpp has none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxillama.apps.convert.config import Config
from oxillama.errors import LoadError

Metadata = dict[str, Any]
Tensors = dict[str, np.ndarray]


def rotation(
    config: Config, metadata: Metadata, dim: int, base: float = 10000.0, partial: bool = False
) -> Tensors:
    """Writes the rotation of a config into the metadata; returns its tensors.

    All ``dim`` dimensions of a head rotate, or, ``partial``, a share of them; ``base`` is the base of configs
    that state none.
    """
    merged = config.table("rope_scaling").values | config.table("rope_parameters").values
    rope = Config(merged, f"{config.name}: rope_scaling")
    return rotation_of(rope, config, metadata, dim, base, partial)


def rotation_of(
    rope: Config, config: Config, metadata: Metadata, dim: int, base: float, partial: bool = False
) -> Tensors:
    """`rotation` of one object, ``rope``, of a config that has several."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    rope.seen |= {"type"}
    theta = rope.number("rope_theta", config.number("rope_theta", base))
    for place in (rope, config) if not partial else ():
        place.only("partial_rotary_factor", 1, 1.0)
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    n_rot = int(dim * share)
    wrong = share > 1 or n_rot % 2 or not n_rot
    config.refuse_if(wrong, "partial_rotary_factor", f"an even share of {dim}", share)
    metadata["rope.freq_base"] = theta
    metadata["rope.dimension_count"] = n_rot
    if not isinstance(kind, str) or kind not in KINDS:
        raise LoadError(f"{rope.name}: {kind!r:.60} is not supported, only {', '.join(KINDS)}")
    made = KINDS[kind](rope, config, metadata, n_rot)
    unread = sorted(rope.values.keys() - rope.seen)
    if unread and kind != "default":
        raise LoadError(f"{rope.name}: {', '.join(unread)} of {kind} is not supported")
    return made


def refuse_unread(*tables: Config) -> None:
    """Raises LoadError if one of these objects has an unread key."""
    unread = sorted({key for table in tables for key in table.unread()})
    if unread:
        raise LoadError(f"{tables[0].name}: {', '.join(unread)} is not supported")


def plain(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    return {}


def linear(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """Chen et al., 2023."""
    metadata["rope.scaling.type"] = "linear"
    metadata["rope.scaling.factor"] = rope.number("factor")
    return {}


def dynamic(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """NTK-aware scaling by the length of the text; here by the context of the engine, if that is longer than
    max_position_embeddings."""
    rope.only("original_max_position_embeddings", metadata["context_length"])
    metadata["rope.scaling.type"] = "dynamic"
    metadata["rope.scaling.factor"] = rope.number("factor")
    metadata["rope.scaling.original_context_length"] = metadata["context_length"]
    return {}


def yarn(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """Peng et al., 2023. The factor of cosines is 1 + 0.1 ln s, stated, or a quotient as in DeepSeek."""
    original = rope.size("original_max_position_embeddings", metadata["context_length"])
    factor = rope.number("factor", metadata["context_length"] / original)
    metadata["rope.scaling.type"] = "yarn"
    metadata["rope.scaling.factor"] = factor
    metadata["rope.scaling.original_context_length"] = original
    metadata["rope.scaling.yarn_beta_fast"] = rope.number("beta_fast", 32.0)
    metadata["rope.scaling.yarn_beta_slow"] = rope.number("beta_slow", 1.0)
    if not rope.flag("truncate", True):
        metadata["rope.scaling.yarn_truncate"] = False

    def size_of(m: float) -> float:
        return 1 + 0.1 * m * math.log(max(1.0, factor))

    found = size_of(1.0)
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        found = size_of(rope.number("mscale")) / size_of(rope.number("mscale_all_dim"))
    metadata["rope.scaling.attn_factor"] = rope.number("attention_factor", found) / size_of(1.0)
    return {}


def longrope(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """Ding et al., 2024: factors for contexts up to the original one and for longer ones."""
    context = metadata["context_length"]
    nested = rope.get("original_max_position_embeddings")
    if config.has("original_max_position_embeddings") or nested is not None:
        original = config.size("original_max_position_embeddings", nested)
        stretch = context / original
        rope.ignore("factor")  # the quotient is used
    else:
        original, stretch = context, rope.number("factor")
    usual = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 and original > 1 else 1.0
    metadata["rope.scaling.type"] = "longrope"
    metadata["rope.scaling.original_context_length"] = original
    metadata["rope.scaling.attn_factor"] = rope.number("attention_factor", usual)
    return {
        f"rope_factors_{length}.weight": rope.numbers(f"{length}_factor", n_rot // 2)
        for length in ("long", "short")
    }


def llama3(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """The divisors of the frequencies (Llama 3.1's model card and code)."""
    factor, original = rope.number("factor"), rope.size("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor", 1.0), rope.number("high_freq_factor", 4.0)
    if low >= high:
        raise LoadError(f"{rope.name}: low_freq_factor {low} is not below {high}")
    base = metadata["rope.freq_base"]
    turns = original * base ** (-np.arange(0, n_rot, 2) / n_rot) / (2 * math.pi)  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - kept) / factor + kept)).astype(np.float32)}


def proportional(rope: Config, config: Config, metadata: Metadata, n_rot: int) -> Tensors:
    """Gemma 4: the fastest pairs of a head rotate, with the frequencies of a head that rotates whole."""
    pairs = metadata["attention.key_length"] // 2
    metadata["rope.dimension_count"] = 2 * pairs
    factors = np.full(pairs, 1e30, np.float32)  # too slow to rotate
    factors[: n_rot // 2] = rope.number("factor", 1.0)
    return {"rope_freqs.weight": factors}


KINDS = {
    **{"default": plain, "linear": linear, "dynamic": dynamic, "yarn": yarn, "longrope": longrope},
    **{"su": longrope, "llama3": llama3, "proportional": proportional},
}
