"""Methods of `InferenceEngine` for snapshots: engines, sessions and requests go on in another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from oxillama.config import EngineConfig
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.errors import ConfigError
from oxillama.sessions.plain import Stages, engine_of
from oxillama.sessions.restoring import Loras, Source, check_fits, loaded, read
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot
from oxillama.sessions.taking import Snapshotted
from oxillama.sessions.values import refusals
from oxillama.weights.packer import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oxillama.config import EngineFields

E = TypeVar("E", bound="Resuming")

DECIDES_BITS = ("kv_type", "compute", "quantize")
"""Options of an engine that a snapshot goes on with as they were."""


class Resuming(Snapshotted):
    """Snapshots of an engine's sequences; see `docs/sessions.md`.

    A snapshot has the model's fingerprint and not the model. One to go on from is given as its bytes or as
    the path of a file.
    """

    config: EngineConfig
    _default_session: Session | None

    if TYPE_CHECKING:  # what it calls

        def __init__(self, config: EngineConfig, *, progress: Progress | None = None) -> None: ...
        @property
        def model(self) -> LoadedModel: ...
        def session(self) -> Session: ...
        def close(self) -> None: ...

    def _taken(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """The options of the engine, and its own session (`prefill`, `forward_one`), for `resume`.

        Requests and other sessions are not part of it: they have a `snapshot` of their own.
        """
        if self._default_session is not None:
            return replace(self._default_session._taken(notes), kind="engine")
        with self.session() as empty:
            return replace(empty._taken(notes), kind="engine")

    @classmethod
    def resume(
        cls: type[E],
        snapshot: Source,
        model_path: str | os.PathLike[str] | None = None,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> E:
        """An engine like the one that a snapshot was taken of, with its session as the engine's own.

        Of a generation's snapshot, an engine like the one it ran in: `resume_generation` goes on with it.

        Parameters
        ----------
        model_path : where the model is now; None for where it was.
        loras : its adapters, or where they are now, if they are not where they were.
        stages : stages of its samplers that are written in Python, by name (``module.qualname``).
        config : fields of `EngineConfig`, in place of those of the snapshot.

        Raises
        ------
        SnapshotIncompatible : it is damaged, or does not fit; ``stages`` lacks a stage, which is named.
        ModelFingerprintMismatch : it is of another model. ConfigError : a field would change the bits.
        ModelFileError, GGUFError, LoadError, TokenizerError : as `InferenceEngine`; or the snapshot's file
            cannot be read.
        """
        taken = read(snapshot)
        with refusals():
            saved = engine_of(taken.engine, stages)
        for name in DECIDES_BITS:
            wanted = getattr(saved, name)
            found = config.get(name, wanted)
            if found != wanted:
                raise ConfigError(f"{name}: expected {wanted}, as the snapshot has, got {found}")
        path = model_path if model_path is not None else taken.model.path
        if not path:
            raise ConfigError("model_path: expected a path, for a snapshot of a model from bytes")
        chosen: dict[str, Any] = {"adapters": (), **config, "model_path": path}
        engine = cls(replace(saved, **chosen), progress=progress)
        try:
            check_fits(engine.model, taken)
            defaults = () if "adapters" in config else taken.engine_adapters
            for lora, facts in zip(loaded(engine.model, defaults, loras), defaults):
                engine.model.adapters.stack.push(lora, facts.scale)
            if taken.kind != "generation":
                engine._default_session = Session.restored(engine.model, engine.config.sampler, taken, loras)
        except BaseException:
            engine.close()
            raise
        return engine

    def restore_session(self, snapshot: Source, *, loras: Loras = None) -> Session:
        """A session that goes on where another one was (`Session.snapshot`).

        Parameters
        ----------
        loras : its adapters, or where they are now, if they are not where they were.

        Raises
        ------
        SnapshotIncompatible : it is damaged, or does not fit the engine; ModelFingerprintMismatch : it is of
            another model. Nothing has changed then.
        ModelFileError, GGUFError, LoadError : its file, or an adapter, cannot be read.
        KvCacheFullError : there are no pages for it.
        """
        return Session.restored(self.model, self.config.sampler, read(snapshot), loras)

    def resume_generation(
        self,
        snapshot: Source,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        callback: Callable[[str], object] | None = None,
        **fields: Any,
    ) -> Generation:
        """A generation that goes on where another one was (`Generation.snapshot`), with the same tokens.

        It has the text that was read of the other one, and yields the rest.

        Parameters
        ----------
        loras, stages : as in `resume`.
        callback : as in `stream`.
        fields : of `GenerationOptions` that decide no token: priority, timeout, window, speculate.

        Raises
        ------
        SnapshotIncompatible, ModelFileError, GGUFError, LoadError, KvCacheFullError : as `restore_session`.
        ConfigError : a field decides tokens. QueueFull : as `stream`.
        """
        return Generation.resumed(self.model, read(snapshot), stages, loras, callback, fields)
