"""Encoders: attention both ways, no output matrix, heads of rerankers. BERT's norms follow the additions."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

ENCODER = LLAMA.derive("", routing=None, causal=False, output="none")
BERT = ENCODER.variant(
    "bert", rope="none", positions="yes", token_types=True, embd_norm=True, norm="layer", norm_bias="yes",
    residual="post", attn_norm="", ffn_norm="", attn_post_norm=("attn_output_norm",),
    ffn_post_norm=("layer_output_norm",), output_norm="", gate="none", activation="gelu", classifier="cls",
)  # fmt: skip

JINA_BERT_V3 = BERT.variant("jina-bert-v3", rope="neox", positions="no")
NOMIC_BERT = JINA_BERT_V3.variant("nomic-bert", gate="pair", activation="silu")
NOMIC_BERT_MOE = JINA_BERT_V3.variant(
    "nomic-bert-moe", routing=Routing(options=("moe_every_n_layers",), normalize=False, gated=False)
)

JINA_BERT_V2 = BERT.variant(
    "jina-bert-v2", positions="no", alibi_bias=8.0, gate="auto", qk_norm="row", qk_norm_optional=True
)

# Encoders that are built like decoders, with norms before the blocks.
NEO_BERT = ENCODER.variant("neo-bert", gate="fused", output_norm="enc.output_norm")
EURO_BERT = ENCODER.variant("eurobert", rope="neox")


LLAMA_EMBED = LLAMA.variant(
    "llama-embed", causal=False, output="none", ignores=("output.weight",), whole_rotation=True
)


def stated_activation(spec: Spec, read: Reader) -> Spec:
    """ModernBERT's descendants may have another activation. Decision models have the exact form of GELU."""
    activation = read.text("hidden_activation", "gelu")
    is_known = activation in ("gelu", "silu")
    read.expect(is_known, "hidden_activation", "'gelu' or 'silu'", repr(activation))
    if activation == "gelu" and spec.decision is not None:
        activation = "gelu_erf"
    return replace(spec, family=spec.family.derive(spec.family.name, activation=activation))


# The first layer of ModernBERT reads the normed embeddings as they are.
MODERN_BERT = ENCODER.variant(
    "modern-bert", options=WINDOWS, rope="neox", norm="layer", optional_norms=("attn_norm",), embd_norm=True,
    gate="fused", activation="gelu", window_period=3, full_layer="first", centred_windows=True,
    local_rope="plain", local_base=10000.0, adjust=stated_activation,
)  # fmt: skip


def gate_if_stored(spec: Spec, read: Reader) -> Spec:
    """T5's later versions have a gate and GELU, the first has ReLU."""
    if any(name.endswith(".ffn_gate.weight") for name in read.file.tensors):
        return spec
    return replace(spec, family=spec.family.derive(spec.family.name, gate="none", activation="relu"))


T5_ENCODER = ENCODER.variant(
    "t5encoder", options=("attention.relative_buckets_count",), rope="none", relative_bias=True,
    score_scale="one", activation="gelu", output_norm="enc.output_norm", block_prefix="enc.",
    renamed=(("attn_output", "attn_o"),), adjust=gate_if_stored,
)  # fmt: skip
