"""Decoders with experts that differ from Qwen 3 or DeepSeek in a few facts: one entry each."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.deepseek import STATED
from oxillama.models.families.glm import sections_if_two
from oxillama.models.families.llama import GRANITE_OPTIONS, LLAMA
from oxillama.models.families.qwen import QWEN3
from oxillama.models.family import WINDOWS, Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec

SHARED = "expert_shared_feed_forward_length"
PLAIN = QWEN3.derive("", classifier="", requires=("expert_count",))
WITHOUT_DRAFTS = Only("nextn_predict_layers", (0,))

ERNIE4_5_MOE = register(
    LLAMA.derive(
        "ernie4_5-moe",
        requires=("expert_count", "interleave_moe_layer_step"),
        only=(Only("interleave_moe_layer_step", (1,)),),
        ignored_keys=("expert_shared_count",),
        ignores=("attn_output.bias",),
        routing=Routing(
            options=(
                "expert_feed_forward_length",
                SHARED,
                "interleave_moe_layer_step",
                "leading_dense_block_count",
            )
        ),
    )
)

HUNYUAN_MOE = register(
    PLAIN.derive(
        "hunyuan-moe",
        qk_norm_last=True,
        ignored_keys=("expert_feed_forward_length", "expert_shared_count"),
        routing=Routing(options=(SHARED,), shared_width="ff", bias="no"),
    )
)

DOTS1 = register(
    PLAIN.derive(
        "dots1",
        requires=("expert_count", "expert_gating_func"),
        routing=Routing(options=STATED, normalize=False, shared_width="expert"),
        output="own",
    )
)

GLM4_MOE = register(
    PLAIN.derive(
        "glm4moe",
        options=("rope.dimension_sections",),
        next_token=True,
        ffn_norm="post_attention_norm",
        qk_norm_optional=True,
        routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert", bias="yes"),
    ),
    sections_if_two,
)

# MiniMax M2 norms whole q and k. Its files state a width of experts that is not theirs.
MINIMAX_M2 = register(
    PLAIN.derive(
        "minimax-m2",
        requires=("expert_count", "expert_gating_func"),
        only=(WITHOUT_DRAFTS,),
        ignored_keys=("expert_feed_forward_length",),
        qk_norm="row",
        routing=Routing(options=("expert_gating_func",), bias="yes"),
        output="own",
    )
)


def wide_shared(spec: Spec, read: Reader) -> Spec:
    """Ling 2: the width of the shared experts is that of one, however it is stated, times their number."""
    experts = spec.experts
    if experts is None or not read.has(SHARED):
        return spec
    width = experts.shared_width * read.size("expert_shared_count", 1, least=0)
    return replace(spec, experts=replace(experts, shared_width=width))


BAILING_MOE2 = register(
    PLAIN.derive(
        "bailingmoe2",
        requires=("expert_count", "expert_gating_func"),
        ignores=("layer_output_norm.weight",),
        routing=Routing(options=(*STATED, SHARED), normalize=False, shared_width="expert"),
        output="own",
    ),
    wide_shared,
)

EXAONE_MOE = register(
    PLAIN.derive(
        "exaone-moe",
        options=WINDOWS[:2],
        requires=("expert_count", "expert_gating_func", "attention.sliding_window"),
        ignored_keys=("expert_shared_count", "rope.freq_base_swa"),
        window_period=4,
        rope_on_windows_only=True,
        routing=Routing(
            options=(
                "expert_feed_forward_length",
                SHARED,
                "expert_gating_func",
                "expert_weights_norm",
                "expert_weights_scale",
                "leading_dense_block_count",
            ),
            normalize=False,
            shared_width="expert",
        ),
        output="own",
    )
)


def first_of_four_still(spec: Spec, read: Reader) -> Spec:
    """SmallThinker: where the file has a window, it is 4096 wide, and every fourth layer does not rotate,
    whichever have windows."""
    if not read.size("attention.sliding_window", 0, least=0):
        return spec
    layers = (
        replace(layer, window=4096 if layer.window else 0, rope=None if i % 4 == 0 else layer.rope)
        for i, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))


# The router reads the hidden state before the layer, so that experts can be fetched while it attends.
SMALLTHINKER = register(
    LLAMA.derive(
        "smallthinker",
        options=WINDOWS,
        requires=("expert_count", "expert_gating_func"),
        rope="neox",
        window_period=4,
        full_layer="first",
        activation="relu",
        routing=Routing(
            options=("expert_feed_forward_length", "expert_gating_func"), bias="no", reads="layer"
        ),
    ),
    first_of_four_still,
)

AFMOE = register(
    PLAIN.derive(
        "afmoe",
        options=WINDOWS,
        requires=("expert_count", "attention.sliding_window"),
        embedding_scale=0.0,
        attn_post_norm=("post_attention_norm",),
        ffn_post_norm=("post_ffw_norm",),
        window_period=4,
        no_rope_every=4,
        attn_gate="elements",
        routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert", bias="yes"),
    )
)


def rotating_layers(spec: Spec, read: Reader) -> Spec:
    """Granite with windows lists the layers that rotate."""
    if not read.has("attention.rope_pattern"):
        return spec
    listed = read.per_layer("attention.rope_pattern", spec.n_layers, least=0)
    layers = (replace(layer, rope=layer.rope if turns else None) for layer, turns in zip(spec.layers, listed))
    return replace(spec, layers=tuple(layers))


GRANITE_SWA = register(
    LLAMA.derive(
        "granite_swa",
        options=(*GRANITE_OPTIONS, *WINDOWS[:2], "attention.rope_pattern"),
        requires=("attention.sliding_window_pattern",),
        ignored_keys=WINDOWS[2:],
        logit_scale="divides",
        sinks="yes",
        routing=Routing(options=(SHARED,), bias="no", shared_gate_up=True),
    ),
    rotating_layers,
)

# MiMo 2: keys are wider than values, key heads differ from layer to layer, and so do sinks.
MIMO2 = register(
    LLAMA.derive(
        "mimo2",
        options=(*WINDOWS, "attention.value_scale"),
        requires=("attention.sliding_window_pattern",),
        ignores=("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"),
        rope="neox",
        sinks="auto",
        local_rope="plain",
        local_base=10000.0,
        routing=Routing(options=("expert_feed_forward_length",), gating="sigmoid", layers="router"),
        output="own",
    )
)


def step_layers(spec: Spec, read: Reader) -> Spec:
    """Step 3.5: layers without a window rotate half as many dimensions; gates have limits."""
    whole, local = spec.ropes
    ropes = replace(whole, n_rot=whole.n_rot // 4 * 2), local
    limits = zip(
        read.amounts("swiglu_clamp_exp", spec.n_layers), read.amounts("swiglu_clamp_shexp", spec.n_layers)
    )
    layers = tuple(
        replace(layer, expert_limit=routed, limit=dense)
        for layer, (routed, dense) in zip(spec.layers, limits)
    )
    return replace(spec, ropes=ropes, layers=layers)


STEP35 = register(
    PLAIN.derive(
        "step35",
        options=(*WINDOWS, "rope.dimension_count_swa", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
        requires=("attention.sliding_window_pattern",),
        qk_norm_optional=True,
        attn_gate="head",
        attn_gate_optional=True,
        local_rope="plain",
        local_base=10000.0,
        ignored_keys=("expert_shared_count", "leading_dense_block_count"),
        routing=Routing(
            options=(
                "expert_feed_forward_length",
                SHARED,
                "expert_gating_func",
                "expert_weights_norm",
                "expert_weights_scale",
            ),
            gating="sigmoid",
            normalize=False,
            layers="router",
        ),
        output="own",
    ),
    step_layers,
)
