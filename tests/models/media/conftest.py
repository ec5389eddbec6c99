"""Tiny models with projector files of three kinds, and engines of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama import InferenceEngine
from tests.support.media import PROJECTORS, WIDTH, opened, projector_file
from tests.support.tiny_file import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and one folder for each projector with a model and a projector file."""
    found = tmp_path_factory.mktemp("media")
    for kind in PROJECTORS:
        (found / kind).mkdir()
        write_tiny_model(found / kind / "text.gguf", n_embd=WIDTH, ends=False)
        (found / kind / "mmproj-F32.gguf").write_bytes(projector_file(kind))
    write_tiny_model(found / "text.gguf", n_embd=WIDTH, ends=False)
    return found


@pytest.fixture(params=PROJECTORS)
def kind(request: pytest.FixtureRequest) -> str:
    """A projector."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[dict[str, InferenceEngine]]:
    found = {kind: opened(folder, kind) for kind in PROJECTORS}
    yield found
    for engine in found.values():
        engine.close()


@pytest.fixture
def engine(kind: str, engines: dict[str, InferenceEngine]) -> InferenceEngine:
    """The engine of a projector."""
    return engines[kind]
