"""The facts that distinguish architectures, in the reference's terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Facts of an architecture, by operation. Names of tensors omit "blk.<i>." and ".weight".

    Attributes:
        norm: "rms", "layer", or "stated" ("rms" in files that state its epsilon).
        norm_weight: whether norms have weights. Biases of norms and matrices are used if the file has them.
        eps: epsilon of norms, whatever the file states; 0: the file's.
        any_eps: stated under either name.
        post_norm_eps: epsilon of norms of blocks' outputs; 0: the same.
        grouped_norms: slices of a row are normed apart, as many as the file states.
        sub_norms: the inputs of attn_output and ffn_down are normed.
        residual: "sequential", "parallel" (both blocks read the layer's input), "normed" (a block's normed
            input times the residual scale is added to its output), "auto" ("parallel" in a file without the
            second norm), "stated" ("parallel" if the file says so), or "post" (norms of blocks follow the
            additions).
        attn_norm, ffn_norm: norms before the blocks; "": none.
        attn_post_norm, ffn_post_norm: norms of the blocks' outputs; "": none.
        ffn_post_norm_optional: another norm after the second block, used if the file has it.
        idle_layers: a layer without key heads has one matrix instead of attention, without query heads no
            mixer; a layer whose width is 0 has no effect.
        swin: a file may state that norms follow the blocks, and that the second block reads the first one's
            output.
        feed_forward: whether layers have a second block.
        single_blocks: a layer is a feed-forward block if the file states a width for it, else a mixer.
        output_scale: whether a layer's output is multiplied by a number of the file, if present.
        streams: of hidden states: "altup", four, one of which passes the blocks (`streams`); "connected"
            (`connections`); "gated" (`gated_streams`); "banked" (`banked`), if the file states a period; "":
            one.
        residual_depth: the residual scale is this / sqrt(layers), unless the file states a scale; 0: scale 1.
        embedding_scale: factor of embeddings; 0: sqrt(n_embd).
        embd_norm: a norm of the embeddings.
        plain_embd_norm: without weights.
        positions: learned position embeddings.
        token_types: the first row of a table is added to embeddings.
        output_norm: name of the last norm; "": none.
        logit_scale: unless the file states a scale; 0: 1.
        logit_divides: logits are divided by the scale.
        logit_width: logits are multiplied by this / n_embd (with ``logit_divides`` divided by it), unless the
            file states a scale; 0: 1.
        hidden_tokens: the first token whose logit is the lowest float32, and the one after the last; ():
            none.
        adds_embedding: ``layer_output_scale`` times the first layer's input is added after each layer.
        stacks: passes through the layers: "loops" or "hrm" (`stacks.passes`); "": one.
        projects_states: the last hidden states are multiplied by the matrix "output".
        switched: tokens of the text choose adapters (`switch`).
        final_soft_cap: soft cap of logits, unless the file states one.
        encoder: there are no logits; positions also see later ones.
        classifier: the token whose hidden state the head of a reranker reads, "cls" (the first) or "last"; ""
            for families without such a head.
        rope: pairs that rotate: "norm" (2i, 2i + 1), "neox" (i, i + n_rot / 2), "none".
        no_rope_every: every n-th layer does not rotate; 0: all rotate.
        rope_on_windows_only: only layers with a window rotate.
        dense_turn: so do the dense layers before the experts.
        half_turned: layers without a window rotate half as many dimensions, an even number.
        local_base: rotary base of windowed layers; 0: the same as other layers.
        plain_windows: their rotations have no scaling, factors or magnitude.
        any_alpha: the base grows by ``rope.scaling.alpha`` beside any scaling.
        fixed_base: whole heads rotate from this base, without scaling; 0: as the file states.
        longrope: frequencies are divided by factors for short or long contexts, whatever the scaling's name.
        beta_fast: YaRN's, unless the file states it.
        gain_on_scores: YaRN's magnitude multiplies the scores.
        sections: pairs (i, i + n_rot / 2) are taken in order: "always" if the file has sections, "two" if the
            first two are positive, "" never.
        interleaved: sections take the pairs in turn, and value heads take the key heads in turn.
        window, window_period: default window; in each period of n layers the last has no window, 0: all
            layers have one, None: no windows.
        full_first: the first of n has none.
        listed_windows: files that do not list the layers with a window have no windows.
        fixed_window: if the file states a window it is ``window``, and then every fourth layer from the first
            on does not rotate.
        centred_windows: a window extends half before and half after a position.
        chunk: layers with a window have chunks of this many positions instead; a stated window of 0 turns
            them off, and then all layers rotate.
        qk_norm: norms of q and k: "", "head", "heads" (a weight for each head), "row" (all heads at once),
            "unit" (each head, without weights), "gain" (the same, then a factor for each head of q), "layer"
            (layer norms with epsilon 1e-5, a weight and perhaps a bias for each head).
        qk_norm_last: the norms follow the rotation.
        v_norm: each head of v is normed, without weights.
        v_is_k: in layers without a matrix of v, v is k before its norm and rotation.
        own_kv: number of layers with their own keys and values, unless the file states how many share an
            earlier layer's; 0: all.
        scaled_by_width: scores are divided by key_dim, not by its root.
        score_scale: unless the file states one; 0: 1 / sqrt(key_dim).
        layers_scaled_by_width: in the model with this many layers, scores are divided by sqrt(n_embd /
            heads).
        soft_cap: soft cap of scores, unless the file states one.
        alibi: largest slope exponent of linear biases; 0: none.
        distance_biases: scores have learned biases by distance, and no scale.
        sinks: each head has one more score.
        still_grow: rate at which queries of layers without rotation grow with their position.
        attn_gate: each head's output, or element, is multiplied by a gate.
        gate_activation: of it, the sigmoid, "softplus", or "softplus2" (softplus(g ln 2) / ln 2).
        gated_queries: the rows of q hold a head's query, then a gate, whose sigmoid multiplies the attention
            output.
        latent: attention is `latent.LatentHeads`.
        local_latent: of other sizes in layers with a window.
        compressed: attention is `compressed.attention`.
        blocked: layers whose block size the file states see blocks of positions
            (`blocks_of_tokens.mean_lists`).
        sparse: layers behind the dense ones see blocks of positions (`sparse.head_blocks`).
        selector: a selector chooses positions for it, with pairs that rotate as in ``rope``, or, "last", the
            last dimensions, by the norms' epsilon; "pooled": it chooses blocks
            (`blocks_of_tokens.pooled_lists`); "": none.
        activation: a name in `rows.ACTIVATIONS`, unless the file states one.
        cut_gates: (n, s): gates of the first n layers are cut s deviations above their mean (`rows.cut`),
            unless the file states a number for each layer.
        delta_gate: activation of the gates of the delta rule's outputs.
        copies_limits: limits of routed experts also hold for shared experts if the file states none for
            those.
        limits_gates: limits apply to gates before their activation.
        gating, normalize: of experts; gating None: the family has no experts.
        mean_with_shared: the sum of routed and shared experts is halved.
        shared_gate: the shared expert's output is multiplied by a sigmoid.
        reads_layer: the router of experts reads the layer's input.
        scales_input: the weight of an expert multiplies its input.
        dense_beside: a dense block parallel to the experts: "scaled": if the file has it, the sum of both is
            multiplied by sqrt(1/2); "normed": both have their own norms (`experts.dense_and_experts`);
            "input": the experts read the layer's input after a norm.
        chunks: chunk experts follow the experts (`experts.chunk_experts`).
        unit_eps: epsilon of the lengths of q and k in Kimi's delta rule; 0: the norms'.
        recurrent: token mixer of layers without key heads (`recurrent.MIXERS`); "": all layers have
            attention.
        interval: every so many layers one attends, unless the file says which; 0: the file says it by key
            heads.
        dense_second: the second block of an RWKV is dense, and norms of heads are used if the file has them.
        attends: some layers have key heads.
        beside: these also have the recurrent mixer; both outputs are added.
        block_prefix, renamed: prefix of the names of layers' tensors, and (usual, stored) pairs of names.
        optional: features among "qk_norm", "sinks", "attn_gate", "positions", and "attn_norm" of the first
            layer that are used if the file has them.
        skips: names (as patterns) of tensors that are not used.
        unbiased: matrices, and norms of q and k, whose biases have no effect.
        unscaled: matrices whose ``.scale`` is not a factor of their products.
        unadapted: matrices that adapters do not change, unless they apply everywhere.
        options: metadata keys of `source.OPTIONS` that count.
        ignores: metadata keys without an effect.
        at_layers: different facts of models with a given number of layers.
    """

    # the layer: norms, additions, scales
    norm: str = "rms"
    norm_weight: bool = True
    eps: float = 0.0
    any_eps: bool = False
    post_norm_eps: float = 0.0
    grouped_norms: bool = False
    sub_norms: bool = False
    residual: str = "sequential"
    attn_norm: str = "attn_norm"
    ffn_norm: str = "ffn_norm"
    attn_post_norm: str = ""
    ffn_post_norm: str = ""
    ffn_post_norm_optional: str = ""
    idle_layers: bool = False
    swin: bool = False
    feed_forward: bool = True
    single_blocks: bool = False
    output_scale: bool = False
    streams: str = ""
    residual_depth: float = 0.0
    # embeddings and logits
    embedding_scale: float = 1.0
    embd_norm: bool = False
    plain_embd_norm: bool = False
    positions: bool = False
    token_types: bool = False
    output_norm: str = "output_norm"
    logit_scale: float = 0.0
    logit_divides: bool = False
    logit_width: int = 0
    hidden_tokens: tuple[int, ...] = ()
    adds_embedding: bool = False
    stacks: str = ""
    projects_states: bool = False
    switched: bool = False
    final_soft_cap: float = 0.0
    encoder: bool = False
    classifier: str = ""
    # rotations
    rope: str = "norm"
    no_rope_every: int = 0
    rope_on_windows_only: bool = False
    dense_turn: bool = False
    half_turned: bool = False
    local_base: float = 0.0
    plain_windows: bool = False
    any_alpha: bool = False
    fixed_base: float = 0.0
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
    scaled_by_width: bool = False
    score_scale: float = 0.0
    layers_scaled_by_width: int = 0
    soft_cap: float = 0.0
    alibi: float = 0.0
    distance_biases: bool = False
    sinks: bool = False
    still_grow: float = 0.0
    attn_gate: bool = False
    gate_activation: str = "sigmoid"
    gated_queries: bool = False
    latent: bool = False
    local_latent: bool = False
    compressed: bool = False
    blocked: bool = False
    sparse: bool = False
    selector: str = ""
    # feed-forward blocks and experts
    activation: str = "silu"
    cut_gates: tuple[int, float] = (0, 0.0)
    delta_gate: str = "silu"
    copies_limits: bool = False
    limits_gates: bool = False
    gating: str | None = None
    normalize: bool = True
    mean_with_shared: bool = False
    shared_gate: bool = False
    reads_layer: bool = False
    scales_input: bool = False
    dense_beside: str = ""
    chunks: bool = False
    # recurrences
    unit_eps: float = 0.0
    recurrent: str = ""
    interval: int = 0
    dense_second: bool = False
    attends: bool = True
    beside: bool = False
    # the file
    block_prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    optional: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()
    unbiased: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    unadapted: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    at_layers: tuple[tuple[int, dict[str, Any]], ...] = ()

    def but(self, **differences: Any) -> Facts:
        """A copy of these facts with differences."""
        return replace(self, **differences)
