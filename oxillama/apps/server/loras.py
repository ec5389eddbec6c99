"""The scales of a model's adapters, as llama-server writes them: a list of ``{"id": 0, "scale": 0.5}``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oxillama.apps.server.errors import invalid
from oxillama.engine.engine import InferenceEngine
from oxillama.models.adapters.lora import LoadedLora


def lora_scales(engine: InferenceEngine, name: str, value: Any) -> list[float]:
    """The scale of each adapter of a model; 0 for adapters that are not listed.

    Raises ApiError, which names the field ``name``, for another value, or an id that the model does not have.
    """
    if not isinstance(value, list):
        raise invalid(name, "a list", value)
    n, found = len(engine.adapters.stack), {}
    for i, item in enumerate(value):
        if not isinstance(item, dict) or item.keys() != {"id", "scale"}:
            raise invalid(f"{name}[{i}]", "an id and a scale", item)
        id, scale = item["id"], item["scale"]
        if type(id) is not int or not 0 <= id < n:
            known = f"an id below {n}" if n else "none, the model has no adapters"
            raise invalid(f"{name}[{i}].id", known, id)
        if type(scale) not in (int, float):
            raise invalid(f"{name}[{i}].scale", "a number", scale)
        if id in found:
            raise invalid(f"{name}[{i}].id", "each id once", id)
        found[id] = float(scale)
    return [found.get(i, 0.0) for i in range(n)]


def loras(engine: InferenceEngine, name: str, value: Any) -> tuple[tuple[LoadedLora, float], ...]:
    """The adapters of one request, with their scales. Raises ApiError."""
    scales = lora_scales(engine, name, value)
    return tuple((lora, scale) for (lora, _), scale in zip(engine.adapters.stack, scales) if scale)


def listed(engine: InferenceEngine) -> list[dict[str, Any]]:
    """The adapters of a model, with the default scales."""
    return [
        {"id": i, "path": "" if lora.path is None else Path(lora.path).name, "scale": scale}
        for i, (lora, scale) in enumerate(engine.adapters.stack)
    ]
