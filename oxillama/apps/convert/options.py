"""Keys of config.json that several families have, read into metadata and sizes (`decoders.Step`)."""

from __future__ import annotations

from typing import Any

from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Sizes, Step
from oxillama.apps.convert.rotation import Metadata, Tensors, refuse_unread, rotation, rotation_of
from oxillama.errors import LoadError


def reads(text: str) -> Step:
    """A step that reads sizes and numbers, one for each line "config key[=default] GGUF key [size]".

    A default with a point is a number's, other values are sizes; a size is also stored under its name.
    """
    lines = [line.split() for line in text.strip().splitlines()]

    def step(config: Config, metadata: Metadata, sizes: Sizes) -> None:
        for place, target, *name in lines:
            key, _, usual = place.partition("=")
            if "." in usual:
                metadata[target] = config.number(key, float(usual))
                continue
            metadata[target] = value = config.size(key, int(usual) if usual else None)
            sizes.update(dict.fromkeys(name, value))

    return step


def stated(**values: Any) -> Step:
    """A step that writes constant metadata; "__" in a name is a point."""
    return lambda config, metadata, sizes: metadata.update(
        {key.replace("__", "."): value for key, value in values.items()}
    )


# --- windows and rotations --------------------------------------------------------------------------


def full_attention(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Raises LoadError if ``layer_types`` names another kind of attention."""
    config.only("layer_types", ["full_attention"] * sizes["layers"])


def no_windows(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Raises LoadError if layers have windows; ``sliding_window`` has an effect with the flag only."""
    config.only("use_sliding_window", False)
    config.ignore("sliding_window")
    full_attention(config, metadata, sizes)


def kinds_of_attention(config: Config, usual: list[bool]) -> list[bool]:
    """Whether each layer has a window: by ``layer_types``, or ``usual`` without that key."""
    known = ("full_attention", "sliding_attention")
    kinds = config.words("layer_types", len(usual), known, [known[has] for has in usual])
    return [kind == "sliding_attention" for kind in kinds]


def every(n: int, sizes: Sizes, full: str = "last") -> list[bool]:
    """Whether each layer has a window where the "first" or the "last" of every n layers has none."""
    return [(i + (full == "last")) % n > 0 for i in range(sizes["layers"])]


def windows(config: Config, metadata: Metadata, usual: list[bool], stated: bool = False) -> None:
    """Writes the window, and which layers have it where these are not the ``usual`` ones.

    ``stated`` : the layers are written in any case.
    """
    has = kinds_of_attention(config, usual)
    if not config.has("sliding_window") or not any(has):
        metadata["attention.sliding_window"] = 0
        return
    metadata["attention.sliding_window"] = config.size("sliding_window")
    if stated or has != usual:
        metadata["attention.sliding_window_pattern"] = has


def one_window(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """All layers have a window if the config states one."""
    if config.has("sliding_window"):
        windows(config, metadata, [True] * sizes["layers"])


def two_rotations(config: Config, metadata: Metadata, dim: int, base: float, local: float | None) -> Tensors:
    """The rotation of layers without windows, and the rotation of layers with windows, which is not scaled.

    ``local`` is the base of the second where the config states none; None for the base of the first.
    """
    both = config.table("rope_parameters")
    if not both.has("full_attention") and not both.has("sliding_attention"):
        made = rotation(config, metadata, dim, base)
        metadata["rope.freq_base_swa"] = local or metadata["rope.freq_base"]
        return made
    inner = both.table("sliding_attention")
    inner.only("rope_type", "default")
    made = rotation_of(both.table("full_attention"), config, metadata, dim, base)
    metadata["rope.freq_base_swa"] = inner.number("rope_theta", local or metadata["rope.freq_base"])
    refuse_unread(both, inner)
    return made


def with_sections(base: float = 10000.0, partial: bool = False) -> Step:
    """The rotation of models that read pictures: sections of a head rotate by the coordinates of a token.

    The coordinates of a token of text are all equal.
    """

    def rotates(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
        found: Any = []
        for key in ("rope_scaling", "rope_parameters"):
            rope = config.table(key)
            found = rope.get("mrope_section", found)
            if rope.values:
                config.values[key] = {
                    name: value
                    for name, value in rope.values.items()
                    if name not in ("mrope_section", "mrope_interleaved") and value != "mrope"
                }
        made = rotation(config, metadata, sizes["dim"], base, partial)
        sizes["rot"] = metadata["rope.dimension_count"]
        pairs = metadata["rope.dimension_count"] // 2
        if not found:
            found = [-(-pairs // 3), (pairs + 1) // 3, pairs // 3]  # the coordinates take turns
        sound = isinstance(found, list) and all(type(n) is int and n >= 0 for n in found)
        if not sound or sum(found) != pairs:
            expected = f"expected three numbers of {pairs} in all"
            raise LoadError(f"{config.name}: mrope_section: {expected}, got {found!r:.60}")
        metadata["rope.dimension_sections"] = [*found, 0]
        return made

    return rotates


def growing_queries(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Queries of Ministral 3 and Mistral 4 grow with the logarithm of the position."""
    key = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    rope = config.table(key).values.copy()
    if not rope:
        raise LoadError(f"{config.name}: rope_parameters: expected those of the model, got none")
    read = Config(rope, f"{config.name}: {key}")
    read.only("max_position_embeddings", metadata["context_length"])
    if read.has("llama_4_scaling_beta"):
        metadata["attention.temperature_scale"] = read.number("llama_4_scaling_beta")
        metadata["attention.temperature_length"] = read.size("original_max_position_embeddings")
    for name in ("max_position_embeddings", "llama_4_scaling_beta"):
        rope.pop(name, None)
    config.values[key] = rope


granite_scales: Step = reads("""
    attention_multiplier=1.0 attention.scale
    embedding_multiplier=1.0 embedding_scale
    residual_multiplier=1.0 residual_scale
    logits_scaling=1.0 logit_scale
""")
"""Granite's factors; ``attention.scale`` replaces 1 / sqrt(head width)."""


# --- experts ----------------------------------------------------------------------------------------


def counts(
    n: str = "num_experts", used: str = "num_experts_per_tok", width: str = "moe_intermediate_size"
) -> Step:
    """A step that reads the number of experts, the experts that a token uses, and their width, by these keys.

    ``width`` is "" where experts are as wide as a dense block.
    """
    lines = f"{n} expert_count experts\n {used} expert_used_count"
    return reads(lines + (f"\n {width} expert_feed_forward_length expert_ff" if width else ""))


softmax, sigmoid = stated(expert_gating_func=1), stated(expert_gating_func=2)
"""Write GGUF's number of the function that makes the weights of experts."""

shared_expert: Step = reads("shared_expert_intermediate_size expert_shared_feed_forward_length shared_ff")
IN_EVERY_LAYER: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
"""Keys of Qwen's configs that say that some layers have no experts (`Decoder.fixed`)."""


def normed_weights(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Whether the weights of the chosen experts are divided by their sum."""
    metadata["expert_weights_norm"] = config.flag("norm_topk_prob")


def set_dense_first(config: Config, metadata: Metadata, sizes: Sizes, n: int) -> None:
    """The first n layers have dense blocks, the others experts."""
    if not 0 <= n < sizes["layers"]:
        raise LoadError(
            f"{config.name}: expected some layers with experts, got {n} dense of {sizes['layers']}"
        )
    metadata["leading_dense_block_count"] = n
    sizes.split([i >= n for i in range(sizes["layers"])], "routed", "dense")


def dense_first(key: str, usual: int) -> Step:
    """A step: ``key`` counts the layers before the first one with experts."""
    return lambda config, metadata, sizes: set_dense_first(
        config, metadata, sizes, config.size(key, usual, least=0)
    )


def stated_kinds(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Raises LoadError if ``mlp_layer_types`` names other dense layers."""
    config.only("mlp_layer_types", ["dense" if dense else "sparse" for dense in sizes.kinds["dense"]])


def shared_experts(key: str) -> Step:
    """A step: ``key`` counts shared experts, which are stored as one expert of their total width."""

    def step(config: Config, metadata: Metadata, sizes: Sizes) -> None:
        n = metadata["expert_shared_count"] = config.size(key, 0, least=0, most=999)
        sizes["shared_ff"] = n * sizes["expert_ff"]
        sizes.kinds["shared"] = [n > 0 and has for has in sizes.kinds["routed"]]

    return step


def expert_weights(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Whether the weights of experts are divided by their sum, their factor, and the groups of the choice."""
    metadata["expert_weights_norm"] = config.flag("norm_topk_prob", True)
    metadata["expert_weights_scale"] = config.number("routed_scaling_factor", 1.0)
    groups = config.size("n_group", 1)
    used = config.size("topk_group", groups)
    if groups > 1:
        metadata["expert_group_count"], metadata["expert_group_used_count"] = groups, used


def deepseek_counts(weights: Step) -> tuple[Step, ...]:
    """Numbers of experts, dense layers and shared experts by the keys of DeepSeek's configs."""
    return (
        counts("n_routed_experts"),
        dense_first("first_k_dense_replace", 0),
        shared_experts("n_shared_experts"),
        weights,
    )


DEEPSEEK_EXPERTS = (*deepseek_counts(sigmoid), expert_weights, stated_kinds)
DEEPSEEK_FIXED: dict[str, Any] = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
"""Experts of DeepSeek 3 and of others with the same keys."""
