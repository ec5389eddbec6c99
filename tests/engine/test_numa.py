"""Engines whose matrices are split over NUMA nodes: the same text and logits, and what is refused."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, InferenceEngine, OffloadPolicy, demo, pack_model
from oxillama._kernels import best
from oxillama.engine.features.pipeline.engine import StagedEngine
from oxillama.models.weights import nodes
from oxillama.models.weights.nodes import Node
from tests._kernels.test_nodes import pytestmark as needs_openmp
from tests.support.kernels import same_bits

PROMPT = [5 + i % 200 for i in range(150)]
TWO = [Node(0, (0,)), Node(0, (1,))]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Two nodes, of one processor and the same memory each; what was asked for: (bytes, nodes)."""
    found: list[tuple[int, list[int]]] = []

    def place(memory: np.ndarray, numbers: np.ndarray) -> int:
        found.append((memory.nbytes, numbers.tolist()))
        return 0

    monkeypatch.setattr(nodes, "read_nodes", lambda: TWO)
    monkeypatch.setattr(nodes, "team", SimpleNamespace(place=place))
    return found


def results(n_threads: int, **options: Any) -> tuple[list[np.ndarray], str]:
    """Logits of a prompt and of two tokens behind it, and a text."""
    with InferenceEngine.from_gguf(demo.STORY, num_threads=n_threads, packed="off", **options) as engine:
        with engine.session() as session:
            logits = [session.prefill(PROMPT), session.forward(7), session.forward(8)]
        return logits, engine.generate(PROMPT, max_tokens=12, seed=3)


@needs_openmp
def test_text_and_logits_are_those_of_an_engine_without(asked: list[tuple[int, list[int]]]) -> None:
    logits, text = results(1)
    for n_threads in (1, 2, 4):
        with_nodes, same_text = results(n_threads, numa="split")
        assert same_text == text
        assert all(same_bits(*pair) for pair in zip(with_nodes, logits)), n_threads
    assert (4 << 20, [0, 0]) in [(n_bytes + -n_bytes % (1 << 20), of) for n_bytes, of in asked], "no pages"
    assert any(of == [0] for _, of in asked)


@needs_openmp
def test_products_of_an_engine_are_split(asked: list[tuple[int, list[int]]]) -> None:
    module = best().linear
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=2, packed="off", numa="split")
    engine.generate(PROMPT, max_tokens=2)
    assert sum(module.units_taken()) > 0
    engine.close()


@pytest.mark.parametrize(
    ("found", "got"), [([], "no word of nodes from the system"), ([Node(0, (0, 1))], "one")]
)
@needs_openmp
def test_a_machine_without_several_nodes_is_refused(
    found: list[Node], got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "read_nodes", lambda: found)
    with pytest.raises(ConfigError, match=f"^numa: expected several NUMA nodes .*, got {got}$"):
        InferenceEngine.from_gguf(demo.STORY, packed="off", numa="split")


def test_kernels_without_openmp_are_refused(
    asked: list[tuple[int, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "cpu", SimpleNamespace(openmp_threads=lambda: 0))
    with pytest.raises(ConfigError, match=r"^numa: expected kernels with OpenMP"):
        InferenceEngine.from_gguf(demo.STORY, packed="off", numa="split")


def test_a_packed_file_is_refused(asked: list[tuple[int, list[int]]], tmp_path: Path) -> None:
    model = Path(shutil.copy(demo.STORY, tmp_path / "model.gguf"))
    packed = pack_model(model)
    with pytest.raises(ConfigError, match=r'^numa: expected no packed file with "split" .*, got ') as error:
        InferenceEngine.from_gguf(model, numa="split")
    assert str(packed) in str(error.value)


@pytest.mark.parametrize("options", [{"packed": "make"}, {"packed": "a.packed"}, {"offload_budget": 1 << 20}])
def test_other_memory_of_matrices_is_refused(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"^numa: split cannot be combined with {name} {value}$"):
        EngineConfig(numa="split", **options)


def test_a_budget_by_a_policy_and_a_pipeline_are_refused() -> None:
    policy = OffloadPolicy.Budget(1 << 20)
    for make in (
        partial(EngineConfig, numa="split", offload_policy=policy),
        partial(EngineConfig(numa="split").with_offload, policy),
    ):
        with pytest.raises(ConfigError, match=r"^numa: split cannot be combined with offload_budget"):
            make()
    with pytest.raises(ConfigError, match=r"^numa: cannot be honoured in a pipeline$"):
        StagedEngine.from_gguf(demo.STORY, numa="split")
    with pytest.raises(ConfigError, match=r"^numa: expected one of off, split, got \"?'?numactl"):
        EngineConfig(numa="numactl")
