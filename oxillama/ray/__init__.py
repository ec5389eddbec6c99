"""Faces: more machines than one, on Ray: batch jobs by Ray Data, serving by Ray Serve, a model in stages.

`Predictor` and `predict` (`predictor`, with the columns of `columns`) answer the rows of a dataset,
`cluster` those of ``oxillama batch --ray``. `app` (`serving`) is a deployment of the server; `router` sends a
request to the replica that `prefixes` finds. `loading` has one packed copy of the weights on a machine,
`sizing` computes what a replica asks Ray for. `PipelineEngine` (`pipeline`) runs a model that is larger than
one machine.

An answer follows from the request and the model alone, bit for bit, so it does not matter how often or where
a request runs: what is lost is run again.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama.distribution import install
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.ray.pipeline import PipelineEngine
    from oxillama.ray.predictor import Predictor, predict
    from oxillama.ray.serving import app
    from oxillama.ray.sizing import resources

__all__ = ["PipelineEngine", "Predictor", "app", "predict", "resources"]

_LATER = {
    "PipelineEngine": "pipeline",
    "Predictor": "predictor",
    "app": "serving",
    "predict": "predictor",
    "resources": "sizing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'oxillama.ray' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"oxillama.ray.{_LATER[name]}")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "oxillama":
            raise
        wanted = f"Ray and what it needs for oxillama.ray.{name} ({install('ray')})"
        raise ConfigError(f"oxillama.ray: expected {wanted}, got none of {error.name}") from error
    return getattr(module, name)
