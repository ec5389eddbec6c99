"""Projector files beside llama.cpp's mtmd: equal pixels, embeddings that point the same way, close logits.

``../shared/parity-vision`` has the files; its absence is the only reason to skip. Run alone with
``python -m pytest tests/models/media/test_parity.py``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama._kernels import best, load
from oxillama.engine.sequence import Sequence
from oxillama.models.media.decode import Picture, Sound, read_picture, read_sound
from oxillama.models.media.encoder import Encoded, MediaEncoder
from tests.support.kernels import PRESENT
from tests.support.media import PAIRS, SHARED, reference
from tests.support.tiny_models import divergence

pytestmark = pytest.mark.skipif(not PAIRS, reason="../shared/parity-vision is not there")


def medium(name: str) -> Picture | Sound:
    """A shared file, read by Pillow or by soundfile."""
    if name.endswith(".wav"):
        pytest.importorskip("soundfile")
        return read_sound(SHARED / name)
    pytest.importorskip("PIL")
    return read_picture(SHARED / name)


def chunks(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The media chunks of a case."""
    return [chunk for chunk in case["chunks"] if chunk["type"] != "text"]


def encoded(encoder: MediaEncoder, case: dict[str, Any]) -> list[Encoded]:
    return [encoder.encode(medium(each["file"])) for each in case["media"]]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_pixels_are_equal(pair: str) -> None:
    encoder = MediaEncoder(SHARED / pair / "mmproj.gguf", best(), 1)
    for case in reference(pair)["cases"].values():
        pictures = [each["file"] for each in case["media"] if not each["file"].endswith(".wav")]
        tiles = [tile for name in pictures for tile in encoder.tiles(medium(name)).pixels]  # type: ignore[arg-type]
        wanted = [chunk for chunk in chunks(case) if chunk["type"] == "image"]
        assert [tile.shape[1::-1] for tile in tiles] == [
            (chunk["width"], chunk["height"]) for chunk in wanted
        ]
        hashes = [hashlib.sha256(tile.tobytes()).hexdigest() for tile in tiles]
        assert hashes == [chunk["sha256_u8"] for chunk in wanted]


def test_embeddings_point_the_same_way(pair: str) -> None:
    encoder = MediaEncoder(SHARED / pair / "mmproj.gguf", best(), 2)
    with np.load(SHARED / pair / "ref.npz") as stored:
        for case in reference(pair)["cases"].values():
            rows = [rows.values for each in encoded(encoder, case) for rows in each.rows]
            wanted = chunks(case)
            assert [len(values) for values in rows] == [chunk["n_tokens"] for chunk in wanted]
            for values, chunk in zip(rows, wanted, strict=True):
                pair_of = values[:: chunk["embd_step"]], stored[chunk["embd"]]
                ours, theirs = (rows_of.astype(float) for rows_of in pair_of)
                lengths = np.sqrt((ours**2).sum(axis=1) * (theirs**2).sum(axis=1))
                assert ((ours * theirs).sum(axis=1) / lengths).min() > 1 - 1e-5


def test_logits_are_close(pair: str) -> None:
    folder: Path = SHARED / pair
    engine = InferenceEngine.from_gguf(
        folder / "text.gguf", mmproj=folder / "mmproj.gguf", kv_type="f32", num_threads=2
    )
    media = engine.model.feature("media")
    with engine, np.load(folder / "ref.npz") as stored:
        for name, case in reference(pair)["cases"].items():
            prompt = media.prompt(case["prompt"], [medium(each["file"]) for each in case["media"]])
            parts = [
                chunk["tokens"] if chunk["type"] == "text" else [0] * chunk["n_tokens"]
                for chunk in case["chunks"]
            ]
            assert prompt.tokens == [token for part in parts for token in part]
            rows = logits(engine, prompt, case["greedy"])[len(prompt.tokens) - len(parts[-1]) :]
            check_logits(rows[case["logits_rows"]], stored[f"{name}.logits"])


def logits(engine: InferenceEngine, prompt: Any, after: list[int]) -> np.ndarray:
    """float32 (tokens, vocab): of a prompt and the tokens after it, in one pass."""

    def run() -> np.ndarray:
        sequence = Sequence(engine.model.pool, prompt.tokens + after, embeddings=prompt.embeddings)
        rows = engine.model.runner.forward([(sequence, len(sequence.tokens))], all_logits=True)
        sequence.release()
        return rows

    return engine.model.call(run)


def check_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """A mean KL below 1e-4, and the same top token wherever the best two are apart."""
    assert divergence(theirs, ours[:, : theirs.shape[1]]) < 1e-4
    best_two = np.sort(theirs, axis=1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > 0.02
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1))[clear].all()


def test_every_target_and_thread_count_gives_the_same_bits(pair: str) -> None:
    path = SHARED / pair / "mmproj.gguf"
    case = next(iter(reference(pair)["cases"].values()))
    ways = [(PRESENT[0], 1), *((target, 2 - i % 2) for i, target in enumerate(PRESENT))]
    found = [encoded(MediaEncoder(path, load(target), n), case) for target, n in ways]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert all((a.values == b.values).all() for a, b in zip(one.rows, two.rows, strict=True))
