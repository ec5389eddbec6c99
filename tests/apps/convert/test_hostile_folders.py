"""Folders to convert that are damaged or hostile: errors that name the file, no hang, no large allocation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oxillama.apps.convert import convert, safetensors
from oxillama.apps.convert.safetensors import read_file, read_json, read_tensors
from oxillama.errors import LoadError, ModelFileError
from tests.apps.convert.test_convert import llama_folder

on_posix = pytest.mark.skipif(os.name == "nt", reason="links and pipes as POSIX has them")
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: Any, data: bytes = bytes(16)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"data_offsets": [8, 0]}, "data inside the file"),
        ({"data_offsets": [-8, 0]}, "data inside the file"),
        ({"data_offsets": [16, 24]}, "data inside the file"),
        ({"data_offsets": [0, 2**63]}, "data inside the file"),
        ({"data_offsets": [2**70, 2**70 + 8]}, "data inside the file"),
        ({"data_offsets": [0.0, 8.0]}, "data inside the file"),
        ({"data_offsets": [0, True]}, "data inside the file"),
        ({"data_offsets": [0, 4]}, "data inside the file"),
        ({"data_offsets": [0]}, "two offsets"),
        ({"data_offsets": None}, "two offsets"),
        ({"data_offsets": {"a": 1}}, "two offsets"),
        ({"shape": [3]}, "data inside the file"),
        ({"shape": [-2]}, "data inside the file"),
        ({"shape": [2**62, 2**62]}, "data inside the file"),
        ({"shape": [1] * 9 + [2]}, "data inside the file"),
        ({"shape": "2"}, "data inside the file"),
        ({"shape": 2}, "two offsets"),
        ({"dtype": ["F32"]}, None),
        ({"dtype": "F4"}, None),
    ],
)
def test_an_entry_that_cannot_be_is_named(
    tmp_path: Path, change: dict[str, Any], finding: str | None
) -> None:
    path = write(tmp_path / "model.safetensors", {"t": F32 | change})
    if finding is None:  # a type that no weight has: only an error for who wants its values
        (stored,) = read_file(path)
        with pytest.raises(LoadError, match="t: expected weights in one of"):
            stored.values()
        return
    with pytest.raises(LoadError, match=rf"model\.safetensors: t: expected .*{finding}"):
        read_file(path)


@pytest.mark.parametrize(
    ("header", "finding"),
    [
        (b'{"t": 1}', "t: expected a dtype"),
        (b'{"t": ["dtype"]}', "t: expected a dtype"),
        (b'{"t": null}', "t: expected a dtype"),
        (b'{"t": {}, "t": {}}', "every name once, got 't' twice"),
        (b'{"t": {"dtype": "F32", "dtype": "F16"}}', "every name once, got 'dtype' twice"),
        (b"[" * 100_000, "expected a JSON header"),
        (b'{"t": ' + b"9" * 5000 + b"}", "expected"),
        (b"\xff\xfe", "expected a JSON header"),
        (b"\0" * 10, "expected a JSON header"),
        (b"", "expected a JSON header"),
        (json.dumps({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}).encode(),
         "b: expected data after .* a"),
        (json.dumps({"a": F32, "b": F32}).encode(), "expected data after .*, got an overlap"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_header_that_cannot_be_is_named(tmp_path: Path, header: bytes, finding: str) -> None:
    with pytest.raises(LoadError, match=rf"model\.safetensors: .*{finding}"):
        read_file(write(tmp_path / "model.safetensors", header))


def test_entries_may_stand_in_any_order_and_be_empty(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}
    header = {"b": F32 | {"data_offsets": [8, 16]}, "e": empty, "__metadata__": {"format": "pt"}, "a": F32}
    found = read_file(write(tmp_path / "m", header, bytes(8) + b"\0\0\x80\x3f" * 2))
    assert {stored.name: stored.values().tolist() for stored in found} == {"a": [0, 0], "b": [1, 1], "e": []}


@pytest.mark.parametrize("length", [17, 10**8, 10**8 + 1, 2**31, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_named(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + bytes(16))
    with pytest.raises(LoadError, match=r"model\.safetensors: expected a header inside 24 bytes"):
        read_file(path)


def test_a_header_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((11).to_bytes(8, "little") + b"{}" + b" " * 9)
    assert list(read_file(path)) == []
    monkeypatch.setattr(safetensors, "MAX_HEADER", 10)
    with pytest.raises(LoadError, match=r"model\.safetensors: expected a header"):
        read_file(path)


def test_json_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "MAX_HEADER", 10)
    (tmp_path / "config.json").write_text("{" + " " * 10 + "}")
    with pytest.raises(LoadError, match=r"config\.json: expected a text of at most 10 bytes, got 12"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    "shard", ["", ".", "..", "../m", "/etc/passwd", "a/b", "a\0b", "\ud800", "a\nb", "model\0.safetensors"]
)
def test_names_of_shards_are_plain(tmp_path: Path, shard: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"t": shard}}))
    with pytest.raises((LoadError, ModelFileError), match=str(tmp_path)):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "1", '{"weight_map": []}', '{"weight_map": {"t": null}}', "{}"]
)
def test_an_index_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(LoadError, match=r"index\.json: expected"):
        read_tensors(tmp_path)


@on_posix
@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"],
)
def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    def loop(path: Path) -> None:
        path.symlink_to(path)

    kinds: list[Callable[[Path], object]] = [
        *(os.mkfifo, Path.mkdir, loop),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.with_name("gone")),
    ]
    for i, kind in enumerate(kinds):
        source = llama_folder(tmp_path / str(i))
        (source / name).unlink(missing_ok=True)
        kind(source / name)
        with pytest.raises(ModelFileError, match=name.replace(".", r"\.")):
            convert(source, tmp_path / "out.gguf")
        assert not (tmp_path / "out.gguf").exists()


def test_a_file_that_is_cut_while_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = llama_folder(tmp_path / "model")
    values = safetensors.Stored.values
    told = []

    def cutting(self: safetensors.Stored) -> Any:
        told.append(self.name)
        if len(told) == 3:
            os.truncate(source / "model.safetensors", 100)
        return values(self)

    monkeypatch.setattr(safetensors.Stored, "values", cutting)
    with pytest.raises(ModelFileError, match=r"model\.safetensors: changed while it was in use"):
        convert(source, tmp_path / "out.gguf")
    assert len(told) == 3
    assert not (tmp_path / "out.gguf").exists()
