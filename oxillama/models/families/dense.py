"""Decoders that differ from Llama in a few facts, without experts: one entry each."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.families.gpt import ROTATING
from oxillama.models.families.llama import LLAMA
from oxillama.models.families.qwen import QWEN2, QWEN3, rope_sections
from oxillama.models.family import WINDOWS, AtLayers
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec, Xielu

PLAIN = LLAMA.derive("", routing=None)

XVERSE = register(PLAIN.derive("xverse", output="own"))
ARCEE = register(PLAIN.derive("arcee", gate="none", activation="relu_squared"))
ERNIE4_5 = register(PLAIN.derive("ernie4_5", ignores=("attn_output.bias",)))  # as in llama.cpp
PADDLEOCR = register(ERNIE4_5.derive("paddleocr", options=("rope.dimension_sections",)), rope_sections)
SEED_OSS = register(QWEN2.derive("seed_oss", ffn_norm="post_attention_norm"))

# Baichuan: 7B rotates, 13B has linear biases instead.
BAICHUAN = register(
    PLAIN.derive(
        "baichuan",
        rope="none",
        output="own",
        at_layers=(AtLayers(32, rope="norm"), AtLayers(40, alibi_bias=8.0)),
    )
)


def half_width(spec: Spec, read: Reader) -> Spec:
    """The first Qwen states twice the width of its feed-forward block."""
    if any(layer.n_ff % 2 for layer in spec.layers):
        raise LoadError(f"{read.prefix}.feed_forward_length: expected an even number, got an odd one")
    return replace(spec, layers=tuple(replace(layer, n_ff=layer.n_ff // 2) for layer in spec.layers))


QWEN = register(QWEN2.derive("qwen", output="own"), half_width)

CODESHELL = register(ROTATING.derive("codeshell", output="both"))
JAIS2 = register(ROTATING.derive("jais2", activation="relu_squared"))

# Hunyuan norms the heads of q and k behind the rotation.
HUNYUAN = register(QWEN3.derive("hunyuan-dense", qk_norm_last=True, classifier=""))

# EXAONE 4: norms behind the blocks only. The large model has windows, and rotates where it has them.
EXAONE4 = register(
    QWEN3.derive(
        "exaone4",
        attn_norm="",
        ffn_norm="",
        attn_post_norm=("post_attention_norm",),
        ffn_post_norm=("post_ffw_norm",),
        ignored_keys=(*WINDOWS,),
        classifier="",
        at_layers=(
            AtLayers(
                64,
                options=WINDOWS[:2],
                ignored_keys=WINDOWS[2:],
                window=4096,
                window_period=4,
                rope_on_windows_only=True,
            ),
        ),
    )
)

OPENELM = register(QWEN3.derive("openelm", output="tied", classifier=""))

PLAMO3 = register(
    PLAIN.derive(
        "plamo3",
        options=WINDOWS,
        rope="neox",
        qk_norm="head",
        gate="fused",
        attn_post_norm=("post_attention_norm",),
        ffn_post_norm=("post_ffw_norm",),
        window_period=8,
        local_rope="plain",
        local_base=10000.0,
    )
)


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
    layers = []
    for layer, (p, negative, beta, eps) in zip(spec.layers, zip(*columns), strict=False):
        numbers = Xielu(softplus(p), beta + softplus(negative), beta, eps)
        layers.append(replace(layer, xielu=numbers))
    return replace(spec, layers=tuple(layers))


def softplus(x: float) -> float:
    """ln(1 + e^x)."""
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


APERTUS = register(
    QWEN3.derive(
        "apertus",
        longrope=True,
        gate="none",
        activation="xielu",
        output="own",
        classifier="",
        ignores=("attn_q_norm.bias", "attn_k_norm.bias"),
    ),
    xielu_numbers,
)
