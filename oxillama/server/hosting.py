"""The model that a server has: loading, ready, or failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from oxillama.server.errors import ApiError

if TYPE_CHECKING:
    from oxillama import InferenceEngine


class Hosted:
    """A model by the name that clients have for it.

    Attributes
    ----------
    name : in answers, and in requests that name a model.
    created : seconds since 1970 at which the server began to load it.
    engine : None until it is loaded.
    """

    def __init__(self, name: str, engine: InferenceEngine | None = None) -> None:
        self.name = name
        self.created = int(time.time())
        self.engine = engine

    def ready(self) -> InferenceEngine:
        """The engine. Raises ApiError while the model is loading."""
        if self.engine is None:
            raise ApiError(503, "Loading model", type="unavailable_error", code="loading")
        return self.engine

    def check_name(self, model: str | None) -> None:
        """Raises ApiError if a request names another model."""
        if model is not None and model != self.name:
            raise ApiError(
                404, f"model: expected {self.name}, got {model[:200]}", param="model", code="model_not_found"
            )


def name_of_file(path: object) -> str:
    """What clients call the model of a file, if nobody says another name."""
    return Path(str(path)).stem
