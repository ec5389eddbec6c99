"""The computation of each architecture, stated independently of `oxillama.models.families`."""

from __future__ import annotations

from oxillama.reference.facts import Facts
from oxillama.reference.families_dense import DENSE
from oxillama.reference.families_encoders import ENCODERS
from oxillama.reference.families_experts import WITH_EXPERTS
from oxillama.reference.families_recurrent import RECURRENT

FAMILIES: dict[str, Facts] = DENSE | WITH_EXPERTS | RECURRENT | ENCODERS
"""Facts by ``general.architecture``."""
