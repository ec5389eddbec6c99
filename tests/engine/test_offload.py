"""An engine under a budget: the same texts, typed errors, and no more memory than that."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import EngineConfig, OffloadPolicy, demo, pack_model
from oxillama.apps.cli import main
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.extent import OpenFile
from oxillama.models.offload import pager as pager_module
from oxillama.models.offload.direct import DirectReads
from oxillama.models.offload.parts import PagedMatrix
from oxillama.models.offload.pressure import MemoryPressureProbe, MemoryState
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import until

CHANGED = "changed while it was in use"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf")


def budgets(path: Path) -> list[int]:
    """The least, the middle, and all."""
    with InferenceEngine.from_gguf(path, offload_budget=1 << 40) as engine:
        pager = engine.layer_pager()
        assert pager is not None
        return [pager.least, (pager.least + pager.total_bytes) // 2, pager.total_bytes]


def texts(engine: InferenceEngine) -> Any:
    """The answers to requests of many kinds: alone, together, constrained, drafted, embeddings."""
    return (
        engine.generate("once upon a time", max_tokens=12, temperature=0, ignore_eos=True),
        engine.generate_batch(["one", "two three", "four"], max_tokens=8, seed=3, ignore_eos=True),
        engine.generate("a b a b a b", max_tokens=12, temperature=0, speculate="lookup", ignore_eos=True),
        engine.generate("x", max_tokens=8, temperature=0, choices=("yes", "no")),
        engine.embed("some text").tobytes(),
        engine.logits("once upon").tobytes(),
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_all_requests_give_the_same(path: Path, which: int, packed: bool) -> None:
    with InferenceEngine(path) as engine:
        expected = texts(engine)
        assert engine.layer_pager() is None
    budget = budgets(path)[which]
    if packed:
        pack_model(path)
    with InferenceEngine.from_gguf(path, offload_budget=budget, offload_probe=False) as engine:
        assert texts(engine) == expected
        pager = engine.layer_pager()
        assert pager is not None
        assert 0 < pager.peak_bytes <= budget == pager.budget
        assert engine.metrics_snapshot().matrix_bytes == pager.resident_bytes
        engine.model.check_integrity()


@pytest.mark.parametrize(
    "options", [{"quantize": "Q8_0"}, *({"compute": name} for name in ("f32", "w8a8", "w8a8-128"))], ids=str
)
def test_matrices_that_are_converted(path: Path, options: dict[str, Any]) -> None:
    with InferenceEngine.from_gguf(path, **options) as engine:
        expected = engine.generate("once", max_tokens=8, temperature=0)
    with pytest.raises(ConfigError, match="offload_budget: expected at least"):
        InferenceEngine.from_gguf(path, **options, offload_budget=1)
    with InferenceEngine.from_gguf(path, **options, offload_budget=1 << 40) as engine:
        least = engine.layer_pager().least
    with InferenceEngine.from_gguf(path, **options, offload_budget=least) as engine:
        assert engine.generate("once", max_tokens=8, temperature=0) == expected


def test_panels_are_read_from_the_packed_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_model(path)
    read, fetched, original = [], [], PagedMatrix.read

    def counting(self: PagedMatrix, memory: np.ndarray, *ways: Any) -> None:
        (fetched if self.extent is None else read).append(self.source.info.name)
        original(self, memory, *ways)

    monkeypatch.setattr(PagedMatrix, "read", counting)
    with InferenceEngine.from_gguf(path, offload_budget=budgets(path)[0]) as engine:
        engine.generate("once", max_tokens=2)
    assert read and not fetched


def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the bytes of each read past the system's cache."""
    found, original = [], DirectReads._fill

    def counting(self: DirectReads, file: OpenFile, start: int, out: np.ndarray) -> int:
        found.append(len(out))
        return original(self, file, start, out)

    monkeypatch.setattr(DirectReads, "_fill", counting)
    return found


def test_a_packed_file_is_read_past_the_cache_where_that_could_not_keep_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InferenceEngine(path) as engine:
        expected = texts(engine)
    pack_model(path)
    least, read = budgets(path)[0], direct_reads(monkeypatch)

    def n_read(available: int, **options: Any) -> int:
        probe = MemoryPressureProbe([lambda: MemoryState(1 << 40, available)])
        monkeypatch.setattr("oxillama.models.offload.pager.MemoryPressureProbe", lambda: probe)
        read.clear()
        with InferenceEngine.from_gguf(path, offload_budget=least, **options) as engine:
            assert texts(engine) == expected
        return len(read)

    assert n_read(1 << 39) == 0
    assert n_read(1 << 10) > 0
    assert n_read(1 << 10, offload_access="cached") == 0
    assert n_read(1 << 39, offload_access="direct") > 0
    assert n_read(1 << 10, offload_probe=False) == 0


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_changes_ends_the_request_with_a_typed_error(path: Path, packed: bool) -> None:
    file = pack_model(path) if packed else path
    other = write_tiny_model(path.with_name("other.gguf"))
    options: dict[str, Any] = {"offload_budget": budgets(path)[0], "offload_access": "direct"}
    with (
        InferenceEngine.from_gguf(path, **options) as engine,
        InferenceEngine.from_gguf(other, **options) as untouched,
    ):
        expected = untouched.generate("once upon", max_tokens=8, temperature=0)
        stream = engine.stream("once upon", max_tokens=500, temperature=0, ignore_eos=True)
        next(stream)
        file.chmod(0o644)
        os.truncate(file, 1000)
        with pytest.raises(ModelFileError, match=CHANGED):
            stream.result()
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.generate("once", max_tokens=2)
        engine.model.check_integrity()
        assert untouched.generate("once upon", max_tokens=8, temperature=0) == expected


def test_one_failed_read_ends_no_more_than_one_pass(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that share a batch go on when the storage failed once: each is run again alone."""
    with InferenceEngine(path) as engine:
        expected = engine.generate_batch(["one", "two"], max_tokens=6, temperature=0, ignore_eos=True)
    fails, original = [True], PagedMatrix.read

    def failing(self: PagedMatrix, memory: np.ndarray, *ways: Any) -> None:
        if self.source.info.name.startswith("blk.1") and fails:
            fails.pop()
            raise ModelFileError("m.gguf: cannot be read: it was unplugged")
        original(self, memory, *ways)

    with InferenceEngine.from_gguf(path, offload_budget=budgets(path)[0]) as engine:
        monkeypatch.setattr(PagedMatrix, "read", failing)
        submitted = threading.Event()
        engine.model.thread.post(submitted.wait)  # so that the first pass has both
        handles = engine.stream_batch(["one", "two"], max_tokens=6, temperature=0, ignore_eos=True)
        submitted.set()
        texts = [handle.result().text for handle in handles]
    assert texts == expected
    assert not fails


def test_progress_tells_every_matrix_once(path: Path) -> None:
    def told(**options: Any) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        with InferenceEngine.from_gguf(path, progress=lambda *each: found.append(each), **options) as engine:
            engine.generate("once", max_tokens=2)
        return sorted(found)

    expected = told()
    for budget in budgets(path):
        assert told(offload_budget=budget) == expected


def test_an_idle_engine_gives_memory_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager_module, "IDLE_SECONDS", 0.01)
    least, _, total = budgets(path)
    with InferenceEngine(path) as engine:
        expected = engine.generate("once", max_tokens=4, temperature=0)
    left = [1 << 40]
    probe = MemoryPressureProbe([lambda: MemoryState(1 << 40, left[0])])
    monkeypatch.setattr("oxillama.models.offload.pager.MemoryPressureProbe", lambda: probe)
    with InferenceEngine.from_gguf(path, offload_budget=total) as engine:
        pager = engine.layer_pager()
        assert pager is not None
        assert engine.generate("once", max_tokens=4, temperature=0) == expected
        assert pager.resident_bytes == total
        left[0] = 0
        until(lambda: pager.budget == least)
        engine.model.check_integrity()  # a job comes after the step that shrinks
        assert pager.resident_bytes < total
        assert engine.generate("once", max_tokens=4, temperature=0) == expected
        assert pager.resident_bytes <= least


def test_a_draft_model_stays_beside_the_budget(path: Path, tmp_path: Path) -> None:
    draft = write_tiny_model(tmp_path / "draft.gguf")
    with InferenceEngine(path) as engine:
        expected = engine.generate("once upon", max_tokens=12, temperature=0, ignore_eos=True)
    options: dict[str, Any] = {"offload_budget": budgets(path)[0], "speculate": draft}
    with InferenceEngine.from_gguf(path, **options) as engine:
        assert engine.generate("once upon", max_tokens=12, temperature=0, ignore_eos=True) == expected


@pytest.mark.parametrize("options", [{"speculate": str(demo.DRAFT)}, {"adapters": demo.PIRATE}], ids=str)
def test_a_real_model_with_drafts_and_adapters(options: dict[str, Any]) -> None:
    prompt, kind = "Mia and the Golden Drum\n\n", {"seed": 4, "max_tokens": 30}
    with InferenceEngine.from_gguf(demo.STORY, **options) as engine:
        expected = engine.generate_batch([prompt, prompt + "This"], **kind)
    with InferenceEngine.from_gguf(demo.STORY, offload_budget=1 << 20, **options) as engine:
        assert engine.generate_batch([prompt, prompt + "This"], **kind) == expected
        assert engine.layer_pager().peak_bytes <= 1 << 20


def test_policies_are_names_for_fields() -> None:
    config = EngineConfig(model_path="m.gguf")
    under = config.with_offload(OffloadPolicy.Budget(1 << 30))
    assert (under.offload_budget, under.offload_pinned, under.model_path) == (1 << 30, (), "m.gguf")
    pinned = config.with_offload(OffloadPolicy.PinnedHotSet(5, "output.weight", "blk.0.*"))
    assert (pinned.offload_budget, pinned.offload_pinned) == (5, ("output.weight", "blk.0.*"))
    assert pinned.with_offload(OffloadPolicy.None_) == config
    for wrong in (0, -1, 1.5, True, "1G"):
        with pytest.raises(ConfigError, match="budget: expected an integer >= 1"):
            OffloadPolicy.Budget(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="policy: expected"):
        config.with_offload("all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="offload_probe: expected True or False"):
        EngineConfig(offload_probe=1)  # type: ignore[arg-type]


def test_info_counts_the_budget(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least, middle, total = budgets(path)
    for budget in (least, middle, total, 1 << 40):
        assert main(["info", str(path), "--json", "--offload-budget", str(budget)]) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        assert (memory["resident"], memory["least_budget"]) == (min(budget, memory["weights"]), least)
    assert main(["info", str(path), "--offload-budget", str(least - 1)]) == 1
    assert f"offload_budget: expected at least {least} bytes" in capsys.readouterr().out


def test_a_name_that_pins_nothing_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"offload_pinned: .* got 'blk\.77\.\*'"):
        InferenceEngine.from_gguf(path, offload_budget=1 << 40, offload_pinned=("blk.77.*",))


def test_threads_that_read_end_with_the_engine(path: Path) -> None:
    def readers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("oxillama-reader")}

    before = readers()
    engine = InferenceEngine.from_gguf(path, offload_budget=budgets(path)[0])
    engine.generate("once", max_tokens=2)
    started = readers() - before
    assert started
    engine.close()
    del engine
    gc.collect()
    until(lambda: not started & readers())
