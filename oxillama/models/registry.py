"""The registered architectures."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from oxillama.models.families import MODULES
from oxillama.models.family import REGISTERED, Family


class Families(Mapping[str, Family]):
    """The families by name. The modules of `families` are imported until one has the name; all of them, where
    all names are asked for."""

    def __init__(self, modules: tuple[str, ...], known: dict[str, Family]) -> None:
        self.known = known
        self._left = list(modules)

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


FAMILIES = Families(MODULES, REGISTERED)
DRAFT_FAMILIES = Families(("drafters",), {})
"""Of drafters with a file of their own, which read the states of another model."""
