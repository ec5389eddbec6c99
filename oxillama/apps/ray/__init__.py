"""Several machines with Ray: batch jobs by Ray Data, serving by Ray Serve, a model in pipeline stages.

`Predictor` and `predict` (`predictor`, with the columns of `columns`) answer the rows of a dataset;
`cluster` answers the rows of ``oxillama batch --ray``. `app` (`serving`) deploys the server; `router` sends a
request to the replica that `prefixes` chooses, or that keeps the responses that it names (`homes`). `loading`
shares one packed copy of the weights on a machine, and `comparing` has all processes load the same model;
`sizing` computes the resources of a replica. `PipelineEngine` (`pipeline`) runs a model that is larger than
one machine.

An answer depends only on the request and the model, bit for bit, so it does not matter how often or where
a request runs: a lost request is run again.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama.base.distribution import install
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.apps.ray.comparing import model_facts
    from oxillama.apps.ray.pipeline import PipelineEngine
    from oxillama.apps.ray.predictor import Predictor, predict
    from oxillama.apps.ray.serving import app
    from oxillama.apps.ray.sizing import resources

__all__ = ["PipelineEngine", "Predictor", "app", "model_facts", "predict", "resources"]

_LATER = {
    "PipelineEngine": "pipeline",
    "Predictor": "predictor",
    "app": "serving",
    "model_facts": "comparing",
    "predict": "predictor",
    "resources": "sizing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'oxillama.apps.ray' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"oxillama.apps.ray.{_LATER[name]}")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "oxillama":
            raise
        wanted = f"Ray and what it needs for oxillama.apps.ray.{name} ({install('ray')})"
        raise ConfigError(f"oxillama.apps.ray: expected {wanted}, got none of {error.name}") from error
    return getattr(module, name)
