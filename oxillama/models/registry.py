"""The registered architectures."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping

from oxillama.models.families import MODULES
from oxillama.models.family import Family
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

Adjust = Callable[[Spec, Reader], Spec]
"""Changes the spec of one file where its metadata have consequences that `Family` cannot state."""


class Families(Mapping[str, Family]):
    """The families by name. The modules of `families` are imported until one has the name; all of them, where
    all names are asked for."""

    def __init__(self) -> None:
        self.known: dict[str, Family] = {}
        self._left = list(MODULES)

    def _import_next(self) -> None:
        importlib.import_module(f"oxillama.models.families.{self._left[0]}")
        del self._left[:1]

    def __getitem__(self, name: str) -> Family:
        while name not in self.known and self._left:
            self._import_next()
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        while self._left:
            self._import_next()
        return iter(self.known)

    def __len__(self) -> int:
        return len(list(iter(self)))


FAMILIES = Families()
ADJUSTMENTS: dict[str, Adjust] = {}


def register(family: Family, adjust: Adjust | None = None) -> Family:
    """Makes an architecture loadable; ``adjust`` runs on the spec of each of its files.

    Raises
    ------
    ValueError : the architecture is registered already.
    """
    if family.name in FAMILIES.known:
        raise ValueError(f"{family.name}: registered twice")
    FAMILIES.known[family.name] = family
    if adjust is not None:
        ADJUSTMENTS[family.name] = adjust
    return family
