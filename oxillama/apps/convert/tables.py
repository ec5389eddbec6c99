"""Tensors as data: a line of a table has the names of a tensor in Hugging Face's folders and in GGUF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Change = Callable[[np.ndarray, Any], np.ndarray]
"""Computes the values of a tensor from the source's; the second argument is the sizes of a decoder
(`decoders.Sizes`), or the configs of an encoder (`towers.Source`)."""


@dataclass(frozen=True)
class Part:
    """A tensor of each layer, or a tensor outside of the layers.

    Attributes:
        source, target: names inside the layer, without ".weight"; "{e}" in the source is an expert's number.
            Without a target, tensors whose names begin with the source are left out.
        shape: dimensions of the source, in names of sizes, which may be added: "q+k+v d"; "" for any shape.
        bias: flag of the config that says whether there is a bias; "yes" if there always is.
        only: kind of the layers that have the tensor; "" for all layers.
        change, becomes: computes the target's values, which have the shape ``becomes``; None to copy.
        bare: source and target are whole names, without a ".weight" after them.
        plain: `Decoder.norm_plus` is not added.
        factor: name of the number that multiplies the values.
        rotates: the halves of a head rotate with each other in the source, neighbours in the target.
        either: the last two dimensions of the source may be swapped.
        each: ``change`` is applied to one index of the first dimension at a time, shape (1, ...).
        count: size that counts the experts of "{e}".
        rows: size that counts the rows of the target, where a table has fewer rows in the source.
    """

    source: str
    target: str
    shape: str = ""
    bias: str = ""
    only: str = ""
    change: Change | None = None
    becomes: str = ""
    bare: bool = False
    plain: bool = False
    factor: str = ""
    rotates: bool = False
    either: bool = False
    each: bool = False
    count: str = "experts"
    rows: str = ""


def table(text: str, **changes: Change) -> tuple[Part, ...]:
    """Parts of the form "source target dimensions [-> dimensions change] [/ option ...]", one for each line,
    or separated by commas.

    ``changes`` are the functions that parts name. An option is a flag of `Part` or "key=value"; "+" stands
    for bias=yes, "=" for bare. A line "[kind]" is the kind of the layers of all parts below it.
    """
    found, kind = [], ""
    for line in filter(None, map(str.strip, text.replace(",", "\n").splitlines())):
        if line[0] == "[":
            kind = line[1:-1]
            continue
        left, _, options = line.partition(" / ")
        left, _, becomes = left.partition(" -> ")
        name, target, *dims = left.split()
        marks = {"+": "bias=yes", "=": "bare"}
        facts: dict[str, Any] = {"shape": " ".join(dim for dim in dims if dim not in marks)}
        for option in (*(dim for dim in dims if dim in marks), *options.split()):
            key, _, value = marks.get(option, option).partition("=")
            facts[key] = value or True
        if becomes:
            *dims, change = becomes.split()
            facts |= {"becomes": " ".join(dims), "change": changes[change]}
        found.append(Part(name, target, only=kind, **facts))
    return tuple(found)
