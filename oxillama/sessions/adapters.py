"""Finds the adapters that a snapshot names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from oxillama.engine.loading import LoadedModel
from oxillama.errors import SnapshotIncompatible
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot

Loras = Iterable[str | os.PathLike[str] | LoadedLora] | None
"""Adapters of a snapshot, or their paths, if the files have moved."""


def adaptation(model: LoadedModel, snapshot: EngineSnapshot, loras: Loras) -> Adaptation | None:
    """The adapters of a snapshot's sequence. Raises SnapshotIncompatible if one cannot be found."""
    found = loaded(model, snapshot.adapters, loras)
    items = [
        Applied(lora, model.feature("adapters").bound(lora), facts.scale, facts.start)
        for lora, facts in zip(found, snapshot.adapters)
    ]
    return Adaptation(items) if items else None


def loaded(model: LoadedModel, wanted: Iterable[AdapterFacts], loras: Loras) -> list[LoadedLora]:
    """The adapters of a snapshot: from ``loras``, from the model, or loaded from their original paths.

    Raises:
        ModelFileError, GGUFError, LoadError: an adapter cannot be loaded.
        SnapshotIncompatible: an adapter is missing, or its file has changed.
    """
    given = [
        lora if isinstance(lora, LoadedLora) else model.feature("adapters").load(os.fspath(lora))
        for lora in loras or ()
    ]
    known = {lora.fingerprint.hex(): lora for lora in (*model.feature("adapters").known(), *given)}
    found = []
    for facts in wanted:
        lora = known.get(facts.fingerprint)
        if lora is None:
            if not facts.path:
                raise SnapshotIncompatible(
                    f"adapters: expected {facts.name} ({facts.fingerprint[:16]}), got none"
                )
            lora = known[facts.fingerprint] = LoadedLora.load(facts.path, everywhere=facts.everywhere)
        if lora.fingerprint.hex() != facts.fingerprint:
            raise SnapshotIncompatible(
                f"adapters: expected {facts.path} with the fingerprint {facts.fingerprint[:16]}, "
                f"got {lora.fingerprint.hex()[:16]}"
            )
        found.append(model.feature("adapters").load(lora))
    return found
