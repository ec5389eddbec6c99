"""Faces: more machines than one, on Ray: a model in stages (`pipeline`)."""

from __future__ import annotations

from typing import Any

__all__ = ["PipelineEngine"]


def __getattr__(name: str) -> Any:
    if name != "PipelineEngine":
        raise AttributeError(f"module 'oxillama.ray' has no attribute {name!r}")
    from oxillama.ray.pipeline import PipelineEngine

    return PipelineEngine
