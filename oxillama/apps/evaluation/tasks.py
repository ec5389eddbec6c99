"""Runs lm-evaluation-harness tasks with a model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from oxillama.apps.evaluation.harness import OxillamaLM
from oxillama.apps.evaluation.scoring import BATCH_SIZE
from oxillama.errors import ConfigError


@dataclass(frozen=True)
class Evaluation:
    """The results of tasks.

    Attributes:
        results: for each task, the harness's figures by "metric,filter".
        samples: for each task, its documents with requests and answers; {} if not requested.
    """

    results: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(task, metric, value, error) of each figure, as texts."""
        found = []
        for task, figures in self.results.items():
            for name, value in figures.items():
                metric, comma, filtered = name.partition(",")
                if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                    continue
                error = figures.get(f"{metric}_stderr,{filtered}")
                label = metric if filtered == "none" else f"{metric}, {filtered}"
                shown = f"{error:.4f}" if isinstance(error, float) else ""
                found.append((task, label, f"{value:.4f}", shown))
        return found

    def samples_json(self) -> str:
        """The samples as JSON text."""
        return json.dumps(self.samples, indent=1, default=str, ensure_ascii=False)


def evaluate(
    model: str | os.PathLike[str],
    tasks: Sequence[str],
    *,
    include: Sequence[str] = (),
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    chat: bool = False,
    system: str | None = None,
    truncate: bool = False,
    bootstrap: int = 1000,
    receipts: str | None = None,
    samples: bool = False,
    **options: Any,
) -> Evaluation:
    """Run tasks with a model.

    Args:
        model: GGUF file.
        tasks: names of tasks or groups.
        include: folders with further tasks as YAML files.
        num_fewshot: examples before each question; None: the task's default.
        limit: max documents of a task; None: all.
        chat: whether to use the model's chat template.
        system: the system message.
        bootstrap: number of resamplings for the errors of metrics without a formula.
        samples: whether to return documents and answers, too.
        batch_size, truncate, receipts, options: as for `OxillamaLM`.

    Raises:
        ConfigError: a task is unknown, or an option is out of range.
        PromptError: a prompt exceeds the context. Also the errors of loading a model.
    """
    manager = TaskManager(include_path=list(include) or None)
    unknown = [name for name in tasks if not manager.match_tasks([name])]
    if unknown or not tasks:
        raise ConfigError(f"tasks: expected names of tasks, got {', '.join(unknown) or 'none'}")
    lm = OxillamaLM(
        os.fspath(model),
        batch_size=BATCH_SIZE if batch_size is None else batch_size,
        truncate=truncate,
        receipts=receipts,
        **options,
    )
    try:
        found = simple_evaluate(
            lm,
            tasks=list(tasks),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            apply_chat_template=chat,
            system_instruction=system,
            log_samples=samples,
            bootstrap_iters=bootstrap,
        )
    finally:
        lm.close()
    return Evaluation(found["results"], found.get("samples", {}))
