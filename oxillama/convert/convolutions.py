"""Hybrids of attention and short convolutions: LFM2."""

from __future__ import annotations

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.experts import SIGMOID, correction, dense_first
from oxillama.convert.hybrids import flat, key_heads, kinds_of
from oxillama.convert.options import counts
from oxillama.convert.parts import ATTENTION, biased, gated, only
from oxillama.convert.rotation import Metadata, Tensors, rotation


def lfm2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The width of dense blocks may have to be derived from the stated one."""
    key_heads(metadata, sizes, kinds_of(config, sizes, ("conv",)))
    sizes["taps"] = metadata["shortconv.l_cache"] = config.size("conv_L_cache")
    sizes["3d"] = 3 * sizes["d"]
    config.only("conv_bias", False)
    config.ignore("full_attn_idxs")  # layer_types say the same
    if config.flag("block_auto_adjust_ff_dim"):
        width = int(2 * sizes["ff"] / 3)
        multiple = config.size("block_multiple_of", 256)
        width = int(config.number("block_ffn_dim_multiplier", 1.0) * width)
        sizes["ff"] = metadata["feed_forward_length"] = -(-width // multiple) * multiple
    config.ignore("block_multiple_of", "block_ffn_dim_multiplier")
    return rotation(config, metadata, sizes["dim"], 1e6)


def lfm2_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    counts(config, metadata, sizes)
    dense_first(config, metadata, sizes, config.size("num_dense_layers", 2, least=0))
    metadata["expert_gating_func"] = SIGMOID
    config.only("norm_topk_prob", True)
    config.only("routed_scaling_factor", 1, 1.0)
    config.only("use_expert_bias", True)
    return lfm2(config, metadata, sizes)


LFM2_LAYER = (
    *only(
        "attending",
        (
            *biased(ATTENTION[:3], ""),
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
LFM2_FEED = gated("feed_forward.{}", names="w1 w3 w2")
LFM2_EXPERTS = (
    Part("feed_forward.gate", "ffn_gate_inp", "experts d"),
    *gated("feed_forward.experts.{{e}}.{}", "_exps", "expert_ff", "w1 w3 w2"),
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
