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

from benchmarks.layers import LAYERS, STREAMS, Dims, attends, beside_layers
from benchmarks.random_blocks import RANDOM_FORMATS
from benchmarks.shape import Delta, Experts, Latent, Shape, Windows
from benchmarks.sparse_shapes import SPARSE_ENDS, SPARSE_LAYERS, SPARSE_SHAPES
from oxillama.base.formats import FORMATS

TILES = ("\n\n", "<fake_token_around_image>", "<global-img>")
TILES += tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
"""Tokens around the tiles of a picture."""

SHAPES = {
    "15M": Shape(256, 1024, 6, 4, 4, 32000, tied=True, context=2048),  # the size of stories15M
    "1.1B": Shape(2048, 5632, 22, 32, 4, 32000),  # TinyLlama
    "1B-128k": Shape(2048, 8192, 16, 32, 8, 128256, tied=True, rope_theta=500000.0, context=8192),  # 3.2
    "smolvlm2-500m": Shape(  # its text model
        960, 2560, 32, 15, 5, 49280, tied=True, rope_theta=100000.0, context=8192, controls=TILES
    ),
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
    # The widths, experts and routing of the models, fewer layers, and a vocabulary cut in their proportion.
    "qwen35moe": Shape(  # Qwen 3.5 35B-A3B, 4 of 40 layers
        2048, 512, 4, 16, 2, 24832, rope_theta=1e7, context=8192, family="qwen35moe", head_dim=256,
        delta=Delta(16, 32, 128, 4), experts=Experts(256, 8, 512, shared=1),
    ),
    "qwen3next": Shape(  # Qwen3-Next 80B-A3B, 4 of 48 layers
        2048, 512, 4, 16, 2, 12800, rope_theta=1e7, context=8192, family="qwen3next", head_dim=256,
        delta=Delta(16, 32, 128, 4), experts=Experts(512, 10, 512, shared=1),
    ),
    "gemma3": Shape(  # Gemma 3 4B, 12 of 34 layers
        2560, 10240, 12, 8, 4, 92672, tied=True, rope_theta=1e6, context=32768, family="gemma3", head_dim=256,
        windows=Windows(1024, 6),
    ),
    "gemma3n": Shape(  # Gemma 3n E2B, 20 of 30 layers: those with keys and values of their own
        2048, 8192, 20, 8, 2, 174848, tied=True, rope_theta=1e6, context=8192, family="gemma3n", head_dim=256,
        windows=Windows(512, 5), layer_width=256,
    ),
    "gemma4": Shape(  # Gemma 4 E2B, 20 of 35 layers
        1536, 6144, 20, 8, 1, 149760, tied=True, rope_theta=1e6, context=8192, family="gemma4", head_dim=512,
        windows=Windows(512, 5, dim=256, shared=10), layer_width=256,
    ),
    "gemma4moe": Shape(  # Gemma 4 26B-A4B, 6 of 30 layers
        2816, 2112, 6, 16, 8, 52480, tied=True, rope_theta=1e6, context=8192, family="gemma4", head_dim=512,
        windows=Windows(1024, 6, dim=256, full_kv=2), experts=Experts(128, 8, 704),
    ),
    "glm4moe": Shape(  # GLM 4.5 Air, 3 of 46 layers
        4096, 10944, 3, 96, 8, 10240, rope_theta=1e6, context=8192, family="glm4moe", head_dim=128,
        experts=Experts(128, 8, 1408, shared=1, dense=1),
    ),
    "gpt-oss": Shape(  # gpt-oss 20B, 4 of 24 layers
        2880, 2880, 4, 64, 8, 33536, rope_theta=150000.0, context=32768, family="gpt-oss", head_dim=64,
        windows=Windows(128, 2), experts=Experts(32, 4, 2880),
    ),
    "lfm2moe": Shape(  # LFM2 8B-A1B, 8 of 24 layers
        2048, 7168, 8, 32, 8, 21760, tied=True, rope_theta=1e6, context=8192, family="lfm2moe",
        experts=Experts(32, 4, 1792, dense=2),
    ),
    "mamba": Shape(2048, 0, 48, 128, 1, 50280, tied=True, family="mamba", n_state=16),  # Mamba 1.4B
    "mamba2": Shape(2048, 0, 48, 64, 1, 50288, tied=True, family="mamba2", n_state=128),  # Mamba-2 1.3B
    **SPARSE_SHAPES,
}  # fmt: skip

BASE_FORMATS = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K", "MXFP4_MOE": "Q8_0"} | {
    name: name for name in RANDOM_FORMATS
}
"""What can be asked for, and the format that most of its tensors have."""

FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q8_K": "Q8_0"}
FALLBACKS |= dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0", "Q2_0_G128", "NVFP4"), "Q4_0")
FALLBACKS["Q1_0"] = "Q4_0"  # llama.cpp has no fallback for Q1_0
FALLBACKS |= {name: "IQ4_NL" for name in RANDOM_FORMATS if name.startswith("IQ")}
"""What stands in, with blocks of 32, for a format whose blocks of 256 do not divide a row."""


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: its dimensions, rows last (a norm has one), its format, and a norm's mean."""

    name: str
    dims: tuple[int, ...]
    format: str
    mean: float = 1.0

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


NEVER_QUANTIZED = ("ffn_gate_inp", "per_layer_model_proj", "shortconv.conv", "ssm_conv1d", "ssm_a", "ssm_d")
NEVER_QUANTIZED += ("ssm_norm", "altup_predict_coef", "altup_correct_coef", "ssm_conv1d_q", "ssm_conv1d_k")
NEVER_QUANTIZED += ("ssm_conv1d_v", "ple_conv1d", "attn_v_gate", "attn_compressor_ape")
NEVER_QUANTIZED += ("indexer_compressor_ape", "hc_attn_fn", "hc_ffn_fn", "output_hc_fn", "hc_attn_inject")
NEVER_QUANTIZED += ("hc_ffn_inject",)
ALWAYS_F16 = ("altup_proj", "altup_unembd_proj", "altup_router", "laurel_l", "laurel_r")
UNSCALED = ("gemma3n", "gemma4")
"""Families that do not scale scores: their norms do."""


def tensors(shape: Shape, mix: str, *, pure: bool = False) -> Iterator[Tensor]:
    """All tensors of a model, in the order they are written."""

    def tensor(kind: str, dims: Dims, layer: int = -1) -> Tensor:
        prefix = f"blk.{layer}." if layer >= 0 else ""
        ending = "" if kind in ("ssm_a", "ssm_d") or kind.endswith((".bias", ".scale")) else ".weight"
        single = len(dims) == 1 or kind in NEVER_QUANTIZED or kind.endswith(".bias")
        name = "F32" if single else tensor_format(mix, kind, layer, shape, dims[-1], pure=pure)
        mean = dims[0] ** -0.5 if shape.family in UNSCALED and kind == "attn_k_norm" else 1.0
        return Tensor(f"{prefix}{kind}{ending}", dims, name, mean)

    yield tensor("token_embd", (shape.n_vocab, shape.n_embd))
    for layer in range(shape.n_layer):
        for kind, dims in (LAYERS | SPARSE_LAYERS)[shape.family](shape, layer):
            yield tensor(kind, dims, layer)
    for kind, dims in SPARSE_ENDS.get(shape.family, beside_layers)(shape):
        yield tensor(kind, dims)
    if not shape.tied:
        yield tensor("output", (shape.n_vocab, shape.n_embd))


def tensor_format(mix: str, kind: str, layer: int, shape: Shape, n_in: int, *, pure: bool = False) -> str:
    """Format of the ``kind`` ("attn_v", "output", ...) of tensor, rows ``n_in`` long, in a file of ``mix``.

    After `llama_tensor_get_type_impl` and `tensor_type_fallback` in llama.cpp's src/llama-quant.cpp, without
    an importance matrix. Formats under four bits get their mix's output tensor only. ``pure`` gives every
    matrix the one format, as `llama-quantize --pure` does.
    """
    base = BASE_FORMATS[mix]
    if kind in ALWAYS_F16 and base != "F32":
        return "F16"
    if pure or base in ("F32", "F16", "BF16"):
        return base
    name = _wanted_format(mix, base, kind, layer, shape)
    return name if n_in % FORMATS[name].block_len == 0 else FALLBACKS.get(name, name)


def _wanted_format(mix: str, base: str, kind: str, layer: int, shape: Shape) -> str:
    if mix == "MXFP4_MOE":
        return "MXFP4" if kind.endswith("_exps") else "Q8_0"
    n, eight_experts = shape.n_layer, shape.experts is not None and shape.experts.count == 8
    if kind == "output" or (kind in ("token_embd", "per_layer_token_embd") and shape.tied):
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


FAMILY_KEYS: dict[str, Callable[[Shape], dict[str, Any]]] = {
    "glm4moe": lambda shape: {
        **{"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.0},
        "rope.dimension_count": shape.key_dim // 2,
    },
    "lfm2moe": lambda shape: {
        **{"expert_gating_func": 2, "shortconv.l_cache": 3},
        "attention.head_count_kv": [shape.n_head_kv * attends(i) for i in range(shape.n_layer)],
    },
    "gpt-oss": lambda shape: {
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0},
        "rope.scaling.original_context_length": 4096,
    },
    "gemma2": lambda shape: {
        **{"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0},
        "final_logit_softcapping": 30.0,
    },
    "phi3": lambda shape: {"rope.scaling.original_context_length": shape.context},
}
"""Metadata of a family beside what its dimensions tell."""


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
        found |= {
            "attention.head_count": 0,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 2 * shape.n_embd,
            "ssm.state_size": shape.n_state,
            "ssm.time_step_rank": shape.n_head,
        }
        return found | ({"ssm.group_count": 1} if shape.family == "mamba2" else {})
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
        if shape.experts.shared and shape.delta is None:
            found["expert_shared_count"] = shape.experts.shared
        if shape.experts.dense:
            found["leading_dense_block_count"] = shape.experts.dense
    if shape.latent is not None:
        latent = shape.latent
        found |= {
            "attention.kv_lora_rank": latent.rank,
            "rope.dimension_count": latent.rotated,
            "attention.key_length": latent.rank + latent.rotated,  # length of the cached vectors
            "attention.value_length": latent.rank,
            "attention.key_length_mla": latent.plain + latent.rotated,
            "attention.value_length_mla": latent.value,
        }
    if shape.delta is not None:
        delta = shape.delta
        found |= {
            "rope.dimension_count": shape.key_dim // 4,
            "full_attention_interval": delta.every,
            "ssm.conv_kernel": 4,
            "ssm.state_size": delta.dim,
            "ssm.group_count": delta.keys,
            "ssm.time_step_rank": delta.heads,
            "ssm.inner_size": delta.heads * delta.dim,
        }
        if shape.family != "qwen3next":
            found["rope.dimension_sections"] = [11, 11, 10, 0]
    if shape.windows is not None:
        found |= window_metadata(shape, shape.windows)
    if shape.family in FAMILY_KEYS:
        found |= FAMILY_KEYS[shape.family](shape)
    return found | {name: shape.key(name) for name in shape.keys}


def window_metadata(shape: Shape, windows: Windows) -> dict[str, Any]:
    """Keys of windows, and of what differs between layers with and without."""
    found: dict[str, Any] = {"attention.sliding_window": windows.size}
    if shape.family == "gemma3n":
        found |= {"embedding_length_per_layer_input": shape.layer_width}
        found |= {"altup.active_idx": 0, "altup.num_inputs": STREAMS}
    if shape.family != "gemma4":
        return found
    layers = range(shape.n_layer)
    dim = windows.dim or shape.key_dim
    return found | {
        "attention.sliding_window_pattern": [not shape.attends_afar(i) for i in layers],
        "attention.head_count_kv": [shape.kv_heads_of(i) for i in layers],
        "attention.key_length_swa": dim,
        "attention.value_length_swa": dim,
        "attention.shared_kv_layers": shape.n_layer - shape.n_own_kv,
        "embedding_length_per_layer_input": shape.layer_width,
        "feed_forward_length": [shape.ff_of(i) for i in layers],
        "final_logit_softcapping": 30.0,
        "rope.dimension_count_swa": dim,
        "rope.freq_base_swa": 10000.0,
    }
