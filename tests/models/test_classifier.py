"""Heads of rerankers: the bits of the reference on every target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oxillama.errors import GGUFError, LoadError
from oxillama.reference.decoder import ReferenceModel
from tests.support.kernels import PRESENT, same_bits
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, VARIANTS, VOCAB, Model

RANKERS = {name: VARIANTS[name] for name in ("bert-rank", "bert-rank-labels", "jina-rank", "qwen3-rank")}
TEXTS = [tokens_of(n, VOCAB, seed=n) for n in (5, 19, 1)]


def scores(running: Running, n_threads: int = 1) -> np.ndarray:
    """float32 (texts, n_labels)."""
    classifier = running.model.classifier
    assert classifier is not None
    at = {"cls": 0, "last": -1}[classifier.pooling]
    hidden = np.stack([rows[at] for rows in running.hidden_states(TEXTS)])
    return running.model.classify(hidden, n_threads)


@pytest.mark.parametrize("name", RANKERS)
def test_scores_are_those_of_the_reference(name: str) -> None:
    running = Running(RANKERS[name].file())
    reference = ReferenceModel(running.weights.file, kv_type="f32")
    assert same_bits(scores(running), np.stack([reference.scores(np.array(tokens)) for tokens in TEXTS]))
    assert running.weights.unused() == []
    assert running.model.spec.pooling == "rank"


@pytest.mark.parametrize("name", RANKERS)
def test_targets_threads_and_batches_change_no_bit(name: str) -> None:
    data = RANKERS[name].file()
    whole = scores(Running(data))
    for target in PRESENT:
        running = Running(data, target, n_threads=2)
        assert same_bits(scores(running, 2), whole), target
    hidden = np.stack([rows[0] for rows in running.hidden_states(TEXTS)])
    alone = [running.model.classify(row[None], 1) for row in hidden]
    assert same_bits(np.concatenate(alone), running.model.classify(hidden, 1))


def test_a_model_has_a_head_if_its_file_has_one() -> None:
    assert Running(MODELS["bert"].file()).model.classifier is None
    assert Running(VARIANTS["bert-rank"].file()).model.spec.labels == ()
    assert Running(VARIANTS["qwen3-rank"].file()).model.spec.labels == ("yes", "no")


def with_labels(model: Model, labels: list[str]) -> Model:
    return replace(model, keys=model.keys | {"classifier.output_labels": ("[str]", labels)})


def test_a_head_must_have_a_row_for_each_label() -> None:
    model = RANKERS["bert-rank-labels"]
    with pytest.raises(LoadError, match=r"cls\.output\.weight: .*\(32, 2\).*\(32, 3\)"):
        Running(with_labels(model, ["no", "yes"]).file())
    with pytest.raises(LoadError, match=r"classifier\.output_labels: expected at most 1024 labels, got 1025"):
        Running(with_labels(model, ["label"] * 1025).file())
    with pytest.raises(GGUFError, match=r"classifier\.output_labels"):
        Running(replace(model, keys={"classifier.output_labels": ("u32", 3)}).file())


def test_heads_of_other_families_are_named_as_unused() -> None:
    running = Running(replace(MODELS["llama"], beside="n:output_norm output cls.output1").file())
    assert running.weights.unused() == ["cls.output.weight"]
