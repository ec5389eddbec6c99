"""The encoders of sounds, as data, by the architecture of a config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.gemma_towers import bounds, inner
from oxillama.convert.towers import Item, Metadata, Source, Tower, column, items
from oxillama.errors import LoadError
from oxillama.media.spectrum import WHISPER_FRAMES


def whisper_facts(source: Source) -> Metadata:
    """The sizes of Whisper's encoder, as `transformers` names them."""
    tower = source.tower
    tower.only("activation_function", "gelu")
    tower.only("scale_embedding", False)
    tower.require(max_source_positions=1500)
    tower.ignore("dropout", "activation_dropout", "encoder_layerdrop", "layerdrop", "vocab_size")
    width, heads = tower.size("d_model"), tower.size("encoder_attention_heads")
    if width % heads:
        raise LoadError(f"{tower.name}: d_model: {width} is not a multiple of {heads} heads")
    return {
        "use_gelu": True,
        "audio.num_mel_bins": tower.size("num_mel_bins"),
        "audio.embedding_length": width,
        "audio.feed_forward_length": tower.size("encoder_ffn_dim"),
        "audio.block_count": tower.size("encoder_layers"),
        "audio.attention.head_count": heads,
        "audio.attention.layer_norm_epsilon": 1e-5,  # which the class does not read from a config
        "audio.projection_dim": source.text.size("hidden_size"),
    }


WHISPER_LAYER = items("""
    self_attn_layer_norm ln1 +
    final_layer_norm ln2 +
    self_attn.q_proj attn_q +
    self_attn.k_proj attn_k
    self_attn.v_proj attn_v +
    self_attn.out_proj attn_out +
    fc1 ffn_up +
    fc2 ffn_down +
""")
WHISPER = (
    *items("""
        audio_tower.conv1 a.conv1d.1
        audio_tower.conv2 a.conv1d.2
        audio_tower.embed_positions a.position_embd
        audio_tower.layer_norm a.post_ln +
    """),
    Item("audio_tower.conv1.bias", "a.conv1d.1.bias", bare=True, change=column),
    Item("audio_tower.conv2.bias", "a.conv1d.2.bias", bare=True, change=column),
)


# --- Voxtral and Ultravox ---------------------------------------------------------------------------

VOXTRAL_KEYS = {
    "d_model": "hidden_size",
    "encoder_ffn_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
}


def voxtral_facts(source: Source) -> Metadata:
    """As many rows become a token as fill the width of the feed-forward blocks."""
    source.tower.values |= {key: source.tower.get(there) for key, there in VOXTRAL_KEYS.items()}
    facts = whisper_facts(source)
    source.config.only("projector_hidden_act", "gelu")
    width, joined = facts["audio.embedding_length"], facts["audio.feed_forward_length"]
    stack = joined // width
    if joined % width or WHISPER_FRAMES // 2 % stack or WHISPER_FRAMES // 4 % stack == 0:
        raise LoadError(
            f"{source.tower.name}: intermediate_size: expected a multiple of {width} by a divisor of 1500, "
            f"and not of 750, of which the rows would be averaged in pairs; got {joined}"
        )
    return {**facts, "audio.projector.stack_factor": stack}


def ultravox_facts(source: Source) -> Metadata:
    facts = whisper_facts(source)
    source.config.require(projector_act="swiglu", projector_ln_mid=True)
    return {
        **facts,
        "audio.projection_dim": source.config.size("hidden_size"),
        "audio.projector.stack_factor": source.config.size("stack_factor", 8, most=100),
    }


# --- Gemma 4 ----------------------------------------------------------------------------------------


def conformer_facts(source: Source) -> Metadata:
    """The sizes of Gemma 4's encoder of sounds; all other numbers are those of the published models."""
    tower = source.tower
    tower.require(
        hidden_act="silu", conv_kernel_size=5, residual_weight=0.5, attention_context_left=13,
        attention_context_right=0, attention_logit_cap=50.0, rms_norm_eps=1e-6, gradient_clipping=1e10,
    )  # fmt: skip
    tower.ignore("attention_chunk_size", "attention_invalid_logits_value", "output_proj_dims")
    channels = tower.get("subsampling_conv_channels", [128, 32])
    if not isinstance(channels, list) or len(channels) != 2 or type(channels[0]) is not int:
        raise LoadError(
            f"{tower.name}: subsampling_conv_channels: expected two numbers, got {channels!r:.60}"
        )
    width = tower.size("hidden_size")
    return {
        "audio.num_mel_bins": channels[0],  # the class gives the first convolution as many
        "audio.embedding_length": width,
        "audio.feed_forward_length": 4 * width,
        "audio.block_count": tower.size("num_hidden_layers"),
        "audio.attention.head_count": tower.size("num_attention_heads"),
        "audio.attention.layer_norm_epsilon": 1e-6,
        "audio.projection_dim": source.text.size("hidden_size"),
    }


def softplus(values: np.ndarray, source: Source) -> np.ndarray:
    """log(1 + exp(x)): what the class computes of its scales at each use."""
    return np.asarray(np.logaddexp(values.dtype.type(0), values))


def without_channel(values: np.ndarray, source: Source) -> np.ndarray:
    """The kernel (width, taps) of a convolution of each channel alone."""
    if values.ndim != 3 or values.shape[1] != 1:
        raise LoadError(
            f"depthwise_conv1d: expected a kernel (width, 1, taps), got shape {list(values.shape)}"
        )
    return values[:, 0]


CONFORMER_LAYER = "audio_tower.layers.{}."
CONFORMER_MATRICES = items("""
    feed_forward1.ffw_layer_1 ffn_up
    feed_forward1.ffw_layer_2 ffn_down
    feed_forward2.ffw_layer_1 ffn_up_1
    feed_forward2.ffw_layer_2 ffn_down_1
    self_attn.q_proj attn_q
    self_attn.k_proj attn_k
    self_attn.v_proj attn_v
    self_attn.post attn_out
    lconv1d.linear_start conv_pw1
    lconv1d.linear_end conv_pw2
""")


def conformer_bounds(source: Source) -> tuple[Item, ...]:
    if not source.tower.flag("use_clipped_linears", True):
        return ()
    return bounds(CONFORMER_LAYER, "a", CONFORMER_MATRICES, source)


GEMMA4_SOUND = Tower(
    "gemma4a",
    ("audio_tower.", "embed_audio."),
    CONFORMER_LAYER,
    (
        *inner(CONFORMER_MATRICES),
        *items("""
            feed_forward1.pre_layer_norm ffn_norm
            feed_forward1.post_layer_norm ffn_post_norm
            feed_forward2.pre_layer_norm ffn_norm_1
            feed_forward2.post_layer_norm ffn_post_norm_1
            norm_pre_attn attn_pre_norm
            norm_post_attn attn_post_norm
            self_attn.relative_k_proj attn_k_rel
            lconv1d.pre_layer_norm conv_norm
            lconv1d.conv_norm norm_conv
            norm_out ln2
        """),
        Item("lconv1d.depthwise_conv1d", "conv_dw", change=without_channel),
        Item("self_attn.per_dim_scale", "per_dim_scale.weight", bare=True, change=softplus),
    ),
    items("""
        audio_tower.subsample_conv_projection.layer0.conv a.conv1d.0
        audio_tower.subsample_conv_projection.layer0.norm a.conv1d.0.norm
        audio_tower.subsample_conv_projection.layer1.conv a.conv1d.1
        audio_tower.subsample_conv_projection.layer1.norm a.conv1d.1.norm
        audio_tower.subsample_conv_projection.input_proj_linear a.input_projection
        audio_tower.output_proj a.pre_encode.out +
        embed_audio.embedding_projection mm.a.input_projection
    """),
    conformer_facts,
    modality="audio",
    config="audio_config",
    more=conformer_bounds,
)


def frame_facts(source: Source) -> Metadata:
    """Samples of a frame, which the projection reads as they are."""
    tower = source.tower
    width = tower.size("audio_embed_dim", 640)
    tower.require(rms_norm_eps=1e-6)
    for name in ("hidden_size", "output_proj_dims", "audio_samples_per_token"):  # names of the same number
        tower.only(name, width)
    return {
        "audio.num_mel_bins": width,
        "audio.embedding_length": width,
        "audio.feed_forward_length": 0,
        "audio.block_count": 0,
        "audio.attention.head_count": 0,
        "audio.attention.layer_norm_epsilon": 1e-6,
        "audio.projection_dim": source.text.size("hidden_size"),
    }


GEMMA4_UNIFIED_SOUND = Tower(
    "gemma4ua",
    ("embed_audio.",),
    "embed_audio.layers.{}.",
    (),
    items("embed_audio.embedding_projection mm.a.input_projection"),
    frame_facts,
    modality="audio",
    config="audio_config",
)

QWEN2_AUDIO = Tower(
    "qwen2a",
    ("audio_tower.", "multi_modal_projector."),
    "audio_tower.layers.{}.",
    WHISPER_LAYER,
    (*WHISPER, Item("multi_modal_projector.linear", "mm.a.fc", bias=True)),
    whisper_facts,
    modality="audio",
    config="audio_config",
)
TWO_MATRICES = items("""
    multi_modal_projector.linear_1 mm.a.mlp.1
    multi_modal_projector.linear_2 mm.a.mlp.2
""")

SOUNDS: dict[str, Tower | Callable[[Config], list[Tower]]] = {
    "Qwen2AudioForConditionalGeneration": QWEN2_AUDIO,
    "VoxtralForConditionalGeneration": replace(
        QWEN2_AUDIO, projector="voxtral", others=(*WHISPER, *TWO_MATRICES), facts=voxtral_facts
    ),
    "UltravoxModel": replace(
        QWEN2_AUDIO,
        projector="ultravox",
        others=(
            *WHISPER,
            *TWO_MATRICES,
            *items("""
                multi_modal_projector.ln_pre mm.a.norm_pre
                multi_modal_projector.ln_mid mm.a.norm_mid
            """),
        ),
        facts=ultravox_facts,
    ),
}
"""By the architecture of a config.json."""
