"""Drafters with a file of their own: few layers that read what another model has computed of a text."""

from __future__ import annotations

from oxillama.models.families.gemma import GEMMA4
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS
from oxillama.models.registry import DRAFT_FAMILIES

# EAGLE-3: one layer, whose attention reads an embedding beside a state of the target (`drafts/eagle3.py`).
EAGLE3 = LLAMA.derive("eagle3", routing=None, joined_input=True)

# Gemma 4's assistant: layers without keys of their own, which attend to the target's keys
# (`drafts/assistant.py`). Files have Gemma 4's options, some of which do nothing here. Files of small models
# may have clusters of their tokens, to compute the logits of a few.
ASSISTANT = GEMMA4.derive(
    "gemma4-assistant",
    options=(
        *WINDOWS, "attention.key_length_swa", "attention.shared_kv_layers", "attention.value_length_swa",
        "rope.dimension_count_swa",
    ),
    ignored_keys=("embedding_length_per_layer_input", "final_logit_softcapping"),
    ignores=("masked_embd_centroids.weight", "masked_embd_ordering"), v_is_k=False, v_norm=False,
    final_soft_cap=0.0, per_layer_input=False, routing=None, output="tied",
)  # fmt: skip

# DFlash: rows of a block see each other and what the target has computed of the text (`drafts/dflash.py`).
DFLASH = LLAMA.derive(
    "dflash",
    options=(
        *WINDOWS[:2], "attention.scale", "attention.value_scale", "embedding_scale",
        "final_logit_softcapping", "logit_scale", "rope.dimension_sections",
    ),
    rope="neox", routing=None, qk_norm="head", sinks="auto", v_is_k=True, output_scale=True, causal=False,
)  # fmt: skip

DRAFT_FAMILIES.known |= {family.name: family for family in (EAGLE3, ASSISTANT, DFLASH)}
