"""What a sequence with pictures does beyond a text: sessions, snapshots, receipts, and its turns in steps."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine, Receipt, SnapshotIncompatible
from oxillama.engine.features.media.feature import Media
from oxillama.engine.features.media.state import MediaState, SpanState, UseState
from oxillama.engine.loop import Observers
from oxillama.engine.protocols import Observer
from oxillama.errors import ReceiptError
from oxillama.sessions.restore import resume
from oxillama.sessions.snapshot import EngineSnapshot
from tests.support.media import TEXT, WIDTH, opened, picture, prompt


def media_of(engine: InferenceEngine) -> Media:
    found: Media = engine.model.feature("media")
    return found


# --- sessions --------------------------------------------------------------------------------------------


def test_a_session_takes_a_picture_and_more_text(engine: InferenceEngine) -> None:
    whole = prompt(engine, 1, 2, text=f"{TEXT} <__media__> and went")
    wanted = engine.stream(whole, temperature=0, max_tokens=5).result()
    with engine.session() as session:
        logits = session.logits(whole)
        assert len(logits) == len(whole)
        again = session.fork()
        assert session.stream(temperature=0, max_tokens=5).result().text == wanted.text
        assert again.stream(temperature=0, max_tokens=5).result().text == wanted.text
        again.close()


def test_pictures_in_several_prompts_of_a_session(engine: InferenceEngine) -> None:
    """The second prompt stands behind the first, with the places of its rows."""
    one, other = prompt(engine, 1), prompt(engine, 2, text="<__media__> said")
    opening = engine.model.tokenizer.encode_rendered("")
    assert other.tokens[: len(opening)] == opening
    with engine.session() as session:
        session.prefill(one)
        logits = session.logits(other)
        tokens = session.tokens
    merged = replace(one, tokens=tokens, embeddings=other.embeddings.behind(one.embeddings, len(one)))
    with engine.session() as session:
        assert (session.logits(merged)[len(one) :] == logits).all()


def test_rewinding_keeps_or_drops_a_whole_picture(engine: InferenceEngine) -> None:
    whole = prompt(engine, 1)
    span = whole.embeddings.spans[0]
    with engine.session() as session:
        wanted = session.logits(whole)
        session.rewind(span.end)
        assert (session.logits(whole.tokens[span.end :]) == wanted[span.end :]).all()
        with pytest.raises(ConfigError, match=f"expected {span.start} or {span.end}"):
            session.rewind(span.end - 1)
        session.rewind(span.start)
        plain = session.logits(whole.tokens[span.start :])
        assert (plain != wanted[span.start :]).any()
        with engine.session() as other:
            assert (other.logits(whole.tokens)[span.start :] == plain).all()


def test_keys_and_values_of_a_session(engine: InferenceEngine) -> None:
    whole = prompt(engine, 1)
    with engine.session() as session, engine.session() as other:
        session.prefill(whole)
        other.kv_restore(session.kv_snapshot())
        assert (session.logits([3, 4]) == other.logits([3, 4])).all()


# --- snapshots -------------------------------------------------------------------------------------------


def test_a_text_goes_on_from_a_snapshot(kind: str, folder: Path, engine: InferenceEngine) -> None:
    whole = prompt(engine, 1)
    wanted = engine.generate(whole, temperature=0, max_tokens=20)
    generation = engine.stream(whole, temperature=0, max_tokens=20, window=2)
    next(generation)
    data = generation.snapshot()
    generation.cancel()
    with opened(folder, kind) as other:
        assert other.restore(data).result().text == wanted
    with resume(InferenceEngine, data, mmproj=None)[0] as other:  # the embeddings are in the snapshot
        assert other.restore(data).result().text == wanted


def test_a_session_goes_on_from_a_snapshot(kind: str, folder: Path, engine: InferenceEngine) -> None:
    with engine.session() as session:
        session.prefill(prompt(engine, 1))
        data = session.snapshot()
        wanted = session.logits([3, 4, 5])
    with opened(folder, kind) as other, other.restore(data) as restored:
        assert (restored.logits([3, 4, 5]) == wanted).all()


def test_a_snapshot_before_the_prompt_was_run(kind: str, folder: Path, engine: InferenceEngine) -> None:
    """The embeddings are run by the engine that goes on."""
    whole = prompt(engine, 1)
    with engine.session() as session:
        session.append(whole)
        data = session.snapshot()
        wanted = session.logits([3])
    with opened(folder, kind) as other, other.restore(data) as restored:
        assert (restored.logits([3]) == wanted).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"values": np.zeros((15, WIDTH), np.float32)}, "those of 15 rows"),
        ({"values": np.full((16, WIDTH), np.nan, np.float32)}, "finite"),
        ({"spans": [SpanState(250, 16, None, "")], "media": [UseState("0" * 64, [250])]}, "tokens"),
        ({"values": np.zeros((16, WIDTH + 1), np.float32)}, "width"),
        ({"media": []}, "starts of all spans"),
        ({"spans": [], "media": []}, "those of 16 rows"),
    ],
)
def test_a_snapshot_with_other_media_is_refused(
    change: dict[str, Any], match: str, engines: dict[str, InferenceEngine]
) -> None:
    engine = engines["mlp"]
    with engine.session() as session:
        session.prefill(prompt(engine, 1))
        taken = session.capture()
    assert isinstance(taken.media, MediaState)
    state = object.__new__(MediaState)
    for name, value in {**vars(taken.media), **change}.items():
        object.__setattr__(state, name, value)
    data = replace(taken, media=state).serialize()
    with pytest.raises(SnapshotIncompatible, match=match):
        engine.restore(EngineSnapshot.deserialize(data))


# --- receipts --------------------------------------------------------------------------------------------


def receipt_of(engine: InferenceEngine, given: Any) -> Receipt:
    found = engine.stream(given, seed=3, max_tokens=8, receipt=True).result().receipt
    assert found is not None
    return found


@pytest.mark.parametrize("text", [TEXT, "<__media__>", "the fox <__media__>"])
def test_a_receipt_names_its_pictures(text: str, kind: str, folder: Path, engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, prompt(engine, 1, text=text))
    assert [use.digest for use in receipt.media] == [media_of(engine).decode(picture(56, 28, 1)).digest.hex()]
    copy = Receipt.from_json(receipt.to_json())
    assert copy == receipt
    with opened(folder, kind, prefill_chunk_size=5) as other:
        found = other.verify(copy, media=[picture(56, 28, 1)])
        assert found.verified and found.n_tokens == 8, found.message


def test_a_receipt_of_other_pictures_is_not_verified(engine: InferenceEngine, tmp_path: Path) -> None:
    whole = prompt(engine, 1)
    receipt = receipt_of(engine, whole)
    other = engine.verify(receipt, media=[picture(56, 28, 2)])
    assert other.cause == "media" and other.at == 0
    for media in ((), [picture(56, 28, 1)] * 2):
        with pytest.raises(ConfigError, match="media: expected 1 as in the receipt"):
            engine.verify(receipt, media=media)
    claimed = media_of(engine).decode(picture(56, 28, 2)).digest.hex()
    lie = replace(receipt, media=(replace(receipt.media[0], digest=claimed),))
    assert engine.verify(lie, media=[picture(56, 28, 2)]).cause == "logits"
    moved = replace(receipt, media=(replace(receipt.media[0], starts=[len(receipt.prompt) - 1]),))
    assert engine.verify(moved, media=[picture(56, 28, 1)]).cause == "media"
    stranger = replace(receipt, projector="0" * 64)
    assert engine.verify(stranger, media=[picture(56, 28, 1)]).cause == "media"
    with pytest.raises(ReceiptError, match="a projector, or neither"):
        replace(receipt, media=())
    with pytest.raises(ReceiptError, match="positions of the prompt in order"):
        replace(receipt, media=(replace(receipt.media[0], starts=[len(receipt.prompt)]),))


def test_a_receipt_goes_on_from_a_snapshot(kind: str, folder: Path, engine: InferenceEngine) -> None:
    whole = prompt(engine, 1)
    wanted = receipt_of(engine, whole)
    generation = engine.stream(whole, seed=3, max_tokens=8, receipt=True, window=2)
    next(generation)
    data = generation.snapshot()
    generation.cancel()
    with opened(folder, kind) as other:
        assert other.restore(data).result().receipt == wanted


# --- turns -----------------------------------------------------------------------------------------------


def test_a_picture_whose_rows_see_each_other_runs_beside_streams(
    folder: Path, engines: dict[str, InferenceEngine]
) -> None:
    """Each step serves the stream, which waits for one picture and one chunk at most."""
    with opened(folder, "gemma3", prefill_chunk_size=3) as engine:
        whole = prompt(engine, 1)
        wanted = engines["gemma3"].generate(prompt(engines["gemma3"], 1), temperature=0, max_tokens=6)
        stream = engine.stream("once upon a time", temperature=0, max_tokens=3900, window=4000)
        next(stream)
        steps: list[tuple[int, int]] = []

        class Watch(Observer):
            """Notes the rows of the steps."""

            def stepped(self, batch: Any, now: float) -> None:
                steps.append((batch.n_decode, batch.n_prefill))

        loop = engine.model.loop
        engine.model.call(lambda: setattr(loop, "observers", Observers([*loop.observers.every, Watch()])))
        assert engine.generate(whole, temperature=0, max_tokens=6) == wanted
        stream.cancel()
    beside = [n_prefill for n_decode, n_prefill in steps if n_decode and n_prefill]
    n_rows = len(whole.embeddings.spans[0].rows.values)
    assert beside and n_rows <= max(beside) <= n_rows + 3
    assert sum(n_prefill for _, n_prefill in steps) == len(whole)


def test_encoders_run_between_the_steps_of_streams(
    engines: dict[str, InferenceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["mlp"]
    media, thread = media_of(engine), engine.model.thread
    stream = engine.stream("once upon a time", temperature=0, max_tokens=3900, window=4000)
    next(stream)
    turns: list[tuple[str, int]] = []
    call = thread.call

    def noted(job: Any) -> Any:
        """Notes the thread of a job, and how far the stream is."""

        def run() -> Any:
            turns.append((threading.current_thread().name, engine.model.scheduler.running[0].n_generated))
            return job()

        return call(run)

    monkeypatch.setattr(thread, "call", noted)
    media.encode(picture(60, 60, 98))
    stream.cancel()
    vision = media.encoder.vision
    assert vision is not None and len(turns) > 2 * len(vision.blocks)  # each block has two steps
    assert {name for name, _ in turns} == {"oxillama"}
    assert turns[-1][1] > turns[0][1]


def test_embeddings_are_kept_up_to_a_number_of_bytes(folder: Path) -> None:
    one = 16 * WIDTH * 4
    with opened(folder, "mlp", media_cache_bytes=2 * one) as engine:
        media = media_of(engine)
        first = [media.encode(picture(40, 40, seed)) for seed in (1, 2)]
        assert media.encode(picture(40, 40, 1)) is first[0]  # used last
        media.encode(picture(40, 40, 3))
        assert media.encode(picture(40, 40, 1)) is first[0]
        again = media.encode(picture(40, 40, 2))
        assert again is not first[1]
        assert (again.rows[0].values == first[1].rows[0].values).all()
    with opened(folder, "mlp", media_cache_bytes=0) as engine:
        media = media_of(engine)
        assert media.encode(picture()) is not media.encode(picture())
