"""Snapshots as bytes: what is damaged is refused, whichever byte it is, and nothing that lives changes."""

from __future__ import annotations

import functools
import json
import os
import zlib
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oxillama import demo
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError, ModelFileError, SnapshotIncompatible
from oxillama.sessions.container import MAGIC, START, VERSION, Container, pieces, read_header
from oxillama.sessions.snapshot import EngineSnapshot

CONTENTS = {"a": b"some text" * 40, "numbers": bytes(range(256)), "empty": b"", "z": b"\0" * 5000}


def container(compress: bool, **facts: Any) -> bytes:
    return b"".join(pieces({"kind": "x", **facts}, CONTENTS, compress))


@functools.cache
def snapshot() -> bytes:
    """The snapshot of a short generation, with every section."""
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    going = engine.stream(
        "Once", seed=1, max_tokens=30, window=1, regex="[a-z ]+é", top_logprobs=1, timeout=1e5
    )
    next(going)
    return going.snapshot(notes={"a": 1})


def boundaries(data: bytes) -> list[int]:
    """Where the parts of the start, the header and the sections begin, and the end."""
    sections = Container.parse(data).sections.values()
    header_end = len(data) - sum(len(section.stored) for section in sections)
    ends = accumulate((len(section.stored) for section in sections), initial=header_end)
    return [0, 8, 12, 20, START.size, *ends]


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
    with open(path, "r+b") as file:  # the rest of the file is checked by size only
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
    """A whole section of another snapshot is refused, and a header with the sections of another one."""
    one, other = container(False), b"".join(pieces({"kind": "x"}, CONTENTS | {"numbers": b"\1" * 256}, False))
    assert len(one) == len(other)
    n_refused = 0
    for start, end in pairwise(boundaries(one)[4:]):
        if one[start:end] != other[start:end]:
            with pytest.raises(SnapshotIncompatible, match="checksum, got another: it is damaged"):
                Container.parse(one[:start] + other[start:end] + one[end:])
            n_refused += 1
    assert n_refused == 2  # the header and the section
    end = boundaries(one)[5]
    with pytest.raises(SnapshotIncompatible, match="section numbers: expected its checksum"):
        Container.parse(one[:end] + other[end:])


def with_header(text: bytes, rest: bytes = b"") -> bytes:
    return START.pack(MAGIC, VERSION, len(text), blake3(text).digest()) + text + rest


def with_section(stored: bytes, codec: int, size: int, *more: Any) -> bytes:
    facts = ["a", codec, size, len(stored), blake3(stored).hexdigest()]
    return with_header(json.dumps({"sections": [facts, *more]}).encode(), stored)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected OXISNAP1 at the beginning, got b''"),
        (MAGIC, "expected 52 bytes at least, got 8"),
        (with_header(b""), "header: expected JSON"),
        (with_header(b"{}"), "header: expected a list of sections"),
        (with_header(b"[1]"), "header: expected a JSON object, got a list"),
        (with_header(b'{"sections": [], "x": NaN}'), "header: expected JSON: NaN is no number"),
        (with_header(b'{"sections": [], "x": 1, "x": 1}'), "header: expected JSON: a key occurs twice"),
        (with_header(b"[" * 100000), "header: expected JSON"),
        (with_header(b'{"sections": [["a", 1, 1]]}'), "header: expected a list of sections"),
        (with_header(b'{"sections": [["a", true, 1, 1, ""]]}'), "header: expected a list of sections"),
        (with_header(b'{"sections": [["a", 0, -1, -1, ""]]}'), "header: expected a list of sections"),
        (with_header(b'{"sections": []}', b"x"), "expected 68 bytes, got 69"),
        (START.pack(MAGIC, VERSION, 1 << 40, b""), "header: expected at most 16777216 bytes, got 1099"),
        (START.pack(MAGIC, VERSION, 9, b"") + b"{}", "header: expected the whole of it, got its beginning"),
        (START.pack(MAGIC, VERSION, 2, b"") + b"{}", "header: expected its checksum, got another"),
        (with_section(b"ab", 0, 2, ["a", 0, 0, 0, ""]), "header: expected sections of different names"),
        (with_section(b"ab", 2, 2), "header: expected a list of sections, with known codecs"),
        (with_section(b"ab", 0, 3), "header: expected a list of sections, with known codecs and their sizes"),
        (with_section(zlib.compress(b"x" * 9), 1, 10**9), "header: expected a list of sections, with known"),
        (with_section(zlib.compress(b"x" * 900), 1, 901), "a: expected 901 bytes"),
        (with_section(zlib.compress(b"x" * 900), 1, 899), "a: expected 899 bytes"),
        (with_section(b"not zlib", 1, 9), "a: cannot be decompressed"),
    ],
)  # fmt: skip
def test_wrong_containers(data: bytes, message: str) -> None:
    with pytest.raises(SnapshotIncompatible, match=message):
        Container.parse(data).bytes("a", 10**10)


def test_other_versions_are_refused() -> None:
    data = container(False)
    for version in (1, 3):
        with pytest.raises(SnapshotIncompatible, match=f"expected version 2, got {version}"):
            Container.parse(data[:8] + bytes([version]) + data[9:])


def test_no_fault_reaches_an_engine() -> None:
    """A file cut at a boundary, or with one changed byte, is an OxiLlamaError and changes no engine."""
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
    """A snapshot with other values in its header, or in a section that is JSON, and good checksums.

    ``name`` may be that of an object inside one: "request.sampler".
    """
    parsed = Container.parse(data)
    header = {key: value for key, value in parsed.header.items() if key != "sections"}
    contents = {key: bytes(part.stored) for key, part in parsed.sections.items()}
    first, *inner = name.split(".")
    if first == "sections":
        contents = {key: value for key, value in (contents | change).items() if value is not None}
        return b"".join(pieces(header, contents, False))
    found = header if first in ("header", "model") else json.loads(contents[first])
    part = found["model"] if first == "model" else found
    for key in inner:
        part = part[key]
    part |= {key: value for key, value in change.items() if value is not ...}
    for key in [key for key, value in change.items() if value is ...]:
        del part[key]
    if found is not header:
        contents[first] = json.dumps(found).encode()
    return b"".join(pieces(header, contents, False))


GROUP = {"layers": [0], "n_heads": 1, "key_dim": 1, "value_dim": 1, "reach": [0, 0]}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("header", {"kind": "other"}, "kind: expected one of engine, session, generation"),
        ("header", {"kind": "session"}, "expected sections that are known, got 'options'"),
        ("header", {"n_tokens": 10**9}, "n_tokens: expected an integer"),
        ("header", {"n_tokens": 100}, "tokens: expected 400 bytes"),
        ("header", {"n_cached": True}, "n_cached: expected an integer"),
        ("header", {"n_cached": 1}, "kv: expected at most"),
        ("header", {"adapters": [1]}, "adapters: expected a AdapterFacts, got int"),
        ("header", {"adapters": [{"name": "x"}]}, "adapters: 'fingerprint': is missing"),
        ("header", {"n_cached": 10**5}, "n_cached: expected an integer"),
        ("header", {"more": 1}, "'more': no such field"),
        ("header", {"kind": ...}, "'kind': is missing"),
        ("model", {"n_vocab": 2}, "tokens: expected ids below 2"),
        ("model", {"page_groups": [{**GROUP, "n_heads": -1}]}, "page_groups: expected layers, sizes and"),
        ("model", {"page_groups": [{**GROUP, "layers": []}]}, "page_groups: expected layers, sizes and"),
        ("model", {"page_groups": [{**GROUP, "n_heads": "1"}]}, "n_heads: expected an integer"),
        ("model", {"page_groups": [{**GROUP, "reach": [1]}]}, r"reach: expected 2 values, got \[1\]"),
        ("model", {"page_groups": [{**GROUP, "layers": ["x"]}]}, "layers: expected an integer"),
        ("model", {"page_groups": [{**GROUP, "reach": [-1, 0]}]}, "page_groups: expected layers, sizes and"),
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
        ("request.sampler", {"random": 0}, "random: expected an integer"),
        ("request.sampler", {"mu": "x"}, "mu: expected a number"),
        ("request.sampler", {"mu": ...}, "request: sampler: 'mu': is missing"),
        ("request.sampler", {"mus": 1}, "mus: expected a list"),
        ("request.sampler", {"mus": [1, 1]}, "mus: expected a shape of 1 numbers"),
        ("request.sampler", {"mus": [-1]}, "mus: expected an integer"),
        ("request.sampler", {"mus": [2**31 - 1]}, "request.sampler.mus: expected"),
        ("request", {"n_known": 3}, "n_known: expected an integer"),
        ("request", {"n_prompt": 4}, "n_prompt: expected an integer"),
        ("sections", {"speculation": b'{"random": 0}'}, "speculation: random: expected an integer"),
        ("sections", {"receipt": b"{}"}, "receipt: 'seed': is missing"),
        ("request", {"more": 1}, "request: 'more': no such field"),
        ("request", {"grammar": ""}, "grammar: "),
        ("request", {"logprobs": None}, "expected sections that are known, got 'request.logprobs"),
        ("request", {"read": 3}, "read: expected a str"),
        ("options", {"salt": 3}, "salt: expected a str"),
        ("options", {"sampler": None}, "sampler: expected a SamplerConfig"),
        ("options", {"n_top_logprobs": 1}, "'n_top_logprobs': no such field"),
        ("options", {"keep_logits": True}, "expected the log-probabilities, logits and receipt"),
        ("sections", {"kv": b""}, "kv: expected"),
        ("sections", {"tokens": b"\xff" * 8}, "tokens: expected"),
        ("sections", {"request.sampler.mus": None}, "request.sampler.mus: expected this section, got none"),
        ("sections", {"request.sampler.mus": b"\xff" * 8}, "state: expected what Sampler.state gave"),
        ("sections", {"request.sampler.randoms": b"\0" * 8}, "state: expected what Sampler.state gave"),
        ("sections", {"more": b""}, "expected sections that are known, got 'more'"),
        ("sections", {"request.logprobs.n_top": b""}, "request.logprobs.n_top: expected 8 bytes"),
        ("sections", {"request.logprobs.n_top": b"\0" * 8}, "logprobs: expected those of 1"),
        ("sections", {"request.logprobs.logprobs": b"\xff" * 16}, "logprobs: expected those of 1 tokens"),
        ("sections", {"request.logprobs.top": b"\xff" * 8}, "logprobs: expected those of 1"),
        ("sections", {"engine": b"[]"}, "engine: expected a JSON object"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(name: str, change: dict[str, Any], message: str) -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    with pytest.raises(SnapshotIncompatible, match=message):
        engine.resume_generation(changed(snapshot(), name, change))
    engine.model.check_integrity()
    assert engine.model.call(lambda: engine.model.pool.n_used) == 0


@pytest.mark.parametrize(
    ("part", "shapes", "message"),
    [
        ("sampler", {"randoms": [0], "mus": [0]}, "sampler: expected the states before 1 tokens, got others"),
        (
            "logprobs",
            {"n_top": [0, 2], "logprobs": [0, 2], "top": [0], "top_logprobs": [0]},
            "logprobs: expected those of 1 tokens, got others",
        ),
    ],
)
def test_arrays_of_another_number_of_tokens(part: str, shapes: dict[str, Any], message: str) -> None:
    data = changed(snapshot(), f"request.{part}", shapes)
    data = changed(data, "sections", {f"request.{part}.{name}": b"" for name in shapes})
    with pytest.raises(SnapshotIncompatible, match=message):
        InferenceEngine.from_gguf(demo.DRAFT, num_threads=1).resume_generation(data)


def test_the_unchanged_values_are_used() -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    assert engine.resume_generation(changed(snapshot(), "header", {})).result().text


def test_a_snapshot_is_its_keys_and_values_and_little_more() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, page_size=256)
    with engine.session() as session:
        session.prefill(np.arange(5, 500))
        taken = session.capture()
        kv = sum(taken.model.kv_bytes(len(session)))
        assert len(taken.kv) == kv
        for data in (session.snapshot(), b"".join(taken.pieces())):
            assert kv < len(data) < 1.05 * kv
        assert len(session.snapshot(compress=True)) < len(session.snapshot())
        assert EngineSnapshot.deserialize(session.snapshot(compress=True)).kv.tobytes() == taken.kv.tobytes()


def test_the_texts_of_a_snapshot_are_bounded_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"".join(pieces({"name": "x" * 20}, {}, False))
    monkeypatch.setattr("oxillama.sessions.container.MOST_HEADER", 10)
    with pytest.raises(ConfigError, match="snapshot: expected at most 10 bytes of JSON"):
        list(pieces({"name": "x" * 20}, {}, False))
    with pytest.raises(SnapshotIncompatible, match="header: expected at most 10 bytes"):
        Container.parse(whole)
