"""What a model is: the facts of its family, and the sizes its file states.

A family says how it differs from another, as data:
``QWEN2 = register(LLAMA.derive("qwen2", rope="neox"))``. The decoder tests these facts, never names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oxillama.errors import GGUFError, LoadError
from oxillama.modelfile import ModelFile

MAX_GROUP = 64
"""Query heads that share a key head, at most (the rows of an attention tile)."""


@dataclass(frozen=True)
class Family:
    """Facts that hold for every model of an architecture.

    Attributes
    ----------
    name : ``general.architecture``, the prefix of its metadata keys.
    rope : "norm" rotates pairs (2i, 2i+1), "neox" pairs (i, i + n_rot/2).
    experts : some layers have routed experts, see `Spec.has_experts`.
    no_rope_every : every so many layers one does not rotate; 0 for none.
    chunk : layers that rotate see no position before the last multiple of this; 0 for all.
    head_norm : layers that rotate norm each head of q and k afterwards, without weights.
    query_temperature : layers that do not rotate multiply queries by
        1 + this * ln(floor((position + 1) / chunk) + 1).
    adjust : the family of one file, where its metadata change the facts.
    refuses : metadata keys (without prefix) that ask for what is not implemented, with the values that
        do not (those are as good as absent).
    """

    name: str
    rope: str = "norm"
    experts: bool = False
    no_rope_every: int = 0
    chunk: int = 0
    head_norm: bool = False
    query_temperature: float = 0.0
    adjust: Callable[[Family, ModelFile], Family] | None = None
    refuses: Mapping[str, tuple[Any, ...]] | None = None

    def derive(self, name: str, **differences: Any) -> Family:
        """The same, but for what is named."""
        return replace(self, name=name, **differences)


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Makes an architecture loadable."""
    FAMILIES[family.name] = family
    return family


@dataclass(frozen=True)
class Spec:
    """Sizes and numbers of one model, checked against each other.

    Attributes
    ----------
    n_layers, n_embd, n_ff, n_vocab : as in the file.
    n_heads, n_kv_heads : query heads and key/value heads; the first is a multiple of the second.
    key_dim, value_dim : width of a head's query and key, and of its value.
    n_rot : dimensions of a head that rotate.
    rope_base, rope_scale : theta, and what every frequency is multiplied by.
    norm_eps : epsilon of the RMS norms.
    context_length : tokens the model was trained with.
    n_experts, n_experts_used, n_expert_ff, expert_step : experts of a layer, how many a token takes, their
        width, and that every so many layers one has them; 0 without experts.
    """

    family: Family
    n_layers: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    n_rot: int
    rope_base: float
    rope_scale: float
    norm_eps: float
    context_length: int
    n_experts: int = 0
    n_experts_used: int = 0
    n_expert_ff: int = 0
    expert_step: int = 0

    def rotates(self, layer: int) -> bool:
        """Whether a layer uses rotary embedding."""
        every = self.family.no_rope_every
        return not every or (layer + 1) % every != 0

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward block is made of experts."""
        return self.expert_step > 0 and (layer + 1) % self.expert_step == 0


def family_of(file: ModelFile) -> Family:
    """The registered family of a file. Raises LoadError if there is none, or the file is no model."""
    kind = file.get("general.type", str, "model")
    if kind != "model":
        raise LoadError(f"general.type: the file holds a {kind!r}, not a model")
    name = file.get("general.architecture", str)
    if name not in FAMILIES:
        raise LoadError(f"architecture {name!r} is not supported; these are: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name]


def read_spec(file: ModelFile) -> Spec:
    """Reads and checks what the metadata say.

    Raises
    ------
    LoadError : the architecture or an option is not supported, or a size is out of bounds.
    GGUFError : a key is missing or has the wrong type.
    """
    family = family_of(file)
    prefix = family.name

    def size(key: str, default: int | None = None) -> int:
        full = f"{prefix}.{key}"
        value = file.get(full, int) if default is None else file.get(full, int, default)
        if not 1 <= value < 2**31:
            raise LoadError(f"{full}: needs a number from 1 to 2^31 - 1, got {value}")
        return value

    def number(key: str, default: float | None = None) -> float:
        full = f"{prefix}.{key}"
        value = file.get(full, float) if default is None else file.get(full, float, default)
        if not 0 < value < 1e12:
            raise LoadError(f"{full}: needs a number above 0, got {value}")
        return value

    refuse_options(file, family)
    if family.adjust is not None:
        family = family.adjust(family, file)
    n_embd, n_heads = size("embedding_length"), size("attention.head_count")
    n_kv_heads = size("attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise LoadError(
            f"{prefix}.attention.head_count: {n_heads} is not a multiple of {n_kv_heads} key heads"
        )
    if n_embd % n_heads and f"{prefix}.attention.key_length" not in file.metadata:
        raise LoadError(f"{prefix}.embedding_length: {n_embd} is not a multiple of {n_heads} heads")
    key_dim = size("attention.key_length", n_embd // n_heads or 1)
    value_dim = size("attention.value_length", n_embd // n_heads or 1)
    if n_heads // n_kv_heads > MAX_GROUP:
        raise LoadError(
            f"{prefix}.attention.head_count: needs at most {MAX_GROUP} heads to a key head, "
            f"got {n_heads} to {n_kv_heads}"
        )
    n_rot = size("rope.dimension_count", key_dim)
    if n_rot > key_dim or n_rot % 2:
        raise LoadError(f"{prefix}.rope.dimension_count: needs an even number up to {key_dim}, got {n_rot}")
    rope_base = number("rope.freq_base", 10000.0)
    if family.chunk:
        rope_base = number("rope.freq_base_swa", rope_base)
    experts = {}
    if family.experts:
        experts = {
            "n_experts": size("expert_count"),
            "n_experts_used": size("expert_used_count"),
            "n_expert_ff": size("expert_feed_forward_length"),
            "expert_step": size("interleave_moe_layer_step"),
        }
        if experts["n_experts_used"] > experts["n_experts"]:
            raise LoadError(f"{prefix}.expert_used_count: needs at most {experts['n_experts']} experts")
    return Spec(
        family=family,
        n_layers=size("block_count"),
        n_embd=n_embd,
        n_ff=size("feed_forward_length"),
        n_vocab=vocabulary_size(file),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        n_rot=n_rot,
        rope_base=rope_base,
        rope_scale=rope_scale(file, prefix),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
        context_length=size("context_length"),
        **experts,
    )


def vocabulary_size(file: ModelFile) -> int:
    """Rows of the embedding table, which may be more than the tokenizer has tokens."""
    name = "token_embd.weight"
    if name not in file.tensors or len(file.tensors[name].shape) != 2:
        raise LoadError(f"{name}: the file has no such matrix, the model needs it")
    return file.tensors[name].shape[1]


def rope_scale(file: ModelFile, prefix: str) -> float:
    """What linear scaling multiplies the frequencies by; 1 without scaling."""
    kind = file.get(f"{prefix}.rope.scaling.type", str, "")
    if kind not in ("", "none", "linear"):
        raise LoadError(f"{prefix}.rope.scaling.type: {kind!r} is not supported; these are: none, linear")
    if kind == "none":
        return 1.0
    old = file.get(f"{prefix}.rope.scale_linear", float, 0.0)
    factor = file.get(f"{prefix}.rope.scaling.factor", float, old)
    if factor < 0 or factor != factor or factor == float("inf"):
        raise LoadError(f"{prefix}.rope.scaling.factor: needs a number from 0 on, got {factor}")
    return 1.0 / factor if factor else 1.0


def refuse_options(file: ModelFile, family: Family) -> None:
    """Raises LoadError for metadata that ask for what the family does not implement."""
    for key, harmless in (family.refuses or {}).items():
        full = f"{family.name}.{key}"
        if full in file.metadata:
            value = file.metadata[full]
            try:
                asks = value not in harmless
            except ValueError as error:  # an array has no truth value
                raise GGUFError(f"expected a single value, found {value!r:.60}", key=full) from error
            if asks:
                raise LoadError(f"{full}: {value!r:.60} is not supported")
