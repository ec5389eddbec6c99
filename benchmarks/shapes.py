"""Shapes of real models: their dimensions, the tensors of their families, and the formats of a file's mix.

A family is a list of a layer's tensors and a few metadata keys beside those that all families share; one
more is a function that yields its tensors and an entry in `LAYERS`. Names and dimensions are those that
llama.cpp's src/models/*.cpp asks a file for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from benchmarks.random_blocks import RANDOM_FORMATS
from oxillama.formats import FORMATS


@dataclass(frozen=True)
class Experts:
    """A routed feed-forward block: ``shared`` of its experts see every token, and the ``dense`` first layers
    have none but a plain block as wide as the shape's ``n_ff``."""

    count: int
    used: int
    n_ff: int
    shared: int = 0
    dense: int = 0


@dataclass(frozen=True)
class Latent:
    """Compressed keys and values: their rank, and a head's rotated and plain parts and its values."""

    rank: int
    rotated: int
    plain: int
    value: int


@dataclass(frozen=True)
class Delta:
    """Heads of the delta rule, of keys and of values, and their width; one layer of ``every`` attends."""

    keys: int
    heads: int
    dim: int
    every: int

    @property
    def channels(self) -> int:
        """Of q, k and v."""
        return (2 * self.keys + self.heads) * self.dim


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model; ``tied`` shares the embedding with the output.

    ``head_dim`` 0 stands for n_embd / n_head.
    """

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    tied: bool = False
    rope_theta: float = 10000.0
    context: int = 4096
    family: str = "llama"
    head_dim: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    delta: Delta | None = None
    n_state: int = 0  # of a Mamba model, of n_head heads (of Mamba: ranks of dt) and twice n_embd wide within

    @property
    def key_dim(self) -> int:
        """Width of a head."""
        return self.head_dim or self.n_embd // self.n_head

    @property
    def n_q(self) -> int:
        """Rows of a query projection."""
        return self.key_dim * self.n_head

    @property
    def n_kv(self) -> int:
        """Rows of a key or value projection."""
        return self.key_dim * self.n_head_kv


SHAPES = {
    "15M": Shape(256, 1024, 6, 4, 4, 32000, tied=True, context=2048),  # the size of stories15M
    "1.1B": Shape(2048, 5632, 22, 32, 4, 32000),  # TinyLlama
    "1B-128k": Shape(2048, 8192, 16, 32, 8, 128256, tied=True, rope_theta=500000.0, context=8192),  # 3.2
    "8B": Shape(4096, 14336, 32, 32, 8, 128256, rope_theta=500000.0, context=8192),  # Llama 3
    # About 1B each, narrower than the models of the families' names and otherwise in their proportions.
    "mixtral": Shape(
        1024, 3584, 10, 8, 2, 32000, rope_theta=1e6, context=8192, head_dim=128, experts=Experts(8, 2, 3584)
    ),
    "qwen3moe": Shape(
        1024, 3072, 8, 16, 2, 151936, rope_theta=1e6, context=8192, family="qwen3moe", head_dim=128,
        experts=Experts(128, 8, 256),
    ),
    "deepseek2": Shape(  # 27 layers: what tells V2-Lite, whose queries are not compressed
        768, 3072, 27, 8, 1, 102400, context=8192, family="deepseek2",
        experts=Experts(64, 6, 256, shared=2, dense=1), latent=Latent(512, 64, 128, 128),
    ),
    "gemma2": Shape(1536, 6144, 18, 8, 4, 256000, tied=True, context=8192, family="gemma2", head_dim=256),
    "phi3": Shape(1536, 4096, 32, 16, 16, 32064, family="phi3"),
    "qwen35": Shape(  # Qwen 3.5 0.8B
        1024, 3584, 24, 8, 2, 248320, tied=True, rope_theta=1e7, context=8192, family="qwen35", head_dim=256,
        delta=Delta(16, 16, 128, 4),
    ),
    "mamba": Shape(2048, 0, 48, 128, 1, 50280, tied=True, family="mamba", n_state=16),  # Mamba 1.4B
    "mamba2": Shape(2048, 0, 48, 64, 1, 50288, tied=True, family="mamba2", n_state=128),  # Mamba-2 1.3B
}  # fmt: skip

BASE_FORMATS = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"} | {name: name for name in RANDOM_FORMATS}
"""What can be asked for, and the format that most of its tensors have."""

FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q8_K": "Q8_0"}
FALLBACKS |= {"TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}
FALLBACKS |= {name: "IQ4_NL" for name in RANDOM_FORMATS if name.startswith("IQ")}
"""What stands in, with blocks of 32, for a format whose blocks of 256 do not divide a row."""


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: its dimensions, rows last (a norm has one), and its format."""

    name: str
    dims: tuple[int, ...]
    format: str

    @property
    def n_in(self) -> int:
        """Elements of a row."""
        return self.dims[-1]

    @property
    def n_out(self) -> int:
        """Rows of the whole tensor, experts together."""
        return prod(self.dims[:-1])

    @property
    def is_vector(self) -> bool:
        """Whether it is the weight of a norm."""
        return len(self.dims) == 1

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file, padding excluded."""
        return FORMATS[self.format].nbytes(self.n_out * self.n_in)


NEVER_QUANTIZED = ("ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm")

Dims = tuple[int, ...]
Named = Iterator[tuple[str, Dims]]
"""Tensors of a layer, without "blk.<i>." and ".weight"."""


def tensors(shape: Shape, mix: str, *, pure: bool = False) -> Iterator[Tensor]:
    """All tensors of a model, in the order they are written."""

    def tensor(kind: str, dims: Dims, layer: int = -1) -> Tensor:
        prefix = f"blk.{layer}." if layer >= 0 else ""
        ending = "" if kind in ("ssm_a", "ssm_d") or kind.endswith(".bias") else ".weight"
        single = len(dims) == 1 or kind in NEVER_QUANTIZED
        name = "F32" if single else tensor_format(mix, kind, layer, shape, dims[-1], pure=pure)
        return Tensor(f"{prefix}{kind}{ending}", dims, name)

    yield tensor("token_embd", (shape.n_vocab, shape.n_embd))
    for layer in range(shape.n_layer):
        for kind, dims in LAYERS[shape.family](shape, layer):
            yield tensor(kind, dims, layer)
    yield tensor("output_norm", (shape.n_embd,))
    if not shape.tied:
        yield tensor("output", (shape.n_vocab, shape.n_embd))


def llama_layer(shape: Shape, layer: int) -> Named:
    """Also Mixtral's, which differs in its experts only."""
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield "ffn_norm", (shape.n_embd,)
    yield from feed_forward(shape, layer)


def qwen3moe_layer(shape: Shape, layer: int) -> Named:
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield "attn_q_norm", (shape.key_dim,)
    yield "attn_k_norm", (shape.key_dim,)
    yield "ffn_norm", (shape.n_embd,)
    yield from feed_forward(shape, layer)


def gemma2_layer(shape: Shape, layer: int) -> Named:
    yield "attn_norm", (shape.n_embd,)
    yield from attention(shape)
    yield "post_attention_norm", (shape.n_embd,)
    yield "ffn_norm", (shape.n_embd,)
    yield from feed_forward(shape, layer)
    yield "post_ffw_norm", (shape.n_embd,)


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
    """Latent attention with the second halves of the key and value projections apart, head by head."""
    n_embd, n_head, latent = shape.n_embd, shape.n_head, shape.latent
    assert latent is not None
    yield "attn_norm", (n_embd,)
    yield "attn_q", (n_head * (latent.plain + latent.rotated), n_embd)
    yield "attn_kv_a_mqa", (latent.rank + latent.rotated, n_embd)
    yield "attn_kv_a_norm", (latent.rank,)
    yield "attn_k_b", (n_head, latent.rank, latent.plain)
    yield "attn_v_b", (n_head, latent.value, latent.rank)
    yield "attn_output", (n_embd, n_head * latent.value)
    yield "ffn_norm", (n_embd,)
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
        yield "attn_q_norm", (shape.key_dim,)
        yield "attn_k_norm", (shape.key_dim,)
    else:
        inner = delta.heads * delta.dim
        yield "attn_qkv", (delta.channels, n_embd)
        yield "attn_gate", (inner, n_embd)
        yield "ssm_conv1d", (delta.channels, 4)
        yield "ssm_dt.bias", (delta.heads,)
        yield "ssm_a", (delta.heads,)
        yield "ssm_beta", (delta.heads, n_embd)
        yield "ssm_alpha", (delta.heads, n_embd)
        yield "ssm_norm", (delta.dim,)
        yield "ssm_out", (n_embd, inner)
    yield "post_attention_norm", (n_embd,)
    yield from feed_forward(shape, layer)


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


def feed_forward(shape: Shape, layer: int) -> Named:
    """A gated block, or a router, its experts, and the expert that sees every token."""
    n_embd, experts = shape.n_embd, shape.experts
    if experts is None or layer < experts.dense:
        yield from gated("", (), n_embd, shape.n_ff)
        return
    yield "ffn_gate_inp", (experts.count, n_embd)
    yield from gated("_exps", (experts.count,), n_embd, experts.n_ff)
    if experts.shared:
        yield from gated("_shexp", (), n_embd, experts.shared * experts.n_ff)


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
    "phi3": phi3_layer,
    "qwen35": qwen35_layer,
    "mamba": mamba_layer,
    "mamba2": mamba2_layer,
}
"""By ``general.architecture``."""


def tensor_format(mix: str, kind: str, layer: int, shape: Shape, n_in: int, *, pure: bool = False) -> str:
    """Format of the ``kind`` ("attn_v", "output", ...) of tensor, rows ``n_in`` long, in a file of ``mix``.

    After `llama_tensor_get_type_impl` and `tensor_type_fallback` in llama.cpp's src/llama-quant.cpp, without
    an importance matrix. Formats under four bits get their mix's output tensor only. ``pure`` gives every
    matrix the one format, as `llama-quantize --pure` does.
    """
    base = BASE_FORMATS[mix]
    if pure or base in ("F32", "F16", "BF16"):
        return base
    name = _wanted_format(mix, base, kind, layer, shape)
    return name if n_in % FORMATS[name].block_len == 0 else FALLBACKS.get(name, name)


def _wanted_format(mix: str, base: str, kind: str, layer: int, shape: Shape) -> str:
    n, eight_experts = shape.n_layer, shape.experts is not None and shape.experts.count == 8
    if kind == "output" or (kind == "token_embd" and shape.tied):
        return base if base == "Q8_0" else "Q6_K"
    if eight_experts and kind in ("attn_v", "attn_k"):
        return "Q8_0"
    if eight_experts and kind == "attn_output" and mix in ("Q4_K_M", "IQ4_NL", "IQ4_XS"):
        return "Q5_K"
    value = kind in ("attn_v", "attn_qkv")
    down = kind.startswith("ffn_down")
    if mix in ("Q4_K_M", "Q5_K_M") and (value or down):
        more_bits = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
        return "Q6_K" if more_bits else base
    if mix in ("IQ4_NL", "IQ4_XS"):
        grouped = shape.n_head // shape.n_head_kv >= 4
        if (value and grouped) or (down and layer < n // 8):
            return "Q5_K"
    return base


def metadata(shape: Shape) -> dict[str, Any]:
    """Keys without the architecture's prefix: whole numbers are uint32, lists int32, others float32."""
    found: dict[str, Any] = {
        "context_length": shape.context,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": shape.n_vocab,
    }
    if shape.n_state:
        return (
            found
            | {
                "attention.head_count": 0,
                "ssm.conv_kernel": 4,
                "ssm.inner_size": 2 * shape.n_embd,
                "ssm.state_size": shape.n_state,
                "ssm.time_step_rank": shape.n_head,
            }
            | ({"ssm.group_count": 1} if shape.family == "mamba2" else {})
        )
    found |= {
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "rope.dimension_count": shape.key_dim,
        "rope.freq_base": shape.rope_theta,
    }
    if shape.head_dim:
        found |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if shape.experts is not None:
        found |= {"expert_count": shape.experts.count, "expert_used_count": shape.experts.used}
        if shape.family != "llama":
            found["expert_feed_forward_length"] = shape.experts.n_ff
        if shape.experts.shared:
            found["expert_shared_count"] = shape.experts.shared
            found["leading_dense_block_count"] = shape.experts.dense
    if shape.latent is not None:
        latent = shape.latent
        found |= {
            "attention.kv_lora_rank": latent.rank,
            "rope.dimension_count": latent.rotated,
            "attention.key_length": latent.rank + latent.rotated,  # of what the cache holds
            "attention.value_length": latent.rank,
            "attention.key_length_mla": latent.plain + latent.rotated,
            "attention.value_length_mla": latent.value,
        }
    if shape.delta is not None:
        delta = shape.delta
        found |= {
            "rope.dimension_count": shape.key_dim // 4,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": delta.every,
            "ssm.conv_kernel": 4,
            "ssm.state_size": delta.dim,
            "ssm.group_count": delta.keys,
            "ssm.time_step_rank": delta.heads,
            "ssm.inner_size": delta.heads * delta.dim,
        }
    if shape.family == "gemma2":
        found |= {
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        }
    if shape.family == "phi3":
        found["rope.scaling.original_context_length"] = shape.context
    return found
