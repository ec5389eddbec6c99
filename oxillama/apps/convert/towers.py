"""Parts that encoders of pictures and sounds share: their tensors as data, and the facts of configs.

A `Tower` lists the tensors of a family of encoders by Hugging Face's names and by GGUF's, which are those of
llama.cpp (``mmproj`` files), and reads the sizes that the file states (`oxillama.models.media.facts`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from oxillama.apps.convert.config import Config
from oxillama.apps.convert.tables import Change, Part
from oxillama.errors import LoadError

Metadata = dict[str, Any]
EPS = "vision.attention.layer_norm_epsilon"
SCALE = "vision.projector.scale_factor"

OUTER = re.compile(r"^model\.(?=(vision|visual|audio|multi_modal_projector|connector|embed_)[a-z_]*\.)")
INNER = re.compile(r"^(visual|vision_tower)\.vision_model\.")


def tower_name(name: str) -> str:
    """The usual name of a tensor: without the beginnings that only some folders write."""
    return INNER.sub(r"\1.", OUTER.sub("", name))


@dataclass
class Source:
    """The facts that a folder states.

    Attributes:
        config: config.json without the configs below.
        tower, text: configs of the encoder and of the text model.
        media: the preprocessor's config.
        token: returns the id of a token by its text. Raises LoadError if there is no such token.
    """

    config: Config
    tower: Config
    text: Config
    media: Config
    token: Callable[[str], int]


@dataclass(frozen=True)
class Tower:
    """A family of encoders, and of the projectors from their rows to embeddings of a text model.

    Attributes:
        classes: names of the classes in ``architectures`` that have it, separated by spaces.
        projector: name in GGUF.
        roots: beginnings of the names of all its tensors (`tower_name`), separated by spaces.
        layer: beginning of the names of a layer's tensors, with "{}" for the layer's number.
        layers, others: tensors of each layer, and tensors outside of the layers.
        facts: reads the configs; returns metadata without "clip." before the keys.
        modality: "vision" or "audio".
        more: further items that the configs ask for.
        ignored: beginnings of names that the model does not use, separated by spaces.
        kinds: values of ``model_type`` in the encoder's config, where a class may have several encoders.
    """

    classes: str
    projector: str
    roots: str
    layer: str
    layers: tuple[Part, ...]
    others: tuple[Part, ...]
    facts: Callable[[Source], Metadata]
    modality: str = "vision"
    more: Callable[[Source], tuple[Part, ...]] = field(default=lambda source: ())
    ignored: str = ""
    kinds: tuple[str, ...] = ()

    @property
    def config(self) -> str:
        """The key of the encoder's config."""
        return f"{self.modality}_config"

    def parts_of(self, source: Source, n_layers: int) -> list[Part]:
        """All tensors of a model."""
        found = [
            replace(item, source=self.layer.format(i) + item.source, target=f"{prefix}{item.target}")
            for i in range(n_layers)
            for prefix in [f"{self.modality[0]}.blk.{i}."]
            for item in self.layers
        ]
        return [*found, *self.others, *self.more(source)]


TOWERS: dict[str, list[Tower]] = {}
"""The encoders of each class."""


def register(tower: Tower) -> Tower:
    """Enters a tower in `TOWERS`."""
    for name in tower.classes.split():
        TOWERS.setdefault(name, []).append(tower)
    return tower


def derive(tower: Tower, classes: str, **differences: Any) -> Tower:
    """Registers a tower that differs from another one."""
    return register(replace(tower, classes=classes, **differences))


# --- facts ------------------------------------------------------------------------------------------

ACTIVATIONS = {
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu"), "use_gelu"),
    **{"silu": "use_silu", "swish": "use_silu", "quick_gelu": ""},
}
"""Keys of GGUF; ``gelu`` by the error function is written as its approximation by tanh, as llama.cpp does."""


def activation(config: Config, key: str, usual: str) -> Metadata:
    """The activation of the feed-forward blocks."""
    found = ACTIVATIONS[config.word(key, ACTIVATIONS, usual)]
    return {found: True} if found else {}


def one_of_two(config: Config, key: str, usual: int | None = None) -> int:
    """A size, which a config may also write as a list of two equal ones."""
    value = config.get(key, usual)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return Config({key: value}, config.name).size(key)


def three(config: Config, key: str) -> list[float]:
    """Three numbers."""
    values = config.listed(key, 3, lambda v: type(v) in (int, float) and abs(v) < 1e6, "three numbers")
    return [float(v) for v in values]


def side_of(n: int, what: str) -> int:
    """The square root of n. Raises LoadError if n is no square."""
    side = math.isqrt(n)
    if side * side != n:
        raise LoadError(f"{what}: expected the square of a number, got {n}")
    return side


def vision_sizes(source: Source, names: Mapping[str, str] | None = None) -> Metadata:
    """The sizes that all encoders of pictures state; ``names`` are the config's keys where they differ."""
    tower, known = source.tower, names or {}

    def size(name: str) -> int:
        return tower.size(known.get(name, name))

    tower.require(num_channels=3, in_channels=3, in_chans=3)
    width, heads = size("hidden_size"), size("num_attention_heads")
    if width % heads:
        raise LoadError(f"{tower.name}: hidden_size: {width} is not a multiple of {heads} heads")
    return {
        "vision.embedding_length": width,
        "vision.block_count": size("num_hidden_layers"),
        "vision.attention.head_count": heads,
        "vision.feed_forward_length": size("intermediate_size"),
        "vision.patch_size": one_of_two(tower, "patch_size"),
        "vision.image_mean": three(source.media, "image_mean"),
        "vision.image_std": three(source.media, "image_std"),
    }


def usual_facts(
    source: Source, usual: str = "gelu_pytorch_tanh", image_size: int = 0, eps: float = 0.0
) -> Metadata:
    """The facts of most encoders of pictures.

    ``usual`` is the activation of configs that state none. If the image size or the epsilon
    is 0, the config's is used.
    """
    tower = source.tower
    return {
        **vision_sizes(source),
        **activation(tower, "hidden_act", usual),
        "vision.image_size": image_size or tower.size("image_size"),
        EPS: eps or tower.number("layer_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
    }


def audio_facts(mels: int, width: int, n_ff: int, layers: int, heads: int, eps: float, out: int) -> Metadata:
    """The facts of an encoder of sounds; ``out`` is the width of the text model."""
    return {
        "audio.num_mel_bins": mels,
        "audio.embedding_length": width,
        "audio.feed_forward_length": n_ff,
        "audio.block_count": layers,
        "audio.attention.head_count": heads,
        "audio.attention.layer_norm_epsilon": eps,
        "audio.projection_dim": out,
    }


def inverse(config: Config, key: str) -> int:
    """n, of a ratio 1 / n, 0.5 by default."""
    ratio = config.number(key, 0.5)
    config.refuse_if(round(1 / ratio) * ratio != 1, key, "1 / n", ratio)
    return round(1 / ratio)


def longest_edge(source: Source) -> int:
    """Pixels of the longer side of a picture."""
    return source.media.table("size").size("longest_edge")


def axial_rotation(tower: Config, base: float = 10000.0) -> None:
    """Raises LoadError for a rotation with another base or of another kind."""
    rope = tower.table("rope_parameters")
    rope.require(rope_theta=base)
    rope.only("rope_type", "axial", "default")
    tower.only("rope_theta", base)


# --- changes ----------------------------------------------------------------------------------------


def channels_first(values: np.ndarray, source: Source) -> np.ndarray:
    """The kernel (width, 3, side, side) of a matrix over patches with the channel last."""
    side = one_of_two(source.tower, "patch_size")
    if values.shape[1] != 3 * side * side:
        raise LoadError(f"patches: expected rows of {3 * side * side} numbers, got {values.shape[1]}")
    kernel = values.reshape(len(values), side, side, 3).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(kernel)


def part(i: int) -> Change:
    """The rows of the queries (0), the keys (1) or the values (2) of a fused matrix."""
    return lambda values, source: values[i * (len(values) // 3) : (i + 1) * (len(values) // 3)]


def apart(source: str, target: str) -> tuple[Part, ...]:
    """Parts for the weights and biases of q, k and v of a fused matrix.

    ``source`` and ``target`` have "{}" for "weight" or "bias"; ``target`` has "{x}" for q, k and v.
    """
    return tuple(
        Part(source.format(kind), target.format(kind, x=x), bare=True, change=part(i))
        for i, x in enumerate("qkv")
        for kind in ("weight", "bias")
    )


def first_last(values: np.ndarray, source: Source) -> np.ndarray:
    """A table of positions with the row of the class moved from the beginning to the end."""
    rows = values.reshape(-1, values.shape[-1])
    return np.concatenate([rows[1:], rows[:1]])


def flat(values: np.ndarray, source: Source) -> np.ndarray:
    return values.reshape(-1)


def column(values: np.ndarray, source: Source) -> np.ndarray:
    return values.reshape(-1, 1)
