"""Tensors of a layer, by Hugging Face's names and by GGUF's, in the groups that families are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.convert.decoders import Change, Part, Sizes


def gated(source: str, target: str = "", width: str = "ff", names: str = "gate up down") -> tuple[Part, ...]:
    """Gate, up and down matrices of a block or an expert, which have these ``names`` in the source.

    ``target`` is the ending of their names in GGUF, ``width`` the size between them.
    """
    shapes = (f"{width} d", f"{width} d", f"d {width}")
    kinds = ("gate", "up", "down")
    return tuple(
        Part(source.format(name), f"ffn_{kind}{target}", shape)
        for name, kind, shape in zip(names.split(), kinds, shapes)
    )


ATTENTION = (
    Part("self_attn.q_proj", "attn_q", "q d", "attention_bias"),
    Part("self_attn.k_proj", "attn_k", "k d", "attention_bias"),
    Part("self_attn.v_proj", "attn_v", "v d", "attention_bias"),
    Part("self_attn.o_proj", "attn_output", "d q", "attention_bias"),
)
FEED = tuple(replace(part, bias="mlp_bias") for part in gated("mlp.{}_proj"))
BEFORE = (Part("input_layernorm", "attn_norm", "d"), Part("post_attention_layernorm", "ffn_norm", "d"))
BOTH_SIDES = (
    Part("input_layernorm", "attn_norm", "d"),
    Part("post_attention_layernorm", "post_attention_norm", "d"),
    Part("pre_feedforward_layernorm", "ffn_norm", "d"),
    Part("post_feedforward_layernorm", "post_ffw_norm", "d"),
)
BEHIND = (
    Part("post_attention_layernorm", "post_attention_norm", "d"),
    Part("post_feedforward_layernorm", "post_ffw_norm", "d"),
)
HEAD_NORMS = (
    Part("self_attn.q_norm", "attn_q_norm", "dim"),
    Part("self_attn.k_norm", "attn_k_norm", "dim"),
)
ROW_NORMS = (Part("self_attn.q_norm", "attn_q_norm", "q"), Part("self_attn.k_norm", "attn_k_norm", "k"))
EXPERTS = (
    Part("mlp.gate", "ffn_gate_inp", "experts d"),
    *gated("mlp.experts.{{e}}.{}_proj", "_exps", "expert_ff"),
)
SHARED = (
    *gated("mlp.shared_expert.{}_proj", "_shexp", "shared_ff"),
    Part("mlp.shared_expert_gate", "ffn_gate_inp_shexp", "one d"),
)
MIXTRAL_EXPERTS = (
    Part("block_sparse_moe.gate", "ffn_gate_inp", "experts d"),
    *gated("block_sparse_moe.experts.{{e}}.{}", "_exps", names="w1 w3 w2"),
)
FUSED = (
    Part("self_attn.qkv_proj", "attn_qkv", "q+k+v d"),
    Part("self_attn.o_proj", "attn_output", "d q"),
    Part("mlp.gate_up_proj", "ffn_up", "ff+ff d"),
    Part("mlp.down_proj", "ffn_down", "d ff"),
)

TOWERS = (
    *("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
    *("model.multi_modal_projector.", "vision_tower.", "multi_modal_projector."),
)
SIGHT = ("model.visual.", "visual.")
ALL_TOWERS = (
    *TOWERS,
    *SIGHT,
    *("audio_tower.", "model.vision_model.", "model.connector.", "model.vision_encoder."),
    *("model.vision_projection.", "model.vision_embedder.", "vision_model.", "mlp_AR."),
    *("vpm.", "resampler."),
)
"""Tensors that read images or sound, in folders that also have a text model."""

TEXT_IN_TOWERS = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("llm.", ""),
)
"""Names of the text model in such a folder."""


def biased(parts: tuple[Part, ...], bias: str, but: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """The parts with another rule for biases, those named in ``but`` without."""
    return tuple(replace(part, bias="" if part.target in but else bias) for part in parts)


def only(kind: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts in layers of one kind alone (`Sizes.kinds`)."""
    return tuple(replace(part, only=kind) for part in parts)


def halves(heads: str) -> Change:
    """Rows of so many ``heads`` whose neighbours rotate with each other, as two halves that do.

    The first ``sizes["rot"]`` rows of a head rotate.
    """

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        rows = values.reshape(sizes[heads], sizes["dim"], -1)
        turning, rest = np.split(rows, [sizes["rot"]], axis=1)
        pairs = turning.reshape(sizes[heads], -1, 2, rows.shape[-1]).swapaxes(1, 2)
        return np.concatenate([pairs.reshape(turning.shape), rest], axis=1).reshape(values.shape)

    return change


def in_halves(parts: tuple[Part, ...], biases: bool) -> tuple[Part, ...]:
    """The matrices of queries and keys, in this order, as `halves`; perhaps with biases."""
    found = []
    for part, heads in zip(parts, ("heads", "kv_heads"), strict=True):
        rows = part.shape.split()[0]
        for kind, shape in (("weight", part.shape), ("bias", rows)):
            if kind == "weight" or biases:
                names = f"{part.source}.{kind}", f"{part.target}.{kind}"
                found.append(Part(*names, shape, change=halves(heads), becomes=shape, bare=True))
    return tuple(found)
