"""Scores of continuations: the logits of each sequence alone, whatever runs beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oxillama import InferenceEngine, PromptError, ReceiptError, demo
from oxillama.apps.evaluation.score_receipt import ScoreReceipt, verify_score
from oxillama.apps.evaluation.scoring import Score, scores
from oxillama.compat.engine import InferenceEngine as CompatEngine
from oxillama.engine import loading
from oxillama.engine.sequence import Output
from oxillama.sessions.chain import LogitsChain
from tests.support.command_line import output, run
from tests.support.kernels import PRESENT
from tests.support.serving import Letters
from tests.support.tiny_models import tokens_of
from tests.support.zoo import MODELS

Pairs = list[tuple[list[int], list[int]]]
STORIES = demo.HELDOUT.read_text().split(demo.SEPARATOR)


def pairs_of(engine: InferenceEngine, n: int = 5) -> Pairs:
    """Contexts of which some begin alike, each with continuations of several lengths."""
    encode = engine.tokenizer.encode
    shots = encode(STORIES[0])[:40]
    return [
        (shots + encode(story, add_special=False)[:23], encode(text, add_special=False))
        for story in STORIES[1 : n + 1]
        for text in (" a", " b", " the dog ran", " the dog sat", " the")
    ]


@pytest.fixture(scope="module")
def expected(engine: InferenceEngine) -> list[Score]:
    """Each pair scored from a session of its own."""
    found = []
    for context, continuation in pairs_of(engine):
        rows = engine.session().logits([*context, *continuation[:-1]])[len(context) - 1 :]
        chain, links, logprobs = LogitsChain(), [], []
        for row, token in zip(rows, continuation):
            links.append(chain.add(row))
            wide = row.astype(np.float64)
            logprobs.append(float(wide[token] - np.log(np.exp(wide - wide.max()).sum()) - wide.max()))
        greedy = tuple(int(row.argmax()) == token for row, token in zip(rows, continuation))
        found.append(Score(tuple(logprobs), greedy, tuple(links)))
    return found


def test_scores_are_those_of_each_sequence_alone(engine: InferenceEngine, expected: list[Score]) -> None:
    found = scores(engine, pairs_of(engine), hashes=True)
    assert [score.links for score in found] == [score.links for score in expected]
    assert [score.greedy for score in found] == [score.greedy for score in expected]
    for score, other in zip(found, expected):
        assert score.logprobs == pytest.approx(other.logprobs, abs=2e-6)
        assert score.logprob == pytest.approx(sum(score.logprobs))
        assert score.is_greedy == all(score.greedy)
    assert any(True in score.greedy for score in found)
    engine.model.check_integrity()


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [
        (1, {}),
        (7, {"num_threads": 2}),
        (64, {"prefix_cache_bytes": 0}),
        (7, {"page_size": 4, "prefill_chunk_size": 9}),
        (64, {"kv_memory_limit": 1 << 20}),
    ],
)
def test_every_figure_is_the_same_however_it_is_run(
    engine: InferenceEngine, batch_size: int, options: dict[str, int]
) -> None:
    pairs = pairs_of(engine)
    known = scores(engine, pairs, hashes=True)
    with InferenceEngine.from_gguf(demo.STORY, **options) as other:
        for _ in range(2):  # the second time with what the prefix cache has
            assert scores(other, pairs, batch_size=batch_size, hashes=True) == known
        other.model.check_integrity()


@pytest.mark.parametrize("target", PRESENT)
def test_every_figure_is_the_same_on_other_machines(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("OXILLAMA_TARGET", target)
    with InferenceEngine.from_gguf(demo.STORY) as other:
        assert other.model.kernels.target == target
        assert scores(other, pairs_of(other)) == scores(engine, pairs_of(engine))


class Few(Letters):
    """Tokens for models without a vocabulary."""

    n_vocab = 48


@pytest.mark.parametrize("name", ["mamba", "rwkv7", "gemma3"])
def test_states_and_windows_are_shared_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_tokenizer", lambda file, config: Few())
    with CompatEngine() as engine:
        engine.load_model_from_bytes(MODELS[name].file())
        context = tokens_of(40, Few.n_vocab)
        pairs = [(context, [7, 8, token]) for token in (3, 4, 5)] + [(context[:2], [3])]
        found = scores(engine, pairs, hashes=True)
        for (context, continuation), score in zip(pairs, found):
            rows = engine.session().logits([*context, *continuation[:-1]])[len(context) - 1 :]
            chain = LogitsChain()
            assert score.links == tuple(chain.add(row[: Few.n_vocab]) for row in rows)


def test_what_sequences_have_in_common_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the rows of all passes, and those that logits are made of."""
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, prefix_cache_bytes=0)
    context = engine.tokenizer.encode(STORIES[7] + STORIES[8])[:101]
    pairs = [(context, [token]) for token in range(50, 60)] + [
        (context, [9, 9, token]) for token in range(60, 64)
    ]
    runner, ran = engine.model.runner, []
    launch = runner.launch

    def counted(sequences: list, outputs: list[Output], *rest: object) -> object:  # type: ignore[type-arg]
        ran.extend((s.scheduled_len - s.cached_len, output) for s, output in zip(sequences, outputs))
        return launch(sequences, outputs, *rest)

    monkeypatch.setattr(runner, "launch", counted)
    scores(engine, pairs)
    # the context but its last token, which either of the two sequences runs with what follows
    assert sum(n for n, _ in ran) == 100 + 1 + 3
    assert sum(n for n, output in ran if output is Output.ALL_LOGITS) == 1 + 3


def test_what_cannot_be_scored_is_refused(engine: InferenceEngine) -> None:
    most = engine.context_size
    (score,) = scores(engine, [([1] * most, [2])])
    assert len(score.logprobs) == 1
    with pytest.raises(
        PromptError, match=f"expected at most {most + 1} tokens for the context, got {most + 2}"
    ):
        scores(engine, [([1] * most, [2, 3])])
    for pair in (([], [2]), ([1], [])):
        with pytest.raises(PromptError, match="pair 0: expected a context and a continuation"):
            scores(engine, [pair])
    with pytest.raises(PromptError, match="token ids below"):
        scores(engine, [([1], [1 << 20])])
    assert scores(engine, []) == []


# --- receipts ------------------------------------------------------------------------------------


@pytest.fixture
def receipt(engine: InferenceEngine) -> ScoreReceipt:
    pair = pairs_of(engine)[2]
    return ScoreReceipt.of(engine, *pair, *scores(engine, [pair], hashes=True))


def test_a_receipt_is_verified(engine: InferenceEngine, receipt: ScoreReceipt, tmp_path: Path) -> None:
    receipt.save(tmp_path / "score.json")
    assert ScoreReceipt.load(tmp_path / "score.json") == receipt
    assert verify_score(engine, receipt) == []
    assert output("verify", tmp_path / "score.json", "--model", demo.STORY) == "this model gives the score\n"
    done = run("verify", tmp_path / "score.json", "--model", demo.DRAFT)
    assert done.returncode == 1 and b"this model differs: model, " in done.stdout
    done = run("verify", tmp_path / "score.json", "--model", demo.STORY, "--text")
    assert done.returncode == 2 and b"text: expected none" in done.stderr


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", [-1.0, -1.0, -1.0]),
        ("greedy", [True, True, True]),
        ("points", ["0" * 8] * 3),
        ("chain", "0" * 64),
        ("model", "0" * 64),
        ("kv_type", "f32"),
    ],
)
def test_a_changed_receipt_is_noticed(
    engine: InferenceEngine, receipt: ScoreReceipt, field: str, value: object
) -> None:
    assert getattr(receipt, field) != value
    assert verify_score(engine, replace(receipt, **{field: value})) == [field]  # type: ignore[arg-type]


def test_another_prompt_has_another_receipt(engine: InferenceEngine, receipt: ScoreReceipt) -> None:
    prompt = [*receipt.prompt[:-1], receipt.prompt[-1] + 1]
    assert "chain" in verify_score(engine, replace(receipt, prompt=prompt))
    with pytest.raises(ReceiptError, match="token ids below"):
        verify_score(engine, replace(receipt, prompt=[-1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "expected an object of the format"),
        ({"version": 2}, "expected version 1"),
        ({"more": 1}, "'more': no such field"),
        ({"prompt": "text"}, "prompt: expected a list"),
    ],
)
def test_what_is_no_receipt_is_refused(
    receipt: ScoreReceipt, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ReceiptError, match=message):
        ScoreReceipt.from_json(json.dumps({**json.loads(receipt.to_json()), **change}))
    with pytest.raises(ReceiptError, match="expected JSON"):
        ScoreReceipt.from_json("{")
