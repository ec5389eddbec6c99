"""BERT's encoders, from config.json to a plan."""

from __future__ import annotations

from oxillama.convert.config import Config, Plan, Wanted
from oxillama.convert.decoders import check_count
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
    config.only("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    config.only("add_cross_attention", False)
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
