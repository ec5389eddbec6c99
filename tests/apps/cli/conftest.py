"""The model that the commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxillama import EngineConfig, SamplerConfig
from oxillama.compat.engine import InferenceEngine
from tests.support.tiny_file import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends by itself."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", ends=False)


@pytest.fixture(scope="module")
def engine(model: Path) -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=model, sampler=SamplerConfig.greedy()))
