"""The engine whose texts the commands write."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxillama import EngineConfig, SamplerConfig
from oxillama.compat.engine import InferenceEngine


@pytest.fixture(scope="module")
def engine(model: Path) -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=model, sampler=SamplerConfig.greedy()))
