"""Decoders that differ from Llama in a few facts, without experts: one entry each."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.families.glm import sections_if_two
from oxillama.models.families.gpt import ROTATING
from oxillama.models.families.llama import FACTORS, LLAMA
from oxillama.models.families.qwen import QWEN2, QWEN3, rope_sections
from oxillama.models.family import WINDOWS, AtLayers
from oxillama.models.metadata import Reader
from oxillama.models.rope import Rope, grown_base
from oxillama.models.sizes import Xielu
from oxillama.models.spec import Spec

PLAIN = LLAMA.derive("", routing=None)
FEED = ("gate", "up", "down")
WHOLE = PLAIN.derive("", whole_rotation=True, refuses=FACTORS)

XVERSE = PLAIN.variant("xverse", output="own")
ARCEE = PLAIN.variant("arcee", gate="none", activation="relu_squared")
ERNIE4_5 = PLAIN.variant("ernie4_5", ignores=("attn_output.bias",))  # as in llama.cpp
PADDLEOCR = ERNIE4_5.variant("paddleocr", options=("rope.dimension_sections",), adjust=rope_sections)
SEED_OSS = QWEN2.variant("seed_oss", ffn_norm="post_attention_norm")

# Baichuan: 7B rotates, 13B has linear biases instead.
BAICHUAN = PLAIN.variant(
    "baichuan", rope="none", output="own", at_layers=(AtLayers(32, rope="norm"), AtLayers(40, alibi_bias=8.0))
)


def half_width(spec: Spec, read: Reader) -> Spec:
    """The first Qwen states twice the width of its feed-forward block."""
    widths = [layer.n_ff for layer in spec.layers]
    are_even = all(width % 2 == 0 for width in widths)
    read.expect(are_even, "feed_forward_length", "an even number", "an odd one")
    return spec.with_layers(n_ff=[width // 2 for width in widths])


QWEN = QWEN2.variant("qwen", output="own", adjust=half_width)

CODESHELL = ROTATING.variant("codeshell", output="both")
JAIS2 = ROTATING.variant("jais2", activation="relu_squared")

# Hunyuan norms the heads of q and k behind the rotation.
HUNYUAN = QWEN3.variant("hunyuan-dense", qk_norm_last=True, classifier="")

# EXAONE 4: norms behind the blocks only. The large model has windows, and rotates where it has them.
EXAONE4 = QWEN3.variant(
    "exaone4", attn_norm="", ffn_norm="", attn_post_norm=("post_attention_norm",),
    ffn_post_norm=("post_ffw_norm",), ignored_keys=(*WINDOWS,), classifier="",
    at_layers=(
        AtLayers(
            64, options=WINDOWS[:2], ignored_keys=WINDOWS[2:], window=4096, window_period=4,
            rope_on_windows_only=True,
        ),
    ),
)  # fmt: skip


def hunyuan_turns(spec: Spec, read: Reader) -> Spec:
    """In files of vision models the base grows by alpha beside any scaling; and they may have sections: then
    the pairs of the fourth do not rotate."""
    alpha = read.amount("rope.scaling.alpha") or 1.0
    ropes = tuple(
        rope if rope.kind == "ntk" else replace(rope, base=grown_base(rope.base, alpha, rope.n_rot))
        for rope in spec.ropes
    )
    return sections_if_two(replace(spec, ropes=ropes), read)


HUNYUAN_VL = HUNYUAN.variant(
    "hunyuan_vl", options=("rope.dimension_sections",), whole_rotation=True, refuses=FACTORS,
    adjust=hunyuan_turns,
)  # fmt: skip
MAINCODER = WHOLE.variant("maincoder", qk_norm="head", qk_norm_last=True)
PANGU = QWEN2.variant("pangu-embedded", whole_rotation=True, needs=("attn_output.bias",), ignores=FACTORS)
PLAMO = WHOLE.variant("plamo", rope="neox", residual="parallel", ffn_norm="", output="own")
# Refact has linear biases instead of a rotation; llama.cpp reads these biases of matrices and does not use
# them.
REFACT = PLAIN.variant(
    "refact", rope="none", alibi_bias=8.0,
    ignores=(*FACTORS, "attn_output.bias", *(f"ffn_{each}.bias" for each in FEED)),
)  # fmt: skip
BITNET = PLAIN.variant(
    "bitnet", rope="neox", sub_norms=True, output="tied", refuses=(*FACTORS, "output.weight")
)

# Talkie: no norm has a weight, and each layer adds its input of the first layer again.
TALKIE = WHOLE.variant(
    "talkie", options=("logit_scale",), requires=("logit_scale",), rope="neox", norm_weight=False,
    embd_norm=True, adds_embedding=True, qk_norm="gain", qk_norm_last=True, output="own",
)  # fmt: skip


def deci_layers(spec: Spec, read: Reader) -> Spec:
    """Without a use: biases of matrices in place of attention, and all of layers that change nothing."""
    unused = []
    for name in read.file.tensors:
        number = name.split(".")[1] if name.startswith("blk.") else ""
        layer = spec.layers[int(number)] if number.isdigit() and int(number) < spec.n_layers else None
        if layer is None:
            continue
        is_mixer = ".attn_" in name and (
            layer.mixer == "" or (layer.mixer == "linear" and "weight" not in name)
        )
        if is_mixer or not layer.n_ff:
            unused.append(name)
    return replace(spec, ignored=(*spec.ignored, *unused))


DECI = WHOLE.variant("deci", idle_layers=True, refuses=(), adjust=deci_layers)


def swin_norms(spec: Spec, read: Reader) -> Spec:
    """Large models of Chameleon norm what the blocks write, and chain the blocks."""
    if not read.flag("swin_norm", False):
        return spec
    moved = spec.family.derive(
        spec.family.name,
        residual="chained",
        attn_norm="",
        ffn_norm="",
        attn_post_norm=("attn_norm",),
        ffn_post_norm=("ffn_norm",),
    )
    return replace(spec, family=moved)


CHAMELEON = WHOLE.variant("chameleon", qk_norm="layer", hidden_tokens=(4, 8196), adjust=swin_norms)


def fixed_turns(spec: Spec, read: Reader) -> Spec:
    """CogVLM rotates whole heads from a fixed base, whatever its file states."""
    ropes = tuple(Rope(rope.n_rot, True, 10000.0) for rope in spec.ropes)
    return replace(spec, ropes=ropes)


# CogVLM's text: rows of pictures would take matrices of their own.
COGVLM = WHOLE.variant(
    "cogvlm", rope="neox", needs=("attn_qkv.weight",), ignores=("rope_freqs.weight", "vis_*"),
    refuses=FACTORS[1:], text_only=True, adjust=fixed_turns,
)  # fmt: skip

OPENELM = QWEN3.variant("openelm", output="tied", classifier="")

PLAMO3 = PLAIN.variant(
    "plamo3", options=WINDOWS, rope="neox", qk_norm="head", gate="fused",
    attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), window_period=8,
    local_rope="plain", local_base=10000.0,
)  # fmt: skip


def xielu_numbers(spec: Spec, read: Reader) -> Spec:
    """The numbers of xIELU, for each layer or for all; their keys have no architecture before them."""
    n, columns = spec.n_layers, []
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        key = f"xielu.{name}"
        listed = isinstance(read.file.metadata.get(key), np.ndarray)
        values: list[float] = read.file.get(key, list[float]) if listed else [read.file.get(key, float)] * n
        if len(values) < n or not all(abs(value) <= 100 for value in values):
            found = f"{len(values)}: {values!r:.60}"
            raise LoadError(f"{key}: expected {n} numbers from -100 to 100, got {found}")
        columns.append(values)
    numbers = [
        Xielu(softplus(p), beta + softplus(negative), beta, eps) for p, negative, beta, eps in zip(*columns)
    ]
    return spec.with_layers(xielu=numbers[:n])


def softplus(x: float) -> float:
    """ln(1 + e^x)."""
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


APERTUS = QWEN3.variant(
    "apertus", longrope=True, gate="none", activation="xielu", output="own", classifier="",
    ignores=("attn_q_norm.bias", "attn_k_norm.bias"), adjust=xielu_numbers,
)  # fmt: skip
