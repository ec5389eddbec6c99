"""The facts in which architectures differ, as the reference names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Facts of an architecture. Names of tensors are given without "blk.<i>." and ".weight".

    Attributes
    ----------
    rope : pairs that rotate: "norm" (2i, 2i + 1), "neox" (i, i + n_rot / 2), "none".
    no_rope_every : every n-th layer does not rotate; 0 for none.
    norm : "rms" or "layer".
    norm_weight : norms have weights. Biases of norms, and of matrices, are used where the file has them.
    residual : "sequential", "parallel" (both blocks read the layer's input), or "auto" ("parallel" in a file
        without the second norm), "stated" ("parallel" where the file says so), "post" (norms of blocks follow
        the additions).
    attn_norm, ffn_norm : norms before the blocks, "" for none. first_norm_optional : the first layer may
        lack its first norm.
    attn_post_norm, ffn_post_norm : norms of the blocks' outputs, "" for none.
    qk_norm : norms of q and k: "", "head", "heads" (a weight for each head), "row" (all heads at once),
        "unit" (of each head, without weights).
    qk_norm_last : they come behind the rotation. qk_norm_optional : used if the file has them.
    activation : by its name in `rows.ACTIVATIONS`.
    embedding_scale : factor of embeddings, 0 for sqrt(n_embd). logit_divides : the stated factor divides.
    layers_scaled_by_width : scores of the model with so many layers are divided by sqrt(n_embd / heads),
        those of the others by sqrt(key_dim).
    soft_cap, final_soft_cap : of scores and of logits, unless the file states one.
    window, window_period : default window; n where the last layer of n has none, 0 where all have it, None
        for no windows. full_first : the first of n has none. listed_windows : files that do not list the
        layers with a window have none. fixed_window : the window is ``window`` where the file states one, and
        then every fourth layer does not rotate, from the first on.
    local_base : rotary base of windowed layers; 0 for that of the others.
    plain_windows : rotations of windowed layers have neither a scaling nor a magnitude.
    rope_on_windows_only : layers without a window do not rotate.
    alibi : largest slope exponent of linear biases, 0 without.
    positions : learned position embeddings. embd_norm : a norm of the embeddings.
    sinks : of attention. sinks_optional : where the file has them.
    distance_biases : scores have learned biases by the distance of the positions, and no scale.
    block_prefix, renamed : before the names of layers' tensors, and pairs of usual and stored names in them.
    gating, normalize : of experts; gating None: the family has no experts.
    shared_gate : the shared expert's output is multiplied by a sigmoid.
    latent : attention is that of `latent.LatentHeads`. gain_on_scores : YaRN's magnitude is in the scores.
    residual_depth : the residual scale is this / sqrt(layers), unless the file states one; 0 for 1.
    logit_width : logits are multiplied by this / n_embd, or with ``logit_divides`` divided, unless the file
        states a scale; 0 for 1.
    reads_layer : the router of experts reads the layer's input.
    recurrent : token mixer of layers without key heads (`recurrent.MIXERS`), "" where all attend.
    attends : some layers have key heads.
    beside : layers with key heads have the recurrent mixer, too, and the sum of both. single_blocks : a layer
        is a feed-forward block where the file states a width for it, else a mixer.
    dense_beside : if the file has a dense block beside the experts, the sum of both is multiplied by
        sqrt(1/2).
    score_scale, logit_scale : unless the file states one; 0 for the usual ones.
    beta_fast : of YaRN, unless the file states one.
    ffn_post_norm_optional : another norm behind the second block, which counts if the file has it.
    scales_input : the weight of an expert multiplies its input.
    chunk : layers with a window have chunks of so many positions instead; a stated window of 0 turns them
        off, and then all layers rotate.
    still_grow : rate at which queries of layers that do not rotate grow with their position.
    half_turned : layers without a window rotate half as many dimensions, an even number.
    attn_gate_optional : gates are used if the file has them.
    attn_gate : each attended head, or element, is multiplied by the sigmoid of a gate.
    gated_queries : the rows of q hold a head's query, then a gate, whose sigmoid multiplies what is attended.
    interleaved : value heads take the key heads in turn, and sections of a rotation take the pairs in turn.
    sections : others are taken in order, with pairs (i, i + n_rot / 2): "always" where the file has them,
        "two" where the first two are above 0, "" never.
    eps : of norms, whatever the file states; 0 for what it states. any_eps : under either name.
    longrope : frequencies are divided by factors for short or long contexts, whatever the scaling is called.
    feed_forward : layers have a second block.
    output_norm : name of the last norm, "" for none.
    encoder : there are no logits; positions also see later ones. centred_windows : a window is half before a
        position and half behind.
    token_types : the first row of a table is added to embeddings.
    unbiased : matrices, and norms of q and k, whose biases have no effect.
    unadapted : matrices that adapters do not change, unless they apply everywhere.
    options : those of `source.OPTIONS` that count. ignores : metadata keys that have no effect.
    at_layers : differences of models with so many layers.
    """

    rope: str = "norm"
    no_rope_every: int = 0
    norm: str = "rms"
    norm_weight: bool = True
    residual: str = "sequential"
    attn_norm: str = "attn_norm"
    first_norm_optional: bool = False
    ffn_norm: str = "ffn_norm"
    attn_post_norm: str = ""
    ffn_post_norm: str = ""
    qk_norm: str = ""
    qk_norm_last: bool = False
    qk_norm_optional: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    logit_divides: bool = False
    layers_scaled_by_width: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    window: int = 0
    window_period: int | None = None
    full_first: bool = False
    listed_windows: bool = False
    fixed_window: bool = False
    local_base: float = 0.0
    plain_windows: bool = False
    rope_on_windows_only: bool = False
    alibi: float = 0.0
    positions: bool = False
    embd_norm: bool = False
    sinks: bool = False
    sinks_optional: bool = False
    distance_biases: bool = False
    block_prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    gating: str | None = None
    normalize: bool = True
    shared_gate: bool = False
    latent: bool = False
    gain_on_scores: bool = False
    residual_depth: float = 0.0
    logit_width: int = 0
    reads_layer: bool = False
    recurrent: str = ""
    beside: bool = False
    single_blocks: bool = False
    attends: bool = True
    dense_beside: bool = False
    score_scale: float = 0.0
    logit_scale: float = 0.0
    beta_fast: float = 32.0
    ffn_post_norm_optional: str = ""
    scales_input: bool = False
    chunk: int = 0
    still_grow: float = 0.0
    attn_gate_optional: bool = False
    half_turned: bool = False
    attn_gate: bool = False
    gated_queries: bool = False
    interleaved: bool = False
    sections: str = ""
    eps: float = 0.0
    any_eps: bool = False
    longrope: bool = False
    feed_forward: bool = True
    output_norm: str = "output_norm"
    encoder: bool = False
    centred_windows: bool = False
    token_types: bool = False
    unbiased: tuple[str, ...] = ()
    unadapted: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    at_layers: tuple[tuple[int, dict[str, Any]], ...] = ()

    def but(self, **differences: Any) -> Facts:
        """These facts with differences."""
        return replace(self, **differences)
