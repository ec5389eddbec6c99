"""How workers load a model: one packed copy on a machine, made by one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oxillama import ConfigError, EngineConfig, InferenceEngine, ModelFileError
from oxillama.ray.loading import alone, load, local_path
from tests.support.tiny_file import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf")


def packed_files(model: Path) -> list[str]:
    return [path.name for path in model.parent.glob("*.packed")]


@pytest.mark.parametrize(("packed", "made"), [("auto", ["m.gguf.packed"]), ("off", [])])
def test_the_packed_file_is_made_beside_the_model(model: Path, packed: str, made: list[str]) -> None:
    with load(EngineConfig(model_path=model, packed=packed)) as engine:
        assert packed_files(model) == made
        text = engine.generate("hello", max_tokens=5, seed=1)
    with InferenceEngine.from_gguf(model, packed="off") as one:
        assert one.generate("hello", max_tokens=5, seed=1) == text


def test_a_folder_that_cannot_be_written_to(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with load(EngineConfig(model_path=model)):
        assert packed_files(model) == []


def test_others_wait_while_one_loads(model: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="the system has no locks of files")
    with model.open("rb") as file:
        with alone(str(model)), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_models_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: expected a path"):
        local_path(None)
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        load(EngineConfig(model_path=tmp_path / "none.gguf"))


def test_a_path_is_in_full(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert local_path("m.gguf") == str(model)


def test_a_machine_that_does_not_tell_its_cpus_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizing = pytest.importorskip("oxillama.ray.sizing", exc_type=ImportError)
    monkeypatch.setattr(sizing.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert sizing.smallest_machine() == 1
