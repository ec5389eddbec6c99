"""The facts in which architectures differ, as the reference names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Facts of an architecture, by operation. Names of tensors are given without "blk.<i>." and ".weight".

    Attributes
    ----------
    The layer: norms, additions, scales:

    norm : "rms" or "layer". norm_weight : norms have weights. Their biases, and those of matrices, are used
        where the file has them.
    eps : of norms, whatever the file states; 0 for what it states. any_eps : under either name.
    residual : "sequential", "parallel" (both blocks read the layer's input), or "auto" ("parallel" in a file
        without the second norm), "stated" ("parallel" where the file says so), "post" (norms of blocks follow
        the additions).
    attn_norm, ffn_norm : norms before the blocks, "" for none.
    attn_post_norm, ffn_post_norm : norms of the blocks' outputs, "" for none.
    ffn_post_norm_optional : another norm behind the second block, which counts if the file has it.
    feed_forward : layers have a second block. single_blocks : a layer is a feed-forward block where the file
        states a width for it, else a mixer.
    output_scale : what leaves a layer is multiplied by a number of the file, if it has one.
    streams : four streams of hidden states, of which one goes through the blocks (`streams`).
    residual_depth : the residual scale is this / sqrt(layers), unless the file states one; 0 for 1.

    Embeddings and logits:

    embedding_scale : factor of embeddings, 0 for sqrt(n_embd). embd_norm : a norm of the embeddings.
    positions : learned position embeddings. token_types : the first row of a table is added to embeddings.
    output_norm : name of the last norm, "" for none.
    logit_scale : unless the file states one; 0 for 1. logit_divides : the scale divides.
    logit_width : logits are multiplied by this / n_embd, or with ``logit_divides`` divided, unless the file
        states a scale; 0 for 1.
    final_soft_cap : of logits, unless the file states one.
    encoder : there are no logits; positions also see later ones.

    Rotations:

    rope : pairs that rotate: "norm" (2i, 2i + 1), "neox" (i, i + n_rot / 2), "none".
    no_rope_every : every n-th layer does not rotate; 0 for none. rope_on_windows_only : layers without a
        window do not. half_turned : they rotate half as many dimensions, an even number.
    local_base : rotary base of windowed layers; 0 for that of the others. plain_windows : their rotations
        have neither a scaling, nor factors, nor a magnitude.
    longrope : frequencies are divided by factors for short or long contexts, whatever the scaling is called.
    beta_fast : of YaRN, unless the file states one. gain_on_scores : YaRN's magnitude is in the scores.
    sections : pairs are taken in order, with pairs (i, i + n_rot / 2): "always" where the file has sections,
        "two" where the first two are above 0, "" never. interleaved : sections take the pairs in turn, and
        value heads the key heads.

    Windows:

    window, window_period : default window; n where the last layer of n has none, 0 where all have it, None
        for no windows. full_first : the first of n has none. listed_windows : files that do not list the
        layers with a window have none. fixed_window : the window is ``window`` where the file states one, and
        then every fourth layer does not rotate, from the first on.
    centred_windows : a window is half before a position and half behind.
    chunk : layers with a window have chunks of so many positions instead; a stated window of 0 turns them
        off, and then all layers rotate.

    Attention:

    qk_norm : norms of q and k: "", "head", "heads" (a weight for each head), "row" (all heads at once),
        "unit" (of each head, without weights). qk_norm_last : they come behind the rotation.
    v_norm : each head of v is normed, without weights. v_is_k : in layers without a matrix of v, v is k
        before its norm and its rotation.
    own_kv : so many layers have keys and values of their own, unless the file states how many share those of
        earlier ones; 0 for all.
    score_scale : unless the file states one; 0 for 1 / sqrt(key_dim). layers_scaled_by_width : scores of the
        model with so many layers are divided by sqrt(n_embd / heads).
    soft_cap : of scores, unless the file states one.
    alibi : largest slope exponent of linear biases, 0 without. distance_biases : scores have learned biases
        by the distance of the positions, and no scale.
    sinks : one more score for each head.
    still_grow : rate at which queries of layers that do not rotate grow with their position.
    attn_gate : each attended head, or element, is multiplied by the sigmoid of a gate. gated_queries : the
        rows of q hold a head's query, then a gate, whose sigmoid multiplies what is attended.
    latent : attention is that of `latent.LatentHeads`. selector : a selector beside it chooses positions,
        with pairs that rotate as ``rope`` has it; "" for none.

    Feed-forward blocks and experts:

    activation : by its name in `rows.ACTIVATIONS`.
    cut_gates : (n, s): gates of the first n layers are cut s deviations above their mean (`rows.cut`), unless
        the file states a number for each layer.
    gating, normalize : of experts; gating None: the family has no experts.
    shared_gate : the shared expert's output is multiplied by a sigmoid.
    reads_layer : the router of experts reads the layer's input. scales_input : the weight of an expert
        multiplies its input.
    dense_beside : a dense block beside the experts: "scaled": if the file has one, the sum of both is
        multiplied by sqrt(1/2); "normed": both have norms of their own (`experts.dense_and_experts`).

    Recurrences:

    recurrent : token mixer of layers without key heads (`recurrent.MIXERS`), "" where all attend.
    attends : some layers have key heads. beside : these have the recurrent mixer, too, and the sum of both.

    The file:

    block_prefix, renamed : before the names of layers' tensors, and pairs of usual and stored names in them.
    optional : of "qk_norm", "sinks", "attn_gate", and "attn_norm" of the first layer, those that count if the
        file has them.
    unbiased : matrices, and norms of q and k, whose biases have no effect. unscaled : matrices beside which
        ``.scale`` is something else than a factor of their products.
    unadapted : matrices that adapters do not change, unless they apply everywhere.
    options : those of `source.OPTIONS` that count. ignores : metadata keys that have no effect.
    at_layers : differences of models with so many layers.
    """

    # the layer: norms, additions, scales
    norm: str = "rms"
    norm_weight: bool = True
    eps: float = 0.0
    any_eps: bool = False
    residual: str = "sequential"
    attn_norm: str = "attn_norm"
    ffn_norm: str = "ffn_norm"
    attn_post_norm: str = ""
    ffn_post_norm: str = ""
    ffn_post_norm_optional: str = ""
    feed_forward: bool = True
    single_blocks: bool = False
    output_scale: bool = False
    streams: bool = False
    residual_depth: float = 0.0
    # embeddings and logits
    embedding_scale: float = 1.0
    embd_norm: bool = False
    positions: bool = False
    token_types: bool = False
    output_norm: str = "output_norm"
    logit_scale: float = 0.0
    logit_divides: bool = False
    logit_width: int = 0
    final_soft_cap: float = 0.0
    encoder: bool = False
    # rotations
    rope: str = "norm"
    no_rope_every: int = 0
    rope_on_windows_only: bool = False
    half_turned: bool = False
    local_base: float = 0.0
    plain_windows: bool = False
    longrope: bool = False
    beta_fast: float = 32.0
    gain_on_scores: bool = False
    sections: str = ""
    interleaved: bool = False
    # windows
    window: int = 0
    window_period: int | None = None
    full_first: bool = False
    listed_windows: bool = False
    fixed_window: bool = False
    centred_windows: bool = False
    chunk: int = 0
    # attention
    qk_norm: str = ""
    qk_norm_last: bool = False
    v_norm: bool = False
    v_is_k: bool = False
    own_kv: int = 0
    score_scale: float = 0.0
    layers_scaled_by_width: int = 0
    soft_cap: float = 0.0
    alibi: float = 0.0
    distance_biases: bool = False
    sinks: bool = False
    still_grow: float = 0.0
    attn_gate: bool = False
    gated_queries: bool = False
    latent: bool = False
    selector: str = ""
    # feed-forward blocks and experts
    activation: str = "silu"
    cut_gates: tuple[int, float] = (0, 0.0)
    gating: str | None = None
    normalize: bool = True
    shared_gate: bool = False
    reads_layer: bool = False
    scales_input: bool = False
    dense_beside: str = ""
    # recurrences
    recurrent: str = ""
    attends: bool = True
    beside: bool = False
    # the file
    block_prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    optional: tuple[str, ...] = ()
    unbiased: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    unadapted: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    at_layers: tuple[tuple[int, dict[str, Any]], ...] = ()

    def but(self, **differences: Any) -> Facts:
        """These facts with differences."""
        return replace(self, **differences)
