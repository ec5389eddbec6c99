"""Runs one model on several machines: the stages of a pipeline are Ray actors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from oxillama.apps.ray.loading import as_config
from oxillama.base.config import EngineConfig
from oxillama.engine.features.pipeline.engine import StagedEngine
from oxillama.engine.features.pipeline.messages import PassMessage, StageFacts, StagePlan
from oxillama.engine.features.pipeline.stage import Stage
from oxillama.errors import ConfigError, OxiLlamaError, StageFailed
from oxillama.models.decoder import Carried
from oxillama.models.weights.packer import Progress


class StageActor:
    """A pipeline stage in a process of its own.

    Args:
        cpus: CPUs that the process may use; None: Ray's choice.
    """

    def __init__(self, plan: StagePlan, cpus: Sequence[int] | None) -> None:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        self._stage = Stage.load(plan)

    def facts(self) -> StageFacts:
        return self._stage.facts()

    def run(self, message: PassMessage, given: Carried | None) -> Carried:
        return self._stage.run(message, given)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._stage, method)(*args)


class RayLink:
    """A link to a stage's actor. Intermediate results go from actor to actor."""

    def __init__(self, number: int, actor: Any) -> None:
        self._number, self._actor = number, actor

    def facts(self) -> StageFacts:
        found: StageFacts = self._get(self._actor.facts.remote())
        return found

    def run(self, message: PassMessage, given: Any) -> Any:
        return self._actor.run.remote(message, given)

    def result(self, handle: Any) -> Carried:
        found: Carried = self._get(handle)
        return found

    def call(self, method: str, *args: Any) -> Any:
        return self._get(self._actor.call.remote(method, *args))

    def close(self) -> None:
        ray.kill(self._actor)

    def _get(self, handle: Any) -> Any:
        try:
            return ray.get(handle)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, OxiLlamaError) and not isinstance(cause, StageFailed):
                raise cause from None
            raise StageFailed(f"stage {self._number}: {error}") from error


class PipelineEngine(StagedEngine):
    """An engine whose first layers run on other machines as Ray actors; the last layers run in this process.

    It behaves like `StagedEngine`: logits have the same bits as in one process, and several batches are in
    flight, so that all stages work. Without an earlier ``ray.init``, the running cluster is joined, or a new
    one started on this machine.

    Args:
        config: as for `InferenceEngine`, or the path of the model. The file must be at the same path on every
            machine, or at ``paths``.
        stages: number of stages including this process, at least 2.
        actors: for each stage but the last, options of its Ray actor: ``num_cpus``, ``resources``,
            ``scheduling_strategy`` and so on. None: ``{"num_cpus": num_threads or 1}``.
        cpus: for each stage but the last, the CPUs of its machine that it may use; None: all that its worker
            may use.
        kind: ``speeds``, ``borders``, ``paths`` and ``on_failure`` as for `StagedEngine`.

    Raises:
        ConfigError, LoadError, StageFailed: as `StagedEngine`.
    """

    def __init__(
        self,
        config: EngineConfig | str | os.PathLike[str],
        *,
        stages: int = 2,
        actors: Sequence[Mapping[str, Any]] | None = None,
        cpus: Sequence[Sequence[int] | None] | None = None,
        progress: Progress | None = None,
        **kind: Any,
    ) -> None:
        config = as_config(config)
        for name, given in (("actors", actors), ("cpus", cpus)):
            if given is not None and len(given) != stages - 1:
                raise ConfigError(f"{name}: expected {stages - 1}, got {len(given)}")
        asked = [{"num_cpus": config.num_threads or 1}] * (stages - 1) if actors is None else actors
        used = [None] * (stages - 1) if cpus is None else cpus
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")

        def connect(number: int, plan: StagePlan) -> RayLink:
            made = ray.remote(StageActor).options(**asked[number]).remote(plan, used[number])
            return RayLink(number, made)

        super().__init__(config, stages=stages, connect=connect, progress=progress, **kind)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], **kind: Any) -> PipelineEngine:
        """An engine for the model at ``path``; ``kind``: its own parameters, and fields of `EngineConfig`."""
        own = {"stages", "actors", "cpus", "speeds", "borders", "paths", "on_failure", "progress"}
        mine = {name: kind.pop(name) for name in own & kind.keys()}
        return cls(EngineConfig(model_path=path, **kind), **mine)
