"""Servers beside prompts: each server is started as asked, and a line of the plot is a server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import over_http, plot, server_peer, timing, vllm
from benchmarks.__main__ import main
from benchmarks.commands import parser
from benchmarks.make_model import write_model
from oxillama.apps.bench.report import Summary
from oxillama.errors import ConfigError
from tests.apps.bench.test_benchmark_suite import SVG, TINY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(path, TINY, "Q8_0")
    return path


def arguments(model: Path, *more: str) -> argparse.Namespace:
    return parser().parse_args(["serving", "--model", str(model), "--threads", "2", *more])


Started = list[tuple[list[str], Mapping[str, str] | None]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The commands and environments of servers, none of which is started."""
    found: Started = []

    @contextmanager
    def running(command: Sequence[str], expected: str, env: Mapping[str, str] | None = None) -> Iterator[Any]:
        found.append(([*command], env))
        yield server_peer.Served(7, 1)

    monkeypatch.setattr(server_peer, "running", running)
    monkeypatch.setattr(vllm, "running", running)
    return found


def has(command: list[str], name: str, value: str) -> bool:
    return (name, value) in pairwise(command)


def test_a_llama_server_gets_room_for_all_streams_and_its_batch(model: Path, started: Started) -> None:
    args = arguments(model, "--peer", "/opt/llama-server", "--peer", "llama.cpp")
    assert over_http.http_peers(args) == ["llama-server"]
    with over_http.started("llama-server", args, 512, 64) as server:
        assert server.port == 7
    with over_http.started("llama-server", args, 512):
        pass
    (first, _), (second, _) = started
    assert first[0] == "/opt/llama-server" and has(first, "-c", str(5 * 512)) and has(first, "-np", "5")
    assert has(first, "-b", "64") and has(first, "-ub", "64") and "-b" not in second
    assert has(first, "--override-kv", "llama.context_length=int:512")


def test_vllm_gets_its_libraries_alone(
    model: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    folder = model.with_suffix(".w8a8")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    args = arguments(model, "--peer", "vllm", "--vllm-preload", "a.so:b.so")
    with over_http.started("vllm", args, 512, 64):
        pass
    with over_http.started("vllm", arguments(model, "--peer", "vllm"), 512):
        pass
    (first, env), (second, plain) = started
    assert first[0] == sys.executable and has(first, "--model", str(folder))
    assert has(first, "--max-model-len", "512") and has(first, "--max-num-seqs", "5")
    assert has(first, "--max-num-batched-tokens", "64") and "--max-num-batched-tokens" not in second
    assert env is not None and env["LD_PRELOAD"] == "a.so:b.so" and env["OMP_NUM_THREADS"] == "2"
    assert plain is not None and "LD_PRELOAD" not in plain
    assert "LD_PRELOAD" not in os.environ


def test_a_server_that_ends_is_no_peer() -> None:
    ends = server_peer.running([sys.executable, "-c", "pass"], "--peer: expected a server")
    with pytest.raises(ConfigError, match="--peer: expected a server, got none from"), ends:
        pass


def test_a_line_of_the_plot_is_a_server() -> None:
    def turn(gap: float, prompts: float) -> dict[str, list[float]]:
        return {**{metric.name: [1.0] for metric in over_http.MIXED}, **dict(zip(NAMES, ([prompts], [gap])))}

    NAMES = "prompts' tokens", "gap, worst"
    samples = {"oxillama 9 ms": turn(20, 5), "oxillama no limit": turn(10, 6), "vllm 64": turn(30, 4)}
    prompts, streams = over_http.charts(samples)
    assert prompts.series.keys() == streams.series.keys() == {"oxillama", "vllm"}
    assert [(gap, each.median) for gap, each in prompts.series["oxillama"]] == [(10, 6), (20, 5)]


def test_streams_beside_prompts_of_both_ways_to_compute(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    report, drawn = tmp_path / "report.json", tmp_path / "waits.svg"
    run = [
        "serving", "--model", str(model), "--threads", "1", "--rounds", "1", "--warmup", "0", "--sequences",
    ]  # fmt: skip
    run += ["--prefix", "0", "--http-long", "16", "--waits", "5", "1e9", "--mixed-prompt", "16"]
    assert main([*run, "--peer", "oxillama-w8a8", "--plot", str(drawn), "--json", str(report)]) == 0
    results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
    long, waits = (
        [r for r in results if r["metric"] == "gap, worst" and len(r["samples"]) == n] for n in (2, 4)
    )
    assert long[0]["samples"].keys() == {"oxillama", "oxillama-w8a8"}
    limits = ("5 ms", "no limit")
    assert waits[0]["samples"].keys() == {
        f"oxillama{way} {limit}" for way in ("", "-w8a8") for limit in limits
    }
    assert all(values[0] > 0 for row in (*long, *waits) for values in row["samples"].values())
    lines = ElementTree.parse(drawn).getroot().iter(f"{SVG}polyline")
    assert len([*lines]) == 4  # two charts of two servers


def test_an_axis_names_sizes_as_long_as_they_are_few() -> None:
    def names(n: int) -> set[str | None]:
        points = [(100.0 + i, Summary.of([1.0])) for i in range(n)]
        root = ElementTree.fromstring(plot.svg([plot.Chart("gap", "ms", "tokens / s", {"one": points})]))
        return {each.text for each in root.iter(f"{SVG}text")}

    assert "107" in names(12)
    assert "107" not in names(13)


def test_names_of_lines_stand_within_the_chart() -> None:
    lines = {f"server {i}": [(1.0, Summary.of([2.0]))] for i in range(5)}
    root = ElementTree.fromstring(plot.svg([plot.Chart("gap", "ms", "tokens / s", lines)]))
    at = [
        float(each.attrib["x"]) for each in root.iter(f"{SVG}text") if (each.text or "").startswith("server")
    ]
    assert len(at) == 5 and at == sorted(at) and at[-1] < plot.WIDTH - plot.RIGHT - 60
