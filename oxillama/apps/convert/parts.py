"""Tensors that several families have, by Hugging Face's names and by GGUF's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.apps.convert.decoders import Sizes
from oxillama.apps.convert.tables import Change, Part, table
from oxillama.models.registry import FAMILIES


def gated(source: str, target: str = "", width: str = "ff", names: str = "gate up down") -> tuple[Part, ...]:
    """Gate, up and down matrices of a block or an expert.

    ``source`` has "{}" where the source writes one of the ``names``; ``target`` ends their names in GGUF;
    ``width`` is the size between the matrices.
    """
    gate, up, down = (source.format(name) for name in names.split())
    first = f"{gate} ffn_gate{target} {width} d, {up} ffn_up{target} {width} d"
    return table(f"{first}, {down} ffn_down{target} d {width}")


def biased(parts: tuple[Part, ...], bias: str) -> tuple[Part, ...]:
    """The parts with another `Part.bias`."""
    return tuple(replace(part, bias=bias) for part in parts)


def only(kind: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts in layers of one kind only (`Sizes.kinds`)."""
    return tuple(replace(part, only=kind) for part in parts)


ATTENTION = table("""
    self_attn.q_proj attn_q q d / bias=attention_bias
    self_attn.k_proj attn_k k d / bias=attention_bias
    self_attn.v_proj attn_v v d / bias=attention_bias
    self_attn.o_proj attn_output d q / bias=attention_bias
""")
PLAIN_ATTENTION = biased(ATTENTION, "")


def qkv_biased(flag: str) -> tuple[Part, ...]:
    """`ATTENTION` with biases of q, k and v only."""
    return (*biased(ATTENTION[:3], flag), PLAIN_ATTENTION[3])


PLAIN_FEED = gated("mlp.{}_proj")
FEED = biased(PLAIN_FEED, "mlp_bias")
HEAD_NORMS = table("self_attn.q_norm attn_q_norm dim, self_attn.k_norm attn_k_norm dim")
ROW_NORMS = table("self_attn.q_norm attn_q_norm q, self_attn.k_norm attn_k_norm k")
QK_LAYERNORMS = table("self_attn.query_layernorm attn_q_norm dim, self_attn.key_layernorm attn_k_norm dim")
SINKS = Part("self_attn.sinks", "attn_sinks.weight", "heads", bare=True)
EXPERTS = (
    Part("mlp.gate", "ffn_gate_inp", "experts d"),
    *gated("mlp.experts.{{e}}.{}_proj", "_exps", "expert_ff"),
)
SHARED = gated("mlp.shared_experts.{}_proj", "_shexp", "shared_ff")
GATED_SHARED = (
    *gated("mlp.shared_expert.{}_proj", "_shexp", "shared_ff"),
    Part("mlp.shared_expert_gate", "ffn_gate_inp_shexp", "one d"),
)
DENSE_THEN_EXPERTS = (*only("dense", FEED), *only("routed", EXPERTS), *only("shared", SHARED))


def norms(architecture: str, sources: str = "") -> tuple[Part, ...]:
    """The norms of a layer, by the facts of the GGUF architecture.

    ``sources`` are their names in the source; the default is the names in Llama's and Gemma's classes.
    """
    family = FAMILIES[architecture]
    targets = (family.attn_norm, *family.attn_post_norm[:1], family.ffn_norm, *family.ffn_post_norm[:1])
    targets = tuple(filter(None, targets))
    if not sources:
        sources = "post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
        if family.attn_norm:
            sources = f"input_layernorm {sources}"
        else:
            sources = sources.replace("pre_feedforward_layernorm ", "")
    return tuple(Part(source, target, "d") for source, target in zip(sources.split(), targets))


def layer(
    architecture: str, attention: tuple[Part, ...] = ATTENTION, feed: tuple[Part, ...] = FEED, names: str = ""
) -> tuple[Part, ...]:
    """The tensors of a layer: attention, norms of q and k, `norms`, and a block or experts (``feed``).

    The facts of the GGUF architecture tell which norms there are, and whether the block has a gate.
    """
    family = FAMILIES[architecture]
    qk_norms = {"head": HEAD_NORMS, "row": ROW_NORMS}.get(family.qk_norm, ())
    feed = feed[1:] if family.gate == "none" else feed
    return (*attention, *qk_norms, *norms(architecture, names), *feed)


TOWERS = (
    *("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
    *("model.multi_modal_projector.", "vision_tower.", "multi_modal_projector."),
)
SIGHT = ("model.visual.", "visual.")
ALL_TOWERS = (
    *(*TOWERS, *SIGHT, "audio_tower.", "model.vision_model.", "model.connector.", "model.vision_encoder."),
    *("model.vision_projection.", "model.vision_embedder.", "vision_model.", "mlp_AR.", "vpm.", "resampler."),
)
"""Beginnings of the names of encoders of pictures and sounds, in folders that also have a text model."""

TEXT_IN_TOWERS = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("llm.", ""),
)
"""Beginnings of the names of the text model in such a folder, and the usual ones."""


def correction(source: str, shape: str = "experts", kind: str = "routed") -> Part:
    """The bias that is added to the weights of experts for their choice only."""
    return Part(source, "exp_probs_b.bias", shape, only=kind, bare=True)


# --- changes of values ------------------------------------------------------------------------------


def flat(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(channels, taps) of a convolution of single channels."""
    return values.reshape(len(values), -1)


def column(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(heads, 1) of a number for each head."""
    return values.reshape(-1, 1)


def decay(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A rate of decay, whose logarithm the source has."""
    found: np.ndarray = -np.exp(values)
    return found


def half(which: int, axis: int = 0) -> Change:
    """The first (0) or the second half (1) along an axis."""
    return lambda values, sizes: np.split(values, 2, axis)[which]


def transposed(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """The matrices of experts (1, rows, columns) as (1, columns, rows)."""
    return np.ascontiguousarray(values.swapaxes(1, 2))


def halves(heads: str) -> Change:
    """Rows of heads in which neighbours rotate with each other, reordered to halves that do.

    ``heads`` is the size that counts them. The first ``sizes["rot"]`` rows of a head rotate.
    """

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        rows = values.reshape(sizes[heads], sizes["dim"], -1)
        turning, rest = np.split(rows, [sizes["rot"]], axis=1)
        pairs = turning.reshape(sizes[heads], -1, 2, rows.shape[-1]).swapaxes(1, 2)
        return np.concatenate([pairs.reshape(turning.shape), rest], axis=1).reshape(values.shape)

    return change


def in_halves(parts: tuple[Part, ...], biases: bool) -> tuple[Part, ...]:
    """The matrices of queries and keys, in this order, changed by `halves`, and perhaps their biases."""
    found = []
    for part, heads in zip(parts, ("heads", "kv_heads"), strict=True):
        rows = part.shape.split()[0]
        for kind, shape in (("weight", part.shape), ("bias", rows)):
            if kind == "weight" or biases:
                names = f"{part.source}.{kind}", f"{part.target}.{kind}"
                found.append(Part(*names, shape, change=halves(heads), becomes=shape, bare=True))
    return tuple(found)


GATE_UP = "mlp.experts.gate_up_proj"
STACKED = table(
    f"""
    {GATE_UP} ffn_gate_exps.weight experts expert_ff+expert_ff d -> experts expert_ff d gates / = each either
    {GATE_UP} ffn_up_exps.weight   experts expert_ff+expert_ff d -> experts expert_ff d ups / = each either
    mlp.experts.down_proj ffn_down_exps.weight experts d expert_ff / = either
    """,
    gates=half(0, 1),
    ups=half(1, 1),
)
"""Experts in one tensor, as in newer classes; some older folders have the matrices transposed."""
