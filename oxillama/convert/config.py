"""The input of a conversion: a checked reading of config.json, and the plan that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama.errors import LoadError

MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Wanted:
    """A tensor of the target, and its sources.

    Attributes
    ----------
    sources : names in the source; several are experts, which are stacked.
    target : its name in GGUF.
    shape : of each source. One row of a matrix is a vector in GGUF.
    heads : above 0, rows of so many heads are reordered (`reordered`).
    plus : added to all values.
    change : makes the target's values of a source's, None for the same; its result has the shape ``becomes``.
    rows : above the source's, further rows of a table repeat its first one.
    factor : all values are multiplied by it.
    either : the last two dimensions of a source may be swapped.
    each : ``change`` is made to each part along the first dimension alone, of shape (1, ...).
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

    Attributes
    ----------
    sources : shapes of the sources, uint8, by name.
    target, format : its name and its format in GGUF.
    shape : in the target, in NumPy's order.
    blocks : makes the target's bytes of the bytes of one part of each source along the first dimension, in
        the order of ``sources``: uint8 (rows, bytes of a row).
    """

    sources: dict[str, tuple[int, ...]]
    target: str
    format: str
    shape: tuple[int, ...]
    blocks: Callable[..., np.ndarray]


@dataclass
class Plan:
    """The plan of a conversion, made from a config.

    Attributes
    ----------
    architecture, n_vocab : its name in GGUF, and rows of the embedding.
    metadata : pairs without the architecture's prefix.
    tensors, packed : those of the target that are made of the source's.
    made : float32 tensors that come from the config alone.
    numbers : keys of metadata, without any prefix, and the tensors of one number that become their array.
    ignored : beginnings of names in the source that carry no weight of the model.
    renamed : beginnings of names in some sources, and the usual one that each stands for.
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
        """The name that the plan has for one of the source."""
        return usual_name(self.renamed, name)


def usual_name(renamed: tuple[tuple[str, str], ...], name: str) -> str:
    """The name with the first beginning that is ``renamed`` replaced."""
    for there, here in renamed:
        if name.startswith(there):
            return here + name.removeprefix(there)
    return name


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

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """An integer from ``least`` to ``most``."""
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= most:
            expected = f"an integer from {least} to {'2^31 - 1' if most == MAX_SIZE else most}"
            raise LoadError(f"{self.name}: {key}: expected {expected}, got {value!r:.60}")
        return value

    def words(self, key: str, n: int, known: Collection[str], usual: list[str] | None = None) -> list[str]:
        """One of the ``known`` words for each of n layers; the ``usual`` ones where there is no such key."""
        found = self.get(key, usual)
        if not isinstance(found, list) or len(found) != n or any(word not in [*known] for word in found):
            expected = f"one of {', '.join(known)} for each of {n} layers"
            raise LoadError(f"{self.name}: {key}: expected {expected}, got {found!r:.80}")
        return found

    def same_size(self, key: str, default: int | None = None) -> int:
        """A size that some configs give as a list, layer by layer."""
        value = self.get(key, default)
        listed = isinstance(value, list) and len(value) > 0 and all(type(v) is int for v in value)
        values = value if listed else [value]
        if any(other != values[0] for other in values):
            raise LoadError(f"{self.name}: {key}: expected the same number for all layers, got {value!r:.60}")
        return Config({key: values[0]}, self.name).size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            raise LoadError(f"{self.name}: {key}: expected a number above 0, got {value!r:.60}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise LoadError(f"{self.name}: {key}: expected true or false, got {value!r:.60}")
        return value

    def numbers(self, key: str, n: int) -> np.ndarray:
        """float32 (n,), all above 0."""
        values = self.get(key)
        sound = isinstance(values, list) and all(type(v) in (int, float) and 0 < v < 1e12 for v in values)
        if not sound or len(values) != n:
            raise LoadError(f"{self.name}: {key}: expected {n} numbers above 0, got {values!r:.60}")
        return np.array(values, np.float32)

    def table(self, key: str) -> Config:
        """An object inside, empty where the key is absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise LoadError(f"{self.name}: {key}: expected an object, got {value!r:.60}")
        return Config(value, f"{self.name}: {key}")

    def only(self, key: str, *harmless: Any) -> None:
        """Raises LoadError if the key is there with another value than these (or null)."""
        value = self.get(key)
        if value is not None and value not in harmless:
            raise LoadError(f"{self.name}: {key}: {value!r:.60} is not supported")

    def require(self, **values: Any) -> None:
        """Raises LoadError if one of these keys is there with another value than its own here (or null)."""
        for key, value in values.items():
            self.only(key, value)

    def ignore(self, *keys: str) -> None:
        """Keys that change nothing here, whatever they say."""
        self.seen.update(keys)

    def refuse_others(self) -> None:
        """Raises LoadError for keys that change a model's numbers and that no plan has looked at."""
        for key, harmless in CHANGING.items():
            if key not in self.seen:
                self.only(key, *harmless)

    def unread(self) -> list[str]:
        """Keys that no plan looked at and that are not known to change nothing; null asks for nothing."""
        others = self.values.keys() - self.seen - HARMLESS
        return sorted(key for key in others if key[:1] != "_" and self.values[key] is not None)


HARMLESS = {
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache"),
    *("initializer_range", "attention_dropout", "hidden_dropout", "attention_probs_dropout_prob"),
    *("hidden_dropout_prob", "classifier_dropout", "gradient_checkpointing", "pretraining_tp", "id2label"),
    *(
        "label2id",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "eod_token_id",
        "sep_token_id",
        "max_window_layers",
    ),
    *("problem_type", "output_attentions", "output_hidden_states", "return_dict", "auto_map"),
    *("router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "cache_implementation"),
    *("embd_pdrop", "resid_pdrop", "embedding_dropout", "residual_dropout", "is_encoder_decoder"),
}
"""Keys of training, of other programs, or read with the vocabulary."""

CHANGING: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "decoder_sparse_step": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "full_attn_mod": (1,),
    "interpolate_factor": (1, 1.0),
    "is_causal": (True,),
    "is_decoder": (True, False),
    "layer_types": (),
    "lm_head_bias": (False,),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "mlp_bias": (False,),
    "attention_bias": (False,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "original_max_position_embeddings": (),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1, 1.0),
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
"""Keys that change what a model computes, with the values that have no effect."""
