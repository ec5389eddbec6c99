"""Stages of the user's own: Python callables that run between the kernels of a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from oxillama.engine.sampling.batch import kept_workspaces
from oxillama.errors import SamplingError


@contextmanager
def set_aside() -> Iterator[None]:
    """A context in which the calling thread uses other workspaces: a stage in Python may sample, too."""
    key, kept = kept_workspaces.key, kept_workspaces.workspaces
    del kept_workspaces.key
    try:
        yield
    finally:
        kept_workspaces.key, kept_workspaces.workspaces = key, kept


def call_stage(stage: Callable[..., Any], workspace: Any, history: np.ndarray) -> int:
    """Applies a stage of the user's own to the candidates; the kernel's status."""
    ids, logits = workspace.candidates()
    with set_aside():
        changed = stage(ids.copy(), logits, history)
    changed = logits if changed is None else np.asarray(changed, np.float32, order="C")
    if changed.shape != ids.shape:
        raise SamplingError(f"stage {stage!r}: expected {len(ids)} logits, got shape {changed.shape}")
    status: int = workspace.replace(ids, changed)
    return status
