"""The particular options of families of decoders: keys of config.json, read into metadata and sizes.

Each function takes the config, the metadata, to which it adds, and the sizes that shapes are written in; it
returns tensors that come from the config alone (factors of the rotation).
"""

from __future__ import annotations

from typing import Any

from oxillama.convert.config import Config
from oxillama.convert.decoders import Sizes
from oxillama.convert.rotation import Metadata, Tensors, refuse_unread, rotation, rotation_of
from oxillama.errors import LoadError


def kinds_of_attention(config: Config, usual: list[bool]) -> list[bool]:
    """Which layers have windows: by ``layer_types``, or as is ``usual``."""
    known = ("full_attention", "sliding_attention")
    kinds = config.words("layer_types", len(usual), known, [known[has] for has in usual])
    return [kind == "sliding_attention" for kind in kinds]


def windows(config: Config, metadata: Metadata, usual: list[bool], stated: bool = False) -> None:
    """Writes the window of layers and, where they are not the ``usual`` ones (or are to be ``stated``), which
    layers have it; ``layer_types`` wins over what is usual."""
    has = kinds_of_attention(config, usual)
    if not config.has("sliding_window") or not any(has):
        metadata["attention.sliding_window"] = 0
        return
    metadata["attention.sliding_window"] = config.size("sliding_window")
    if stated or has != usual:
        metadata["attention.sliding_window_pattern"] = has


def without_windows(config: Config, sizes: Sizes) -> None:
    """Raises LoadError if layers have windows."""
    config.only("use_sliding_window", False)
    config.ignore("sliding_window")  # without the flag it is only a number
    config.only("layer_types", ["full_attention"] * sizes["layers"])


def two_rotations(config: Config, metadata: Metadata, dim: int, base: float, local: float | None) -> Tensors:
    """A rotation of layers that see everything, and one without scaling of those with windows: its base is
    ``local`` (None: the other's) where the config does not say."""
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


def llama(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    if config.has("sliding_window"):
        windows(config, metadata, [True] * sizes["layers"])
    return rotation(config, metadata, sizes["dim"])


def counts(
    config: Config,
    metadata: Metadata,
    sizes: Sizes,
    n: str = "num_experts",
    used: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
) -> None:
    """How many experts, how many a token uses, and their width, by the config's keys; ``width`` is "" where
    it is that of a dense block."""
    sizes["experts"] = metadata["expert_count"] = config.size(n)
    metadata["expert_used_count"] = config.size(used)
    if width:
        sizes["expert_ff"] = metadata["expert_feed_forward_length"] = config.size(width)


def in_every_layer(config: Config) -> None:
    """Raises LoadError if some of Qwen's layers have no experts."""
    config.require(decoder_sparse_step=1, mlp_only_layers=[])


def shared_expert(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The width of Qwen's shared expert."""
    width = config.size("shared_expert_intermediate_size")
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = width


def mixtral(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    counts(config, metadata, sizes, "num_local_experts", width="")
    return llama(config, metadata, sizes)


def qwen(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    without_windows(config, sizes)
    return rotation(config, metadata, sizes["dim"])


def qwen2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.ignore("attention_bias")  # there always are those of q, k and v, and no other
    return qwen(config, metadata, sizes)


def many_experts(config: Config, metadata: Metadata, sizes: Sizes, width: str) -> None:
    """Experts of a width of their own in every layer."""
    counts(config, metadata, sizes, width=width)
    metadata["expert_weights_norm"] = config.flag("norm_topk_prob")
    in_every_layer(config)


def qwen_experts(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    many_experts(config, metadata, sizes, "moe_intermediate_size")
    return qwen(config, metadata, sizes)


def qwen2_vl(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The epsilon of the norms is not read from files of this architecture, as in llama.cpp."""
    config.only("rms_norm_eps", 1e-6)
    return qwen2(config, metadata, sizes)


def qwen2_experts(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.ignore("attention_bias")
    shared_expert(config, metadata, sizes)
    return qwen_experts(config, metadata, sizes)


def olmoe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    many_experts(config, metadata, sizes, "intermediate_size")
    if config.has("clip_qkv"):
        metadata["attention.clamp_kqv"] = config.number("clip_qkv")
    return rotation(config, metadata, sizes["dim"])


def olmo2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.only("layer_types", ["full_attention"] * sizes["layers"])
    return rotation(config, metadata, sizes["dim"])


def olmo3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """OLMo 2 with windows on three layers of four, which rotate without scaling."""
    windows(config, metadata, [i % 4 < 3 for i in range(sizes["layers"])], stated=True)
    return two_rotations(config, metadata, sizes["dim"], 500000.0, None)


def gemma(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.only("hidden_activation", "gelu_pytorch_tanh")
    return rotation(config, metadata, sizes["dim"])


def gemma_scores(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The factors and soft caps of scores and logits in Gemma 2 and 3."""
    config.only("hidden_activation", "gelu_pytorch_tanh")
    asked = config.number("query_pre_attn_scalar")
    if asked != sizes["dim"]:
        metadata["attention.scale"] = asked**-0.5
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        metadata[key] = config.number(key) if config.has(key) else 0.0


def gemma2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    gemma_scores(config, metadata, sizes)
    windows(config, metadata, [i % 2 == 0 for i in range(sizes["layers"])])
    return rotation(config, metadata, sizes["dim"])


def gemma3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Windowed layers have a base of their own and no scaling."""
    gemma_scores(config, metadata, sizes)
    if metadata.pop("attn_logit_softcapping"):
        raise LoadError("config.json: attn_logit_softcapping: is not supported of Gemma 3")
    period = config.size("sliding_window_pattern", 6)
    usual = [(i + 1) % period > 0 for i in range(sizes["layers"])]
    windows(config, metadata, usual, stated=period != 6)
    local = config.number("rope_local_base_freq", 10000.0)
    return two_rotations(config, metadata, sizes["dim"], 1e6, local)


def gemma_embedding(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Gemma 3 with attention both ways, and windows as much before a token as behind it."""
    if not config.flag("use_bidirectional_attention"):
        raise LoadError(f"{config.name}: use_bidirectional_attention: expected true of an encoder, got false")
    return gemma3(config, metadata, sizes)


def phi3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """A window is stated layer by layer. One that is not is ignored, for files of other makers state windows
    that do not count."""
    if config.has("sliding_window") and config.size("sliding_window") < metadata["context_length"]:
        windows(config, metadata, [True] * sizes["layers"], stated=True)
    if config.has("original_max_position_embeddings"):
        original = config.size("original_max_position_embeddings")
        metadata["rope.scaling.original_context_length"] = original
    return rotation(config, metadata, sizes["dim"], partial=True)


def starcoder2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.require(mlp_type="default", norm_type="layer_norm")
    return llama(config, metadata, sizes)


def partial_rotation(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Some dimensions of a head rotate."""
    return rotation(config, metadata, sizes["dim"], partial=True)


def glm_ocr(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.only("attention_bias", False)
    made = partial_rotation(config, metadata, sizes)
    sizes["rot"] = metadata["rope.dimension_count"]
    return made


def smollm3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Every fourth layer does not rotate, which GGUF cannot express."""
    without_windows(config, sizes)
    turning = [int((i + 1) % 4 > 0) for i in range(sizes["layers"])]
    config.require(no_rope_layers=turning, no_rope_layer_interval=4)
    return rotation(config, metadata, sizes["dim"], 2e6)


def seed_oss(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.only("attention_out_bias", False)
    config.ignore("residual_dropout")
    return rotation(config, metadata, sizes["dim"])


def ernie(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.only("use_bias", False)
    return rotation(config, metadata, sizes["dim"])


def granite(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    granite_scales(config, metadata)
    return rotation(config, metadata, sizes["dim"])


def granite_scales(config: Config, metadata: Metadata) -> None:
    """Granite's factors; that of scores takes the place of the root of the width."""
    metadata["attention.scale"] = config.number("attention_multiplier", 1.0)
    metadata["embedding_scale"] = config.number("embedding_multiplier", 1.0)
    metadata["residual_scale"] = config.number("residual_multiplier", 1.0)
    metadata["logit_scale"] = config.number("logits_scaling", 1.0)


def apertus(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The class fills in a rotation: Llama 3's with a factor of 8."""
    usual = {
        **{"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    }
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config.values["rope_parameters"] = usual
    config.ignore("post_norm", "qk_norm")  # which the class does not read
    return rotation(config, metadata, sizes["dim"], 12e6)


def jais2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    config.require(attention_bias=True, mlp_bias=True)
    return rotation(config, metadata, sizes["dim"])


def with_sections(inner: Any, config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Qwen's models that see rotate by coordinates of images; those of a text are equal."""
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
    made: Tensors = inner(config, metadata, sizes)
    pairs = metadata["rope.dimension_count"] // 2
    if not found:
        found = [-(-pairs // 3), (pairs + 1) // 3, pairs // 3]  # pairs take turns
    if not isinstance(found, list) or any(type(n) is not int or n < 0 for n in found) or sum(found) != pairs:
        raise LoadError(
            f"{config.name}: mrope_section: expected three numbers of {pairs} in all, got {found!r:.60}"
        )
    metadata["rope.dimension_sections"] = [*found, 0]
    return made


def many_experts_of_sight(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Qwen 3's experts; the weights of the chosen ones always sum to 1."""
    key = "num_local_experts" if config.has("num_local_experts") else "num_experts"
    config.ignore("num_experts")
    counts(config, metadata, sizes, key)
    config.only("norm_topk_prob", True)
    in_every_layer(config)
    return with_sections(qwen, config, metadata, sizes)


def sharpened(config: Config, metadata: Metadata) -> None:
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


def ministral3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    sharpened(config, metadata)
    config.only("sliding_window")
    return rotation(config, metadata, sizes["dim"], 1e6)
