"""An engine whose layers run in several processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oxillama.base.config import EngineConfig
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.engine.building import EngineFactory
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.pipeline.links import Connect, StageLink, connect_here
from oxillama.engine.features.pipeline.messages import StageFacts, StagePlan, facts_of_file
from oxillama.engine.features.pipeline.partition import split
from oxillama.engine.features.pipeline.pool import CommandLog, spread_pool
from oxillama.engine.features.pipeline.runner import PipelinedRunner
from oxillama.engine.loading import LoadedModel
from oxillama.engine.runner import Runner
from oxillama.errors import ConfigError, LoadError, StageFailed
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec
from oxillama.models.page_groups import page_groups
from oxillama.models.weights.packer import Progress


class PipelinedFactory(EngineFactory):
    """Makes the parts of an engine that is the last stage of a pipeline.

    Args:
        config: of the engine.
        speeds, borders: as for `split`.
        paths: of the model's file for each of the other stages.
        connect: starts a stage.
        begins_again: as for `PipelinedRunner`.
    """

    def __init__(
        self,
        config: EngineConfig,
        speeds: Sequence[float],
        borders: Sequence[int] | None,
        paths: Sequence[str],
        connect: Connect,
        begins_again: bool,
    ) -> None:
        self.config: EngineConfig = config
        self.speeds: Sequence[float] = speeds
        self.borders: Sequence[int] | None = borders
        self.paths: Sequence[str] = paths
        self.connect: Connect = connect
        self.begins_again: bool = begins_again
        self.log: CommandLog = CommandLog([])
        self.plans: list[StagePlan] = []
        self.facts: list[StageFacts] = []

    def spec(self, spec: Spec, file: ModelFile) -> Spec:
        """The last stage's; also starts the others."""
        context_size = self.config.context_size or min(spec.context_length, MAX_CONTEXT)
        parts = split(spec, file, self.speeds, self.borders)
        stage = replace(
            self.config, model_path=None, tokenizer_path=None, chat_template=None, adapters=(), speculate=None
        )
        self.whole = spec
        self.plans = [StagePlan(path, stage, part, context_size) for path, part in zip(self.paths, parts)]
        self._connect_all(facts_of_file(file))
        return replace(spec, part=parts[-1])

    def _connect_all(self, model: tuple[int, int]) -> None:
        self._model = model
        self.log.links[:] = [self._connected(number) for number in range(len(self.plans))]
        self.facts = [link.facts() for link in self.log.links]
        for plan, facts in zip(self.plans, self.facts):
            if facts.model != model:
                self.close()
                raise LoadError(f"{plan.path}: expected the tensors of the engine's own file, got others")

    def _connected(self, number: int) -> StageLink:
        return self.connect(number, self.plans[number])

    def restart(self) -> None:
        """Replaces the stages that do not answer. Raises StageFailed if one cannot be started."""
        for number, link in enumerate(self.log.links):
            try:
                link.facts()
            except StageFailed:
                link.close()
                fresh = self._connected(number)
                if fresh.facts().model != self._model:
                    raise StageFailed(f"stage {number}: its file is another one now") from None
                self.log.links[number] = fresh
        self.log.take()

    def pool(self, model: Decoder, config: EngineConfig) -> CachePool:
        stages = [replace(self.whole, part=plan.part) for plan in self.plans] + [model.spec]
        groups = [page_groups(spec) for spec in stages]
        return spread_pool(model, page_groups(self.whole), groups, config, self.log, self.facts)

    def unused(self, tensors: list[str]) -> list[str]:
        return [name for name in tensors if all(name in facts.unused for facts in self.facts)]

    def runner(self, model: Decoder, pool: CachePool, n_threads: int) -> Runner:
        return PipelinedRunner(model, pool, n_threads, self.log, self.restart, self.begins_again)

    def close(self) -> None:
        for link in self.log.links:
            link.close()
        self.log.links.clear()


class StagedEngine(InferenceEngine):
    """An engine whose first layers run in other stages; everything else is as in `InferenceEngine`.

    Logits have the bits of one process. ``kv_memory_limit`` counts the pages of all stages together, and an
    ``offload_budget`` holds for each stage.

    Args:
        config: as for `InferenceEngine`, or the path of the model. Every stage reads its own tensors of it.
        stages: how many, this process included: at least 2.
        speeds: of the stages, in any one unit, by which the layers are divided; None for equal ones.
        borders: the first layer of each stage but the first, in place of ``speeds``.
        paths: of the model's file for each stage but the last; None for this process' own.
        connect: starts a stage; by default in this process, which is of use for tests only.
        on_failure: "resume" starts a stage that has failed again, and has the requests begin again, which
            changes no bit of their texts; "fail" ends those that run with StageFailed.

    Raises:
        ConfigError: an option is outside its range, cannot be honoured in a pipeline (``prefix_cache_dir``,
            adapters), or there are too few layers.
        StageFailed: a stage cannot be started.
        LoadError: a stage has another file.
    """

    def __init__(
        self,
        config: EngineConfig | str | os.PathLike[str],
        *,
        stages: int = 2,
        speeds: Sequence[float] | None = None,
        borders: Sequence[int] | None = None,
        paths: Sequence[str | os.PathLike[str]] | None = None,
        connect: Connect = connect_here,
        on_failure: str = "resume",
        progress: Progress | None = None,
    ) -> None:
        config = EngineConfig(model_path=config) if not isinstance(config, EngineConfig) else config
        if config.model_path is None:
            raise ConfigError("model_path: expected a path, got None")
        for name, alone in (("prefix_cache_dir", None), ("numa", "off"), ("adapters", ())):
            if getattr(config, name) != alone:
                raise ConfigError(f"{name}: cannot be honoured in a pipeline")
        if stages < 2:
            raise ConfigError(f"stages: expected at least 2, got {stages}")
        if on_failure not in ("resume", "fail"):
            raise ConfigError(f'on_failure: expected "resume" or "fail", got {on_failure!r}')
        speeds = [1.0] * stages if speeds is None else list(speeds)
        if len(speeds) != stages or not all(speed > 0 for speed in speeds):
            raise ConfigError(f"speeds: expected {stages} numbers above 0, got {speeds}")
        own = str(Path(config.model_path).resolve())
        files = [own] * (stages - 1) if paths is None else [os.fspath(path) for path in paths]
        if len(files) != stages - 1:
            raise ConfigError(f"paths: expected {stages - 1}, got {len(files)}")
        self._factory = (speeds, borders, files, connect, on_failure == "resume")
        super().__init__(config, progress=progress)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], **kind: Any) -> StagedEngine:
        """An engine for the model at ``path``; ``kind``: its own parameters, and fields of `EngineConfig`."""
        own = ("stages", "speeds", "borders", "paths", "connect", "on_failure", "progress")
        mine = {name: kind.pop(name) for name in own if name in kind}
        return cls(EngineConfig(model_path=path, **kind), **mine)

    def _new_model(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> LoadedModel:
        factory = PipelinedFactory(self.config, *self._factory)
        return LoadedModel(source, self.config, progress, factory)
