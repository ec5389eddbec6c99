"""What the encoders of pictures and sounds in a Hugging Face folder have in common: their tensors as data.

A `Tower` lists the tensors of a family by Hugging Face's names and by GGUF's, which are llama.cpp's
(``mmproj`` files), and reads the sizes that the file states (`oxillama.media.facts`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from oxillama.convert.config import Config
from oxillama.errors import LoadError

Metadata = dict[str, Any]
EPS = "vision.attention.layer_norm_epsilon"

OUTER = re.compile(r"^model\.(?=(vision|visual|audio|multi_modal_projector|connector|embed_)[a-z_]*\.)")
INNER = re.compile(r"^(visual|vision_tower)\.vision_model\.")


def tower_name(name: str) -> str:
    """The name of a tensor without what only some folders write before it."""
    return INNER.sub(r"\1.", OUTER.sub("", name))


@dataclass
class Source:
    """What a tower is described by: the parts of config.json and of the preprocessor's file.

    Attributes
    ----------
    config : the whole, without the three below. tower, text : of the encoder, and of the text model.
    media : of the preprocessor.
    token : returns the id of a token by its text. Raises LoadError for none.
    """

    config: Config
    tower: Config
    text: Config
    media: Config
    token: Callable[[str], int]


Change = Callable[[np.ndarray, Source], np.ndarray]


@dataclass(frozen=True)
class Item:
    """A tensor of a tower.

    Attributes
    ----------
    source, target : its names without ".weight"; in a list of layers "{}" stands for the layer.
    bias : whether it has one: of the same rows.
    bare : the names are whole.
    change : makes the target's values of the source's.
    rotates : its rows are those of heads whose halves rotate with each other, and become neighbours that do.
    plus : added to all values.
    """

    source: str
    target: str
    bias: bool = False
    bare: bool = False
    change: Change | None = None
    rotates: bool = False
    plus: float = 0.0


def items(text: str) -> tuple[Item, ...]:
    """One item for each line "source target" or "source target +", the latter with a bias."""
    lines = [line.split() for line in text.strip().splitlines()]
    return tuple(Item(line[0], line[1], bias=line[2:] == ["+"]) for line in lines)


@dataclass(frozen=True)
class Tower:
    """A family of encoders with what stands behind them.

    Attributes
    ----------
    projector : its name in GGUF. modality : "vision" or "audio".
    roots : beginnings of the names of all its tensors (`tower_name`).
    layer : beginning of the names of a layer's tensors, with "{}" for its number.
    layers, others : tensors of each layer, and outside of them.
    facts : reads the configs; keys are behind "clip.".
    config : the key of the encoder's config.
    more : further items that the configs ask for.
    ignored : beginnings of names that the model does not use.
    n_layers : layers to write, None for all (key of metadata: `block_count`).
    """

    projector: str
    roots: tuple[str, ...]
    layer: str
    layers: tuple[Item, ...]
    others: tuple[Item, ...]
    facts: Callable[[Source], Metadata]
    modality: str = "vision"
    config: str = "vision_config"
    more: Callable[[Source], tuple[Item, ...]] = field(default=lambda source: ())
    ignored: tuple[str, ...] = ()

    def items_of(self, source: Source, n_layers: int) -> list[Item]:
        """All tensors of a model."""
        prefix = "v" if self.modality == "vision" else "a"
        found = [
            replace(item, source=self.layer.format(i) + item.source, target=f"{prefix}.blk.{i}.{item.target}")
            for i in range(n_layers)
            for item in self.layers
        ]
        return [*found, *self.others, *self.more(source)]


# --- facts ------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu_pytorch_tanh": "use_gelu", "gelu_new": "use_gelu", "gelu": "use_gelu", "silu": "use_silu",
    "swish": "use_silu", "quick_gelu": "",
}  # fmt: skip
"""Keys of GGUF; ``gelu`` of the error function becomes that of tanh, as in llama.cpp's files."""


def activation(config: Config, key: str, usual: str) -> Metadata:
    """That of the feed-forward blocks."""
    found = config.get(key, usual)
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise LoadError(f"{config.name}: {key}: expected one of {', '.join(ACTIVATIONS)}, got {found!r:.60}")
    return {ACTIVATIONS[found]: True} if ACTIVATIONS[found] else {}


def one_of_two(config: Config, key: str, usual: int | None = None) -> int:
    """A size, or the same one twice."""
    value = config.get(key, usual)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return Config({key: value}, config.name).size(key)


def three(config: Config, key: str) -> list[float]:
    """Three numbers."""
    values = config.get(key)
    sound = isinstance(values, list) and all(
        type(v) in (int, float) and math.isfinite(v) and abs(v) < 1e6 for v in values
    )
    if not sound or len(values) != 3:
        raise LoadError(f"{config.name}: {key}: expected three numbers, got {values!r:.60}")
    return [float(v) for v in values]


def side_of(n: int, what: str) -> int:
    """The side of a square of n. Raises LoadError if there is none."""
    side = math.isqrt(n)
    if side * side != n:
        raise LoadError(f"{what}: expected the square of a number, got {n}")
    return side


def vision_sizes(source: Source, names: Mapping[str, str] | None = None) -> Metadata:
    """The sizes that all encoders of pictures state; ``names`` are the config's keys where they differ."""
    tower, known = source.tower, names or {}

    def key(name: str) -> str:
        return known.get(name, name)

    tower.require(num_channels=3, in_channels=3, in_chans=3)
    width, heads = tower.size(key("hidden_size")), tower.size(key("num_attention_heads"))
    if width % heads:
        raise LoadError(f"{tower.name}: hidden_size: {width} is not a multiple of {heads} heads")
    return {
        "vision.embedding_length": width,
        "vision.block_count": tower.size(key("num_hidden_layers")),
        "vision.attention.head_count": heads,
        "vision.feed_forward_length": tower.size(key("intermediate_size")),
        "vision.patch_size": one_of_two(tower, "patch_size"),
        "vision.image_mean": three(source.media, "image_mean"),
        "vision.image_std": three(source.media, "image_std"),
    }


def longest_edge(source: Source) -> int:
    """Pixels of the longer side of a picture."""
    return source.media.table("size").size("longest_edge")


def axial_rotation(tower: Config, base: float = 10000.0) -> None:
    """Raises LoadError for another rotation than the usual one."""
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


def frame(i: int) -> Change:
    """The kernel of one frame of the two of a video."""

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        if values.ndim != 5 or values.shape[2] != 2:
            raise LoadError(f"patch_embed: expected kernels of 2 frames, got shape {list(values.shape)}")
        return np.ascontiguousarray(values[:, :, i])

    return change


def part(i: int) -> Change:
    """The rows of the queries, the keys or the values of a fused matrix."""

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        return values[i * (len(values) // 3) : (i + 1) * (len(values) // 3)]

    return change


def first_last(values: np.ndarray, source: Source) -> np.ndarray:
    """A table of positions whose first row, that of the class, stands behind those of the patches."""
    rows = values.reshape(-1, values.shape[-1])
    return np.concatenate([rows[1:], rows[:1]])


def flat(values: np.ndarray, source: Source) -> np.ndarray:
    return values.reshape(-1)


def column(values: np.ndarray, source: Source) -> np.ndarray:
    return values.reshape(-1, 1)
