"""The input of a conversion: a checked reading of config.json, and the plan that follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama.errors import LoadError

MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Wanted:
    """A tensor of the target, and its sources.

    Attributes:
        sources, target: names in the source and in GGUF; several sources are experts, which are stacked.
        shape: of each source. A matrix of one row is a vector in GGUF.
        heads: number of heads whose rows are reordered (`reordered`); 0 for no reordering.
        plus, factor: number that is added to all values, and number that multiplies them.
        change, becomes: computes the target's values, which have the shape ``becomes``; None to copy.
        rows: rows of the target; those that a source lacks repeat its first one.
        each: ``change`` is applied to one index of the first dimension at a time, shape (1, ...).
        either: the last two dimensions of a source may be swapped.
    """

    sources: tuple[str, ...]
    target: str
    shape: tuple[int, ...]
    heads: int = 0
    plus: float = 0.0
    change: Callable[[np.ndarray], np.ndarray] | None = None
    becomes: tuple[int, ...] = ()
    rows: int = 0
    each: bool = False
    factor: float = 1.0
    either: bool = False

    @property
    def stored(self) -> tuple[int, ...]:
        """Its shape in the target, in NumPy's order."""
        shape = self.becomes if self.change else (max(self.rows, self.shape[0]), *self.shape[1:])
        shape = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
        return shape if len(self.sources) == 1 else (len(self.sources), *shape)


@dataclass(frozen=True)
class Packed:
    """A tensor of the target that keeps the format of its sources.

    Attributes:
        sources: shapes of the sources, which are uint8, by name.
        target, format: name and format in GGUF.
        shape: of the target, in NumPy's order.
        blocks: for one index of the first dimension, uint8 (rows, bytes of a row) from the bytes of each
            source.
    """

    sources: dict[str, tuple[int, ...]]
    target: str
    format: str
    shape: tuple[int, ...]
    blocks: Callable[..., np.ndarray]


@dataclass
class Plan:
    """The plan of a conversion, made from a config.

    Attributes:
        architecture, n_vocab: name in GGUF, and rows of the embedding.
        metadata: pairs; keys have no architecture before them.
        tensors, packed, made: tensors of the target: computed, copied in their format, or float32 of the
            config.
        numbers: keys of metadata, without a prefix, and the tensors of one number that become their array.
        ignored: beginnings of names in the source that are left out.
        renamed: beginnings of names in some sources, and the usual ones.
    """

    architecture: str
    n_vocab: int
    metadata: dict[str, Any]
    tensors: list[Wanted]
    packed: list[Packed] = field(default_factory=list)
    made: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def usual_name(self, name: str) -> str:
        """The name in the plan of a tensor of the source."""
        return usual_name(self.renamed, name)


def usual_name(renamed: tuple[tuple[str, str], ...], name: str) -> str:
    """The name with the first beginning that is ``renamed`` replaced."""
    for there, here in renamed:
        if name.startswith(there):
            return here + name.removeprefix(there)
    return name


def is_number(value: Any) -> bool:
    """Whether a value is a number above 0, and not absurdly large."""
    return type(value) in (int, float) and 0 < value < 1e12


class Config:
    """Typed, checked reading of config.json; `unread` lists the keys that were not read."""

    def __init__(self, values: dict[str, Any], name: str = "config.json") -> None:
        self.values = values
        self.name = name
        self.seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether there is such a key with a value that is not null."""
        return self.get(key) is not None

    def refuse_if(self, wrong: Any, key: str, expected: str, found: Any) -> None:
        """Raises LoadError if a value that was ``found`` is wrong."""
        if wrong:
            raise LoadError(f"{self.name}: {key}: expected {expected}, got {found!r:.60}")

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """An integer from ``least`` to ``most``."""
        value = self.get(key, default)
        expected = f"an integer from {least} to {'2^31 - 1' if most == MAX_SIZE else most}"
        self.refuse_if(type(value) is not int or not least <= value <= most, key, expected, value)
        return int(value)

    def same_size(self, key: str, default: int | None = None) -> int:
        """A size that some configs write as a list, with one equal number for each layer."""
        value = self.get(key, default)
        listed = isinstance(value, list) and len(value) > 0 and all(type(v) is int for v in value)
        values = value if listed else [value]
        different = any(other != values[0] for other in values)
        self.refuse_if(different, key, "the same number for all layers", value)
        return Config({key: values[0]}, self.name).size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, default)
        self.refuse_if(not is_number(value), key, "a number above 0", value)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        self.refuse_if(not isinstance(value, bool), key, "true or false", value)
        return bool(value)

    def word(self, key: str, known: Collection[str], usual: str | None = None) -> str:
        """A word that is one of the ``known`` ones; ``usual`` without the key."""
        value = self.get(key, usual)
        self.refuse_if(value not in [*known], key, f"one of {', '.join(known)}", value)
        return str(value)

    def listed(
        self, key: str, n: int, accepts: Callable[[Any], bool], expected: str, usual: Any = None
    ) -> list[Any]:
        """A list of n accepted values; ``usual`` without the key."""
        found = self.get(key, usual)
        wrong = not isinstance(found, list) or len(found) != n or not all(map(accepts, found))
        self.refuse_if(wrong, key, expected, found)
        return list(found)

    def words(self, key: str, n: int, known: Collection[str], usual: list[str] | None = None) -> list[str]:
        """A list of one ``known`` word for each of n layers; ``usual`` without the key."""
        expected = f"one of {', '.join(known)} for each of {n} layers"
        return self.listed(key, n, lambda word: word in [*known], expected, usual)

    def numbers(self, key: str, n: int) -> np.ndarray:
        """float32 (n,), all above 0."""
        return np.array(self.listed(key, n, is_number, f"{n} numbers above 0"), np.float32)

    def table(self, key: str) -> Config:
        """The object under a key, empty without the key."""
        value = self.get(key, {})
        self.refuse_if(not isinstance(value, dict), key, "an object", value)
        return Config(value, f"{self.name}: {key}")

    def only(self, key: str, *harmless: Any) -> None:
        """Raises LoadError if the key has a value that is not one of these, nor null."""
        value = self.get(key)
        if value is not None and value not in harmless:
            raise LoadError(f"{self.name}: {key}: {value!r:.60} is not supported")

    def require(self, **values: Any) -> None:
        """Raises LoadError if a key has another value than here, and not null."""
        for key, value in values.items():
            self.only(key, value)

    def ignore(self, *keys: str) -> None:
        """Marks keys that change nothing as read."""
        self.seen.update(keys)

    def refuse_others(self) -> None:
        """Raises LoadError for keys of `CHANGING` that no plan has read and that have an effect."""
        for key, harmless in CHANGING.items():
            if key not in self.seen:
                self.only(key, *harmless)

    def unread(self) -> list[str]:
        """Keys with a value that no plan has read and that are not known to change nothing."""
        others = self.values.keys() - self.seen - HARMLESS
        return sorted(key for key in others if key[:1] != "_" and self.values[key] is not None)

    def warn_of_unread(self, stacklevel: int) -> None:
        """Warns of the keys that `unread` returns."""
        unread = self.unread()
        if unread:
            warnings.warn(f"{self.name}: {', '.join(unread)}: unknown, left out", stacklevel=stacklevel)


split = str.split
HARMLESS = {
    *split("architectures model_type torch_dtype dtype transformers_version use_cache auto_map"),
    *split("initializer_range attention_dropout hidden_dropout attention_probs_dropout_prob"),
    *split("hidden_dropout_prob classifier_dropout embd_pdrop resid_pdrop embedding_dropout"),
    *split("residual_dropout gradient_checkpointing pretraining_tp id2label label2id problem_type"),
    *split("bos_token_id eos_token_id pad_token_id unk_token_id eod_token_id sep_token_id"),
    *split("max_window_layers output_attentions output_hidden_states return_dict is_encoder_decoder"),
    *split("router_aux_loss_coef router_jitter_noise output_router_logits cache_implementation"),
}
"""Keys for training, for other programs, or read with the vocabulary."""

CHANGING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        split(
            "attention_multiplier attn_logit_softcapping clip_qkv decoder_sparse_step layer_types "
            "final_logit_softcapping original_max_position_embeddings query_pre_attn_scalar "
            "rope_interleaved sliding_window sliding_window_pattern"
        ),
        (),
    ),
    **dict.fromkeys(
        split(
            "alibi lm_head_bias mlp_bias attention_bias parallel_attn qk_layernorm "
            "use_bidirectional_attention use_parallel_residual use_qk_norm"
        ),
        (False,),
    ),
    **dict.fromkeys(
        split(
            "embedding_multiplier full_attn_mod interpolate_factor logit_scale logits_scaling "
            "partial_rotary_factor residual_multiplier"
        ),
        (1,),
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (0,)),
    **{"is_causal": (True,), "is_decoder": (True, False), "no_rope_layers": ([],)},
}
"""Keys that change what a model computes, and their values without effect."""
