"""Sources of bytes, and names of tensors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oxillama import ConfigError, EngineConfig, ModelFileError, OffloadPolicy, TensorNotFound, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.compat.offload import FilePagerSource, MmapPagerSource, OffloadEof, PagerSource, TensorId

SOURCES = [FilePagerSource, MmapPagerSource]


@pytest.mark.parametrize("source_class", SOURCES)
def test_bytes_are_those_of_the_file(source_class: type[FilePagerSource], tmp_path: Path) -> None:
    path, data = tmp_path / "data", bytes(range(256)) * 5
    path.write_bytes(data)
    with source_class(path) as source:
        assert isinstance(source, PagerSource)
        assert source.total_size_bytes == len(data)
        for offset, n_bytes in ((0, 1280), (3, 700), (1279, 1), (1280, 0), (0, 0)):
            assert source.read_bytes_at(offset, n_bytes) == data[offset : offset + n_bytes]
        for offset, n_bytes in ((0, 1281), (1280, 1), (5000, 0)):
            with pytest.raises(
                OffloadEof, match=f"expected {n_bytes} bytes at {offset}, got a file of 1280"
            ) as raised:
                source.read_bytes_at(offset, n_bytes)
            assert (raised.value.offset, raised.value.n_bytes, raised.value.total) == (offset, n_bytes, 1280)
        for offset, n_bytes, name in ((-1, 1, "offset"), (0, -1, "n_bytes"), (0.5, 1, "offset")):
            with pytest.raises(ConfigError, match=f"^{name}: expected"):
                source.read_bytes_at(offset, n_bytes)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match="cannot be read"):
        source.read_bytes_at(0, 1)
    assert issubclass(OffloadEof, (ModelFileError, EOFError))


@pytest.mark.parametrize("source_class", SOURCES)
def test_a_file_that_changes_is_an_error(source_class: type[FilePagerSource], tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))
    with source_class(path) as source:
        os.truncate(path, 10)
        with pytest.raises(ModelFileError, match="changed while it was in use"):
            source.read_bytes_at(0, 100_000)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        source_class(tmp_path / "absent")


def test_an_engine_takes_a_policy_and_its_pager_names() -> None:
    policy = OffloadPolicy.PinnedHotSet(10**9, "blk.0.*")
    config = EngineConfig(model_path=demo.STORY, offload_policy=policy, num_threads=1)
    assert (config.offload_budget, config.offload_pinned) == (10**9, ("blk.0.*",))
    with InferenceEngine(config) as engine:
        pager = engine.layer_pager()
        assert pager is not None
        assert pager.is_pinned(TensorId("blk.0.attn_q.weight"))
        with pytest.raises(TensorNotFound):
            pager.is_pinned(TensorId("blk.99.attn_q.weight"))
