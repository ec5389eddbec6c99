"""Decoders with latent attention that differ from DeepSeek in more than a few facts: Hy 4, dots 3, Kimi K3,
Ling 3, GLM-5.3."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.deepseek import (
    SELECTOR_KEYS,
    STATED,
    expert_limits,
    latent_sizes,
    with_selectors,
)
from oxillama.models.families.delta import KIMI_LINEAR, kimi_layers
from oxillama.models.families.glm import sections_if_two
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.sizes import Connections, Situ
from oxillama.models.spec import Spec

TYPES = "attention.indexer.types"
MOST_STREAMS, MOST_STATES, MOST_ROUNDS = 16, 64, 1000


def count_streams(read: Reader, least: int = 1) -> int:
    """How many streams a file states."""
    n = read.size("hyper_connection.count", least=least)
    read.expect(n <= MOST_STREAMS, "hyper_connection.count", f"at most {MOST_STREAMS} streams", n)
    return n


def connections(read: Reader, has_rounds: bool = False, has_head: bool = True) -> Connections:
    """The streams that a file states; ``has_rounds``: they are four, and mix by a matrix."""
    n, rounds, key = count_streams(read), 0, "hyper_connection.sinkhorn_iterations"
    if has_rounds:
        rounds = read.size(key)
        read.expect(rounds <= MOST_ROUNDS, key, f"at most {MOST_ROUNDS}", rounds)
        read.expect(n == 4, "hyper_connection.count", "4", n)
    return Connections(
        streams=n,
        epsilon=read.amount("hyper_connection.epsilon"),
        magnitude=2.0 if rounds else read.number("hyper_connection.magnitude"),
        rounds=rounds,
        has_head=has_head,
    )


def hy4_numbers(spec: Spec, read: Reader) -> Spec:
    """Streams, limits of routed experts, and selectors, where the file has them."""
    spec = expert_limits(replace(latent_sizes(spec, read), connections=connections(read)), read)
    if not read.size("attention.indexer.top_k", 0, least=0):
        return spec
    own = [bool(kind) for kind in read.per_layer(TYPES, spec.n_layers, least=0)]
    return with_selectors(spec, read, False, own, turns_last=True, epsilon=spec.norm_eps)


HY_V4 = LLAMA.variant(
    "hy_v4", options=(*SELECTOR_KEYS, TYPES, "swiglu_clamp_exp"),
    requires=("expert_count", "expert_gating_func", "attention.q_lora_rank"), mixer="mla",
    attn_gate="elements", sinks="yes", streams="connected", limits="before",
    routing=Routing(options=STATED, normalize=False, shared_width="counted"), output="own",
    adjust=hy4_numbers,
)  # fmt: skip


def dots3_layers(spec: Spec, read: Reader) -> Spec:
    """Windowed layers have latent attention of other sizes; the others have selectors."""
    spec = latent_sizes(spec, read)
    assert spec.latent is not None
    local = replace(
        spec.latent,
        kv_rank=read.size("attention.kv_lora_rank_swa"),
        key_dim=read.size("attention.key_length_mla_swa"),
        value_dim=read.size("attention.value_length_mla_swa"),
        rotated=spec.ropes[1].n_rot,
    )
    least = f"more than the {local.rotated} dimensions that rotate"
    read.expect(local.rotated < local.key_dim, "attention.key_length_mla_swa", least, local.key_dim)
    layers = tuple(replace(layer, latent=local) if layer.window else layer for layer in spec.layers)
    return with_selectors(replace(spec, layers=layers), read, True, [not layer.window for layer in layers])


DOTS3 = LLAMA.variant(
    "dots3note", options=(*SELECTOR_KEYS, *WINDOWS, "attention.key_length_swa", "attention.value_length_swa"),
    requires=(
        "expert_count", "expert_gating_func", "attention.q_lora_rank", "attention.sliding_window",
        "attention.sliding_window_pattern", "rope.freq_base_swa",
    ),
    ignored_keys=(TYPES,), mixer="mla", qk_norm="head", attn_gate="head",
    routing=Routing(options=STATED, normalize=False, shared_width="counted"), adjust=dots3_layers,
)  # fmt: skip


def kimi3_numbers(spec: Spec, read: Reader) -> Spec:
    """Residual attention, experts of a narrower state, and the bounds of the activation."""
    spec, key = kimi_layers(spec, read), "attn_res.block_size"
    period = read.size(key, least=0)
    bound = read.number("activation.situ_beta")
    up = read.file.get(f"{read.prefix}.activation.situ_linear_beta", float, 0.0)
    experts = spec.experts and replace(spec.experts, latent=read.size("expert_latent_length", 0, least=0))
    spec = replace(spec, experts=experts, situ=Situ(bound, max(up, 0.0)))
    if not period:
        return replace(spec, family=spec.family.derive(spec.family.name, streams=""))
    states = -(-spec.n_layers // period) + 1
    most = f"at most {MOST_STATES} states of {spec.n_layers} layers"
    read.expect(states <= MOST_STATES, key, most, period)
    unused = (*spec.ignored, "blk.0.attn_res_score.weight")  # nothing is banked before the first layer
    return replace(spec, connections=Connections(states, period=period), ignored=unused)


KIMI_K3 = KIMI_LINEAR.variant(
    "kimi-k3", requires=("expert_gating_func",), ignored_keys=(), attn_gate="elements",
    attn_gate_optional=True, activation="situ", streams="banked",
    renamed=(("ffn_latent_down", "ffn_routed_down"), ("ffn_latent_up", "ffn_routed_up")),
    routing=Routing(
        options=(*STATED, "expert_latent_length"), normalize=False, shared_width="counted", bias="yes",
    ),
    adjust=kimi3_numbers,
)  # fmt: skip


def bailing3_numbers(spec: Spec, read: Reader) -> Spec:
    """Layers of Kimi's delta attention, a rotation that pairs by sections, and limits of gates."""
    spec = sections_if_two(expert_limits(kimi_layers(spec, read), read, "stated"), read)
    read.expect(read.flag("kda.safe_gate", True), "kda.safe_gate", "true or no such key", "false")
    has_bound = spec.recurrent is not None and spec.recurrent.least_decay
    read.expect(has_bound, "kda.gate_lower_bound", "a number below 0", "0 or no such key")
    return spec


BAILING_MOE3 = KIMI_LINEAR.variant(
    "bailingmoe3", options=("rope.dimension_sections", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    requires=("expert_count", "expert_gating_func"), ignored_keys=(), rope="norm", attn_gate="head",
    next_token="states",
    routing=Routing(
        options=(*STATED, "expert_shared_feed_forward_length"), normalize=False, shared_width="counted",
    ),
    output="auto", adjust=bailing3_numbers,
)  # fmt: skip


def pooled_layers(spec: Spec, read: Reader) -> Spec:
    """GLM-5.3: four streams, Kimi's delta attention, and latent attention to chosen blocks, without
    positions."""
    streams = connections(read, has_rounds=True, has_head=False)
    spec = expert_limits(kimi_layers(spec, read, unit_eps=1e-6), read, "copy")
    own = [True] * spec.n_layers
    if read.has(TYPES):
        own = [bool(kind) for kind in read.per_layer(TYPES, spec.n_layers, least=0)]
    size, top = read.size("attention.indexer.kpool"), read.size("attention.indexer.top_k")
    read.expect(top % size == 0, "attention.indexer.top_k", f"a multiple of {size}", top)
    eps = read.amount("attention.layer_norm_epsilon")
    spec = with_selectors(spec, read, False, own, n_chosen=top // size, epsilon=eps, block=size)
    layers = (replace(each, mixer="pooled") if each.n_kv_heads else each for each in spec.layers)
    return replace(spec, layers=tuple(layers), connections=streams)


GLM5_NEXT = KIMI_LINEAR.variant(
    "glm5-next", adjust=pooled_layers,
    options=(*SELECTOR_KEYS, TYPES, "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    requires=("expert_count", "attention.q_lora_rank"),
    only=(Only("attention.indexer.kpool_select_tail", (True,)),), ignored_keys=(), next_token="states",
    streams="connected", limits="before",
    routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="counted", bias="yes"),
)  # fmt: skip
GLM5_NEXT.variant("glm5next", adjust=pooled_layers)  # as others spell it
