"""Encoders, from config.json to a plan: BERT's, and those that are built as decoders are."""

from __future__ import annotations

from oxillama.convert.config import Config, Plan, Wanted
from oxillama.convert.decoders import Decoder, Part, Sizes, check_count
from oxillama.convert.options import kinds_of_attention, two_rotations
from oxillama.convert.parts import ATTENTION, BEFORE, FEED
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError

TABLES = {"word": "token_embd", "position": "position_embd", "token_type": "token_types"}
MATRICES = {
    "attention.self.query": ("attn_q", "d d"),
    "attention.self.key": ("attn_k", "d d"),
    "attention.self.value": ("attn_v", "d d"),
    "attention.output.dense": ("attn_output", "d d"),
    "attention.output.LayerNorm": ("attn_output_norm", "d"),
    "intermediate.dense": ("ffn_up", "ff d"),
    "output.dense": ("ffn_down", "d ff"),
    "output.LayerNorm": ("layer_output_norm", "d"),
}
"""Of each layer, all with biases."""


def bert(config: Config, n_tensors: int) -> Plan:
    """Devlin et al., 2018; a pooler or head is left out."""
    config.require(hidden_act="gelu", position_embedding_type="absolute", is_decoder=False)
    config.require(add_cross_attention=False)
    config.flag("tie_word_embeddings", True)  # of a head that is left out
    n_layers, d = config.size("num_hidden_layers"), config.size("hidden_size")
    n_ff, n_vocab = config.size("intermediate_size"), config.size("vocab_size")
    heads, context = config.size("num_attention_heads"), config.size("max_position_embeddings")
    check_count("num_hidden_layers", n_layers, n_tensors)
    if d % heads:
        raise LoadError(f"config.json: hidden_size: {d} is not a multiple of {heads} heads")
    metadata = {
        "block_count": n_layers,
        "context_length": context,
        "embedding_length": d,
        "feed_forward_length": n_ff,
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "attention.causal": False,
        "vocab_size": n_vocab,
    }
    rows = {"word": n_vocab, "position": context, "token_type": config.size("type_vocab_size", 2)}
    tensors = [
        Wanted((f"embeddings.{name}_embeddings.weight",), f"{target}.weight", (rows[name], d))
        for name, target in TABLES.items()
    ]

    def add(source: str, target: str, shape: tuple[int, ...]) -> None:
        tensors.append(Wanted((f"{source}.weight",), f"{target}.weight", shape))
        tensors.append(Wanted((f"{source}.bias",), f"{target}.bias", shape[:1]))

    add("embeddings.LayerNorm", "token_embd_norm", (d,))
    sizes = {"d": d, "ff": n_ff}
    for i in range(n_layers):
        for source, (target, shape) in MATRICES.items():
            dims = tuple(sizes[size] for size in shape.split())
            add(f"encoder.layer.{i}.{source}", f"blk.{i}.{target}", dims)
    ignored = ("embeddings.position_ids", "pooler.dense.", "cls.")
    return Plan("bert", n_vocab, metadata, tensors, ignored=ignored, renamed=(("bert.", ""),))


# --- built as decoders ------------------------------------------------------------------------------


def eurobert(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    metadata["attention.causal"] = False
    config.ignore("classifier_pooling", "mask_token_id")  # of heads that are left out
    return rotation(config, metadata, sizes["dim"], 250000.0)


def modern_bert(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Every third layer sees everything. Windows are centred, with as much before a token as behind it."""
    metadata["attention.causal"] = False
    metadata["hidden_activation"] = config.get("hidden_activation", "gelu")
    config.only("hidden_activation", "gelu", "silu")
    every = config.size("global_attn_every_n_layers", 3)
    usual = [i % every > 0 for i in range(sizes["layers"])]
    has = kinds_of_attention(config, usual)
    metadata["attention.sliding_window"] = config.size("local_attention", 128)
    if has != [i % 3 > 0 for i in range(sizes["layers"])]:
        metadata["attention.sliding_window_pattern"] = has
    sizes.kinds["normed"] = [i > 0 for i in range(sizes["layers"])]
    config.require(attention_bias=False, mlp_bias=False, norm_bias=False)
    config.ignore(*OF_HEADS)
    local = config.number("local_rope_theta", 10000.0)
    return two_rotations(config, metadata, sizes["dim"], config.number("global_rope_theta", 160000.0), local)


OF_HEADS = (
    *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias", "mlp_dropout"),
    *("deterministic_flash_attn", "initializer_cutoff_factor", "sparse_pred_ignore_index"),
    *("sparse_prediction", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
    *("cls_token_id", "mask_token_id", "layer_norm_eps"),
)
"""Keys about heads that are left out and about training, or that the class does not read."""


EURO_BERT = Decoder(
    "eurobert",
    (*ATTENTION, *BEFORE, *FEED),
    eurobert,
    head=None,
    inside="",
    left_out=("lm_head.", "classifier.", "dense."),
    renamed=(("model.", ""),),
)
MODERN_BERT = Decoder(
    "modern-bert",
    (
        Part("attn.Wqkv", "attn_qkv", "q+k+v d"),
        Part("attn.Wo", "attn_output", "d q"),
        Part("attn_norm", "attn_norm", "d", only="normed"),  # the first layer reads what is normed already
        Part("mlp_norm", "ffn_norm", "d"),
        Part("mlp.Wi", "ffn_up", "ff+ff d"),
        Part("mlp.Wo", "ffn_down", "d ff"),
    ),
    modern_bert,
    epsilon="norm_eps",
    layer_norm=True,
    activations=("gelu",),
    defaults=(("norm_eps", 1e-5),),
    table=Part("embeddings.tok_embeddings", "token_embd", "vocab d"),
    head=None,
    last_norm=Part("final_norm", "output_norm", "d"),
    others=(Part("embeddings.norm", "token_embd_norm", "d"),),
    inside="",
    left_out=("head.", "decoder.", "classifier."),
    renamed=(("model.", ""),),
)
ENCODERS: dict[str, tuple[str, Decoder]] = {
    "EuroBertModel": ("eurobert", EURO_BERT),
    "EuroBertForMaskedLM": ("eurobert", EURO_BERT),
    "ModernBertModel": ("modernbert", MODERN_BERT),
    "ModernBertForMaskedLM": ("modernbert", MODERN_BERT),
}
