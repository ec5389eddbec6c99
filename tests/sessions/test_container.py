"""Snapshots as bytes: what is damaged is refused, whichever byte it is, and nothing that lives changes."""

from __future__ import annotations

import functools
import json
import os
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import demo
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ModelFileError, SnapshotIncompatible
from oxillama.sessions.container import MAGIC, SIZES, START, Container, Section, pieces, read_header
from oxillama.sessions.snapshot import EngineSnapshot

CONTENTS = {"a": b"some text" * 40, "numbers": bytes(range(256)), "empty": b"", "z": b"\0" * 5000}


def container(compress: bool, **facts: Any) -> bytes:
    return b"".join(pieces({"kind": "x", **facts}, CONTENTS, compress))


@functools.cache
def snapshot() -> bytes:
    """Of a small generation, with every section."""
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    going = engine.stream(
        "Once", seed=1, max_tokens=30, window=1, regex="[a-z ]+é", top_logprobs=1, timeout=1e5
    )
    next(going)
    return going.snapshot(notes={"a": 1})


def boundaries(data: bytes) -> list[int]:
    """Where the sections begin and where the parts of their frames end."""
    found, at = [0, 8, 12, START.size], START.size
    parsed = Container.parse(data)
    header = (
        len(data)
        - START.size
        - sum(
            1 + len(name) + SIZES.size + 32 + len(section.stored) for name, section in parsed.sections.items()
        )
    )
    sizes = [(6, header - 39 - SIZES.size + 0)]
    sizes += [(len(name), len(section.stored)) for name, section in parsed.sections.items()]
    for name, stored in sizes:
        for part in (1, name, 1, 8, 8, 32, stored):
            at += part
            found.append(at)
    assert found[-1] == len(data)
    return found


@pytest.mark.parametrize("compress", [False, True])
def test_sections_come_back(compress: bool) -> None:
    data = container(compress, é=[1, None])
    found = Container.parse(data)
    assert found.header["kind"] == "x" and found.header["é"] == [1, None]
    assert {name: bytes(found.bytes(name, 5000)) for name in found.sections} == CONTENTS
    codecs = {name: section.codec for name, section in found.sections.items()}
    assert codecs == {"a": int(compress), "numbers": 0, "empty": 0, "z": int(compress)}
    assert len(data) < 1200 if compress else len(data) > 5600
    with pytest.raises(SnapshotIncompatible, match="z: expected at most 4999 bytes, got 5000"):
        found.bytes("z", 4999)
    with pytest.raises(SnapshotIncompatible, match="other: expected this section, got none"):
        found.bytes("other", 1)


def test_the_header_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(container(False))
    assert read_header(path) == Container.parse(path.read_bytes()).header
    with open(path, "r+b") as file:  # of what follows only the size is looked at
        file.seek(-3, os.SEEK_END)
        file.write(b"xxx")
    assert read_header(path)["kind"] == "x"
    with pytest.raises(SnapshotIncompatible):
        Container.parse(path.read_bytes())
    whole = path.read_bytes()
    for wrong in (whole[:-1], whole + b"x", whole[:100], whole[:40], whole[:9], b"", b"GGUF" * 9):
        path.write_bytes(wrong)
        with pytest.raises(SnapshotIncompatible):
            read_header(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_header(tmp_path)
    with pytest.raises(ModelFileError, match="no NUL"):
        read_header("a\0b")


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_cut_is_refused(compress: bool) -> None:
    data = container(compress)
    for end in range(len(data)):
        if end < 700 or end in boundaries(data):
            with pytest.raises(SnapshotIncompatible):
                Container.parse(data[:end])
    with pytest.raises(SnapshotIncompatible, match=f"expected {len(data)} bytes, got {len(data) + 1}"):
        Container.parse(data + b"\0")


@pytest.mark.parametrize("compress", [False, True])
def test_every_byte_counts(compress: bool) -> None:
    data = bytearray(container(compress))
    for at in range(0, len(data), 1 if len(data) < 2000 else 7):
        for bit in (1, 128):
            data[at] ^= bit
            with pytest.raises(SnapshotIncompatible):
                Container.parse(data)
            data[at] ^= bit
    Container.parse(data)


def test_sections_belong_to_one_snapshot() -> None:
    """A whole section of another snapshot has a good checksum, and is refused all the same."""
    one, other = container(False), b"".join(pieces({"kind": "x"}, CONTENTS | {"numbers": b"\1" * 256}, False))
    assert len(one) == len(other)
    places = boundaries(one)
    starts = places[3::7]
    for start, end in pairwise(starts):
        if one[start:end] != other[start:end]:
            with pytest.raises(SnapshotIncompatible, match="header: expected the sections that follow"):
                Container.parse(one[:start] + other[start:end] + one[end:])


def section(name: str, data: bytes, codec: int = 0, size: int | None = None) -> bytes:
    made = Section(name, codec, len(data) if size is None else size, data)
    return made.frame + made.digest + data


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([], "expected a header, got no sections"),
        ([section("a", b"")], "got 'a' there"),
        ([section("header", b"{}")], "header: expected a list of sections"),
        ([section("header", b"[1]")], "header: expected a JSON object, got a list"),
        ([section("header", b'{"sections": [], "x": NaN}')], "header: expected JSON: NaN is no number"),
        ([section("header", b"[" * 100000)], "header: expected JSON"),
        ([section("header", b'{"sections": [["a", 1, 1]]}')], "header: expected a list of sections"),
        ([section("header", b'{"sections": []}'), section("header", b"")], "got 'header' there"),
        ([section("header", b'{"sections": []}', codec=2)], "header: expected a known codec"),
        ([section("header", b'{"sections": []}', size=3)], "header: expected a known codec and sizes"),
        ([section("header", zlib.compress(b"x" * 9), 1, 10**9)], "header: expected a known codec and sizes"),
        ([section("header", zlib.compress(b"x" * 900), 1, 901)], "header: expected 901 bytes"),
        ([section("header", zlib.compress(b"x" * 900), 1, 899)], "header: expected 899 bytes"),
        ([section("header", b"not zlib", 1, 9)], "header: cannot be decompressed"),
    ],
)  # fmt: skip
def test_wrong_containers(sections: list[bytes], message: str) -> None:
    data = START.pack(MAGIC, 1, len(sections)) + b"".join(sections)
    with pytest.raises(SnapshotIncompatible, match=message):
        Container.parse(data)
    with pytest.raises(SnapshotIncompatible, match="expected version 1, got 2"):
        Container.parse(START.pack(MAGIC, 2, len(sections)) + b"".join(sections))


def test_no_fault_reaches_an_engine() -> None:
    """At each boundary cut, and of each part a byte flipped: an error of ours, and all goes on as before."""
    data = snapshot()
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    engine.prefill([5, 6, 7])
    pages = engine.model.call(lambda: engine.model.pool.n_used)
    places = boundaries(data)
    for at in places[:-1]:
        for wrong in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
            with pytest.raises(SnapshotIncompatible):
                engine.resume_generation(wrong)
            with pytest.raises(SnapshotIncompatible):
                InferenceEngine.resume(wrong)
    assert engine.model.call(lambda: engine.model.pool.n_used) == pages
    assert engine.kv_cache_seq_len == 3
    engine.model.check_integrity()
    assert engine.resume_generation(data).result().text


def changed(data: bytes, name: str, change: dict[str, Any]) -> bytes:
    """A snapshot with other values in its header, or in a section that is JSON, and good checksums."""
    parsed = Container.parse(data)
    header = {key: value for key, value in parsed.header.items() if key != "sections"}
    contents = {key: bytes(part.stored) for key, part in parsed.sections.items()}
    if name == "header":
        header |= change
    elif name == "model":
        header["model"] = header["model"] | change
    elif name in ("engine", "request"):
        contents[name] = json.dumps(json.loads(contents[name]) | change).encode()
    else:
        contents |= change
        contents = {key: value for key, value in contents.items() if value is not None}
    return b"".join(pieces(header, contents, False))


GROUP = {"layers": [0], "n_heads": 1, "key_dim": 1, "value_dim": 1, "reach": [0, 0]}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("header", {"kind": "other"}, "kind: expected one of engine, session, generation"),
        ("header", {"kind": "session"}, "expected sections that are known, got 'logprobs'"),
        ("header", {"n_tokens": 10**9}, "n_tokens: expected an integer"),
        ("header", {"n_tokens": 100}, "tokens: expected 400 bytes"),
        ("header", {"n_cached": True}, "n_cached: expected an integer"),
        ("header", {"n_cached": 1}, "kv: expected at most"),
        ("header", {"adapters": [1]}, "adapter: expected a dict, got int"),
        ("model", {"n_vocab": 2}, "tokens: expected ids below 2"),
        ("model", {"page_groups": [{**GROUP, "n_heads": -1}]}, "n_heads: expected an integer"),
        ("model", {"page_groups": [{**GROUP, "reach": [1]}]}, "page_groups: expected layers and two numbers"),
        ("model", {"page_groups": [{**GROUP, "layers": ["x"]}]}, "layers: expected an integer"),
        ("model", {"page_groups": [{**GROUP, "reach": [-1, 0]}]}, "reach: expected an integer"),
        ("model", {"page_groups": [GROUP]}, "kv: expected"),
        ("model", {"kv_type": "f8"}, "kv_type: expected one of"),
        ("model", {"fingerprint": {"content": "00", "settings": []}}, "content: expected 32 bytes"),
        ("model", {"fingerprint": {"content": "x", "settings": []}}, "content: expected hexadecimal digits"),
        ("model", {"tokenizer": "abc"}, "tokenizer: expected abc, got none"),
        ("model", {"state_floats": 8}, "state: expected this section"),
        ("request", {"n_prompt": 0}, "n_prompt: expected an integer"),
        ("request", {"limit": 0}, "tokens: expected at most"),
        ("request", {"n_read": 10**5}, "n_read: expected an integer"),
        ("request", {"undecoded": "61"}, "stream: expected the beginning of a character"),
        ("request", {"undecoded": "6"}, "undecoded: expected hexadecimal digits"),
        ("request", {"random": 0}, "random: expected an integer"),
        ("request", {"mu": "x"}, "mu: expected a number"),
        ("request", {"grammar": ""}, "grammar: "),
        ("request", {"has_logprobs": False}, "expected sections that are known|expected log-prob"),
        ("request", {"read": 3}, "read: expected a str"),
        ("request", {"options": {"salt": 3}}, "salt: expected a str"),
        ("sections", {"kv": b""}, "kv: expected"),
        ("sections", {"tokens": b"\xff" * 8}, "tokens: expected"),
        ("sections", {"mu": None}, "mu: expected this section, got none"),
        ("sections", {"more": b""}, "expected sections that are known, got 'more'"),
        ("sections", {"logprobs": b""}, "logprobs: expected"),
        ("sections", {"engine": b"[]"}, "engine: expected a JSON object"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(name: str, change: dict[str, Any], message: str) -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    with pytest.raises(SnapshotIncompatible, match=message):
        engine.resume_generation(changed(snapshot(), name, change))
    engine.model.check_integrity()
    assert engine.model.call(lambda: engine.model.pool.n_used) == 0


def test_the_unchanged_values_are_used() -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    assert engine.resume_generation(changed(snapshot(), "header", {})).result().text


def test_a_snapshot_is_its_keys_and_values_and_little_more() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, page_size=256)
    with engine.session() as session:
        session.prefill(np.arange(5, 500))
        taken = session._taken()
        kv = sum(taken.model.kv_bytes(len(session)))
        assert len(taken.kv) == kv
        for data in (session.snapshot(), b"".join(taken.pieces())):
            assert kv < len(data) < 1.05 * kv
        assert len(session.snapshot(compress=True)) < len(session.snapshot())
        assert EngineSnapshot.deserialize(session.snapshot(compress=True)).kv.tobytes() == taken.kv.tobytes()
