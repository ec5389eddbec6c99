"""Shapes of families with residual streams, compressed keys and sparse attention (autumn of 2026).

Widths that a `Shape` has no field for are read from its ``keys``, the metadata that the file gets. The widths
of the released models are not published in this project's sources: these are about 2B parameters each, in
proportions of their relatives, with few layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.layers import Named, attention, feed_forward, head_norms, latent_attention, qwen35_layer
from benchmarks.shape import Delta, Experts, Latent, Shape


def qwen4exp_layer(shape: Shape, layer: int) -> Named:
    """A layer of Qwen 3.5 without norms of its own, a mixer at each block, an indexer where it attends."""
    yield from mixers(low_rank_mixer(shape))
    for name, dims in qwen35_layer(shape, layer):
        if name not in ("attn_norm", "post_attention_norm"):
            yield name, dims
    if shape.delta is not None and (layer + 1) % shape.delta.every == 0:
        yield from indexer_projections(shape, shape.key("attention.indexer.head_count"))
    if layer in shape.key("ple.layers"):
        yield "ple_key", (shape.n_streams, shape.n_embd)
        yield "ple_value", (shape.n_embd, shape.n_embd)
        for name in ("ple_norm_key", "ple_norm_query", "ple_norm_conv"):
            yield name, (shape.n_streams,)
        yield "ple_conv1d", (shape.n_streams, shape.key("ple.conv_kernel"))


def indexer_projections(shape: Shape, heads: int) -> Named:
    """What makes an indexer's queries, of so many heads, and its keys."""
    width = shape.key("attention.indexer.key_length")
    yield "indexer.q_proj", (heads * width, shape.n_embd)
    yield "indexer.k_proj", (width, shape.n_embd)
    yield "indexer.q_norm", (width,)
    yield "indexer.k_norm", (width,)


def qwen4exp_end(shape: Shape) -> Named:
    """The last mixer, and the rows of all n-gram tables."""
    yield from ((f"output_hc_{name}", dims) for name, dims in low_rank_mixer(shape) if name != "inject")
    n_rows = sum(shape.key("ple.head_vocab_sizes"))
    yield "per_layer_token_embd", (n_rows, shape.key("embedding_length_per_layer_input"))


def low_rank_mixer(shape: Shape) -> Named:
    """Gates of all residual streams by a product of low rank."""
    rank = shape.key("hyper_connection.low_rank")
    yield "norm", (shape.n_streams,)
    yield "down", (rank, shape.n_streams)
    yield "up", (shape.n_streams, rank)
    yield "inject", (shape.key("hyper_connection.count"), shape.n_streams)


def sinkhorn_mixer(shape: Shape) -> Named:
    """Weights before a block, after it, and between the residual streams."""
    n = shape.key("hyper_connection.count")
    yield "fn", (2 * n + n * n, shape.n_streams)
    yield "base", (2 * n + n * n,)
    yield "scale", (3,)


def mixers(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> Named:
    """The tensors of a mixer, for attention and for the feed-forward block."""
    found = list(tensors)
    for block in ("attn", "ffn"):
        yield from ((f"hc_{block}_{name}", dims) for name, dims in found)


def glm5_layer(shape: Shape, layer: int) -> Named:
    """The delta rule with a decay for each channel, or latent attention without positions."""
    n_embd, n_head = shape.n_embd, shape.n_head
    yield "attn_norm", (n_embd,)
    yield from mixers(sinkhorn_mixer(shape))
    if shape.key("attention.head_count_kv")[layer]:
        yield from latent_attention(shape, shape.key("attention.q_lora_rank"))
        if shape.key("attention.indexer.types")[layer]:
            width = shape.key("attention.indexer.key_length")
            heads = shape.key("attention.indexer.head_count")
            yield "indexer.attn_k", (width, n_embd)
            yield "indexer.attn_q_b", (heads * width, shape.key("attention.q_lora_rank"))
            yield "indexer.proj", (heads, n_embd)
            yield "indexer.k_norm", (width,)
            yield "indexer.k_norm.bias", (width,)
            yield "indexer_compressor_gate", (width, n_embd)
            yield "indexer_compressor_ape", (shape.key("attention.indexer.kpool"), width)
    else:
        dim = shape.key("kda.head_dim")
        inner = n_head * dim
        for letter in "qkv":
            yield f"attn_{letter}", (inner, n_embd)
            yield f"ssm_conv1d_{letter}", (1, inner, 1, shape.key("ssm.conv_kernel"))
        for name in ("ssm_f", "ssm_g"):  # the decay, the gate of the output
            yield f"{name}_a", (dim, n_embd)
            yield f"{name}_b", (inner, dim)
        yield "ssm_beta", (n_head, n_embd)
        yield "ssm_a", (n_head,)
        yield "ssm_dt.bias", (inner,)
        yield "ssm_norm", (dim,)
        yield "attn_output", (n_embd, inner)
    yield from feed_forward(shape, layer, has_choice_bias=True)


def deepseek4_layer(shape: Shape, layer: int) -> Named:
    """One key head of keys that are the values, which blocks of tokens are compressed to."""
    n_embd, width, n_head = shape.n_embd, shape.key_dim, shape.n_head
    q_rank, rank = shape.key("attention.q_lora_rank"), shape.key("attention.output_lora_rank")
    groups, ratio = shape.key("attention.output_group_count"), shape.key("attention.compress_ratios")[layer]
    yield "attn_norm", (n_embd,)
    yield "attn_sinks", (n_head,)
    yield "attn_q_a", (q_rank, n_embd)
    yield "attn_q_a_norm", (q_rank,)
    yield "attn_q_b", (n_head * width, q_rank)
    yield "attn_kv", (width, n_embd)
    yield "attn_kv_a_norm", (width,)
    yield "attn_output_a", (groups * rank, n_head * width // groups)
    yield "attn_output_b", (n_embd, groups * rank)
    yield from mixers(sinkhorn_mixer(shape))
    if ratio:
        yield from compressor("attn_compressor", n_embd, width, ratio)
    if ratio == PAIRED:
        keys, heads = shape.key("attention.indexer.key_length"), shape.key("attention.indexer.head_count")
        yield "indexer.proj", (heads, n_embd)
        yield "indexer.attn_q_b", (heads * keys, q_rank)
        yield from compressor("indexer_compressor", n_embd, keys, ratio)
    yield from feed_forward(shape, layer, has_choice_bias=True)


PAIRED = 4
"""The ratio of those layers of DeepSeek-V4 whose compressed keys are made of two blocks each, and chosen."""


def compressor(name: str, n_embd: int, width: int, ratio: int) -> Named:
    """What makes one key of ``ratio`` tokens."""
    rows = width * (2 if ratio == PAIRED else 1)
    yield f"{name}_kv", (rows, n_embd)
    yield f"{name}_gate", (rows, n_embd)
    yield f"{name}_ape", (ratio, rows)
    yield f"{name}_norm", (width,)


def deepseek4_end(shape: Shape) -> Named:
    """The mixer that ends the residual streams."""
    n = shape.key("hyper_connection.count")
    yield "output_norm", (shape.n_embd,)
    yield "output_hc_fn", (n, shape.n_streams)
    yield "output_hc_base", (n,)
    yield "output_hc_scale", (1,)


def minimax_m3_layer(shape: Shape, layer: int) -> Named:
    """Attention to blocks of tokens, which an indexer chooses for each key head; full in dense layers."""
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield from head_norms(shape)
    if shape.experts is not None and layer >= shape.experts.dense:
        yield from indexer_projections(shape, shape.n_head_kv)
    yield from feed_forward(shape, layer, has_choice_bias=True)


def k2_horizon_layer(shape: Shape, layer: int) -> Named:
    """Gates of the output, and experts of the values beyond the dense layers."""
    n_embd = shape.n_embd
    yield "attn_norm", (n_embd,)
    sparse = shape.experts is not None and layer >= shape.experts.dense
    yield from ((name, dims) for name, dims in attention(shape) if not (sparse and name == "attn_v"))
    yield "attn_q_norm", (shape.n_q,)
    yield "attn_k_norm", (shape.n_kv,)
    yield "attn_gate", (shape.n_q, n_embd)
    if sparse:
        n = shape.key("attention.value_expert_count")
        yield "attn_v_gate", (n, n_embd)
        yield "attn_v_gate.bias", (n,)
        yield "attn_v_exps", (n, shape.n_kv, n_embd)
    yield from feed_forward(shape, layer, has_choice_bias=True)


SPARSE_LAYERS: dict[str, Callable[[Shape, int], Named]] = {
    "qwen4exp": qwen4exp_layer,
    "glm5-next": glm5_layer,
    "deepseek4": deepseek4_layer,
    "minimax-m3": minimax_m3_layer,
    "k2-horizon": k2_horizon_layer,
}
"""By ``general.architecture``."""

SPARSE_ENDS: dict[str, Callable[[Shape], Named]] = {"qwen4exp": qwen4exp_end, "deepseek4": deepseek4_end}
"""What is beside the layers, of the families that have more than a norm there."""

STREAMS = {"hyper_connection.count": 4}
SINKHORN = {**STREAMS, "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6}
CHOICE = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
"""Experts with probabilities by the sigmoid."""


def indexer(heads: int, width: int, top_k: int) -> dict[str, int]:
    """The metadata of an indexer."""
    names = ("head_count", "key_length", "top_k")
    return {f"attention.indexer.{name}": value for name, value in zip(names, (heads, width, top_k))}


def attends(shape: Shape) -> list[int]:
    """1 for each layer of GLM-5 with attention: every fourth, and the last."""
    return [int((i + 1) % 4 == 0 or i == shape.n_layer - 1) for i in range(shape.n_layer)]


SPARSE_SHAPES = {
    "qwen4exp": Shape(
        2048, 512, 4, 16, 2, 24832, rope_theta=1e7, context=32768, family="qwen4exp", head_dim=256,
        delta=Delta(16, 32, 128, 4), experts=Experts(128, 8, 512, shared=1),
        keys={
            **STREAMS, **indexer(16, 128, 2048), "hyper_connection.low_rank": 256,
            "expert_shared_feed_forward_length": 512,
            "attention.compress_ratios": lambda shape: [4 * ((i + 1) % 4 == 0) for i in range(shape.n_layer)],
            "ple.layers": [0], "ple.ngram_size": 3, "ple.heads_per_ngram": 4, "ple.conv_kernel": 4,
            "ple.eos_token_id": 2, "ple.layer_multipliers": [20461361936281, 11400714819323, 9650029242287],
            "ple.head_vocab_sizes": [1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049],
            "ple.head_offsets": [0, 1009, 2022, 3041, 4062, 5093, 6126, 7165],
            "embedding_length_per_layer_input": lambda shape: shape.n_embd // 8,
        },
    ),
    "glm5-next": Shape(
        2048, 8192, 4, 32, 1, 19200, context=32768, family="glm5-next",
        experts=Experts(64, 8, 1024, shared=1, dense=1), latent=Latent(512, 0, 128, 128),
        keys={
            **SINKHORN, **CHOICE, **indexer(32, 128, 2048), "attention.q_lora_rank": 1536,
            "attention.head_count_kv": attends,
            "attention.indexer.types": lambda shape: [bool(each) for each in attends(shape)],
            "attention.indexer.kpool": 4, "attention.layer_norm_epsilon": 1e-6, "ssm.conv_kernel": 4,
            "kda.head_dim": 128, "kda.gate_lower_bound": -5.0, "swiglu_clamp_exp": 10.0,
        },
    ),
    "deepseek4": Shape(
        4096, 2048, 4, 64, 1, 16384, context=32768, family="deepseek4", head_dim=512,
        experts=Experts(32, 6, 1024, shared=1),
        keys={
            **SINKHORN, **CHOICE, "expert_gating_func": 4, **indexer(64, 128, 512), "hash_layer_count": 0,
            "attention.q_lora_rank": 1024, "attention.output_lora_rank": 1024,
            "attention.output_group_count": 8, "attention.sliding_window": 128,
            "attention.compress_ratios": lambda shape: [(PAIRED, 128)[i % 2] for i in range(shape.n_layer)],
            "attention.compress_rope_freq_base": 160000.0, "rope.dimension_count": 64,
            "swiglu_clamp_exp": 10.0,
        },
    ),
    "minimax-m3": Shape(
        3072, 8192, 4, 48, 8, 25088, rope_theta=5e6, context=32768, family="minimax-m3", head_dim=128,
        experts=Experts(32, 4, 1536, shared=1, dense=1),
        keys={
            **CHOICE, **indexer(8, 128, 16), "attention.indexer.block_size": 128,
            "attention.indexer.local_blocks": 1, "rope.dimension_count": 64,
        },
    ),
    "k2-horizon": Shape(
        2560, 9728, 4, 32, 8, 18944, rope_theta=1e6, context=32768, family="k2-horizon", head_dim=128,
        experts=Experts(64, 8, 768, shared=1, dense=1),
        keys={
            **CHOICE, "attention.group_norm_groups": 4, "attention.value_expert_count": 8,
            "attention.value_expert_used_count": 2, "rope.dimension_count": 64,
        },
    ),
}  # fmt: skip
