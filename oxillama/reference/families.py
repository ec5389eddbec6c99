"""The computation of each architecture, stated independently of `oxillama.models.families`."""

from __future__ import annotations

from oxillama.reference.facts import Facts
from oxillama.reference.families_base import BERT, GEMMA3, GEMMA4, JINA3, LOCAL, NEOX, PATTERN, PLAIN, WINDOW
from oxillama.reference.families_dense import DENSE
from oxillama.reference.families_experts import WITH_EXPERTS
from oxillama.reference.families_recurrent import RECURRENT

ENCODERS: dict[str, Facts] = {
    "gemma-embedding2": GEMMA4.but(
        encoder=True, plain_windows=False, unadapted=("per_layer_model_proj",), v_is_k=False,
        centred_windows=True, projects_states=True, final_soft_cap=0.0, gating=None, dense_beside="",
    ),
    "llama-embed": PLAIN.but(encoder=True, gating="softmax", skips=("output.weight",)),
    "bert": BERT,
    "jina-bert-v2": BERT.but(positions=False, alibi=8.0, qk_norm="row", optional=("qk_norm",)),
    "jina-bert-v3": JINA3,
    "nomic-bert": JINA3.but(activation="silu"),
    "nomic-bert-moe": JINA3.but(gating="softmax", normalize=False, ignores=("moe_every_n_layers",)),
    "t5encoder": PLAIN.but(
        encoder=True, rope="none", distance_biases=True, activation="gelu", output_norm="enc.output_norm",
        block_prefix="enc.", renamed=(("attn_output", "attn_o"),),
    ),
    "neo-bert": PLAIN.but(encoder=True, output_norm="enc.output_norm"),
    "eurobert": NEOX.but(encoder=True),
    "modern-bert": NEOX.but(
        encoder=True, norm="layer", optional=("attn_norm",), embd_norm=True, activation="gelu",
        window_period=3, full_first=True, centred_windows=True, plain_windows=True, local_base=10000.0,
        options=(WINDOW, PATTERN, LOCAL, "hidden_activation"),
    ),
    "gemma-embedding": GEMMA3.but(encoder=True, centred_windows=True, layers_scaled_by_width=0),
}  # fmt: skip

FAMILIES: dict[str, Facts] = DENSE | WITH_EXPERTS | RECURRENT | ENCODERS
"""Facts by ``general.architecture``."""
