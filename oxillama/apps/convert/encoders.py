"""Encoders: BERT, and the later ones that are built like decoders."""

from __future__ import annotations

from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Decoder, Sizes, register
from oxillama.apps.convert.options import every, kinds_of_attention, stated, two_rotations
from oxillama.apps.convert.parts import layer
from oxillama.apps.convert.rotation import Metadata, Tensors
from oxillama.apps.convert.tables import table


def bert(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Learned positions in place of a rotation (Devlin et al., 2018)."""
    sizes["positions"] = metadata["context_length"]
    sizes["types"] = config.size("type_vocab_size", 2)
    for key in ("head_count_kv", "key_length", "value_length"):
        del metadata[f"attention.{key}"]
    metadata["attention.causal"] = False
    metadata["vocab_size"] = metadata.pop("vocab_size")  # the last key
    return {}


def modern_bert(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Every third layer has no window. Windows are centred on a token."""
    metadata["hidden_activation"] = config.get("hidden_activation", "gelu")
    config.only("hidden_activation", "gelu", "silu")
    has = kinds_of_attention(config, every(config.size("global_attn_every_n_layers", 3), sizes, "first"))
    metadata["attention.sliding_window"] = config.size("local_attention", 128)
    if has != every(3, sizes, "first"):
        metadata["attention.sliding_window_pattern"] = has
    sizes.split([i > 0 for i in range(sizes["layers"])], "normed")
    local = config.number("local_rope_theta", 10000.0)
    return two_rotations(config, metadata, sizes["dim"], config.number("global_rope_theta", 160000.0), local)


# fmt: off
register(Decoder(
    "BertModel BertForMaskedLM bert", "bert",
    table("""
        attention.self.query       attn_q            d d  / bias=yes
        attention.self.key         attn_k            d d  / bias=yes
        attention.self.value       attn_v            d d  / bias=yes
        attention.output.dense     attn_output       d d  / bias=yes
        attention.output.LayerNorm attn_output_norm  d
        intermediate.dense         ffn_up            ff d / bias=yes
        output.dense               ffn_down          d ff / bias=yes
        output.LayerNorm           layer_output_norm d
    """),
    rotates=bert, epsilon="layer_norm_eps", activations=("gelu",),
    fixed={
        "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
        "head_dim": None, "num_key_value_heads": None,
    },
    defaults={"layer_norm_eps": 1e-12},
    first=table("""
        embeddings.word_embeddings       token_embd      vocab d
        embeddings.position_embeddings   position_embd   positions d
        embeddings.token_type_embeddings token_types     types d
        embeddings.LayerNorm             token_embd_norm d
    """),
    last=(), inside="", layer="encoder.layer.{}.",
    left_out=("embeddings.position_ids", "pooler.dense.", "cls."), renamed=(("bert.", ""),),
))
register(Decoder(
    "EuroBertModel EuroBertForMaskedLM eurobert", "eurobert", layer("eurobert"),
    (stated(attention__causal=False),), base=250000.0, inside="",
    unread="classifier_pooling mask_token_id",  # the heads are left out
    left_out=("lm_head.", "classifier.", "dense."), renamed=(("model.", ""),),
))
register(Decoder(
    "ModernBertModel ModernBertForMaskedLM modernbert", "modern-bert",
    table("""
        attn.Wqkv attn_qkv    q+k+v d
        attn.Wo   attn_output d q
      [normed]
        attn_norm attn_norm   d
      []
        mlp_norm  ffn_norm    d
        mlp.Wi    ffn_up      ff+ff d
        mlp.Wo    ffn_down    d ff
    """),  # the first layer reads the normed embeddings as they are
    (stated(attention__causal=False),), rotates=modern_bert, epsilon="norm_eps", activations=("gelu",),
    fixed={"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    # these concern training or heads that are left out, or the class does not read them
    unread="classifier_activation classifier_bias classifier_pooling decoder_bias mlp_dropout "
        "deterministic_flash_attn initializer_cutoff_factor sparse_pred_ignore_index sparse_prediction "
        "position_embedding_type reference_compile repad_logits_with_grad cls_token_id "
        "mask_token_id layer_norm_eps",
    defaults={"norm_eps": 1e-5}, first=table("embeddings.tok_embeddings token_embd vocab d"),
    last=table("final_norm output_norm d\n embeddings.norm token_embd_norm d"), inside="",
    left_out=("head.", "decoder.", "classifier."), renamed=(("model.", ""),),
))
