"""The adapters of a snapshot, found where they are now."""

from __future__ import annotations

import os
from collections.abc import Iterable

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation, Applied
from oxillama.engine.loading import LoadedModel
from oxillama.errors import SnapshotIncompatible
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot

Loras = Iterable[str | os.PathLike[str] | LoadedLora] | None
"""Where the adapters of a snapshot are, if they are not where they were."""


def adaptation(model: LoadedModel, snapshot: EngineSnapshot, loras: Loras) -> Adaptation | None:
    """The adapters of a snapshot's sequence. Raises SnapshotIncompatible for one that is not there."""
    found = loaded(model, snapshot.adapters, loras)
    items = [
        Applied(lora, model.adapters.bound(lora), facts.scale, facts.start)
        for lora, facts in zip(found, snapshot.adapters)
    ]
    return Adaptation(items) if items else None


def loaded(model: LoadedModel, wanted: Iterable[AdapterFacts], loras: Loras) -> list[LoadedLora]:
    """The adapters of a snapshot: those that are given, those the model has, or from where they were.

    Raises
    ------
    ModelFileError, GGUFError, LoadError : one cannot be loaded.
    SnapshotIncompatible : one has other content.
    """
    given = [
        lora if isinstance(lora, LoadedLora) else model.adapters.load(os.fspath(lora)) for lora in loras or ()
    ]
    known = {lora.fingerprint.hex(): lora for lora in (*model.adapters.known(), *given)}
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
        found.append(model.adapters.load(lora))
    return found
