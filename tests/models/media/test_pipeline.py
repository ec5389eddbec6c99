"""Pictures in a pipeline: every stage gets the rows, and the text has the bits of one process."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.engine.features.media.input_embeddings import InputEmbeddingRows, MediaLayer, Part
from oxillama.engine.features.pipeline.engine import StagedEngine
from oxillama.engine.sequence import Sequence
from tests.support.media import PAIRS, SHARED, bits, prompt

CONFIG: dict[str, Any] = {"num_threads": 1, "kv_type": "f32"}


def beside_another(engine: InferenceEngine) -> np.ndarray:
    """float32 (tokens, vocab): the logits of a greedy text beside another one."""
    other = engine.stream("once upon a time", temperature=0, max_tokens=12)
    found = bits(engine, prompt(engine, 1))
    other.result()
    return found


def check(text: Path, projector: Path) -> None:
    with InferenceEngine.from_gguf(text, mmproj=projector, **CONFIG) as alone:
        wanted = beside_another(alone)
        generation = alone.stream(prompt(alone, 1), temperature=0, max_tokens=6, window=1)
        next(generation)
        data = generation.snapshot()
        rest = generation.result().text
    with StagedEngine.from_gguf(text, stages=2, mmproj=projector, **CONFIG) as staged:
        assert (beside_another(staged) == wanted).all()
        assert staged.restore(data).result().text == rest
        staged.model.check_integrity()


def test_a_pipeline_has_the_bits_of_one_process(folder: Path, kind: str) -> None:
    check(folder / kind / "text.gguf", folder / kind / "mmproj-F32.gguf")


@pytest.mark.skipif(not PAIRS, reason="../shared/parity-vision is not there")
@pytest.mark.parametrize("pair", ["qwen3vl", "qwen2vl", "gemma3"])
def test_positions_and_deep_rows_reach_their_stages(pair: str) -> None:
    """Rotations by rows and columns in every stage, and embeddings of the layers that a stage has."""
    check(SHARED / pair / "text.gguf", SHARED / pair / "mmproj.gguf")


def test_rows_can_be_sent(engine: InferenceEngine) -> None:
    given = prompt(engine, 1)

    def rows() -> Any:
        sequence = Sequence(engine.model.pool, given.tokens, embeddings=given.embeddings)
        sequence.schedule(len(given.tokens))
        found = given.embeddings.rows_of([sequence], np.array([0, len(given.tokens)], np.int32))
        sequence.rollback()
        sequence.release()
        return found

    sent = engine.model.call(rows)
    received = pickle.loads(pickle.dumps(sent))
    assert [part.row for part in received.parts] == [part.row for part in sent.parts]
    assert (received.parts[0].values == sent.parts[0].values).all()


class Stub(SimpleNamespace):
    """What a weak reference may name."""

    __hash__ = object.__hash__


def test_a_stage_learns_of_deep_rows_by_a_pass() -> None:
    """Its first layer turns the rows; every layer adds what rows have for it."""
    spec = SimpleNamespace(here=range(1, 5), n_embd=8)
    stage: Any = Stub(
        spec=spec, kernels=None, layers=[SimpleNamespace(blocks=None, linears=None) for _ in spec.here]
    )
    places, starts = np.array([0, 3], np.int32), np.zeros(1, np.int32)
    rows = InputEmbeddingRows([Part(0, np.zeros((3, 4 * 8), np.float32), "")], places, starts, None, None)
    kv = [object()]
    assert rows.begin(stage, [], [], kv) is kv
    assert [isinstance(layer, MediaLayer) for layer in stage.layers] == [True, True, False, False]
    assert [layer.i for layer in stage.layers[:2]] == [1, 2]
    assert stage.layers[0].model() is stage and stage.layers[1].model is None
    again = list(stage.layers)
    rows.begin(stage, [], [], kv)
    assert stage.layers == again
