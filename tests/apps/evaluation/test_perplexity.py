"""Perplexity, files of logits and comparisons, against plain statements of the same."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine, ModelFileError, PromptError, demo, quantize_model
from oxillama.apps.evaluation.comparison import Comparison, compare
from oxillama.apps.evaluation.logits_file import LogitsFile, written
from oxillama.apps.evaluation.perplexity import Perplexity, perplexity
from tests.support.command_line import output, run

TEXT = demo.HELDOUT.read_text().removesuffix("\n")
WINDOW, WINDOWS = 64, 4


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    """The same model with fewer bits."""
    path = tmp_path_factory.mktemp("coarse") / "q4.gguf"
    quantize_model(demo.STORY, path, "Q4_K", pure=True, allow_requantize=True)
    with InferenceEngine.from_gguf(path, num_threads=1) as engine:
        yield engine


def logprobs_of(engine: InferenceEngine, text: str = TEXT) -> tuple[np.ndarray, list[int], list[int]]:
    """float64 (scored tokens, vocab), the scored tokens, and all tokens, as llama-perplexity takes them."""
    tokens = engine.tokenizer.encode(text)[: WINDOW * WINDOWS]
    rows, targets = [], []
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        context = [engine.tokenizer.bos_id, *window[1:]]
        logits = engine.session().logits(context).astype(np.float64)[WINDOW // 2 : -1]
        top = logits.max(axis=1, keepdims=True)
        rows.append(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))
        targets += window[WINDOW // 2 + 1 :]
    return np.concatenate(rows), targets, tokens


def test_perplexity_is_that_of_the_second_half_of_each_window(engine: InferenceEngine) -> None:
    logprobs, targets, _ = logprobs_of(engine)
    losses = -logprobs[np.arange(len(targets)), targets]
    done: list[tuple[int, int]] = []
    found = perplexity(
        engine, TEXT, window=WINDOW, windows=WINDOWS, progress=lambda *counts: done.append(counts)
    )
    assert found.losses.shape == (WINDOWS, WINDOW // 2 - 1)
    assert found.losses.ravel() == pytest.approx(losses, abs=1e-5)
    assert found.value == pytest.approx(np.exp(losses.mean()), rel=1e-6)
    assert found.error == pytest.approx(found.value * losses.std() / np.sqrt(len(losses) - 1), rel=1e-5)
    assert found.running[-1] == pytest.approx(found.value) and len(found.running) == WINDOWS
    assert done == [(i + 1, WINDOWS) for i in range(WINDOWS)]


@pytest.mark.parametrize("options", [{"prefill_chunk_size": 7}, {"num_threads": 2}, {"page_size": 4}])
def test_every_loss_is_the_same_however_it_is_run(engine: InferenceEngine, options: dict[str, int]) -> None:
    expected = perplexity(engine, TEXT, window=WINDOW, windows=WINDOWS).losses
    with InferenceEngine.from_gguf(demo.STORY, **options) as other:
        assert (perplexity(other, TEXT, window=WINDOW, windows=WINDOWS).losses == expected).all()


@pytest.mark.parametrize(("file_type", "value"), [("Q8_0", 2.6005), ("F32", 2.6016)])
def test_the_values_of_llama_perplexity(file_type: str, value: float, tmp_path: Path) -> None:
    """Values of `llama-perplexity -m FILE -f heldout.txt -c 512`, built from llama-cpp-python 0.3.36."""
    quantize_model(demo.STORY, tmp_path / "model.gguf", file_type, allow_requantize=True)
    with InferenceEngine.from_gguf(tmp_path / "model.gguf") as engine:
        assert perplexity(engine, TEXT).value == pytest.approx(value, rel=1e-3)


def write(engine: InferenceEngine, path: Path, exact: bool) -> Perplexity:
    with written(path, exact, engine.tokenizer.n_vocab) as writer:
        return perplexity(engine, TEXT, window=WINDOW, windows=WINDOWS, writer=writer)


def test_a_file_of_logits_is_that_of_llama_perplexity(engine: InferenceEngine, tmp_path: Path) -> None:
    logprobs, _, tokens = logprobs_of(engine)
    write(engine, tmp_path / "base.kld", exact=False)
    data, n_vocab = (tmp_path / "base.kld").read_bytes(), engine.tokenizer.n_vocab
    assert data[:20] == b"_logits_" + struct.pack("<iii", WINDOW, n_vocab, WINDOWS)
    ids = np.frombuffer(data, "<i4", len(tokens), 20)
    assert ids.tolist() == tokens
    columns = 2 * ((n_vocab + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", offset=20 + ids.nbytes).reshape(len(logprobs), columns)
    scale, lowest = rows[:, :4].copy().view("<f4").T
    found = scale[:, None] * rows[:, 4 : 4 + n_vocab] + lowest[:, None]
    clipped = np.maximum(logprobs, logprobs.max(axis=1, keepdims=True) - 16)
    assert found == pytest.approx(clipped, abs=1.5e-4)  # half of 16 / 65535, and float32


@pytest.mark.parametrize("exact", [False, True])
def test_a_model_compared_with_a_file_of_its_own_logits(
    engine: InferenceEngine, tmp_path: Path, exact: bool
) -> None:
    measured = write(engine, tmp_path / "base.kld", exact)
    with LogitsFile(tmp_path / "base.kld") as base:
        found = compare(base, engine)
    assert (found.other.losses == measured.losses).all()
    assert found.agrees.all()
    if exact:
        assert (found.divergences == 0).all() and (found.base.losses == measured.losses).all()
    else:
        assert 0 < abs(found.divergences).max() < 3e-4
        assert found.base.losses == pytest.approx(measured.losses, abs=1.5e-4)


def test_divergences_are_those_of_the_distributions(
    engine: InferenceEngine, coarse: InferenceEngine, tmp_path: Path
) -> None:
    (p, targets, _), (q, _, _) = logprobs_of(engine), logprobs_of(coarse)
    expected = (np.exp(p) * (p - q)).sum(axis=1)
    found = compare(engine, coarse, TEXT, window=WINDOW, windows=WINDOWS)
    check(found, p, q, targets)
    assert found.divergences == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert found.quantile(1) == max(found.divergences)
    ratio = np.exp((p - q)[np.arange(len(targets)), targets].mean())
    assert found.ratio[0] == pytest.approx(ratio, rel=1e-5)
    assert [group[0] for group in found.groups()] == sorted(group[0] for group in found.groups())
    write(engine, tmp_path / "exact.kld", exact=True)
    write(engine, tmp_path / "rounded.kld", exact=False)
    with LogitsFile(tmp_path / "exact.kld") as base:
        assert (compare(base, coarse).divergences == found.divergences).all()
    with LogitsFile(tmp_path / "rounded.kld") as base:
        assert compare(base, coarse).divergences == pytest.approx(expected, abs=5e-4)
        assert compare(base, coarse, windows=1).divergences.size == WINDOW // 2 - 1


def check(found: Comparison, p: np.ndarray, q: np.ndarray, targets: list[int]) -> None:
    losses = -q[np.arange(len(targets)), targets]
    assert found.other.losses.ravel() == pytest.approx(losses, abs=1e-5)
    assert found.agrees.mean() == (p.argmax(axis=1) == q.argmax(axis=1)).mean() < 1
    assert found.confidence == pytest.approx(np.exp(p.max(axis=1)), rel=1e-5)


def test_what_cannot_be_measured_is_refused(engine: InferenceEngine, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="text: expected at least 1024 tokens, two windows, got "):
        perplexity(engine, "Once upon a time")
    with pytest.raises(ConfigError, match=r"window: expected up to 512 tokens \(context_size\), got 513"):
        perplexity(engine, TEXT, window=513)
    with pytest.raises(ConfigError, match="windows: expected"):
        perplexity(engine, TEXT, windows=0)
    with pytest.raises(ConfigError, match="text: expected a text"):
        compare(engine, engine)
    for content, message in (
        (b"", "expected a file of logits"),
        (b"GGUF" + bytes(40), "expected a file of logits"),
        (b"_logits_" + struct.pack("<iii", 2, 10, 1), "expected windows of at least 4 tokens"),
        (b"_logits_" + struct.pack("<iii", 8, 10, 1) + bytes(90), r"expected 136 bytes, got 110"),
        (
            b"_logits_" + struct.pack("<iii", 8, 10, 1) + struct.pack("<8i", *range(8, 16)) + bytes(84),
            "ids below 10",
        ),
    ):
        path = tmp_path / "bad.kld"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            LogitsFile(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        LogitsFile(tmp_path / "none.kld")


def test_the_commands(tmp_path: Path) -> None:
    base, plot = tmp_path / "base.kld", tmp_path / "kl.svg"
    text = [str(demo.HELDOUT), "--window", "64", "--windows", "2"]
    measured = json.loads(output("perplexity", demo.STORY, *text, "--json", "--logits", base))
    assert measured["tokens"] == 62 and measured["running"][-1] == pytest.approx(measured["perplexity"])
    done = output("perplexity", demo.STORY, *text)
    assert done.startswith(f"perplexity: {measured['perplexity']:.4f} +/- ")
    done = output("perplexity", demo.STORY, "--base", base, "--json", "--plot", plot)
    assert json.loads(done)["perplexity"] == pytest.approx(measured["perplexity"])
    assert "<polyline" in plot.read_text()
    done = output("compare", demo.STORY, demo.STORY, "--text", *text)
    assert re.search(r"same likeliest token +1.000000", done) and "100.0%  0.000000" in done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "text: expected a text, or --base"),
        (["a.txt", "--base", "b"], "text: expected a text, or --base"),
        (["a.txt", "--exact"], "exact: needs --logits"),
        (["a.txt", "--plot", "x.svg"], "plot: needs --base"),
        (["--base", "b", "--window", "64"], "window: cannot be combined with --base"),
    ],
)
def test_arguments_that_exclude_each_other(arguments: list[str], message: str) -> None:
    done = run("perplexity", demo.STORY, *arguments)
    assert done.returncode == 2 and message in done.stderr.decode()
