"""The engine that answers rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama import EngineConfig, InferenceEngine
from oxillama.apps.batch.engines import for_jobs


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine(for_jobs(EngineConfig(model_path=model, num_threads=1))) as found:
        yield found
