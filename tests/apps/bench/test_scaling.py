"""The model of how a pass scales with cores, and the command that checks it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.make_model import write_model
from benchmarks.scaling import Parameters, Pass, count_regions, predict
from benchmarks.shape import Experts, Shape
from oxillama import InferenceEngine
from oxillama._kernels import cpu
from oxillama.apps.bench import kernel_calls
from oxillama.apps.bench.kernel_calls import Product, counted_kernels

FACTS = Parameters({1: 10e9, 2: 18e9}, 100e9, share=1.0, cores=8, pair=2e-6, thread=1e-7, between_sockets=3.0)
ONE = Pass(outside=1e-3, products=8e-3, others=2e-3, shapes=(Product(10**6, 16, 0, False),) * 2)


def test_memory_and_regions_of_sockets() -> None:
    found = [FACTS.memory(n) for n in (1, 2, 4, 8, 16, 64)]
    assert found == [10e9, 18e9, 40e9, 80e9, 160e9, 640e9]
    assert FACTS.region_seconds(2) == 2e-6
    assert FACTS.region_seconds(8) == pytest.approx(2.6e-6)
    assert FACTS.region_seconds(16) == pytest.approx(5.0e-6)


def test_one_thread_is_what_was_measured() -> None:
    assert predict(ONE, 100, 1, FACTS, others_scale=True) == ONE.seconds == pytest.approx(11e-3)
    assert predict(ONE, 0, 64, FACTS, others_scale=True) == ONE.seconds


def test_products_are_divided_and_the_rest_is_added() -> None:
    assert predict(ONE, 100, 2, FACTS, others_scale=False) == pytest.approx(1e-3 + 2e-3 + 4e-3 + 2e-4)
    assert predict(ONE, 100, 2, FACTS, others_scale=True) == pytest.approx(1e-3 + 1e-3 + 4e-3 + 2e-4)


def test_the_thread_with_the_most_panels_decides() -> None:
    uneven = predict(ONE, 100, 6, FACTS, others_scale=False)  # 3 of 16 panels
    assert uneven == pytest.approx(3e-3 + 8e-3 * 3 / 16 + 100 * FACTS.region_seconds(6))


def test_memory_bounds_the_products() -> None:
    slow = Parameters({1: 1e8}, 1e8, 0.5, 8, 0.0, 0.0, 1.0)
    assert predict(ONE, 1, 8, slow, others_scale=False) == pytest.approx(3e-3 + 2e6 / 0.5e8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(n_embd=256, n_ff=512, n_layer=1, n_head=4, n_head_kv=2, n_vocab=8000, context=512)
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(path, shape, "Q8_0")
    return path


def test_a_step_reads_the_experts_that_its_token_takes(tmp_path: Path) -> None:
    few, many = (
        Shape(
            n_embd=64, n_ff=64, n_layer=1, n_head=2, n_head_kv=1, n_vocab=1000, context=64,
            experts=Experts(count=count, used=2, n_ff=64, shared=0, dense=0),
        )
        for count in (4, 16)
    )  # fmt: skip
    found = []
    for name, shape in (("few", few), ("many", many)):
        write_model(tmp_path / name, shape, "Q8_0")
        with counted_kernels() as calls, InferenceEngine.from_gguf(tmp_path / name) as engine:
            with engine.session() as session:
                session.prefill([1, 2, 3])
                calls.clear()
                session.forward(4)
            assert calls.counts["linear.apply_groups"] > 0
            found.append(sum(product.bytes for product in calls.products if not product.is_float))
    assert found[0] == found[1] > 0


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speed.json"
    words = [
        str(model), "--threads", "1", "--prompt", "8", "--new", "2", "--rounds", "1", "--json", str(file),
    ]  # fmt: skip
    assert main(["scaling", *words]) == 0
    assert [row["metric"] for row in json.loads(file.read_text())["results"]] == ["decode", "prefill"]
    text = capsys.readouterr().out
    assert [int(line.split()[0]) for line in text.splitlines()[-8:]] == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None or not cpu.openmp_threads(),
    reason="regions are counted on Linux, with a C compiler and OpenMP",
)
def test_regions_are_counted(model: Path) -> None:
    found = count_regions(argparse.Namespace(model=model, threads=2, prompt=32, new=2))
    assert found["prefill"] >= 4  # at least one for each product of the layer
    assert 1 <= found["decode"] <= found["prefill"]


def test_what_counting_costs_is_the_time_of_a_call_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second here, and a timed call looks twice: at one of the two nobody else
    is timed."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(kernel_calls.time, "perf_counter", lambda: float(next(seconds)))
    calls = kernel_calls.KernelCalls()
    assert calls.cost == pytest.approx(1.0, rel=1e-3)
    assert not calls.counts and calls.in_kernels == 0
