"""The registered architectures."""

from __future__ import annotations

from collections.abc import Callable

from oxillama.models.family import Family
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

Adjust = Callable[[Spec, Reader], Spec]
"""Changes the spec of one file where its metadata have consequences that `Family` cannot state."""

FAMILIES: dict[str, Family] = {}
ADJUSTMENTS: dict[str, Adjust] = {}


def register(family: Family, adjust: Adjust | None = None) -> Family:
    """Makes an architecture loadable; ``adjust`` runs on the spec of each of its files.

    Raises
    ------
    ValueError : the architecture is registered already.
    """
    if family.name in FAMILIES:
        raise ValueError(f"{family.name}: registered twice")
    FAMILIES[family.name] = family
    if adjust is not None:
        ADJUSTMENTS[family.name] = adjust
    return family
