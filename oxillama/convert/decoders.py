"""Decoders: from what holds for a family, as data, and a config.json to a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.convert.config import Config, Plan, Wanted
from oxillama.convert.rotation import Metadata, Tensors
from oxillama.errors import LoadError


class Sizes(dict[str, int]):
    """What shapes are written in.

    Attributes
    ----------
    kinds : which layers have the parts of a kind (`Part.only`).
    """

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.kinds: dict[str, list[bool]] = {}


Change = Callable[[np.ndarray, Sizes], np.ndarray]


@dataclass(frozen=True)
class Part:
    """A tensor of each layer.

    Attributes
    ----------
    source, target : its name behind that of the layer, without ".weight"; "{e}" in it stands for an expert.
    shape : of the source, in names of `sizes_of`; a sum as "q+k+v".
    bias : the flag of the config that gives it one, "yes" if it always has one.
    only : the kind of layers that have it (`Sizes.kinds`); "" for all.
    change, becomes : makes the target's values of the source's, and their shape; the same where it is None.
    bare : the names are whole, without a ".weight".
    plain : `Decoder.norm_plus` is not added to it.
    """

    source: str
    target: str
    shape: str
    bias: str = ""
    only: str = ""
    change: Change | None = None
    becomes: str = ""
    bare: bool = False
    plain: bool = False


@dataclass(frozen=True)
class Decoder:
    """What holds for all models of a family.

    Attributes
    ----------
    architecture : its name in GGUF.
    parts : of each layer.
    options : reads what is particular to it into the metadata (and sizes); returns tensors that it makes.
    reordered : heads of q and k rotate as neighbours in GGUF.
    epsilon, layer_norm : the config's key for that of the norms, and whether these are layer norms.
    norm_bias, norm_plus : norms have biases; what is added to their weights.
    activations : values of ``hidden_act`` that the architecture computes.
    tied, biased : what the config's flags are where it does not say: the embedding is the output, and
        matrices have biases.
    copies_tied : GGUF has an output of its own even so.
    defaults : keys that the config class of the family fills in.
    last_norm : the norm before the output.
    drafts : key of the number of blocks for drafting, which are left out.
    """

    architecture: str
    parts: tuple[Part, ...]
    options: Callable[[Config, Metadata, Sizes], Tensors]
    reordered: bool = False
    epsilon: str = "rms_norm_eps"
    layer_norm: bool = False
    norm_bias: bool = False
    norm_plus: float = 0.0
    activations: tuple[str, ...] = ("silu", "swish")
    tied: bool = False
    biased: bool = False
    copies_tied: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()
    last_norm: Part = Part("norm", "output_norm", "d")
    drafts: str = ""


def decoder_plan(family: Decoder, config: Config, n_tensors: int) -> Plan:
    """The plan of a config for a source of so many tensors. Raises LoadError naming what is not supported."""
    for key, value in family.defaults:
        config.values.setdefault(key, value)
    config.only("hidden_act", *family.activations)
    sizes = sizes_of(config)
    check_count("num_hidden_layers", sizes["layers"], n_tensors)
    epsilon = "layer_norm_epsilon" if family.layer_norm else "layer_norm_rms_epsilon"
    metadata: Metadata = {
        "block_count": sizes["layers"],
        "context_length": config.size("max_position_embeddings"),
        "embedding_length": sizes["d"],
        "feed_forward_length": sizes["ff"],
        "attention.head_count": sizes["heads"],
        "attention.head_count_kv": sizes["kv_heads"],
        "attention.key_length": sizes["dim"],
        "attention.value_length": sizes["dim"],
        f"attention.{epsilon}": config.number(family.epsilon),
        "vocab_size": sizes["vocab"],
    }
    made = family.options(config, metadata, sizes)
    check_count("experts of all layers", sizes.get("experts", 1) * sizes["layers"], n_tensors)
    table = ("model.embed_tokens.weight",)
    tensors = [Wanted(table, "token_embd.weight", (sizes["vocab"], sizes["d"]))]
    for i in range(sizes["layers"]):
        for part in family.parts:
            if part.only and not sizes.kinds[part.only][i]:
                continue
            tensors += tensors_of(family, part, config, sizes, f"model.layers.{i}.", f"blk.{i}.")
    tensors += tensors_of(family, family.last_norm, config, sizes, "model.", "")
    ignored = tuple(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(sizes["layers"]))
    if family.drafts and config.has(family.drafts):
        ends = range(sizes["layers"], sizes["layers"] + config.size(family.drafts, 1))
        ignored += tuple(f"model.layers.{i}." for i in ends)
    tied = config.flag("tie_word_embeddings", family.tied)
    if tied:
        ignored += ("lm_head.weight",)  # a copy of the embedding that some write nevertheless
    if not tied or family.copies_tied:
        source = table if tied else ("lm_head.weight",)
        tensors.append(Wanted(source, "output.weight", (sizes["vocab"], sizes["d"])))
    config.refuse_others()
    return Plan(family.architecture, sizes["vocab"], metadata, tensors, made, ignored)


def check_count(what: str, n: int, n_tensors: int) -> None:
    """Raises LoadError for more parts than the source can have: nothing is made for what it only claims."""
    if n > n_tensors:
        raise LoadError(f"config.json: {what}: {n} are more than the {n_tensors} tensors of the source")


def sizes_of(config: Config) -> Sizes:
    """What shapes are written in: widths of the hidden state, of one head and of all, of the feed-forward."""
    d, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    if not config.has("head_dim") and d % heads:
        raise LoadError(f"config.json: hidden_size: {d} is not a multiple of {heads} heads")
    dim = config.size("head_dim", d // heads)
    if dim % 2:
        raise LoadError(f"config.json: head_dim: expected an even number, got {dim}")
    sizes = {
        **{"layers": config.size("num_hidden_layers"), "vocab": config.size("vocab_size"), "one": 1},
        **{"d": d, "ff": config.size("intermediate_size"), "heads": heads, "kv_heads": kv_heads},
        **{"dim": dim, "q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim},
    }
    return Sizes(sizes)


def shape_of(words: str, sizes: Sizes) -> tuple[int, ...]:
    """Numbers for a shape that is written in sizes: "q+k d"."""
    return tuple(sum(sizes[size] for size in dim.split("+")) for dim in words.split())


def tensors_of(
    family: Decoder, part: Part, config: Config, sizes: Sizes, there: str, here: str
) -> list[Wanted]:
    """A part's tensor and its bias; names in the source begin with ``there``, in the target with ``here``."""
    shape = shape_of(part.shape, sizes)
    norm = "norm" in part.target
    experts = [str(e) for e in range(sizes["experts"])] if "{e}" in part.source else [""]
    names = [there + part.source.replace("{e}", e) for e in experts]
    heads = sizes["heads" if part.target == "attn_q" else "kv_heads"]
    heads = heads if family.reordered and part.target in ("attn_q", "attn_k") else 0
    plus = family.norm_plus if norm and not part.plain else 0.0
    change, suffix = part.change, "" if part.bare else ".weight"
    weights = Wanted(
        sources=tuple(name + suffix for name in names),
        target=here + part.target + suffix,
        shape=shape,
        heads=heads,
        plus=plus,
        change=None if change is None else lambda values: change(values, sizes),
        becomes=shape_of(part.becomes, sizes),
    )
    if part.bare:
        return [weights]
    always = family.norm_bias if norm else part.bias == "yes"
    if not always and (norm or not part.bias or not config.flag(part.bias, family.biased)):
        return [weights]
    biases = tuple(f"{name}.bias" for name in names)
    return [weights, Wanted(biases, f"{here}{part.target}.bias", shape[:1], heads)]
