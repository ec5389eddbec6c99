"""The benchmark suite measures what it says, and its statistics are right.

No test asserts a speed. Time is a fake clock, engines are fake engines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oxillama
from benchmarks import loading, peers, sampling, starting, timing
from benchmarks.__main__ import main
from benchmarks.timing import CpuTime, alternate, others_share
from oxillama._kernels import load, targets
from oxillama.apps.bench.report import (
    Metric,
    Row,
    Summary,
    compare,
    read_report,
    report,
    round_ratios,
    spread,
    table,
    write_report,
)
from oxillama.apps.bench.run import bench_model, fixed_tokens
from oxillama.base.config.sampler import SamplerConfig
from oxillama.errors import ConfigError, LoadError, ModelFileError, SamplingError
from tests.support.tiny_file import write_tiny_model

# Statistics


def test_summary_of_known_samples() -> None:
    assert Summary.of([5, 1, 4, 2, 3]) == Summary(median=3, low=2, high=4, min=1, max=5, n=5)
    assert Summary.of([1, 2]) == Summary(median=1.5, low=1.25, high=1.75, min=1, max=2, n=2)
    with pytest.raises(ValueError, match="at least one"):
        Summary.of([])


def test_subjects_take_turns_and_warm_up_is_thrown_away() -> None:
    turns: list[str] = []
    pauses: list[float] = []

    def subject(name: str, factor: int) -> Callable[[], dict[str, float]]:
        def run() -> dict[str, float]:
            turns.append(name)
            return {"speed": factor * turns.count(name), "size": factor}

        return run

    samples = alternate(
        {"a": subject("a", 10), "b": subject("b", 1)}, rounds=3, warmup=2, sleep=pauses.append
    )
    assert turns == ["a", "b"] * 5
    assert samples == {
        "a": {"speed": [30, 40, 50], "size": [10] * 3},
        "b": {"speed": [3, 4, 5], "size": [1] * 3},
    }
    assert pauses == [timing.SETTLE_SECONDS] * 10


def test_ratios_are_taken_within_rounds() -> None:
    """Both engines slow down by 10 in the second round, and the ratio of each round is still 2."""
    row = Row("m", Metric("decode", "tok/s", True), {"a": [20, 2, 40], "b": [10, 1, 20]})
    assert round_ratios(row.samples["a"], row.samples["b"]) == [2, 2, 2]
    assert row.ratio == Summary(2, 2, 2, 2, 2, 3)
    assert Row("m", row.metric, {"a": [1]}).ratio is None
    assert Row("m", row.metric, {"a": [0.0, 1.0], "b": [1.0, 0.0]}).ratio is None
    with pytest.raises(ValueError, match="zip"):
        round_ratios([1, 2], [1])


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (0.01234, "0.0123"), (0.5, "0.500"), (1.2345, "1.23"), (44.44, "44.4"), (6973.1, "6973")],
)
def test_numbers_are_printed_in_plain_notation(value: float, text: str) -> None:
    assert spread(Summary.of([value])) == f"{text} [{text} - {text}]"


def test_the_table_names_engines_units_and_ratio() -> None:
    text = table([Row("m", Metric("load", "s", False), {"a": [1.0, 3.0], "b": [4.0, 4.0]})])
    head, rule, line = text.splitlines()
    assert head.split("  ")[-1].strip() == "a / b"
    assert set(rule) == {"-", " "}
    cells = [
        "load, s (lower is better)",
        "2.00 [1.50 - 2.50]",
        "4.00 [4.00 - 4.00]",
        "0.500 [0.375 - 0.625] x",
    ]
    assert line == "  ".join(["m    ", *cells])


def test_a_row_without_a_ratio_is_in_the_table() -> None:
    rate, load = Metric("requests", "/s", True), Metric("load", "s", False)
    text = table([Row("m", rate, {"a": [2.0], "b": [0.0]}), Row("m", load, {"a": [1.0], "b": [2.0]})])
    *_, without, with_ratio = text.splitlines()
    assert without.endswith("0 [0 - 0]") and with_ratio.endswith(" x")


def test_the_share_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores had 40 s: 10 idle or waiting, 12 of this process, so 18 of other processes."""
    stat = tmp_path / "stat"
    second = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(os, "times", lambda: (1.0, 2.0, 3.0, 4.0, 99.0))
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1 2 3\n")
    before = CpuTime.now(stat)
    monkeypatch.setattr(os, "times", lambda: (10.0, 4.0, 4.0, 4.0, 99.0))
    words = (12, 3, 5, 8, 2, 1, 1, 8, 0, 0)
    stat.write_text(f"cpu  {' '.join(str(word * second) for word in words)}\ncpu0 1 2 3\n")
    assert others_share(before, CpuTime.now(stat)) == pytest.approx(18 / 40)
    assert others_share(before, before) is None
    assert others_share(CpuTime.now(tmp_path / "absent"), before) is None


def saved(path: Path, metric: Metric, samples: list[float], command: str = "end-to-end") -> dict[str, Any]:
    content = report(command, {"prompt": 8, "rounds": 3}, {"cpu": "x"}, [Row("m", metric, {"a": samples})])
    write_report(path, content)
    return content


@pytest.mark.parametrize(
    "higher_is_better, now, verdict",
    [
        (True, [20, 21, 22], "BETTER"),
        (False, [20, 21, 22], "WORSE"),
        (True, [1, 2, 3], "WORSE"),
        (True, [9, 10, 12], "within the spread"),
    ],
)
def test_reports_are_compared_by_their_quartiles(
    higher_is_better: bool, now: list[float], verdict: str, tmp_path: Path
) -> None:
    metric = Metric("decode", "tok/s", higher_is_better)
    saved(tmp_path / "old.json", metric, [9, 10, 11])
    old = read_report(tmp_path / "old.json", "end-to-end", {"prompt": 8})
    assert old["results"][0]["samples"] == {"a": [9, 10, 11]}
    text = compare(old, saved(tmp_path / "new.json", metric, now))
    assert text.splitlines()[-1].endswith(verdict)
    assert f"{now[1] / 10:.3f}" in text


def test_reports_of_other_conditions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    saved(path, Metric("decode", "tok/s", True), [1.0])
    for command, options in (("load", {"prompt": 8}), ("end-to-end", {"prompt": 9})):
        with pytest.raises(ConfigError, match="expected a report of"):
            read_report(path, command, options)
    for text in ("", "[]", "{}", '{"results": [1]}', '{"results": [], "options": []}', '{"results": 5}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="expected a report of an earlier run, got"):
            read_report(path, "end-to-end", {"prompt": 8})
    assert "nothing measured" in compare({"results": []}, {"results": []})


@pytest.mark.skipif(os.name == "nt", reason="has no /dev/stdout")
def test_a_report_is_written_to_a_device_as_it_is() -> None:
    write_report(Path(os.devnull), {"a": 1})
    assert not Path(os.devnull).is_file()


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    write_report(path, {"a": 1})
    link.symlink_to(path)
    write_report(link, {"a": 2})
    assert link.is_symlink()
    assert json.loads(path.read_text()) == {"a": 2}
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ModelFileError, match="cannot be written: No space left"):
        write_report(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "link.json", "plain"]


# Engines


class FakeEngine(peers.Runner):
    """Loads in 2 s, then takes 0.25 s a token; its clock stands still otherwise."""

    name = "fake"
    logit = 1.0

    def __init__(self, model: Path, threads: int, context: int) -> None:
        self.now = 0.0
        self.held: list[int] = []
        self.closed = False
        super().__init__(model, threads, context, clock=lambda: self.now)

    def version(self) -> str:
        return "1.0"

    def close(self) -> None:
        self.closed = True

    def _import(self) -> None:
        self.now += 100  # not a part of loading

    def _open(self) -> None:
        self.now += 2

    def clear(self) -> None:
        self.now += 50  # not a part of prefill
        self.held = []

    def _forward(self, tokens: Sequence[int]) -> peers.Logits:
        self.held += tokens
        self.now += 0.25 * len(tokens)
        return np.full(100, self.logit, np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "some-model.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


def test_a_runner_times_the_work_and_nothing_else(model: Path) -> None:
    engine = FakeEngine(model, 1, 64)
    engine.load()
    assert engine.load_seconds == 2
    assert engine.n_vocab == 100
    assert engine.prefill([5, 6, 7, 8]) == 1
    assert engine.held == [5, 6, 7, 8]
    assert engine.decode(3) == 0.75
    assert engine.held == [5, 6, 7, 8, *fixed_tokens(3, 100)]
    assert engine.prefill([9]) == 0.25
    assert engine.held == [9]
    assert (engine.logits == 1).all()


def test_a_runner_refuses_a_missing_model_and_logits_that_are_no_numbers(model: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        FakeEngine(model.parent / "absent.gguf", 1, 64).load()
    engine = FakeEngine(model, 1, 64)
    engine.load()
    engine.logit = float("nan")
    with pytest.raises(SamplingError, match="not finite"):
        engine.prefill([1])


def test_fixed_tokens_are_in_the_vocabulary() -> None:
    tokens = fixed_tokens(1000, 300)
    assert min(tokens) >= 1 and max(tokens) < 300
    assert len(set(fixed_tokens(512, 32000))) == 512


def fake_api(calls: list[Any], n_vocab: int = 50) -> dict[str, Any]:
    """Stand-ins for the two names of the public interface that benchmarks use."""

    class InferenceEngine:
        def __init__(self, config: SimpleNamespace) -> None:
            calls.append(("open", config.num_threads, config.context_size))

        def session(self) -> Session:
            calls.append("session")
            return Session()

    class Session(nullcontext[Any]):
        def __enter__(self) -> Session:
            return self

        def close(self) -> None:
            pass

        def prefill(self, tokens: Sequence[int]) -> peers.Logits:
            calls.append(list(tokens))
            return np.zeros(n_vocab, np.float32)

        def forward(self, token: int) -> peers.Logits:
            calls.append(token)
            return np.zeros(n_vocab, np.float32)

    return {"InferenceEngine": InferenceEngine, "EngineConfig": SimpleNamespace}


def test_both_ways_of_measuring_this_library_give_it_the_same_work(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    for name, value in fake_api(calls).items():
        monkeypatch.setattr(oxillama, name, value, raising=False)
    prompt = fixed_tokens(4, 50)
    engine = peers.OxiLlama(model, 2, 6)
    engine.load()
    engine.prefill(prompt)
    engine.decode(2)
    assert calls == [("open", 2, 6), "session", [1], "session", prompt, *fixed_tokens(2, 50)]

    calls.clear()
    speed = bench_model(model, prompt_tokens=4, new_tokens=2, num_threads=2, rounds=2, warmup=1)
    assert calls == [("open", 2, 6), "session", [1]] + ["session", prompt, *fixed_tokens(2, 50)] * 3
    assert (speed.model, speed.num_threads, speed.prefill.n, speed.decode.n) == (model.name, 2, 2, 2)


@pytest.mark.parametrize(
    "name, low", [("prompt_tokens", 0), ("new_tokens", 0), ("rounds", 0), ("warmup", -1)]
)
def test_counts_that_measure_nothing_are_refused(name: str, low: int, model: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected an integer >= {low + 1}, got {low}"):
        bench_model(model, **{name: low})


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is told by /proc")
def test_processes_are_started_and_their_memory_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(starting, "TOKENS", [1, 2, 3])
    model, path = write_tiny_model(tmp_path / "m.gguf"), tmp_path / "start.json"
    command = ["start", "--model", str(model), "--peer", "oxillama", "--rounds", "1", "--warmup", "0"]
    assert main([*command, "--processes", "2", "--json", str(path)]) == 0
    assert Path(f"{model}.packed").is_file()
    found = {row["metric"]: row["samples"] for row in json.loads(path.read_text())["results"]}
    assert set(found) == {metric.name for metric in starting.METRICS}
    for name in ("oxillama-packed", "oxillama"):
        value = {metric: samples[name][0] for metric, samples in found.items()}
        assert 0 < value["memory of one more process"] < value["memory of all processes"]
        parts = value["import"] + value["load to first token"]
        assert 0 < parts < value["process to first token"]
    capsys.readouterr()
    failing = ("start", "--model", Path(__file__), "--engine", "oxillama", "--processes", "1")
    assert "failed to start" in fails_with(capsys, *failing)


def test_peak_memory_grows_with_what_is_touched() -> None:
    program = (
        "import numpy as np\n"
        "from oxillama.apps.bench.machine import peak_rss\n"
        "before = peak_rss()\n"
        "block = np.ones(before // 8 + (32 << 20) // 8)  # more than is held now, so the peak must rise\n"
        "assert peak_rss() >= before + (32 << 20) and block.sum() > 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)  # a small process


def test_end_to_end_reports_tokens_per_second(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(FakeEngine):
        name = "slow"

        def _forward(self, tokens: Sequence[int]) -> peers.Logits:
            self.now += 0.25 * len(tokens)
            return super()._forward(tokens)

    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    monkeypatch.setitem(peers.ENGINES, "fake", FakeEngine)
    monkeypatch.setitem(peers.ENGINES, "slow", Slow)
    path = model.parent / "run.json"
    run = ["end-to-end", "--model", str(model), "--engine", "fake", "--peer", "slow", "--json", str(path)]
    assert main([*run, "--rounds", "3", "--warmup", "0", "--prompt", "8", "--new", "2"]) == 0
    results = json.loads(path.read_text())["results"]
    assert [(row["metric"], row["samples"]) for row in results] == [
        ("prefill", {"fake": [4.0] * 3, "slow": [2.0] * 3}),
        ("decode", {"fake": [4.0] * 3, "slow": [2.0] * 3}),
    ]
    assert [row["ratio"]["median"] for row in results] == [2, 2]
    assert "cosine of the engines' logits after the prompt: 1.00000" in capsys.readouterr().out


def test_engines_are_closed_when_a_later_one_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeEngine] = []

    class Kept(FakeEngine):
        def _open(self) -> None:
            made.append(self)

    class Broken(FakeEngine):
        def _open(self) -> None:
            raise LoadError("broken")

    monkeypatch.setitem(peers.ENGINES, "kept", Kept)
    monkeypatch.setitem(peers.ENGINES, "broken", Broken)
    with pytest.raises(LoadError, match="broken"), peers.loaded(["kept", "broken"], model, 1, 64):
        pass
    assert [engine.closed for engine in made] == [True]


# Loading


def test_memory_is_stated_without_file_and_kv(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.block_count": 3,
    }
    opened = SimpleNamespace(metadata=metadata, file_size=1004)
    monkeypatch.setattr(loading.ModelFile, "open", lambda path: nullcontext(opened))
    assert loading.kv_bytes(model, 10) == 3 * 2 * (16 + 16) * 10 * 2
    metadata["llama.attention.head_count_kv"] = np.array([2, 0, 1], np.int32)
    metadata["llama.attention.key_length"] = 24
    assert loading.kv_bytes(model, 10) == 3 * (24 + 16) * 10 * 2
    with (
        pytest.raises(LoadError, match=r"the key .general\.architecture."),
        monkeypatch.context() as patch,
    ):
        patch.setattr(loading.ModelFile, "open", lambda path: nullcontext(SimpleNamespace(metadata={})))
        loading.kv_bytes(model, 10)

    found = {"load": 1.5, "first_token": 2.5, "peak_rss": 1004 + 2400 + 5_000_000}
    monkeypatch.setattr(loading, "in_fresh_process", lambda *args: found)
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    path = model.parent / "load.json"
    run = ["load", "--model", str(model), "--rounds", "2", "--prompt", "6", "--new", "4", "--json", str(path)]
    assert main(run) == 0
    rows = json.loads(path.read_text())["results"]
    assert {row["metric"]: row["samples"]["oxillama"][0] for row in rows} == {
        "load": 1.5,
        "load to first token": 2.5,
        "peak memory": pytest.approx(5.003404),
        "peak memory - file - KV": 5.0,
    }
    assert all(len(row["samples"]["oxillama"]) == 2 for row in rows)


def test_a_load_that_fails_in_its_process_is_reported(tmp_path: Path) -> None:
    absent = tmp_path / "absent.gguf"
    with pytest.raises(LoadError, match=r"llama\.cpp failed to load.*ModelFileError.*no such file"):
        loading.in_fresh_process("llama.cpp", absent, 1, 4, 1)


def test_one_load_reports_its_own_process(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.ENGINES, "fake", FakeEngine)
    found = loading.load_once("fake", model, 1, 4, 2)
    assert found.keys() == {"load", "first_token", "peak_rss"}
    assert found["load"] == 2
    assert found["peak_rss"] > 1 << 20


# Command line


def fails_with(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Run a command that must exit 2; returns its only line on stderr."""
    assert main([str(arg) for arg in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_what_cannot_be_run_is_said_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = model.parent / "absent.gguf"
    assert "no such file" in fails_with(capsys, "end-to-end", "--model", absent)
    assert "no such file" in fails_with(capsys, "load", "--model", absent)
    twice = ("end-to-end", "--model", model, "--engine", "llama.cpp", "--peer", "llama.cpp")
    assert "another engine" in fails_with(capsys, *twice)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    peer = ("end-to-end", "--model", model, "--engine", "llama.cpp")
    assert "llama-cpp-python" in fails_with(capsys, *peer)
    assert "expected a file in a folder" in fails_with(
        capsys, *peer, "--json", model.parent / "no" / "x.json"
    )
    assert "earlier run" in fails_with(capsys, *peer, "--compare", model)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "gguf" in fails_with(capsys, "make-model", "15M", "Q8_0", absent)


def test_a_run_is_printed_written_and_compared(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    monkeypatch.setitem(peers.ENGINES, "fake", FakeEngine)
    path = model.parent / "run.json"
    command = ["end-to-end", "--model", str(model), "--engine", "fake", "--prompt", "8", "--rounds", "2"]
    assert main([*command, "--json", str(path)]) == 0
    assert "4.00 [4.00 - 4.00]" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["machine"]["engines"] == {"fake": "1.0"}
    assert content["machine"]["python"].startswith("3.")
    assert content["options"]["prompt"] == 8
    assert content["results"][0]["samples"] == {"fake": [4.0, 4.0]}
    assert main([*command, "--compare", str(path)]) == 0
    assert capsys.readouterr().out.count("within the spread") == 2


@pytest.mark.slow  # the roofline alone takes seconds
def test_kernels_are_measured_beside_the_roofline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["kernels", "--format", "Q4_K", "--target", "portable", "--megabytes", "0.02", "--rounds", "1"]
    assert main([*small, "--json", str(tmp_path / "old.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Q4_K ")
    results = json.loads((tmp_path / "old.json").read_text())["results"]
    assert [r["metric"] for r in results] == [f"{n} token{'s' * (n > 1)}" for n in (1, 2, 4, 8, 16, 32, 512)]
    assert all(value > 0 for r in results for samples in r["samples"].values() for value in samples)
    assert main([*small, "--compare", str(tmp_path / "old.json")]) == 0
    assert "now / before" in capsys.readouterr().out
    assert main([*small, "--threads", "7", "--compare", str(tmp_path / "old.json")]) == 2  # other conditions


@pytest.mark.parametrize("option, value", [("--megabytes", "0"), ("--rounds", "0"), ("--threads", "0")])
def test_kernels_refuse_what_cannot_be_measured(option: str, value: str) -> None:
    assert main(["kernels", option, value]) == 2
    assert main(["kernels", "--target", "sse9"]) == 2


def test_sampling_is_measured_by_case(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["sampling", "--vocab", "300", "--rounds", "1", "--sequences", "3"]
    assert main([*flags, "--case", "default chain", "--case", "DRY over 4,096", "--logits", "uniform"]) == 0
    out = capsys.readouterr().out
    assert "vocab 300, logits uniform" in out
    for name in ("default chain", "DRY over 4,096", "3 sequences"):
        assert re.search(rf"{name} +a token, us \(lower is better\) +\d", out)
    assert "min_p" not in out
    assert main([*flags, "--threads", "0"]) == 2
    for options, _ in sampling.CASES.values():
        SamplerConfig(**options)


@pytest.mark.parametrize("target", [name for name, reason in targets().items() if reason is None])
def test_rooflines_count_what_they_do(target: str) -> None:
    roofline = load(target).roofline
    integer_sums, float_sums = (16, 12) if roofline.__name__.endswith("avx512") else (12, 6)
    assert roofline.integer_products(10, 2) == 10 * integer_sums * 64 * 2
    assert roofline.float_products(10, 2) == 10 * float_sums * 16 * 2
    data = np.zeros(1 << 17, np.uint8)
    assert roofline.read_bytes(data, 2) == 0
    data[:] = 1
    assert roofline.read_bytes(data, 2) > 0
    with pytest.raises(ValueError, match="256"):
        roofline.read_bytes(data[:100], 1)
    with pytest.raises(ValueError, match="n_threads"):
        roofline.integer_products(1, 0)
