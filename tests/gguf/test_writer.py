"""What the writer writes, this reader and the `gguf` package read alike."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from oxillama.base.formats import FORMATS
from oxillama.gguf.model_file import ModelFile
from oxillama.gguf.writer import Tensor, Value, header, pair, write_tensor

VALUES: dict[str, tuple[Value, list[str]]] = {
    "general.architecture": ("llama", ["STRING"]),
    "a.bool": (True, ["BOOL"]),
    "an.int": (2**32 - 1, ["UINT32"]),
    "a.float": (0.5, ["FLOAT32"]),
    "no.utf-8": ("a\udcff", ["STRING"]),
    "bools": ([True, False], ["ARRAY", "BOOL"]),
    "ints": ([-1, 2], ["ARRAY", "INT32"]),
    "floats": ([0.25, -1.0], ["ARRAY", "FLOAT32"]),
    "strings": (["", "日本"], ["ARRAY", "STRING"]),
}


def test_pairs_and_tensors(tmp_path: Path) -> None:
    path, tensors = (
        tmp_path / "w.gguf",
        [Tensor("a", FORMATS["F32"], (3, 2)), Tensor("b", FORMATS["F16"], (5,))],
    )
    data = [np.arange(6, dtype=np.float32), np.arange(5, dtype=np.float16)]
    with path.open("wb") as file:
        file.write(header([pair(key, value) for key, (value, _) in VALUES.items()], tensors))
        write_tensor(file, tensors[0], [data[0][:2], data[0][2:]], 32)
        write_tensor(file, tensors[1], [data[1].tobytes()], 32)
    with ModelFile.open(path) as ours:
        for key, (value, _) in VALUES.items():
            found: Any = ours.metadata[key]
            assert (list(found) if isinstance(value, list) else found) == value
        for tensor, values in zip(tensors, data):
            assert ours.data(tensor.name).tobytes() == values.tobytes()
            assert ours.tensors[tensor.name].shape == tensor.shape
    theirs = gguf.GGUFReader(path)
    for key, (_, types) in VALUES.items():
        assert [kind.name for kind in theirs.fields[key].types[:2]] == types
    assert [tuple(tensor.shape) for tensor in theirs.tensors] == [(3, 2), (5,)]
    assert path.stat().st_size % 32 == 0


def test_an_empty_array_is_one_of_strings() -> None:
    assert len(ModelFile.open(header([pair("k", [])], [])).metadata["k"]) == 0


@pytest.mark.parametrize("value", [-1, 2**32, [2**31]])
def test_integers_that_do_not_fit_are_refused(value: Value) -> None:
    with pytest.raises(struct.error):
        pair("k", value)
