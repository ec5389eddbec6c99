"""Families that are converted: from a Hugging Face config.json to metadata and the tensors it implies.

Each is a function, config in, `Plan` out. What a config asks for and no plan does is an error that names it.
Names and conventions of GGUF are llama.cpp's (gguf-py, as of 0.19): heads of Llama's q and k are reordered,
for its rotation turns neighbours where Hugging Face turns halves; Llama 3's scaling is a tensor of factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama.errors import LoadError


@dataclass(frozen=True)
class Wanted:
    """A tensor of the source: its name there and in GGUF, its shape there, and what is done to it.

    ``heads`` above 0 asks for the reordering of that many heads.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    heads: int = 0


@dataclass
class Plan:
    """What a config comes to: metadata without the architecture's prefix, tensors, and what is left out."""

    architecture: str
    n_vocab: int
    metadata: dict[str, Any]
    tensors: list[Wanted]
    made: dict[str, np.ndarray] = field(default_factory=dict)  # float32, of the config alone
    ignored: tuple[str, ...] = ()  # beginnings of names that carry no weight of the model
    prefixes: tuple[str, ...] = ()  # what some write before every name


class Config:
    """Typed, checked reading of config.json; what nobody asked for is in `unread`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        """An integer from 1 to 2^31 - 1."""
        value = self.get(key, default)
        if type(value) is not int or not 1 <= value < 2**31:
            raise LoadError(f"config.json: {key}: needs a number from 1 to 2^31 - 1, got {value!r:.60}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            raise LoadError(f"config.json: {key}: needs a number above 0, got {value!r:.60}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise LoadError(f"config.json: {key}: needs true or false, got {value!r:.60}")
        return value

    def only(self, key: str, *harmless: Any) -> None:
        """Raises LoadError if the key is there with another value than these (or null)."""
        value = self.get(key)
        if value is not None and value not in harmless:
            raise LoadError(f"config.json: {key}: {value!r:.60} is not supported")

    def unread(self) -> list[str]:
        """Keys that no plan looked at and that are not known to change nothing."""
        return sorted(key for key in self.values.keys() - self.seen - HARMLESS if key[:1] != "_")


HARMLESS = {
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache"),
    *("initializer_range", "attention_dropout", "hidden_dropout", "attention_probs_dropout_prob"),
    *("hidden_dropout_prob", "classifier_dropout", "gradient_checkpointing", "pretraining_tp", "id2label"),
    *("label2id", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "max_window_layers"),
    *("problem_type", "output_attentions", "output_hidden_states", "return_dict", "auto_map"),
}
"""Keys of training, of other programs, or read with the vocabulary."""


def plan_of(config: Config) -> Plan:
    """The plan for a config. Raises LoadError naming what is not supported."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or len(names) != 1 or names[0] not in PLANS:
        raise LoadError(f"config.json: architectures: needs one of {', '.join(PLANS)}, got {names!r:.80}")
    config.only("quantization_config")
    return PLANS[names[0]](config)


# --- decoders ---------------------------------------------------------------------------------------


def decoder(config: Config, architecture: str, *, permuted: bool, biases: bool, norms: bool) -> Plan:
    """Llama and what has its blocks. ``biases``: q, k and v must have them; ``norms``: heads of q and k."""
    config.only("hidden_act", "silu", "swish")
    config.only("partial_rotary_factor", 1, 1.0)
    n_layers, d = config.size("num_hidden_layers"), config.size("hidden_size")
    n_ff, n_vocab = config.size("intermediate_size"), config.size("vocab_size")
    heads = config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    if config.get("head_dim") is None and d % heads:
        raise LoadError(f"config.json: hidden_size: {d} is not a multiple of {heads} heads")
    dim = config.size("head_dim", 128 if norms else d // heads)
    if dim % 2:
        raise LoadError(f"config.json: head_dim: needs an even number, got {dim}")
    metadata = {
        "block_count": n_layers,
        "context_length": config.size("max_position_embeddings"),
        "embedding_length": d,
        "feed_forward_length": n_ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "rope.dimension_count": dim,
        "vocab_size": n_vocab,
    }
    made = rotation(config, metadata, dim)
    # Biases of Llama and Qwen3 depend on the config; those of Qwen2 on q, k and v are always there.
    all_biased = config.flag("attention_bias")
    fed_biased = config.flag("mlp_bias")
    tensors = [Wanted("model.embed_tokens.weight", "token_embd.weight", (n_vocab, d))]
    for i in range(n_layers):
        there, here = f"model.layers.{i}", f"blk.{i}"

        def add(source: str, target: str, shape: tuple[int, ...], heads: int, biased: bool) -> None:
            tensors.append(Wanted(f"{there}.{source}.weight", f"{here}.{target}.weight", shape, heads))  # noqa: B023
            if biased:
                bias = Wanted(f"{there}.{source}.bias", f"{here}.{target}.bias", shape[:1], heads)  # noqa: B023
                tensors.append(bias)

        q_heads, k_heads = (heads, kv_heads) if permuted else (0, 0)
        add("input_layernorm", "attn_norm", (d,), 0, False)
        add("self_attn.q_proj", "attn_q", (heads * dim, d), q_heads, biases or all_biased)
        add("self_attn.k_proj", "attn_k", (kv_heads * dim, d), k_heads, biases or all_biased)
        add("self_attn.v_proj", "attn_v", (kv_heads * dim, d), 0, biases or all_biased)
        add("self_attn.o_proj", "attn_output", (d, heads * dim), 0, all_biased)
        if norms:
            add("self_attn.q_norm", "attn_q_norm", (dim,), 0, False)
            add("self_attn.k_norm", "attn_k_norm", (dim,), 0, False)
        add("post_attention_layernorm", "ffn_norm", (d,), 0, False)
        add("mlp.gate_proj", "ffn_gate", (n_ff, d), 0, fed_biased)
        add("mlp.up_proj", "ffn_up", (n_ff, d), 0, fed_biased)
        add("mlp.down_proj", "ffn_down", (d, n_ff), 0, fed_biased)
    tensors.append(Wanted("model.norm.weight", "output_norm.weight", (d,)))
    ignored = tuple(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(n_layers))
    if config.flag("tie_word_embeddings"):
        ignored += ("lm_head.weight",)  # a copy of the embedding that some write nevertheless
    else:
        tensors.append(Wanted("lm_head.weight", "output.weight", (n_vocab, d)))
    return Plan(architecture, n_vocab, metadata, tensors, made, ignored)


def rotation(config: Config, metadata: dict[str, Any], dim: int) -> dict[str, np.ndarray]:
    """Writes what a config says of its rotation into the metadata; returns tensors that belong to it."""
    scaling = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    rope = Config(scaling)
    kind = rope.get("rope_type", rope.get("type", "default"))
    rope.seen |= {"type"}
    base = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    rope.only("partial_rotary_factor", 1, 1.0)
    metadata["rope.freq_base"] = base
    made: dict[str, np.ndarray] = {}
    if kind == "llama3":
        made["rope_freqs.weight"] = llama3_factors(rope, base, dim)
    elif kind in ("linear", "yarn"):
        metadata["rope.scaling.type"] = kind
        metadata["rope.scaling.factor"] = factor = rope.number("factor")
        if kind == "yarn":
            original = rope.size("original_max_position_embeddings", metadata["context_length"])
            metadata["rope.scaling.original_context_length"] = original
            metadata["rope.scaling.yarn_beta_fast"] = rope.number("beta_fast", 32.0)
            metadata["rope.scaling.yarn_beta_slow"] = rope.number("beta_slow", 1.0)
            usual = 1 + 0.1 * math.log(max(1.0, factor))
            metadata["rope.scaling.attn_factor"] = rope.number("attention_factor", usual) / usual
    elif kind != "default":
        raise LoadError(f"config.json: rope_scaling: {kind!r:.60} is not supported")
    unread = sorted(rope.values.keys() - rope.seen - {"rope_theta"})
    if unread and kind != "default":
        raise LoadError(f"config.json: rope_scaling: {', '.join(unread)} of {kind} is not supported")
    return made


def llama3_factors(rope: Config, base: float, dim: int) -> np.ndarray:
    """float32 (dim / 2,): what each frequency is divided by (Llama 3.1's model card and code)."""
    factor, original = rope.number("factor"), rope.size("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor", 1.0), rope.number("high_freq_factor", 4.0)
    if low >= high:
        raise LoadError(f"config.json: rope_scaling: low_freq_factor {low} is not below {high}")
    turns = original * base ** (-np.arange(0, dim, 2) / dim) / (2 * math.pi)  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def llama(config: Config) -> Plan:
    plan = decoder(config, "llama", permuted=True, biases=False, norms=False)
    window = config.get("sliding_window")
    if window is not None:
        plan.metadata["attention.sliding_window"] = config.size("sliding_window")
    return plan


def qwen(config: Config, architecture: str, *, biases: bool, norms: bool) -> Plan:
    config.only("use_sliding_window", False)
    config.get("sliding_window")  # without the flag it is only a number
    kinds = config.get("layer_types", [])
    if any(kind != "full_attention" for kind in kinds):
        raise LoadError("config.json: layer_types: only full_attention is supported")
    return decoder(config, architecture, permuted=False, biases=biases, norms=norms)


# --- encoders ---------------------------------------------------------------------------------------


def bert(config: Config) -> Plan:
    config.only("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    config.only("add_cross_attention", False)
    config.flag("tie_word_embeddings", True)  # of a head that is left out
    n_layers, d = config.size("num_hidden_layers"), config.size("hidden_size")
    n_ff, n_vocab = config.size("intermediate_size"), config.size("vocab_size")
    heads, context = config.size("num_attention_heads"), config.size("max_position_embeddings")
    types = config.size("type_vocab_size", 2)
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
    tensors = [
        Wanted("embeddings.word_embeddings.weight", "token_embd.weight", (n_vocab, d)),
        Wanted("embeddings.position_embeddings.weight", "position_embd.weight", (context, d)),
        Wanted("embeddings.token_type_embeddings.weight", "token_types.weight", (types, d)),
    ]

    def add(source: str, target: str, shape: tuple[int, ...]) -> None:
        tensors.append(Wanted(f"{source}.weight", f"{target}.weight", shape))
        tensors.append(Wanted(f"{source}.bias", f"{target}.bias", shape[:1]))

    add("embeddings.LayerNorm", "token_embd_norm", (d,))
    for i in range(n_layers):
        there, here = f"encoder.layer.{i}", f"blk.{i}"
        add(f"{there}.attention.self.query", f"{here}.attn_q", (d, d))
        add(f"{there}.attention.self.key", f"{here}.attn_k", (d, d))
        add(f"{there}.attention.self.value", f"{here}.attn_v", (d, d))
        add(f"{there}.attention.output.dense", f"{here}.attn_output", (d, d))
        add(f"{there}.attention.output.LayerNorm", f"{here}.attn_output_norm", (d,))
        add(f"{there}.intermediate.dense", f"{here}.ffn_up", (n_ff, d))
        add(f"{there}.output.dense", f"{here}.ffn_down", (d, n_ff))
        add(f"{there}.output.LayerNorm", f"{here}.layer_output_norm", (d,))
    ignored = ("embeddings.position_ids", "pooler.dense.", "cls.")
    return Plan("bert", n_vocab, metadata, tensors, {}, ignored, ("bert.",))


PLANS: dict[str, Callable[[Config], Plan]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": llama,
    "Qwen2ForCausalLM": lambda config: qwen(config, "qwen2", biases=True, norms=False),
    "Qwen3ForCausalLM": lambda config: qwen(config, "qwen3", biases=False, norms=True),
    "BertModel": bert,
    "BertForMaskedLM": bert,
}
"""By what config.json calls its architecture."""
