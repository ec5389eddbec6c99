"""Decoders: makes a plan from a config.json and from the facts of a family, which are data.

The GGUF architecture determines the kind of the norms, the activation, and whether there is an output matrix:
these facts come from `oxillama.models.families`. A `Decoder` adds the names of a Hugging Face class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.apps.convert.config import Config, Packed, Plan, Wanted
from oxillama.apps.convert.rotation import Metadata, Tensors, rotation
from oxillama.apps.convert.tables import Part, table
from oxillama.errors import LoadError
from oxillama.models.family import Family
from oxillama.models.registry import FAMILIES


class Sizes(dict[str, int]):
    """Sizes by name, in which the shapes of parts are written.

    Attributes:
        kinds: by kind of layer (`Part.only`), which layers are of this kind.
        factors: by name (`Part.factor`), the number that multiplies a tensor.
    """

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.kinds: dict[str, list[bool]] = {}
        self.factors: dict[str, float] = {}

    def split(self, flags: bool | list[bool], yes: str, no: str = "") -> None:
        """Layers with a true flag are of the kind ``yes``, the others of the kind ``no``."""
        flags = [flags] * self["layers"] if isinstance(flags, bool) else flags
        self.kinds[yes] = flags
        if no:
            self.kinds[no] = [not flag for flag in flags]


Step = Callable[[Config, Metadata, Sizes], Tensors | None]
"""Reads some keys of a config into the metadata and the sizes; may return tensors of the target."""

EMBEDDING = Part("embed_tokens", "token_embd", "vocab d")
LAST = table("norm output_norm d")
HEAD = Part("lm_head", "output", "vocab d")
ACTIVATIONS: dict[str, Any] = {
    **dict.fromkeys(("silu", "silu_clamped"), ("silu", "swish")),
    "gelu": ("gelu_pytorch_tanh",),
    "relu_squared": ("relu2",),
    "xielu": ("xielu",),
}
"""Values of ``hidden_act`` by the activation of a family of models."""


@dataclass(frozen=True)
class Decoder:
    """The facts of the models of a Hugging Face class.

    Attributes:
        names: names of the class in ``architectures``, and then the ``model_type``, separated by spaces.
        architecture: name of the family in GGUF.
        parts: tensors of each layer.
        steps: read the keys of the class in this order.
        base: base of the rotation of configs that state none.
        partial: only a share of the dimensions of a head may rotate.
        rotates: reads the rotation, in place of `rotation` with ``base`` and ``partial``.
        fixed: keys of the config and the only value of each that is supported.
        unread: keys of the config that change nothing, separated by spaces.
        reordered: heads of q and k rotate in halves in the source, as neighbours in GGUF.
        epsilon: key of the epsilon of the norms.
        norm_plus: number that is added to the weights of norms.
        activations: supported values of ``hidden_act``; () for the family's (`ACTIVATIONS`).
        tied, biased: defaults of the flags for tied embeddings and for biases of matrices.
        defaults: values of keys that a config may leave out.
        first, last: tensors before and after the layers; the very first is the embedding.
        head: output matrix.
        inside, layer: beginnings of the names of all tensors but the output, and of a layer's after
            ``inside``.
        drafts: names of MTP layers, which are left out, continue the numbers of the layers.
        left_out: beginnings of further names to leave out, such as the names of encoders of pictures.
        renamed: beginnings of names in some folders, and their usual beginnings.
        numbers: keys of metadata, without a prefix, and for each a tensor of one number in every layer.
        packed: makes tensors that keep the format of their sources.
        prepare: changes keys of a config to the usual ones.
        chosen: returns the decoder for a config, where a class has several.
    """

    names: str
    architecture: str
    parts: tuple[Part, ...]
    steps: tuple[Step, ...] = ()
    base: float = 10000.0
    partial: bool = False
    rotates: Step | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    unread: str = ""
    reordered: bool = False
    epsilon: str = "rms_norm_eps"
    norm_plus: float = 0.0
    activations: tuple[str, ...] = ()
    tied: bool = False
    biased: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    first: tuple[Part, ...] = (EMBEDDING,)
    last: tuple[Part, ...] = LAST
    head: Part = HEAD
    inside: str = "model."
    layer: str = "layers.{}."
    drafts: bool = False
    left_out: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    packed: Callable[[Config, Sizes], list[Packed]] | None = None
    prepare: Callable[[Config], None] | None = None
    chosen: Callable[[Config], Decoder] | None = None

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture]

    @property
    def has_head(self) -> bool:
        """Whether the model has an output matrix: all but encoders have."""
        return self.family.output != "none"


CLASSES: dict[str, tuple[str, Decoder]] = {}
"""The model_type and the decoder of each class."""
DECODERS: list[Decoder] = []
"""All decoders, including those that another one chooses."""


def register(decoder: Decoder) -> Decoder:
    """Enters a decoder in `CLASSES` by the names of its classes."""
    *classes, model_type = decoder.names.split()
    DECODERS.append(decoder)
    CLASSES.update(dict.fromkeys(classes, (model_type, decoder)))
    return decoder


def derive(decoder: Decoder, names: str, architecture: str = "", **differences: Any) -> Decoder:
    """Registers a decoder that differs from another one."""
    architecture = architecture or decoder.architecture
    return register(replace(decoder, names=names, architecture=architecture, **differences))


def decoder_plan(decoder: Decoder, config: Config, n_tensors: int) -> Plan:
    """The plan of a config for a source of so many tensors. Raises LoadError naming what is not supported."""
    if decoder.chosen is not None:
        decoder = decoder.chosen(config)
    if decoder.prepare is not None:
        decoder.prepare(config)
    family = decoder.family
    for key, value in decoder.defaults.items():
        config.values.setdefault(key, value)
    config.only("hidden_act", *(decoder.activations or ACTIVATIONS[family.activation]))
    sizes = sizes_of(config)
    check_count("num_hidden_layers", sizes["layers"], n_tensors)
    epsilon = "layer_norm_epsilon" if family.norm == "layer" else "layer_norm_rms_epsilon"
    metadata: Metadata = {
        "block_count": sizes["layers"],
        "context_length": config.size("max_position_embeddings"),
        "embedding_length": sizes["d"],
        "feed_forward_length": sizes["ff"],
        "attention.head_count": sizes["heads"],
        "attention.head_count_kv": sizes["kv_heads"],
        "attention.key_length": sizes["dim"],
        "attention.value_length": sizes["dim"],
        f"attention.{epsilon}": config.number(decoder.epsilon),
        "vocab_size": sizes["vocab"],
    }
    config.require(**decoder.fixed)
    config.ignore(*decoder.unread.split())
    made: Tensors = {}
    for step in decoder.steps:
        made |= step(config, metadata, sizes) or {}
    if decoder.rotates is not None:
        made |= decoder.rotates(config, metadata, sizes) or {}
    else:
        made |= rotation(config, metadata, sizes["dim"], decoder.base, decoder.partial)
    if any("{e}" in part.source for part in decoder.parts):  # the source has a tensor for each expert
        check_count("experts of all layers", sizes.get("experts", 1) * sizes["layers"], n_tensors)
    tensors: list[Wanted] = []
    ignored: list[str] = []

    def add(part: Part, there: str, here: str) -> None:
        if part.target:
            tensors.extend(tensors_of(decoder, part, config, sizes, there, here))
        else:
            ignored.append(there + part.source)

    layers = [decoder.inside + decoder.layer.format(i) for i in range(sizes["layers"])]
    for part in decoder.first:
        add(part, decoder.inside, "")
    for i, there in enumerate(layers):
        for part in decoder.parts:
            if not part.only or sizes.kinds[part.only][i]:
                add(part, there, f"blk.{i}.")
        ignored.append(f"{there}self_attn.rotary_emb.inv_freq")
    for part in decoder.last:
        if not part.only or any(sizes.kinds[part.only]):
            add(part, decoder.inside, "")
    drafts = "num_nextn_predict_layers"
    if decoder.drafts and config.has(drafts):
        n = config.size(drafts, 1)
        ignored += [decoder.inside + decoder.layer.format(sizes["layers"] + i) for i in range(n)]
    tied = config.flag("tie_word_embeddings", decoder.tied)
    if decoder.has_head and tied:
        ignored.append("lm_head.weight")  # a copy of the embedding in some folders
        if family.output == "own" or decoder.head.factor:
            add(replace(decoder.head, source=decoder.first[0].source), decoder.inside, "")
    elif decoder.has_head:
        add(decoder.head, "", "")
    numbers = {key: tuple(there + name for there in layers) for key, name in decoder.numbers}
    packed = decoder.packed(config, sizes) if decoder.packed else []
    config.refuse_others()
    name, ignored = decoder.architecture, [*ignored, *decoder.left_out]
    n, renamed = sizes["vocab"], decoder.renamed
    return Plan(name, n, metadata, tensors, packed, made, numbers, tuple(ignored), renamed)


def check_count(what: str, n: int, n_tensors: int) -> None:
    """Raises LoadError if a config claims more parts than the source has tensors."""
    if n > n_tensors:
        raise LoadError(f"config.json: {what}: {n} are more than the {n_tensors} tensors of the source")


def sizes_of(config: Config) -> Sizes:
    """Sizes that all decoders have: of the hidden state, the heads and the feed-forward block."""
    d, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    if not config.has("head_dim") and d % heads:
        raise LoadError(f"config.json: hidden_size: {d} is not a multiple of {heads} heads")
    dim = config.size("head_dim", d // heads)
    config.refuse_if(dim % 2, "head_dim", "an even number", dim)
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
    decoder: Decoder, part: Part, config: Config, sizes: Sizes, there: str, here: str
) -> list[Wanted]:
    """A part's tensor and its bias; names begin with ``there`` in the source, with ``here`` in the target."""
    shape = shape_of(part.shape, sizes)
    norm = "norm" in part.target
    experts = [str(e) for e in range(sizes[part.count])] if "{e}" in part.source else [""]
    names = [there + part.source.replace("{e}", e) for e in experts]
    heads = sizes["heads" if part.target == "attn_q" else "kv_heads"]
    heads = heads if decoder.reordered and part.target in ("attn_q", "attn_k") else 0
    change, suffix = part.change, "" if part.bare else ".weight"
    weights = Wanted(
        sources=tuple(name + suffix for name in names),
        target=here + part.target + suffix,
        shape=shape,
        heads=heads,
        plus=decoder.norm_plus if norm and not part.plain else 0.0,
        change=None if change is None else lambda values: change(values, sizes),
        becomes=shape_of(part.becomes, sizes),
        rows=sizes[part.rows] if part.rows else 0,
        each=part.each,
        either=part.either,
        factor=sizes.factors[part.factor] if part.factor else 1.0,
    )
    if part.bare:
        return [weights]
    always = decoder.family.norm_bias == "yes" if norm else part.bias == "yes"
    if not always and (norm or not part.bias or not config.flag(part.bias, decoder.biased)):
        return [weights]
    biases = tuple(f"{name}.bias" for name in names)
    return [weights, Wanted(biases, f"{here}{part.target}.bias", shape[:1], heads)]
