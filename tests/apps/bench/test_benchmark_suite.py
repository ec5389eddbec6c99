"""Every benchmark that runs whole models works from its command line, on a model that takes milliseconds.

No test asserts a speed. Charts are well-formed, and a report that is slower than an older one is flagged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import busy, curves, end_to_end, peers, plot, timing
from benchmarks.__main__ import main
from benchmarks.drafting import copying_work, frequent
from benchmarks.make_model import write_model
from benchmarks.shape import Shape
from benchmarks.vllm import Vllm, halves, hf_name
from oxillama.apps.bench.report import Metric, Row, Summary, table
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.paths import SHARED
from tests.support.spread import few

BLOCK = SHARED / "parity-2026" / "glm4moe-mtp.gguf"
SVG = "{http://www.w3.org/2000/svg}"
TINY = Shape(n_embd=64, n_ff=64, n_layer=1, n_head=2, n_head_kv=1, n_vocab=1000, context=512)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(path, TINY, "Q8_0")
    return path


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(busy, "SETTLE", 0)


COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "end-to-end": (["--prompt", "8", "--new", "2"], {"prefill", "decode"}),
    "load": (
        ["--prompt", "8", "--new", "2"],
        {"load", "load to first token", "peak memory", "peak memory - file - KV"},
    ),
    "serving": (
        ["--sequences", "1", "3", "--new", "2", "--prefix", "0"],
        {"decode, 1 sequences", "decode, 3 sequences"},
    ),
    "curves": (
        ["--context", "16", "8", "--batch", "2", "--new", "2"],
        {"decode, 2 sequences"} | {f"{kind}, context {n}" for kind in ("prefill", "decode") for n in (8, 16)},
    ),
    "busy": (["--prompt", "8", "--new", "2"], {metric.name for metric in busy.METRICS}),
}


@pytest.mark.parametrize("command", few(COMMANDS, ("load", "busy")))
def test_a_command_runs_writes_and_flags_what_became_slower(
    command: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, metrics = COMMANDS[command]
    old = tmp_path / "old.json"
    run = [command, "--model", str(model), "--threads", "1", "--rounds", "2", *options]
    assert main([*run, "--json", str(old)]) == 0
    assert "[" in capsys.readouterr().out
    content = json.loads(old.read_text())
    assert {result["metric"] for result in content["results"]} == metrics
    for result in content["results"]:
        assert result["model"] == "tiny"
        assert len(result["samples"]["oxillama"]) == 2
        assert np.isfinite(result["samples"]["oxillama"]).all()
    machine = content["machine"]
    assert {"cpu", "cores", "flags", "target", "memory_bytes", "python", "compiler"} <= machine.keys()
    assert machine["engines"].keys() == {"oxillama"}
    for result in content["results"]:
        better = 1e15 if result["higher_is_better"] else 1e-15
        result["samples"]["oxillama"] = [better, better]
    old.write_text(json.dumps(content))
    assert main([*run, "--compare", str(old)]) == 0
    assert capsys.readouterr().out.count("WORSE") == len(metrics)
    assert main([*run, "--threads", "2", "--compare", str(old)]) == 2
    assert "expected a report of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, message",
    [
        (["curves", "--context", "--batch"], "expected sizes"),
        (["curves", "--peer", "oxillama-py"], "append"),
        (["curves", "--plot", "x.pdf"], ".svg or .png"),
        (["curves", "--plot", "absent/x.svg"], "existing folder"),
        (["busy", "--seconds", "0"], "--seconds"),
        (["busy", "--rounds", "0"], "--rounds"),
        (["serving", "--warmup", "-1"], "--warmup"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    flags: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--model", str(model)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_the_server_is_measured(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = ["server", "--model", str(model), "--threads", "1", "--rounds", "1", "--warmup", "0"]
    assert main([*run, "--clients", "1", "2", "--new", "4", "--json", str(report)]) == 0
    results = {result["metric"]: result["samples"] for result in json.loads(report.read_text())["results"]}
    assert results["1 clients"].keys() == results["2 clients"].keys() == {"library", "server"}
    assert results["client gone to request ended"]["server"][0] > 0


@pytest.mark.slow
def test_speculation_measures_every_part(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark itself asserts that drafts change no text."""
    report = tmp_path / "report.json"
    run = ["speculation", "--model", str(model), "--threads", "1", "--rounds", "1", "--warmup", "0"]
    assert main([*run, "--new", "8", "--json", str(report)]) == 0
    metrics = {result["metric"] for result in json.loads(report.read_text())["results"]}
    assert {f"lookup, {work}" for work in ("extract", "rewrite", "edit")} < metrics
    assert {"oracle, 80% right, 7", "oracle, 80% right, chosen", "oracle, 8 streams, 0% right"} < metrics
    assert {"demo, 1 stream at temperature 0.8", "beams, a step"} < metrics
    out = capsys.readouterr().out
    assert "a step of n rows, relative to one" in out
    assert "of the drafted tokens accepted" in out


@pytest.mark.parametrize(
    "flags, message",
    [
        (["guesses"], "parts: expected"),
        (["none"], "--model: expected"),
        (["blocks"], "--model: expected"),
        (["demo", "--new", "4"], "--new"),
    ],
)
def test_speculation_refuses_what_it_cannot_measure(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["speculation", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not BLOCK.exists(), reason="the model with a block is not there")
def test_speculation_measures_the_block_of_a_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    run = ["speculation", "blocks", "--threads", "1", "--rounds", "1", "--warmup", "0", "--new", "8"]
    assert main([*run, "--model", str(BLOCK), "--json", str(report)]) == 0
    results = json.loads(report.read_text())["results"]
    streams = "1 stream at temperature 0", "1 stream at temperature 0.8", "8 streams at temperature 0"
    assert [result["metric"] for result in results] == [f"blocks, {name}" for name in streams]
    assert all(result["samples"].keys() == {"drafts", "plain"} for result in results)
    assert capsys.readouterr().out.count("texts equal") == 3
    assert main([*run, "--model", str(model)]) == 2
    assert "expected a file with a block for next-token prediction" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the part needs posix_fadvise and /proc")
def test_offload_measures_a_budget(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "offload.json"
    run = ["offload", "warm", "fits", "peak", "--model", str(model), "--share", "0.9", "--new", "1"]
    assert main([*run, "--rounds", "1", "--warmup", "0", "--threads", "1", "--json", str(report)]) == 0
    found = {row["model"]: row for row in json.loads(report.read_text())["results"]}
    assert list(found) == ["tiny warm", "tiny fits", "tiny"]
    assert all(value > 0 for row in found.values() for each in row["samples"].values() for value in each)


@pytest.mark.parametrize("flags", [["hot"], ["warm", "--share", "1"], ["warm", "--share", "0"]])
def test_offload_refuses_what_it_cannot_measure(flags: list[str], model: Path) -> None:
    assert main(["offload", *flags, "--model", str(model)]) == 2


def test_copying_work_copies_most_of_its_prompt() -> None:
    for work in copying_work(48, 1000):
        assert len(work.text) == 48
        assert max(work.prompt + work.text) < 1000
        copied = [pair in set(pairwise(work.prompt)) for pair in pairwise(work.text)]
        assert 0.6 < sum(copied) / len(copied) < 1
    assert frequent([1] * 90 + [2] * 5 + [3] * 5) == [2, 3]


def test_rows_of_other_engines_have_a_table_of_their_own() -> None:
    metric = Metric("decode", "tok/s", True)
    text = table([Row("m", metric, {"a": [1.0], "b": [2.0]}), Row("m", metric, {"a": [3.0]})])
    both, alone = text.split("\n\n")
    assert "a / b" in both and "a / b" not in alone and "3.00" in alone


# Curves and charts


class Clockwork(peers.Runner):
    """Takes 1 s a token of a prompt, 1 s and 0.1 s per position held for each one after it."""

    name = "clockwork"

    def __init__(self, model: Path, threads: int, context: int) -> None:
        self.now, self.held = 0.0, 0
        super().__init__(model, threads, context, clock=lambda: self.now)

    def version(self) -> str:
        return "1"

    def close(self) -> None: ...

    def _import(self) -> None: ...

    def _open(self) -> None: ...

    def clear(self) -> None:
        self.held = 0

    def _forward(self, tokens: Sequence[int]) -> peers.Logits:
        self.now += len(tokens)
        self.held += len(tokens)
        return np.ones(50, np.float32)

    def _forward_one(self, token: int) -> peers.Logits:
        self.now += 1 + 0.1 * self.held
        self.held += 1
        return np.ones(50, np.float32)


def test_one_pass_measures_every_context_at_its_depth(model: Path) -> None:
    runner = Clockwork(model, 1, 64)
    runner.load()
    found = curves.context_turn(runner, [10, 20], 1)
    assert found == {
        "prefill, context 10": 1,
        "decode, context 10": pytest.approx(1 / 2),
        "prefill, context 20": 1,
        "decode, context 20": pytest.approx(1 / 3),
    }
    assert runner.held == 21


def test_curves_are_drawn_for_all_sizes(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other <&>.gguf"
    write_model(other, Shape(64, 64, 2, 2, 1, 1000, context=512), "Q8_0")
    path = tmp_path / "curves.svg"
    options = ["--context", "4", "8", "--batch", "1", "2", "--new", "1", "--rounds", "1", "--threads", "1"]
    models = ["--model", str(model), "--model", str(other)]
    assert main(["curves", *models, *options, "--plot", str(path), "--json", str(tmp_path / "x.json")]) == 0
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f".//{SVG}polyline")) == 5  # both along the context, together, both against size
    assert len(root.findall(f".//{SVG}circle")) == 10
    assert curves.parameters(other) > curves.parameters(model) > 64_000
    results = json.loads((tmp_path / "x.json").read_text())["results"]
    assert len(results) == len({(r["model"], r["metric"]) for r in results}) == 8


def test_a_chart_shows_every_point_within_its_frame() -> None:
    lines = {
        "a <&>": [(n, Summary.of([1000 / n, 1100 / n, 1500 / n])) for n in (1, 8, 64)],
        "b": [(8, Summary.of([5.0]))],
    }
    root = ElementTree.fromstring(plot.svg([plot.Chart("speed & cost", "n", "tokens / s", lines)]))
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.findall(f".//{SVG}circle")]
    assert len(circles) == 4
    for x, y in circles:
        assert plot.LEFT <= x <= plot.WIDTH - plot.RIGHT
        assert plot.TOP <= y <= plot.HEIGHT - plot.BOTTOM
    (x1, y1), (x8, y8), (x64, y64), _ = circles
    assert x8 - x1 == pytest.approx(x64 - x8, abs=0.2)  # logarithmic both ways
    assert y8 - y1 == pytest.approx(y64 - y8, abs=0.2) and y8 > y1
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"speed & cost", "a <&>", "n", "tokens / s", "1", "8", "64"} <= texts
    with pytest.raises(ConfigError, match="at least one point"):
        plot.svg([plot.Chart("empty", "n", "y", {})])


def test_a_png_needs_matplotlib_and_says_so_before_measuring(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["curves", "--model", str(model), "--plot", str(tmp_path / "x.png")]) == 2
    captured = capsys.readouterr()
    assert "matplotlib" in captured.err and captured.out == ""


# A busy core


def test_a_process_spins_only_as_long_as_it_is_wanted() -> None:
    with busy.spinning(1, pin=True) as pids:
        (pid,) = pids
        deadline = time.monotonic() + 30
        while cpu_ticks(pid) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert cpu_ticks(pid) >= 5
        assert len(os.sched_getaffinity(pid)) == 1
    assert not Path(f"/proc/{pid}").exists()


def test_a_spinning_process_ends_with_the_one_that_started_it() -> None:
    stranger = subprocess.Popen([sys.executable, "-S", "-c", busy.SPIN, "1"])  # 1 is not its parent
    assert stranger.wait(timeout=30) == 0


def cpu_ticks(pid: int) -> int:
    """The CPU time of a process so far, user and system, in clock ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_slow_decoding_is_cut_short(model: Path) -> None:
    runner = Clockwork(model, 1, 64)
    runner.load()
    found = busy.speeds(runner, prompt=10, new=1000, seconds=5)
    assert found == {"prefill": 1, "decode": pytest.approx(3 / (2 + 2.1 + 2.2))}


# The peer that takes text


def test_the_text_peer_is_timed_from_piece_to_piece(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Engine:
        pieces = 100

        def __init__(self, config: Any) -> None:
            assert config == (str(model), 18, 2)

        def load_model(self) -> None:
            now[0] += 3

        def reset(self) -> None: ...

        def tokenize(self, text: str) -> list[int]:
            return [1] + [7] * text.count(" the")

        def generate_streaming(self, text: str, n: int, callback: Any, *, temperature: float) -> None:
            now[0] += 2 * len(self.tokenize(text))
            for _ in range(min(n, self.pieces)):
                callback("x")
                now[0] += 0.5

    module = SimpleNamespace(
        Engine=Engine,
        EngineConfig=lambda path, *, context_size, num_threads: (path, context_size, num_threads),
        OxiLlamaError=RuntimeError,
        __version__="0.1",
    )
    monkeypatch.setitem(sys.modules, "oxillama_py", module)
    runner = peers.OxiLlamaPy(model, 2, 16)
    runner._clock = lambda: now[0]
    runner.load()
    assert runner.load_seconds == 3
    assert runner.version() == "oxillama_py 0.1"
    assert runner.prefill([5] * 10) == 20.5
    assert runner.decode(4) == 2
    Engine.pieces = 3  # the model ends its text: as long per token
    assert runner.decode(4) == 2
    Engine.pieces = 1
    with pytest.raises(PromptError, match="ended its text after 1 of 5"):
        runner.decode(4)


def test_openvino_is_timed_from_token_to_token(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [0.0], [100]

    class Pipeline:
        def __init__(
            self, path: str, device: str, *, scheduler_config: Any, INFERENCE_NUM_THREADS: int
        ) -> None:
            if scheduler_config.enable_prefix_caching:
                raise RuntimeError("prompts of later rounds would be known")
            assert (path, device, INFERENCE_NUM_THREADS) == (str(model), "CPU", 2)
            now[0] += 3

        def generate(self, tokens: Any, config: Any, streamer: Any = None) -> Any:
            assert config.ignore_eos and not config.do_sample
            assert config.max_new_tokens == config.min_new_tokens
            if streamer is None:
                ids, mask = tokens
                assert mask.shape == ids.shape and mask.all()
                now[0] += ids.size
                return SimpleNamespace(tokens=[[7] * min(given[0], config.max_new_tokens)] * len(ids))
            now[0] += 2 * tokens.shape[1]
            for _ in range(min(given[0], config.max_new_tokens)):
                streamer.write(7)
                now[0] += 0.5
            streamer.end()

    module = SimpleNamespace(
        LLMPipeline=Pipeline,
        SchedulerConfig=lambda: SimpleNamespace(enable_prefix_caching=True),
        GenerationConfig=SimpleNamespace,
        StreamerBase=object,
        TokenizedInputs=lambda ids, mask: (ids, mask),
        StreamingStatus=SimpleNamespace(RUNNING=0),
        __version__="1",
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", module)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=np.asarray))
    runner = peers.OpenVino(model, 2, 16)
    runner._clock = lambda: now[0]
    runner.load()
    assert runner.load_seconds == 3
    assert runner.version() == "openvino-genai 1"
    assert runner.prefill([5] * 10) == 20.5
    assert runner.decode(4) == 2
    assert runner.job([[5] * 10, [6] * 10], [4, 4]) == 20
    with pytest.raises(ConfigError, match="of one length"):
        runner.job([[5] * 10, [6] * 9], [4, 4])
    given[0] = 3
    with pytest.raises(PromptError, match=r"gave \[3, 3\] tokens, not 5 each"):
        runner.job([[5] * 10, [6] * 10], [5, 5])
    with pytest.raises(PromptError, match="gave 3 of 5"):
        runner.decode(4)

    def broken(*args: Any, **how: Any) -> None:
        raise IndexError("map::at")

    module.LLMPipeline = broken
    with pytest.raises(LoadError, match="openvino cannot load it: map::at"):
        peers.OpenVino(model, 2, 16).load()


def test_a_job_is_timed_over_all_its_prompts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[list[int]]] = []
    counts: list[list[int]] = []
    real = peers.OxiLlama.job

    def noted(runner: peers.OxiLlama, prompts: Any, new: Any) -> float:
        given.append(prompts)
        counts.append(list(new))
        assert real(runner, prompts, new) > 0
        return 0.5

    monkeypatch.setattr(peers.OxiLlama, "job", noted)
    report = tmp_path / "job.json"
    run = ["end-to-end", "--model", str(model), "--prompt", "8", "--new", "4", "--job", "3", "--threads", "1"]
    assert main([*run, "--rounds", "2", "--warmup", "1", "--json", str(report)]) == 0
    (row,) = json.loads(report.read_text())["results"]
    assert row["metric"] == "3 prompts of 8 + 4" and row["samples"] == {"oxillama": [24.0, 24.0]}
    assert [[len(prompt) for prompt in prompts] for prompts in given] == [[8] * 3] * 3
    assert given[0] != given[1] != given[2]  # no beginning is known from the round before
    assert counts == [[4] * 3] * 3
    monkeypatch.setattr(end_to_end, "MIXED", ((3, 9), (1, 5)))
    given.clear()
    counts.clear()
    assert main([*run, "--mixed", "--rounds", "2", "--warmup", "1", "--json", str(report)]) == 0
    (row,) = json.loads(report.read_text())["results"]
    assert row["metric"] == "3 prompts of 3-9 + 1-5"
    assert row["samples"] == {"oxillama": [2 * sum(new) for new in counts[1:]]}
    assert len({len(prompt) for prompts in given for prompt in prompts}) > 2
    assert len({n for new in counts for n in new}) > 2
    assert main([*run[:-4], "--mixed", "--threads", "1"]) == 2


def test_keys_and_values_of_other_types(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    opened: list[str] = []
    real = peers.OxiLlama._open

    def noted(runner: peers.OxiLlama) -> None:
        real(runner)
        opened.append(runner._engine.config.kv_type)

    monkeypatch.setattr(peers.OxiLlama, "_open", noted)
    report = tmp_path / "types.json"
    run = ["end-to-end", "--model", str(model), "--prompt", "8", "--new", "2", "--threads", "1"]
    run += ["--rounds", "1", "--warmup", "0", "--peer", "oxillama-w8a8"]
    assert main([*run, "--kv-type", "bf16", "--json", str(report)]) == 0
    assert main([*run, "--kv-type", "q8_0", "--peer-kv-type", "q8_0:f16"]) == 0
    assert opened == ["bf16", "f16", "q8_0", "q8_0:f16"]
    for row in json.loads(report.read_text())["results"]:
        assert row["samples"].keys() == {"oxillama bf16", "oxillama-w8a8"}
    capsys.readouterr()
    assert main([*run, "--peer-kv-type", "q9"]) == 2
    assert "oxillama-w8a8: expected a KV type of f32, f16, bf16" in capsys.readouterr().err


def test_an_engine_of_one_sequence_runs_no_job(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp: expected an engine that runs many prompts"):
        peers.LlamaCpp(model, 1, 8).job([[1], [2]], [1, 1])


def test_vllm_is_timed_from_token_to_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    folder = tmp_path / "m.w8a8"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 90}')

    class Engine:
        """A step a token of each request; the first one takes as long as the prompts."""

        def __init__(
            self, *, model: str, enable_prefix_caching: bool, max_model_len: int, **how: Any
        ) -> None:
            assert model == str(folder) and not enable_prefix_caching and max_model_len == 16
            self.llm_engine = self
            self.waiting: dict[str, list[int]] = {}
            now[0] += 3

        def add_request(self, name: str, prompt: dict[str, list[int]], chosen: Any) -> None:
            assert chosen.ignore_eos and chosen.temperature == 0 and name not in self.waiting
            self.waiting[name] = [len(prompt["prompt_token_ids"]), chosen.max_tokens]

        def has_unfinished_requests(self) -> bool:
            return bool(self.waiting)

        def step(self) -> list[Any]:
            now[0] += 0.5 + 2 * sum(request[0] for request in self.waiting.values())
            found = [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])]) for _ in self.waiting]
            self.waiting = {name: [0, n - 1] for name, (_, n) in self.waiting.items() if n > 1}
            return found

    module = SimpleNamespace(
        LLM=Engine,
        SamplingParams=lambda **fields: SimpleNamespace(**fields),
        sampling_params=SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA=1)),
        __version__="1",
    )
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    runner = Vllm(path, 2, 16)
    runner._clock = lambda: now[0]
    runner.load()
    assert (runner.load_seconds, runner.n_vocab, runner.version()) == (3, 90, "vllm 1")
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert runner.prefill([5] * 10) == 20.5
    assert runner.decode(4) == 2
    assert runner.job([[5] * 10, [6] * 10], [4, 4]) == 42


def test_names_and_rows_of_the_folder_that_vllm_reads() -> None:
    assert hf_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj"
    assert hf_name("output.weight") == "lm_head"
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads, their pairs beside each other
    assert halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_vocabulary_of_byte_pairs_encodes_by_its_merges(tmp_path: Path) -> None:
    write_model(tmp_path / "pairs.gguf", TINY, "Q8_0", pairs=True)
    bridge = TokenizerBridge.from_gguf(tmp_path / "pairs.gguf")
    assert len(set(bridge.vocab_bytes())) == TINY.n_vocab
    ids = bridge.encode("abab \n\u00e9", add_special=False)
    assert [bridge.decode([id]) for id in ids[:3]] == ["ab", "ab", " "]
    assert bridge.decode(ids) == "abab \n\u00e9"
