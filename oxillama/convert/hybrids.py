"""Shared by hybrids of attention and recurrent layers: kinds of layers, and changes of small tensors."""

from __future__ import annotations

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Sizes
from oxillama.convert.rotation import Metadata


def kinds_of(config: Config, sizes: Sizes, recurrent: tuple[str, ...]) -> list[bool]:
    """Which layers are recurrent, by ``layer_types``: one of these words, or an attending one."""
    known = (*recurrent, "full_attention", "attention")
    kinds = config.words("layer_types", sizes["layers"], known)
    found = [kind in recurrent for kind in kinds]
    sizes.kinds["recurrent"], sizes.kinds["attending"] = found, [not each for each in found]
    return found


def key_heads(metadata: Metadata, sizes: Sizes, recurrent: list[bool]) -> None:
    """States key heads layer by layer: none in recurrent ones."""
    metadata["attention.head_count_kv"] = [0 if each else sizes["kv_heads"] for each in recurrent]


def negative_exponential(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A rate of decay, of which the source has the logarithm."""
    decay: np.ndarray = -np.exp(values)
    return decay


def flat(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Taps of a convolution of single channels."""
    return values.reshape(len(values), -1)


def column(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A number for each head, as a matrix of one column."""
    return values.reshape(-1, 1)
