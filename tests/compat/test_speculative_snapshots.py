"""Snapshots of two engines, one of which drafts: `OXISPEC1`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from oxillama import (
    ConfigError,
    EngineConfig,
    EngineSnapshot,
    ModelFileError,
    ModelFingerprintMismatch,
    SamplerConfig,
    SnapshotIncompatible,
    SpecSnapshotIncompatible,
    SpeculativeConfig,
    SpeculativeEngine,
    SpeculativeEngineSnapshot,
    demo,
)
from oxillama.apps.cli import main
from oxillama.compat.engine import InferenceEngine
from oxillama.sessions.container import SPECULATIVE, Container, pieces
from tests.support.kernels import same_bits
from tests.support.serving import AsManyAsMayBe, use_drafter

PROMPT = demo.PROMPTS[0]
DRAFT = EngineConfig(model_path=demo.DRAFT, num_threads=1, context_size=100)
N_TOKENS = 60
"""Of a text: the engine runs up to 16 pieces ahead of a callback, and then more are left."""


def pair(**sampler: Any) -> SpeculativeEngine:
    target = EngineConfig(model_path=demo.STORY, num_threads=1, sampler=SamplerConfig(**sampler))
    return SpeculativeEngine(SpeculativeConfig(target, DRAFT, num_speculative=5, seed=9))


def text_and_snapshots(engine: SpeculativeEngine, at: int, **how: Any) -> tuple[str, bytes, str]:
    """A whole text, a snapshot taken at one of its pieces, and the text up to there."""
    pieces: list[str] = []
    found: list[tuple[bytes, str]] = []

    def callback(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == at:
            found.append((engine.snapshot(**how), "".join(pieces)))

    text = engine.generate(PROMPT, N_TOKENS, callback)
    assert text == "".join(pieces)
    return (text, *found[0])


@pytest.mark.parametrize("at", [1, 7, 20])
@pytest.mark.parametrize(
    "sampler",
    [{"temperature": 0}, {"mirostat": 2}, {"regex": "([a-z]+ ){40}"}],
    ids=["greedy", "mu", "regex"],
)
def test_a_text_goes_on(at: int, sampler: dict[str, Any], tmp_path: Path) -> None:
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(demo.DRAFT.read_bytes())
    with pair(**sampler) as engine:
        use_drafter(engine.target.model, AsManyAsMayBe())
        text, data, begun = text_and_snapshots(engine, at, compress=at == 7)
    (tmp_path / "a.spec").write_bytes(data)
    rest: list[str] = []
    with SpeculativeEngine.resume_from_file(tmp_path / "a.spec", None, moved) as again:
        use_drafter(again.target.model, AsManyAsMayBe())
        assert again.config.num_speculative == 5
        assert again.config.draft.context_size == 100
        unchanged = SpeculativeEngineSnapshot.decode(again.snapshot())  # before it goes on
        assert (
            unchanged.target.tokens.tolist() == SpeculativeEngineSnapshot.decode(data).target.tokens.tolist()
        )
        assert again.finish(rest.append) == text
        assert begun + "".join(rest) == text
        with pytest.raises(ConfigError, match="of a text that is under way, got none"):
            again.finish()
        assert again.generate(PROMPT, N_TOKENS) == text
        assert again.target.metrics.drafted_tokens > 0
        again.target.check_integrity()


def test_the_engine_goes_on_with_its_own_session() -> None:
    with pair(temperature=0) as engine:
        expected = engine.generate(PROMPT, 20)
        tokens = engine.target.tokenize(PROMPT)
        engine.target.prefill(tokens[:-1])
        data = engine.snapshot()
        logits = engine.target.forward_one(tokens[-1])
    with SpeculativeEngine.resume(data) as again:
        assert same_bits(again.target.forward_one(tokens[-1]), logits)
        assert again.generate(PROMPT, 20) == expected
        with pytest.raises(ConfigError, match="of a text that is under way"):
            again.finish()


def test_what_is_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pair(temperature=0) as engine:
        use_drafter(engine.target.model, AsManyAsMayBe())
        _, data, _ = text_and_snapshots(engine, 15)
        engine.snapshot_to_file(tmp_path / "engine.model.spec")
        assert engine.snapshot() == (tmp_path / "engine.model.spec").read_bytes()
    found = SpeculativeEngineSnapshot.decode(data)
    assert data.startswith(b"OXISPEC1") and found.encode() == data
    assert found.fingerprint() == blake3(data).digest()
    assert (found.target.kind, found.draft.kind, found.num_speculative) == ("generation", "engine", 5)
    assert found.accepted_tokens > 0 and found.rng_state and not len(found.draft.tokens)
    idle = SpeculativeEngineSnapshot.decode((tmp_path / "engine.model.spec").read_bytes())
    assert (idle.target.kind, idle.accepted_tokens, idle.rng_state) == ("engine", 0, None)
    (tmp_path / "a.spec").write_bytes(data)
    assert main(["snapshot", "info", "--check", str(tmp_path / "a.spec")]) == 0
    shown = capsys.readouterr().out
    for text in ("speculative", "drafts with", str(demo.DRAFT), "checksums", "target", "draft"):
        assert text in shown


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pair() as engine:
        data = engine.snapshot()
    changed = bytearray(demo.STORY.read_bytes())
    changed[-70000] ^= 1
    (tmp_path / "changed.gguf").write_bytes(changed)
    for paths in ((tmp_path / "changed.gguf", None), (demo.STORY, demo.STORY), (demo.DRAFT, None)):
        with pytest.raises(ModelFingerprintMismatch) as caught:
            SpeculativeEngine.resume(data, *paths)
        assert len({caught.value.expected, caught.value.found}) == 2
    with pytest.raises(ModelFileError):
        SpeculativeEngine.resume(data, None, tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        SpeculativeEngine.resume_from_file(tmp_path / "none.spec")
    found = SpeculativeEngineSnapshot.decode(data)
    nowhere = replace(found.draft, model=replace(found.draft.model, path=""))
    with pytest.raises(ConfigError, match="draft_model_path: expected a path"):
        SpeculativeEngine.resume(replace(found, draft=nowhere).encode())


def test_damage_is_refused() -> None:
    with pair() as engine:
        data = engine.snapshot()
        plain = engine.target.snapshot()
    for n in [*range(0, len(data), max(1, len(data) // 300)), len(data) - 1]:
        flipped = bytearray(data)
        flipped[n] ^= 4
        for bad in (flipped, data[:n]):
            with pytest.raises(SpecSnapshotIncompatible):
                SpeculativeEngineSnapshot.decode(bad)
    with pytest.raises(SpecSnapshotIncompatible, match="expected OXISPEC1 at the beginning, got b'OXISNAP1'"):
        SpeculativeEngine.resume(plain)
    with pytest.raises(SnapshotIncompatible, match="expected OXISNAP1 at the beginning"):
        InferenceEngine.resume(data)
    header = Container.parse(data, SPECULATIVE).header
    parts = {"target": plain, "draft": SpeculativeEngineSnapshot.decode(data).draft.serialize()}
    for change, contents in (
        ({"num_speculative": 65}, parts),
        ({"num_speculative": "5"}, parts),
        ({"kind": "engine"}, parts),
        ({"n_tokens": 1}, parts),
        ({"draft": header["model"]}, parts),
        ({}, {"target": plain}),
        ({}, {**parts, "more": b""}),
        ({}, {"target": parts["draft"], "draft": plain}),
        ({}, {**parts, "target": b"OXISNAP1"}),
    ):
        bad = b"".join(pieces({**header, **change}, contents, False, SPECULATIVE))  # type: ignore[arg-type]
        with pytest.raises(SpecSnapshotIncompatible):
            SpeculativeEngineSnapshot.decode(bad)
    target = EngineSnapshot.deserialize(plain)
    for bad_pair in (replace(target, kind="session"),):
        with pytest.raises(SpecSnapshotIncompatible, match="expected a text or an engine and a draft model"):
            SpeculativeEngineSnapshot.decode(
                SpeculativeEngineSnapshot(bad_pair, SpeculativeEngineSnapshot.decode(data).draft, 3).encode()
            )
