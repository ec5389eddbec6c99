"""Runs tasks of lm-evaluation-harness with a model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from oxillama.errors import ConfigError
from oxillama.evaluation.harness import OxillamaLM
from oxillama.evaluation.scoring import BATCH_SIZE


@dataclass(frozen=True)
class Evaluation:
    """What tasks came to.

    Attributes
    ----------
    results : by task, the harness's figures by "metric,filter".
    samples : by task, each document with the requests and answers; {} if they were not asked for.
    """

    results: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Task, metric, value and error of each figure, as texts."""
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
    """Runs tasks.

    Parameters
    ----------
    model : GGUF file.
    tasks : names of tasks or groups. include : folders of further tasks, as YAML files.
    num_fewshot : examples before each question; None for the task's.
    limit : max documents of a task; None for all.
    chat : whether questions are put with the model's chat template. system : message before them.
    bootstrap : resamplings for the errors of metrics that have no formula.
    samples : whether documents and answers are returned, too.
    batch_size, truncate, receipts, options : as for `OxillamaLM`.

    Raises
    ------
    ConfigError : there is no such task, or an option is out of range.
    PromptError : a prompt does not fit the context. And what loading a model raises.
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
