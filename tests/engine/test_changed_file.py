"""A model file that changes while an engine, the quantizer or a hash uses it: errors, and nothing else.

A read of a mapped page that is gone would end this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.apps.quantize.model import quantize_model
from oxillama.errors import ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights import linear, packer
from tests.support.tiny_file import write_tiny_model

CHANGED = "changed while it was in use"


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def overwrite(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # the clock of times may be coarse


CHANGES = [cut, overwrite]
OPTIONS: list[dict[str, Any]] = [{}, {"quantize": "Q8_0"}, {"compute": "f32"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_before_the_first_use(path: Path, change: Callable[[Path], None], options: dict[str, Any]) -> None:
    with InferenceEngine.from_gguf(path, **options) as engine:
        change(path)
        for _ in range(2):
            with pytest.raises(ModelFileError, match=CHANGED):
                engine.generate("once", max_tokens=2)


@pytest.mark.parametrize("change", CHANGES)
def test_between_two_layers(
    path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, pack_blocks = [], packer.Packer._pack_blocks

    def changing(self: Any, source: Any, *args: Any) -> None:
        told.append(source.info.name)
        if len(told) == 5:
            change(path)
        pack_blocks(self, source, *args)

    with InferenceEngine(path) as engine:
        monkeypatch.setattr(packer.Packer, "_pack_blocks", changing)
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.generate("once", max_tokens=2)
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.generate("upon", max_tokens=2)
    assert told[4] == told[-1], "a matrix behind the one that could not be read was read"


@pytest.mark.parametrize("change", CHANGES)
def test_during_a_generation(
    path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "KEPT_BYTES", 0)  # as if the table were large
    other = write_tiny_model(path.with_name("other.gguf"))
    with InferenceEngine(path) as engine, InferenceEngine(other) as untouched:
        expected = untouched.generate("once upon", max_tokens=8, temperature=0)
        stream = engine.stream("once upon", max_tokens=500, temperature=0, ignore_eos=True)
        next(stream)
        change(path)
        with pytest.raises(ModelFileError, match=CHANGED):
            stream.result()
        assert untouched.generate("once upon", max_tokens=8, temperature=0) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_in_memory_needs_no_file(path: Path, change: Callable[[Path], None]) -> None:
    with InferenceEngine(path) as engine:
        expected = engine.generate("once", max_tokens=8, temperature=0)
        change(path)
        assert engine.generate("once", max_tokens=8, temperature=0) == expected


@pytest.mark.skipif(os.name == "nt", reason="an open file is not deleted there")
def test_a_deleted_file_goes_on(path: Path) -> None:
    with InferenceEngine(path) as engine:
        expected = engine.generate("once", max_tokens=8, temperature=0)
    with InferenceEngine(path) as engine:
        path.unlink()
        assert engine.generate("once", max_tokens=8, temperature=0) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_while_it_is_quantized(path: Path, change: Callable[[Path], None]) -> None:
    target, told = path.with_name("q.gguf"), []

    def progress(name: str, n_bytes: int) -> None:
        told.append(name)
        if len(told) == 3:
            change(path)

    with pytest.raises(ModelFileError, match=CHANGED):
        quantize_model(path, target, "Q8_0", progress=progress)
    assert len(told) == 3
    assert not target.exists()


@pytest.mark.parametrize("change", CHANGES)
def test_while_it_is_hashed(path: Path, change: Callable[[Path], None]) -> None:
    with ModelFile.open(path) as file, pytest.raises(ModelFileError, match=CHANGED):
        ModelFingerprint.compute(file, progress=lambda done, total: change(path))


def test_a_matrix_is_packed_the_same_in_any_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed() -> list[bytes]:
        from oxillama import _kernels
        from oxillama.models.weights.loader import Weights

        with ModelFile.open(path) as file:
            weights, found = Weights(file, _kernels.best(), 2), []
            for name, info in file.tensors.items():
                if len(info.shape) == 2:
                    linear = weights.linear([(name.removesuffix(".weight"), info.shape[1])], info.shape[0])
                    linear.pack()
                    (panels,) = linear.prepare(np.empty((0, linear.cols), np.float32)).panels
                    found.append(panels.tobytes())
        return found

    expected = packed()
    monkeypatch.setattr(packer.pack, "pack_file", lambda *args: False)  # as if the file could not be read
    assert packed() == expected
    monkeypatch.setattr(packer, "READ_BYTES", 1)
    assert packed() == expected
