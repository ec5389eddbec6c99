"""Page groups: which layers keep their keys and values together, and how far back those are read.

Layers are of one group if their keys and values have the same shape and their rows see equally far. A group
has pages of its own. So no page is padded to the widest layer, and pages out of window are freed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from oxillama.models.spec import Spec

if TYPE_CHECKING:
    from oxillama.models.sizes import Selector


class Reach(NamedTuple):
    """How far back the rows of a layer see; both 0 for back to the first position.

    Attributes:
        window: a row sees so many positions, its own included; 0 for all.
        chunk: a row sees none before the last multiple of this; 0 for all.
    """

    window: int = 0
    chunk: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether rows at late positions do not see all positions before them."""
        return bool(self.window or self.chunk)

    @property
    def most(self) -> int:
        """Maximum number of positions that one row sees, its own included; only if `is_limited`."""
        return min(n for n in self if n)

    def first_seen(self, position: int) -> int:
        """The first position that the rows from ``position`` on see."""
        first = max(0, position + 1 - self.window) if self.window else 0
        return max(first, position - position % self.chunk) if self.chunk else first


EVERYTHING = Reach()


@dataclass(frozen=True, repr=False)
class PageGroup:
    """Layers that share pages.

    Attributes:
        layers: their indices, of those that are run here; without any, pages only count tokens.
        n_heads: key heads of each.
        key_dim, value_dim: widths of a key and a value of one head; no value is 0 wide but a selector's.
        reach: how far back their rows see.
    """

    layers: tuple[int, ...]
    n_heads: int
    key_dim: int
    value_dim: int
    reach: Reach = EVERYTHING

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Layers, key heads, and widths of a key and a value."""
        if not self.layers:
            return 1, 1, 1, 1
        return len(self.layers), self.n_heads, self.key_dim, self.value_dim


def page_groups(spec: Spec) -> tuple[PageGroup, ...]:
    """The groups of a model: those that see everything first, then in order of their first layers.

    A model without keys has one group, whose pages only count tokens. Every stage of a pipeline has the same
    groups, each with its own layers.
    """
    if not spec.attending:
        return (PageGroup((0,), 1, 1, 1),)
    return tuple(
        replace(group, layers=tuple(i for i in group.layers if i in spec.here)) for group in _groups(spec)
    )


def _groups(spec: Spec) -> tuple[PageGroup, ...]:
    """The groups with all their layers, of a model with keys."""
    found: dict[tuple[int, int, int, Reach], list[int]] = {}
    for i in spec.attending:
        layer = spec.layers[i]
        heads, latent = max(1, layer.n_kv_heads // layer.places), spec.latent_of(i)
        key, value = layer.key_dim, layer.value_dim
        if latent is not None:
            key, value = latent.kv_rank + latent.rotated, latent.kv_rank
        found.setdefault((heads, key, value, _reach(spec, i)), []).extend([i] * layer.places)
    groups = [PageGroup(tuple(layers), *kind) for kind, layers in found.items()]
    groups.sort(key=lambda group: (group.reach.is_limited, group.layers))
    if spec.selector is not None:
        groups.append(_selectors(spec, spec.selector))
    return (*groups, PageGroup((0,), 1, 1, 1)) if spec.switch else tuple(groups)


def _selectors(spec: Spec, sizes: Selector) -> PageGroup:
    """The keys of the selectors of positions, which have no values."""
    layers = tuple(i for i, layer in enumerate(spec.layers) if layer.selected_by == i)
    return PageGroup(layers, 1, sizes.width, 0)


def selector_place(spec: Spec, layer: int) -> tuple[int, int]:
    """The group of a layer's selector, or of a switch, the last one, and its index in these pages."""
    groups = page_groups(spec)
    return len(groups) - 1, groups[-1].layers.index(layer)


def _reach(spec: Spec, own: int) -> Reach:
    """How far back the rows of a layer see, and the rows of layers that attend to its keys and values."""
    if not spec.causal:  # an encoder's window also reaches ahead, and an encoder runs a text in one pass
        return EVERYTHING
    readers = [layer for i, layer in enumerate(spec.layers) if own in (i, layer.kv_from)]
    reaches = {Reach(layer.window, layer.chunk) for layer in readers}
    return reaches.pop() if len(reaches) == 1 else EVERYTHING


def place_of(spec: Spec, layer: int) -> tuple[int, int]:
    """The group of a layer and the layer's index in its pages."""
    for number, group in enumerate(page_groups(spec)):
        if layer in group.layers:
            return number, group.layers.index(layer)
    raise AssertionError("the layer has keys")
