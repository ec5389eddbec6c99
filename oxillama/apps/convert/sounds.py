"""Encoders of sounds that are Whisper's: Qwen2-Audio, Voxtral and Ultravox."""

from __future__ import annotations

from oxillama.apps.convert.tables import table
from oxillama.apps.convert.towers import Metadata, Source, Tower, audio_facts, column, derive, register
from oxillama.errors import LoadError
from oxillama.models.media.spectrum import WHISPER_FRAMES


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
    sizes = (tower.size("num_mel_bins"), width, tower.size("encoder_ffn_dim"), tower.size("encoder_layers"))
    eps = 1e-5  # a constant of the class
    return {"use_gelu": True, **audio_facts(*sizes, heads, eps, source.text.size("hidden_size"))}


# fmt: off
WHISPER_LAYER = table("""
    self_attn_layer_norm ln1 +, final_layer_norm ln2 +
    self_attn.q_proj attn_q +, self_attn.k_proj attn_k, self_attn.v_proj attn_v +
    self_attn.out_proj attn_out +, fc1 ffn_up +, fc2 ffn_down +
""")
WHISPER = table("""
    audio_tower.conv1 a.conv1d.1, audio_tower.conv2 a.conv1d.2, audio_tower.embed_positions a.position_embd
    audio_tower.layer_norm a.post_ln +
    audio_tower.conv1.bias a.conv1d.1.bias = -> column, audio_tower.conv2.bias a.conv1d.2.bias = -> column
""", column=column)
# fmt: on

# --- Voxtral and Ultravox ---------------------------------------------------------------------------

VOXTRAL_KEYS = {
    **{"d_model": "hidden_size", "encoder_ffn_dim": "intermediate_size"},
    **{"encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads"},
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


# fmt: off
QWEN2_AUDIO = register(Tower(
    "Qwen2AudioForConditionalGeneration", "qwen2a", "audio_tower. multi_modal_projector.",
    "audio_tower.layers.{}.", WHISPER_LAYER,
    (*WHISPER, *table("multi_modal_projector.linear mm.a.fc +")), whisper_facts, modality="audio",
))
MATRICES = table("multi_modal_projector.linear_1 mm.a.mlp.1, multi_modal_projector.linear_2 mm.a.mlp.2")
NORMS = table("multi_modal_projector.ln_pre mm.a.norm_pre, multi_modal_projector.ln_mid mm.a.norm_mid")
derive(
    QWEN2_AUDIO, "VoxtralForConditionalGeneration", projector="voxtral", others=(*WHISPER, *MATRICES),
    facts=voxtral_facts,
)
derive(
    QWEN2_AUDIO, "UltravoxModel", projector="ultravox", others=(*WHISPER, *MATRICES, *NORMS),
    facts=ultravox_facts,
)
