"""How workers load a model: one packed copy on a machine, made by one of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineClosed, EngineConfig, InferenceEngine, ModelFileError, SamplerConfig
from oxillama.apps.batch.facts import check_files, fingerprint
from oxillama.apps.ray import loading
from oxillama.apps.ray.loading import alone, facts_on, load, local_path
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


OPTIONS: dict[str, Any] = {
    "kv_type": "q8_0",
    "compute": "f32",
    "context_size": 64,
    "quantize": "Q8_0",
    "sampler": SamplerConfig(temperature=0.5),
}


def another(name: str, config: EngineConfig) -> EngineConfig:
    """A configuration of the same paths, after one of the files, or an option, has been changed."""
    folder = Path(str(config.model_path)).parent
    if name == "model":
        write_tiny_model(folder / "m.gguf", seed=1)
    elif name == "projector":
        write_tiny_model(folder / "mmproj-m.gguf", seed=1)
    elif name == "tokenizer":
        (folder / "tokenizer.json").write_text("{ }")
    elif name == "chat_template":
        (folder / "template.jinja").write_text("{{ messages[0].content }}!")
    elif name == "adapters":
        (folder / "a.gguf").write_bytes(b"another")
    else:
        return replace(config, **{name: OPTIONS[name]})
    return config


@pytest.mark.parametrize("name", ["model", "projector", "tokenizer", "chat_template", "adapters", *OPTIONS])
def test_a_model_that_is_not_the_jobs_is_refused(model: Path, name: str) -> None:
    folder = model.parent
    write_tiny_model(folder / "mmproj-m.gguf")
    for file, text in (
        ("tokenizer.json", "{}"),
        ("template.jinja", "{{ messages[0].content }}"),
        ("a.gguf", ""),
    ):
        (folder / file).write_text(text)
    config = EngineConfig(
        model_path=model,
        tokenizer_path=folder / "tokenizer.json",
        chat_template=folder / "template.jinja",
        adapters=str(folder / "a.gguf"),
        compute="int8",
    )
    facts = facts_on(config)
    check_files(facts, config)
    with pytest.raises(ModelFileError) as caught:
        load(another(name, config), facts)
    said = str(caught.value)
    assert said.startswith(f"{name}: expected that of the job, fingerprint ") and str(model) in said
    wanted, got = (fingerprint(each) for each in (facts[name], facts_on(another(name, config))[name]))
    assert f"fingerprint {wanted}, got {got} at " in said and wanted != got


def test_a_model_that_is_replaced_while_it_is_loaded_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, plain, made = (
        EngineConfig(model_path=model, num_threads=1),
        loading.loaded,
        list[InferenceEngine](),
    )
    facts = facts_on(config)
    good = model.read_bytes()
    with load(config, facts) as engine:
        assert engine.generate("hello", max_tokens=2)

    def swapping(config: EngineConfig, path: str) -> InferenceEngine:
        """Another model is at the path while it is loaded, and neither before nor after."""
        other = write_tiny_model(model.with_name("other.gguf"), seed=1)
        os.replace(other, model)
        made.append(plain(config, path))
        model.with_name("good.gguf").write_bytes(good)
        os.replace(model.with_name("good.gguf"), model)
        return made[0]

    monkeypatch.setattr(loading, "loaded", swapping)
    with pytest.raises(ModelFileError, match=r"expected that of the job, fingerprint|changed"):
        load(config, facts)
    with pytest.raises(EngineClosed):
        made[0].generate("hello", max_tokens=2)


def test_models_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: expected a path"):
        local_path(None)
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        load(EngineConfig(model_path=tmp_path / "none.gguf"))


def test_a_path_is_in_full(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert local_path("m.gguf") == str(model)


def test_a_machine_that_does_not_tell_its_cpus_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizing = pytest.importorskip("oxillama.apps.ray.sizing", exc_type=ImportError)
    monkeypatch.setattr(sizing.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert sizing.smallest_machine() == 1
