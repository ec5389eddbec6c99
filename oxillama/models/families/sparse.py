"""Decoders with experts that differ from Qwen 3 or DeepSeek in a few facts: one entry each."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.deepseek import SELECTOR_KEYS, STATED, expert_limits, read_selector
from oxillama.models.families.glm import sections_if_two
from oxillama.models.families.granite import GRANITE_OPTIONS
from oxillama.models.families.llama import FACTORS, LLAMA
from oxillama.models.families.qwen import QWEN3
from oxillama.models.family import WINDOWS, Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

SHARED = "expert_shared_feed_forward_length"
WEIGHED = (
    "expert_feed_forward_length", SHARED, "expert_gating_func", "expert_weights_norm", "expert_weights_scale",
)  # fmt: skip
PLAIN = QWEN3.derive("", classifier="", requires=("expert_count",))
WITHOUT_DRAFTS = Only("nextn_predict_layers", (0,))

ERNIE4_5_MOE = LLAMA.variant(
    "ernie4_5-moe", requires=("expert_count", "interleave_moe_layer_step"),
    only=(Only("interleave_moe_layer_step", (1,)),), ignored_keys=("expert_shared_count",),
    ignores=("attn_output.bias",),
    routing=Routing(
        options=(
            "expert_feed_forward_length", SHARED, "interleave_moe_layer_step", "leading_dense_block_count",
        ),
    ),
)  # fmt: skip

HUNYUAN_MOE = PLAIN.variant(
    "hunyuan-moe", qk_norm_last=True, ignored_keys=("expert_feed_forward_length", "expert_shared_count"),
    routing=Routing(options=(SHARED,), shared_width="ff", bias="no"),
)  # fmt: skip

DOTS1 = PLAIN.variant(
    "dots1", requires=("expert_count", "expert_gating_func"),
    routing=Routing(options=STATED, normalize=False, shared_width="expert"), output="own",
)  # fmt: skip

GLM4_MOE = PLAIN.variant(
    "glm4moe", options=("rope.dimension_sections",), next_token="states", ffn_norm="post_attention_norm",
    qk_norm_optional=True,
    routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert", bias="yes"),
    adjust=sections_if_two,
)  # fmt: skip

# MiniMax M2 norms whole q and k. Its files state a width of experts that is not theirs.
MINIMAX_M2 = PLAIN.variant(
    "minimax-m2", requires=("expert_count", "expert_gating_func"), only=(WITHOUT_DRAFTS,),
    ignored_keys=("expert_feed_forward_length",), qk_norm="row",
    routing=Routing(options=("expert_gating_func",), bias="yes"), output="own",
)  # fmt: skip


def wide_shared(spec: Spec, read: Reader) -> Spec:
    """Ling 2: the width of the shared experts is the width of one expert times their number."""
    experts = spec.experts
    if experts is None or not read.has(SHARED):
        return spec
    width = experts.shared_width * read.size("expert_shared_count", 1, least=0)
    return replace(spec, experts=replace(experts, shared_width=width))


BAILING_MOE2 = PLAIN.variant(
    "bailingmoe2", requires=("expert_count", "expert_gating_func"), ignores=("layer_output_norm.weight",),
    routing=Routing(options=(*STATED, SHARED), normalize=False, shared_width="expert"), output="own",
    adjust=wide_shared,
)  # fmt: skip

EXAONE_MOE = PLAIN.variant(
    "exaone-moe", options=WINDOWS[:2],
    requires=("expert_count", "expert_gating_func", "attention.sliding_window"),
    ignored_keys=("expert_shared_count", "rope.freq_base_swa"), window_period=4, rope_on_windows_only=True,
    routing=Routing(
        options=(*WEIGHED, "leading_dense_block_count"), normalize=False, shared_width="expert",
    ),
    output="own",
)  # fmt: skip


# Ling 1: all layers have experts, whatever the files state; a head is as wide as its rotation.
BAILING_MOE = LLAMA.variant(
    "bailingmoe", requires=("expert_count", "expert_shared_count"),
    ignored_keys=("leading_dense_block_count",), whole_rotation=True, refuses=FACTORS,
    routing=Routing(
        options=(
            "expert_feed_forward_length", "expert_shared_count", "expert_weights_norm",
            "expert_weights_scale",
        ),
        normalize=False, shared_width="expert", bias="no",
    ),
    output="own",
)  # fmt: skip

# Mellum 2: three layers of four have a window, and then no scaling of their rotation.
MELLUM = PLAIN.variant(
    "mellum", options=WINDOWS[:2], ignored_keys=WINDOWS[2:], window_period=4, local_rope="plain",
    whole_rotation=True, refuses=FACTORS,
    routing=Routing(options=("expert_feed_forward_length",), width="ff/used", bias="no"), output="own",
)  # fmt: skip


# Hy 3: the number of the choice's bias has no ending, the shared expert may be wider than an expert.
HY_V3 = PLAIN.variant(
    "hy_v3", ignored_keys=("expert_shared_count", "leading_dense_block_count"), whole_rotation=True,
    next_token="states",
    routing=Routing(
        options=WEIGHED, gating="sigmoid", normalize=False, shared_width="expert", layers="router"
    ),
)  # fmt: skip


def listed_windows(spec: Spec, read: Reader) -> Spec:
    """Files list the layers with windows."""
    key = "attention.sliding_window_pattern"
    read.expect(read.is_array(key), key, "a list", "a number")
    return spec


def gate_limits(spec: Spec, read: Reader) -> Spec:
    """Limits of gates, of all layers or of each; and windows, which files list."""
    return expert_limits(listed_windows(spec, read), read)


MAPLE = PLAIN.variant(
    "maple", options=(*WINDOWS, "swiglu_clamp_exp"),
    requires=(
        "expert_count", "attention.sliding_window", "attention.sliding_window_pattern", "swiglu_clamp_exp",
    ),
    rope_on_windows_only=True, refuses=FACTORS, limits="before",
    routing=Routing(options=("expert_feed_forward_length",), width="ff/used", bias="no"), output="own",
    adjust=gate_limits,
)  # fmt: skip


def chunk_sizes(spec: Spec, read: Reader) -> Spec:
    """The sizes of chunk experts."""
    assert spec.experts is not None
    n, group = spec.experts.n_experts, read.size("experts_per_group")
    read.expect(n % group == 0, "experts_per_group", f"a divisor of {n}", group)
    width = read.size("expert_chunk_feed_forward_length", 0, least=0) or spec.key_dim
    scale = read.number("expert_group_scale")
    experts = replace(spec.experts, chunk_group=group, chunk_width=width, chunk_scale=scale)
    return replace(spec, experts=experts)


# A chunk expert for each group of experts reads what the experts wrote.
GROVE_MOE = PLAIN.variant(
    "grovemoe", requires=("expert_count", "experts_per_group", "expert_group_scale"), whole_rotation=True,
    refuses=FACTORS,
    routing=Routing(
        options=("expert_feed_forward_length", "expert_group_scale"), width="ff/used", bias="no", chunks=True,
    ),
    adjust=chunk_sizes,
)  # fmt: skip


def dense_as_wide(spec: Spec, read: Reader) -> Spec:
    """Arctic's dense blocks are as wide as the hidden state."""
    return spec.each_layer(n_ff=spec.n_embd)


ARCTIC = LLAMA.variant(
    "arctic", requires=("expert_count",), whole_rotation=True, refuses=FACTORS,
    routing=Routing(bias="no", beside_dense="input"), adjust=dense_as_wide,
)  # fmt: skip


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
SMALLTHINKER = LLAMA.variant(
    "smallthinker", options=WINDOWS, requires=("expert_count", "expert_gating_func"), rope="neox",
    window_period=4, full_layer="first", activation="relu",
    routing=Routing(options=("expert_feed_forward_length", "expert_gating_func"), bias="no", reads="layer"),
    adjust=first_of_four_still,
)  # fmt: skip

AFMOE = PLAIN.variant(
    "afmoe", options=WINDOWS, requires=("expert_count", "attention.sliding_window"), embedding_scale=0.0,
    attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), window_period=4,
    no_rope_every=4, attn_gate="elements",
    routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert", bias="yes"),
)  # fmt: skip


def rotating_layers(spec: Spec, read: Reader) -> Spec:
    """Granite with windows lists the layers that rotate."""
    if not read.has("attention.rope_pattern"):
        return spec
    listed = read.per_layer("attention.rope_pattern", spec.n_layers, least=0)
    return spec.with_layers(rope=[each.rope if turns else None for each, turns in zip(spec.layers, listed)])


GRANITE_SWA = LLAMA.variant(
    "granite_swa", options=(*GRANITE_OPTIONS, *WINDOWS[:2], "attention.rope_pattern"),
    requires=("attention.sliding_window_pattern",), ignored_keys=WINDOWS[2:], logit_scale="divides",
    sinks="yes", routing=Routing(options=(SHARED,), bias="no", shared_gate_up=True), adjust=rotating_layers,
)  # fmt: skip

# MiMo 2: keys are wider than values, key heads differ from layer to layer, and so do sinks.
MIMO2 = LLAMA.variant(
    "mimo2", options=(*WINDOWS, "attention.value_scale"), requires=("attention.sliding_window_pattern",),
    ignores=("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"), rope="neox", sinks="auto",
    local_rope="plain", local_base=10000.0,
    routing=Routing(options=("expert_feed_forward_length",), gating="sigmoid", layers="router"), output="own",
)  # fmt: skip


def step_layers(spec: Spec, read: Reader) -> Spec:
    """Step 3.5: layers without a window rotate half as many dimensions; gates have limits."""
    whole, local = spec.ropes
    ropes = replace(whole, n_rot=whole.n_rot // 4 * 2), local
    return replace(expert_limits(spec, read, "stated"), ropes=ropes)


STEP35 = PLAIN.variant(
    "step35", options=(*WINDOWS, "rope.dimension_count_swa", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    requires=("attention.sliding_window_pattern",), qk_norm_optional=True, attn_gate="head",
    attn_gate_optional=True, local_rope="plain", local_base=10000.0,
    ignored_keys=("expert_shared_count", "leading_dense_block_count"),
    routing=Routing(options=WEIGHED, gating="sigmoid", normalize=False, layers="router"),
    output="own", adjust=step_layers,
)  # fmt: skip


def sparse_layers(spec: Spec, read: Reader) -> Spec:
    """MiniMax-M3: layers behind the dense ones see some blocks of positions."""
    prefix = "attention.indexer"
    block, local = read.size(f"{prefix}.block_size"), read.size(f"{prefix}.local_blocks", least=0)
    selector = read_selector(spec, read, spec.ropes[0].n_rot, neox=True, block=block, local=local)
    n, most, dense = selector.n_heads, selector.n_chosen, read.size("leading_dense_block_count", 0, least=0)
    heads = {layer.n_kv_heads for layer in spec.layers[dense:]} or {n}
    read.expect(heads == {n}, f"{prefix}.head_count", f"the {max(heads)} key heads", n)
    read.expect(local <= most, f"{prefix}.local_blocks", f"at most {most}", local)
    layers = (
        replace(layer, mixer="sparse", selected_by=i, places=layer.n_kv_heads) if i >= dense else layer
        for i, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers), selector=selector if dense < spec.n_layers else None)


MINIMAX_M3 = PLAIN.variant(
    "minimax-m3", options=SELECTOR_KEYS, requires=("expert_count", "expert_gating_func"),
    activation="silu_clamped", routing=Routing(options=STATED, normalize=False, shared_width="counted"),
    output="own", adjust=sparse_layers,
)  # fmt: skip
