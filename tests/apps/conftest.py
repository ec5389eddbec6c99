"""The small model that several programs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_file import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends by itself."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", ends=False)
