"""The tensors of each family's layers, named as llama.cpp's src/models/*.cpp asks a file for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.shape import Shape

Dims = tuple[int, ...]
Named = Iterator[tuple[str, Dims]]
"""Tensors of a layer, without "blk.<i>." and ".weight"."""
STREAMS = 4
"""Of hidden states in Gemma 3n."""


def llama_layer(shape: Shape, layer: int) -> Named:
    """Also Mixtral's, which differs in its experts only."""
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield from feed_forward(shape, layer)


def qwen3moe_layer(shape: Shape, layer: int) -> Named:
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield from head_norms(shape)
    yield from feed_forward(shape, layer)


def gemma2_layer(shape: Shape, layer: int) -> Named:
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield "post_attention_norm", (shape.n_embd,)
    yield from feed_forward(shape, layer)
    yield "post_ffw_norm", (shape.n_embd,)


def gemma3_layer(shape: Shape, layer: int) -> Named:
    yield from gemma2_layer(shape, layer)
    yield from head_norms(shape)


def gemma4_layer(shape: Shape, layer: int) -> Named:
    """Heads as wide as the layer's kind has them. Where key heads differ in number, full layers have no
    values. Experts are beside a dense block. A layer may have an embedding of its own, and no keys."""
    n_embd, experts = shape.n_embd, shape.experts
    dim, n_kv = shape.dim_of(layer), shape.kv_heads_of(layer)
    yield "attn_norm", (n_embd,)
    yield "attn_q", (shape.n_head * dim, n_embd)
    yield "attn_q_norm", (dim,)
    if layer < shape.n_own_kv:
        yield "attn_k", (n_kv * dim, n_embd)
        yield "attn_k_norm", (dim,)
        if n_kv == shape.n_head_kv:
            yield "attn_v", (n_kv * dim, n_embd)
    yield "attn_output", (n_embd, shape.n_head * dim)
    yield "post_attention_norm", (n_embd,)
    yield "ffn_norm", (n_embd,)
    yield from gated("", (), n_embd, shape.ff_of(layer))
    yield "post_ffw_norm", (n_embd,)
    yield "layer_output_scale", (1,)
    if experts is not None:
        for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2", "ffn_gate_inp.scale"):
            yield name, (n_embd,)
        yield "ffn_gate_inp", (experts.count, n_embd)
        yield "ffn_gate_up_exps", (experts.count, 2 * experts.n_ff, n_embd)
        yield "ffn_down_exps", (experts.count, n_embd, experts.n_ff)
        yield "ffn_down_exps.scale", (experts.count,)
    if shape.layer_width:
        yield "inp_gate", (shape.layer_width, n_embd)
        yield "proj", (n_embd, shape.layer_width)
        yield "post_norm", (n_embd,)


def gemma3n_layer(shape: Shape, layer: int) -> Named:
    """Four streams of hidden states, a map of rank 64 beside attention, and an embedding of the layer."""
    n_embd, width = shape.n_embd, shape.layer_width
    yield from gemma3_layer(shape, layer)
    yield "inp_gate", (width, n_embd)
    yield "proj", (n_embd, width)
    yield "post_norm", (n_embd,)
    yield "altup_router_norm", (n_embd,)
    yield "altup_router", (STREAMS, n_embd)
    yield "altup_predict_coef", (STREAMS**2, STREAMS)
    yield "altup_correct_coef", (STREAMS, STREAMS)
    yield "altup_correct_scale", (n_embd,)
    yield "laurel_l", (64, n_embd)
    yield "laurel_r", (n_embd, 64)
    yield "laurel_post_norm", (n_embd,)


def glm4moe_layer(shape: Shape, layer: int) -> Named:
    """Biases for queries, keys and values, and for the choice of experts."""
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield from attention_biases(shape)
    yield from feed_forward(shape, layer, "post_attention_norm", has_choice_bias=True)


def gptoss_layer(shape: Shape, layer: int) -> Named:
    """Sinks, and biases everywhere."""
    n_embd, experts = shape.n_embd, shape.experts
    assert experts is not None
    yield "attn_norm", (n_embd,)
    yield from attention(shape)
    yield from attention_biases(shape)
    yield "attn_output.bias", (n_embd,)
    yield "attn_sinks", (shape.n_head,)
    yield from feed_forward(shape, layer, "post_attention_norm")
    yield "ffn_gate_inp.bias", (experts.count,)
    yield "ffn_gate_exps.bias", (experts.count, experts.n_ff)
    yield "ffn_up_exps.bias", (experts.count, experts.n_ff)
    yield "ffn_down_exps.bias", (experts.count, n_embd)


def lfm2moe_layer(shape: Shape, layer: int) -> Named:
    """Attention in the third of every four layers, short convolutions of three taps in the others."""
    n_embd = shape.n_embd
    yield "attn_norm", (n_embd,)
    if attends(layer):
        yield from attention(shape)
        yield from head_norms(shape)
    else:
        yield "shortconv.in_proj", (3 * n_embd, n_embd)
        yield "shortconv.conv", (n_embd, 3)
        yield "shortconv.out_proj", (n_embd, n_embd)
    yield from feed_forward(shape, layer, has_choice_bias=True)


def attends(layer: int) -> bool:
    """Whether a layer of LFM2 has attention."""
    return layer % 4 == 2


def phi3_layer(shape: Shape, layer: int) -> Named:
    """Queries, keys and values in one matrix, gate and up in another."""
    n_embd = shape.n_embd
    yield "attn_norm", (n_embd,)
    yield "attn_qkv", (shape.n_q + 2 * shape.n_kv, n_embd)
    yield "attn_output", (n_embd, shape.n_q)
    yield "ffn_norm", (n_embd,)
    yield "ffn_up", (2 * shape.n_ff, n_embd)
    yield "ffn_down", (n_embd, shape.n_ff)


def deepseek2_layer(shape: Shape, layer: int) -> Named:
    """Latent attention."""
    yield "attn_norm", (shape.n_embd,)
    yield from latent_attention(shape)
    yield from feed_forward(shape, layer)


def qwen35_layer(shape: Shape, layer: int) -> Named:
    """Attention whose queries have gates, or the gated delta rule with four taps."""
    n_embd, delta = shape.n_embd, shape.delta
    assert delta is not None
    yield "attn_norm", (n_embd,)
    if (layer + 1) % delta.every == 0:
        yield "attn_q", (2 * shape.n_q, n_embd)
        yield "attn_k", (shape.n_kv, n_embd)
        yield "attn_v", (shape.n_kv, n_embd)
        yield "attn_output", (n_embd, shape.n_q)
        yield from head_norms(shape)
    else:
        inner = delta.heads * delta.dim
        yield "attn_qkv", (delta.channels, n_embd)
        yield "attn_gate", (inner, n_embd)
        yield "ssm_conv1d", (delta.channels, 4)
        yield "ssm_dt.bias", (delta.heads,)
        yield "ssm_a", (delta.heads,)
        if shape.family == "qwen3next":
            yield "ssm_ba", (2 * delta.heads, n_embd)
        else:
            yield "ssm_beta", (delta.heads, n_embd)
            yield "ssm_alpha", (delta.heads, n_embd)
        yield "ssm_norm", (delta.dim,)
        yield "ssm_out", (n_embd, inner)
    yield from feed_forward(shape, layer, "post_attention_norm")
    if shape.experts is not None:
        yield "ffn_gate_inp_shexp", (n_embd,)


def mamba_layer(shape: Shape, layer: int) -> Named:
    """Four taps."""
    n_embd, inner, rank = shape.n_embd, 2 * shape.n_embd, shape.n_head
    yield "attn_norm", (n_embd,)
    yield "ssm_in", (2 * inner, n_embd)
    yield "ssm_conv1d", (inner, 4)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x", (rank + 2 * shape.n_state, inner)
    yield "ssm_dt", (inner, rank)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (inner, shape.n_state)
    yield "ssm_d", (inner,)
    yield "ssm_out", (n_embd, inner)


def mamba2_layer(shape: Shape, layer: int) -> Named:
    """One group; four taps."""
    n_embd, inner, heads = shape.n_embd, 2 * shape.n_embd, shape.n_head
    channels = inner + 2 * shape.n_state
    yield "attn_norm", (n_embd,)
    yield "ssm_in", (inner + channels + heads, n_embd)
    yield "ssm_conv1d", (channels, 4)
    yield "ssm_conv1d.bias", (channels,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads, 1)
    yield "ssm_d", (heads, 1)
    yield "ssm_norm", (1, inner)
    yield "ssm_out", (n_embd, inner)


def attention(shape: Shape) -> Named:
    """Four matrices."""
    yield "attn_q", (shape.n_q, shape.n_embd)
    yield "attn_k", (shape.n_kv, shape.n_embd)
    yield "attn_v", (shape.n_kv, shape.n_embd)
    yield "attn_output", (shape.n_embd, shape.n_q)


def attention_biases(shape: Shape) -> Named:
    """The biases of queries, keys and values."""
    yield "attn_q.bias", (shape.n_q,)
    yield "attn_k.bias", (shape.n_kv,)
    yield "attn_v.bias", (shape.n_kv,)


def latent_attention(shape: Shape, q_rank: int = 0) -> Named:
    """Latent attention with the second halves of the key and value projections apart, head by head.

    With a ``q_rank`` queries are compressed, too.
    """
    n_embd, n_head, latent = shape.n_embd, shape.n_head, shape.latent
    assert latent is not None
    if q_rank:
        yield "attn_q_a", (q_rank, n_embd)
        yield "attn_q_a_norm", (q_rank,)
    yield "attn_q_b" if q_rank else "attn_q", (n_head * (latent.plain + latent.rotated), q_rank or n_embd)
    yield "attn_kv_a_mqa", (latent.rank + latent.rotated, n_embd)
    yield "attn_kv_a_norm", (latent.rank,)
    yield "attn_k_b", (n_head, latent.rank, latent.plain)
    yield "attn_v_b", (n_head, latent.value, latent.rank)
    yield "attn_output", (n_embd, n_head * latent.value)


def head_norms(shape: Shape) -> Named:
    """Of queries and keys, head by head."""
    yield "attn_q_norm", (shape.key_dim,)
    yield "attn_k_norm", (shape.key_dim,)


def feed_forward(shape: Shape, layer: int, norm: str = "ffn_norm", *, has_choice_bias: bool = False) -> Named:
    """A norm; a gated block, or a router, its experts, and the expert that sees every token.

    ``has_choice_bias``: whether something is added to the experts' probabilities to choose by.
    """
    n_embd, experts = shape.n_embd, shape.experts
    yield norm, (n_embd,)
    if experts is None or layer < experts.dense:
        yield from gated("", (), n_embd, shape.n_ff)
        return
    yield "ffn_gate_inp", (experts.count, n_embd)
    yield from gated("_exps", (experts.count,), n_embd, experts.n_ff)
    if experts.shared:
        yield from gated("_shexp", (), n_embd, experts.shared * experts.n_ff)
    if has_choice_bias:
        yield "exp_probs_b.bias", (experts.count,)


def gated(ending: str, stack: Dims, n_embd: int, n_ff: int) -> Named:
    """Gate, up and down, or a stack of each."""
    yield f"ffn_gate{ending}", (*stack, n_ff, n_embd)
    yield f"ffn_up{ending}", (*stack, n_ff, n_embd)
    yield f"ffn_down{ending}", (*stack, n_embd, n_ff)


LAYERS: dict[str, Callable[[Shape, int], Named]] = {
    "llama": llama_layer,
    "qwen3moe": qwen3moe_layer,
    "deepseek2": deepseek2_layer,
    "gemma2": gemma2_layer,
    "gemma3": gemma3_layer,
    "gemma3n": gemma3n_layer,
    "gemma4": gemma4_layer,
    "glm4moe": glm4moe_layer,
    "gpt-oss": gptoss_layer,
    "lfm2moe": lfm2moe_layer,
    "phi3": phi3_layer,
    "qwen35": qwen35_layer,
    "qwen35moe": qwen35_layer,
    "qwen3next": qwen35_layer,
    "mamba": mamba_layer,
    "mamba2": mamba2_layer,
}
"""By ``general.architecture``."""


def beside_layers(shape: Shape) -> Named:
    """What a model has beside its layers, the token embeddings and the output matrix."""
    if shape.family == "lfm2moe":
        yield "token_embd_norm", (shape.n_embd,)
    else:
        yield "output_norm", (shape.n_embd,)
    if shape.family == "gemma4":
        yield "rope_freqs", (shape.key_dim // 2,)
    if shape.layer_width:
        width = shape.n_layer * shape.layer_width
        yield "per_layer_token_embd", (shape.n_vocab, width)
        yield "per_layer_model_proj", (width, shape.n_embd)
        yield "per_layer_proj_norm", (shape.layer_width,)
    if shape.family == "gemma3n":
        yield "altup_proj", (STREAMS - 1, shape.n_embd, shape.n_embd)
        yield "altup_unembd_proj", (STREAMS - 1, shape.n_embd, shape.n_embd)
