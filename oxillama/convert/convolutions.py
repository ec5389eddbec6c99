"""Hybrids of attention and short convolutions: LFM2."""

from __future__ import annotations

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.experts import SIGMOID, correction, counts, dense_first
from oxillama.convert.hybrids import flat, key_heads, kinds_of
from oxillama.convert.parts import ATTENTION, only
from oxillama.convert.rotation import Metadata, Tensors, rotation


def lfm2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The width of dense blocks may have to be derived from the stated one."""
    key_heads(metadata, sizes, kinds_of(config, sizes, ("conv",)))
    sizes["taps"] = metadata["shortconv.l_cache"] = config.size("conv_L_cache")
    sizes["3d"] = 3 * sizes["d"]
    config.only("conv_bias", False)
    config.get("full_attn_idxs")  # layer_types say the same
    if config.flag("block_auto_adjust_ff_dim"):
        width = int(2 * sizes["ff"] / 3)
        multiple = config.size("block_multiple_of", 256)
        width = int(config.number("block_ffn_dim_multiplier", 1.0) * width)
        sizes["ff"] = metadata["feed_forward_length"] = -(-width // multiple) * multiple
    for key in ("block_multiple_of", "block_ffn_dim_multiplier"):
        config.get(key)
    return rotation(config, metadata, sizes["dim"], 1e6)


def lfm2_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    counts(config, metadata, sizes, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    n = config.get("num_dense_layers", 2)
    dense_first(config, metadata, sizes, n if type(n) is int else -1)
    metadata["expert_gating_func"] = SIGMOID
    config.only("norm_topk_prob", True)
    config.only("routed_scaling_factor", 1, 1.0)
    config.only("use_expert_bias", True)
    return lfm2(config, metadata, sizes)


LFM2_LAYER = (
    *only(
        "attending",
        (
            *(Part(part.source, part.target, part.shape) for part in ATTENTION[:3]),
            Part("self_attn.out_proj", "attn_output", "d q"),
            Part("self_attn.q_layernorm", "attn_q_norm", "dim"),
            Part("self_attn.k_layernorm", "attn_k_norm", "dim"),
        ),
    ),
    *only(
        "recurrent",
        (
            Part("conv.in_proj", "shortconv.in_proj", "3d d"),
            Part("conv.conv", "shortconv.conv", "d one taps", change=flat, becomes="d taps"),
            Part("conv.out_proj", "shortconv.out_proj", "d d"),
        ),
    ),
    Part("operator_norm", "attn_norm", "d"),
    Part("ffn_norm", "ffn_norm", "d"),
)
LFM2_FEED = (
    Part("feed_forward.w1", "ffn_gate", "ff d"),
    Part("feed_forward.w3", "ffn_up", "ff d"),
    Part("feed_forward.w2", "ffn_down", "d ff"),
)
LFM2_EXPERTS = (
    Part("feed_forward.gate", "ffn_gate_inp", "experts d"),
    Part("feed_forward.experts.{e}.w1", "ffn_gate_exps", "expert_ff d"),
    Part("feed_forward.experts.{e}.w3", "ffn_up_exps", "expert_ff d"),
    Part("feed_forward.experts.{e}.w2", "ffn_down_exps", "d expert_ff"),
)
LAST = Part("embedding_norm", "token_embd_norm", "d")
LFM2 = Decoder("lfm2", (*LFM2_LAYER, *LFM2_FEED), lfm2, epsilon="norm_eps", tied=True, last_norm=LAST)
LFM2_MOE = Decoder(
    "lfm2moe",
    (
        *LFM2_LAYER,
        *only("dense", LFM2_FEED),
        *only("routed", LFM2_EXPERTS),
        correction("feed_forward.expert_bias"),
    ),
    lfm2_moe,
    epsilon="norm_eps",
    tied=True,
    last_norm=LAST,
)

CONVOLUTION_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Lfm2ForCausalLM": ("lfm2", LFM2),
    "Lfm2MoeForCausalLM": ("lfm2_moe", LFM2_MOE),
}
