"""Decoders: makes a plan from the facts of a family, as data, and a config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama.convert.config import Config, Packed, Plan, Wanted
from oxillama.convert.rotation import Metadata, Tensors
from oxillama.errors import LoadError


class Sizes(dict[str, int]):
    """The names of sizes that shapes are written in.

    Attributes
    ----------
    kinds : which layers have the parts of a kind (`Part.only`).
    factors : what tensors are multiplied by (`Part.factor`).
    """

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.kinds: dict[str, list[bool]] = {}
        self.factors: dict[str, float] = {}


Change = Callable[[np.ndarray, Sizes], np.ndarray]


@dataclass(frozen=True)
class Part:
    """A tensor of each layer, or of the model outside of its layers.

    Attributes
    ----------
    source, target : its name behind that of the layer, without ".weight"; "{e}" in it stands for an expert.
        Without a target the tensors of this beginning are left out.
    shape : of the source, in names of `sizes_of`; a sum as "q+k+v".
    bias : the flag of the config that gives it one, "yes" if it always has one.
    only : the kind of layers that have it (`Sizes.kinds`); "" for all.
    change, becomes : makes the target's values of the source's, and their shape; the same where it is None.
    bare : the names are whole, without a ".weight".
    plain : `Decoder.norm_plus` is not added to it.
    either : the last two dimensions of the source may be swapped.
    factor : the name of what its values are multiplied by (`Sizes.factors`).
    each : ``change`` is made to each part along the first dimension alone, of shape (1, ...).
    count : the size that says how many stand for "{e}".
    rows : the size that says how many rows a table has in the target, if these are more.
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
    factor: str = ""
    either: bool = False
    each: bool = False
    count: str = "experts"
    rows: str = ""


EMBEDDING = Part("embed_tokens", "token_embd", "vocab d")
HEAD = Part("lm_head", "output", "vocab d")


@dataclass(frozen=True)
class Decoder:
    """The facts of all models of a family.

    Attributes
    ----------
    architecture : its name in GGUF.
    parts : of each layer.
    options : reads the family's own options into the metadata (and sizes); returns tensors that it makes.
    reordered : heads of q and k rotate as neighbours in GGUF.
    epsilon, layer_norm : the config's key for that of the norms, and whether these are layer norms.
    norm_bias, norm_plus : norms have biases; what is added to their weights.
    activations : values of ``hidden_act`` that the architecture computes.
    tied, biased : defaults of the config's flags that the embedding is the output, and that matrices have
        biases.
    copies_tied : GGUF has a separate output even if it is tied.
    defaults : keys that the config class of the family fills in.
    table, head : the embedding, and the output; None where there is none (an encoder).
    last_norm : the norm before the output.
    others : further tensors outside of the layers; they are there if any layer is of their kind.
    inside : beginning of all names but that of the output.
    drafts : key of the number of MTP layers, which are left out.
    left_out : beginnings of other names that carry no weight of the model: towers for images and sound.
    renamed : beginnings of names that some sources have, and the usual ones.
    numbers : keys of metadata, without any prefix, and the tensor of each layer, of one number, behind them.
    packed : makes tensors that keep the format of their sources, for some configs.
    prepare : changes keys of a config to those that are read here.
    chosen : the family that a config belongs to, where it may be another one.
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
    table: Part = EMBEDDING
    head: Part | None = HEAD
    last_norm: Part = Part("norm", "output_norm", "d")
    others: tuple[Part, ...] = ()
    inside: str = "model."
    drafts: str = ""
    left_out: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    packed: Callable[[Config, Sizes], list[Packed]] | None = None
    prepare: Callable[[Config], None] | None = None
    chosen: Callable[[Config], Decoder] | None = None


def decoder_plan(family: Decoder, config: Config, n_tensors: int) -> Plan:
    """The plan of a config for a source of so many tensors. Raises LoadError naming what is not supported."""
    if family.chosen is not None:
        family = family.chosen(config)
    if family.prepare is not None:
        family.prepare(config)
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
    if any("{e}" in part.source for part in family.parts):  # otherwise they are stacked in the source, too
        check_count("experts of all layers", sizes.get("experts", 1) * sizes["layers"], n_tensors)
    tensors: list[Wanted] = []
    ignored: list[str] = []

    def add(part: Part, there: str, here: str) -> None:
        if part.target:
            tensors.extend(tensors_of(family, part, config, sizes, there, here))
        else:
            ignored.append(there + part.source)

    add(family.table, family.inside, "")
    for i in range(sizes["layers"]):
        for part in family.parts:
            if not part.only or sizes.kinds[part.only][i]:
                add(part, f"{family.inside}layers.{i}.", f"blk.{i}.")
        ignored.append(f"{family.inside}layers.{i}.self_attn.rotary_emb.inv_freq")
    for part in (family.last_norm, *family.others):
        if not part.only or any(sizes.kinds[part.only]):
            add(part, family.inside, "")
    if family.drafts and config.has(family.drafts):
        ends = range(sizes["layers"], sizes["layers"] + config.size(family.drafts, 1))
        ignored += [f"{family.inside}layers.{i}." for i in ends]
    tied = config.flag("tie_word_embeddings", family.tied)
    if family.head is not None:
        if tied:
            ignored.append("lm_head.weight")  # a copy of the embedding that some write nevertheless
        if not tied:
            add(family.head, "", "")
        elif family.copies_tied:
            add(replace(family.head, source=family.table.source), family.inside, "")
    numbers = {
        key: tuple(f"{family.inside}layers.{i}.{name}" for i in range(sizes["layers"]))
        for key, name in family.numbers
    }
    packed = family.packed(config, sizes) if family.packed else []
    config.refuse_others()
    return Plan(
        family.architecture,
        sizes["vocab"],
        metadata,
        tensors,
        packed,
        made,
        numbers,
        (*ignored, *family.left_out),
        family.renamed,
    )


def check_count(what: str, n: int, n_tensors: int) -> None:
    """Raises LoadError if a config claims more parts than the source has tensors."""
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
        **{"d": d, "ff": config.same_size("intermediate_size"), "heads": heads, "kv_heads": kv_heads},
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
    experts = [str(e) for e in range(sizes[part.count])] if "{e}" in part.source else [""]
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
        rows=sizes[part.rows] if part.rows else 0,
        each=part.each,
        either=part.either,
        factor=sizes.factors[part.factor] if part.factor else 1.0,
    )
    if part.bare:
        return [weights]
    always = family.norm_bias if norm else part.bias == "yes"
    if not always and (norm or not part.bias or not config.flag(part.bias, family.biased)):
        return [weights]
    biases = tuple(f"{name}.bias" for name in names)
    return [weights, Wanted(biases, f"{here}{part.target}.bias", shape[:1], heads)]
