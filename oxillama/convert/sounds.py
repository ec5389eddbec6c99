"""The encoders of sounds, as data, by the architecture of a config.json."""

from __future__ import annotations

from oxillama.convert.towers import Item, Metadata, Source, Tower, column, items
from oxillama.errors import LoadError


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

SOUNDS: dict[str, Tower] = {
    "Qwen2AudioForConditionalGeneration": Tower(
        "qwen2a",
        ("audio_tower.", "multi_modal_projector."),
        "audio_tower.layers.{}.",
        WHISPER_LAYER,
        (*WHISPER, Item("multi_modal_projector.linear", "mm.a.fc", bias=True)),
        whisper_facts,
        modality="audio",
        config="audio_config",
    ),
}
"""By the architecture of a config.json."""
