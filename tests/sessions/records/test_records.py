"""Records of requests: their files, what is kept in them, and the limits of their folder."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from oxillama.errors import ConfigError, ModelFileError, ReceiptError
from oxillama.sessions.records import folder as folder_module
from oxillama.sessions.records.folder import RecordFolder
from oxillama.sessions.records.record import (
    Head,
    Record,
    Text,
    find,
    read_head,
    read_record,
    receipt_from,
    records_in,
    time_of,
)
from oxillama.sessions.records.redaction import body_of, digest

HASH = "ab" * 32


def record(id: str = "req_1", answer: str = "") -> Record:
    facts: dict[str, Any] = {"model": "m", "model_path": "/m.gguf", "key": "", "library": "0", "contract": 1}
    head = Head(id=id, time=1e9, path="/v1/completions", status=200, seconds=0.5, kept="all", **facts)
    text = Text(
        finish_reason="stop", n_tokens=3, n_bytes=5, hash=HASH, receipt="{}", receipt_hash=digest("{}")
    )
    sizes = {"request_hash": HASH, "request_bytes": 9, "answer_hash": HASH, "answer_bytes": len(answer)}
    return Record(head=head, request={"prompt": "a"}, answer=answer, texts=(text,), **sizes)


def keep(folder: RecordFolder, *records: Record, snapshots: Sequence[bytes] = ()) -> None:
    """Has records written; returns when they are, with their limits applied."""
    for each in records:
        folder.add(lambda each=each: (each, snapshots), 1)  # type: ignore[misc]
    folder.close()


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    keep(RecordFolder(tmp_path / "new" / "records"), record(answer="\ud800 \x00 é"), snapshots=[b"xyz"])
    (path,) = records_in(tmp_path / "new" / "records")
    found = read_record(path)
    (snapshot,) = found.snapshots
    assert found == replace(record(answer="\ud800 \x00 é"), snapshots=[snapshot])
    assert read_head(path) == found.head
    assert (path.parent / snapshot).read_bytes() == b"xyz"
    if os.name == "posix":
        assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_id_names_one_record(tmp_path: Path) -> None:
    keep(RecordFolder(tmp_path), record("a"), record("a-b"), record("b"), record("b"))
    paths = records_in(tmp_path)
    assert len({path.name for path in paths}) == 4 and paths == sorted(paths)
    assert find(tmp_path, "a") == paths[0] and find(tmp_path, "a-b") == paths[1]
    assert find(tmp_path, paths[3].name) == paths[3]
    with pytest.raises(
        ReceiptError, match=f"expected one record of b, got 2: {paths[2].name}, {paths[3].name}"
    ):
        find(tmp_path, "b")
    with pytest.raises(ReceiptError, match="expected one record of c, got none"):
        find(tmp_path, "c")
    with pytest.raises(ReceiptError, match="cannot be read"):
        find(tmp_path / "absent", "c")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a record"),
        (b"[]\n{}\n", "another value"),
        (b'{"format": "other", "version": 1}\n{}', "another file"),
        (b'{"format": "oxillama record", "version": 2}\n{}', "another file"),
        (b'{"format": "oxillama record", "version": true}\n{}', "another file"),
        (b'{"format": "oxillama record", "version": 1}\n{}', "is missing"),
        (record().to_bytes().partition(b"\n")[0] + b"\n", "expected a record"),
        (record().to_bytes().replace(b'"status": 200', b'"status": "x"'), "status"),
        (record().to_bytes().replace(b'"n_tokens": 3', b'"n_tokens": -3'), "n_tokens"),
        (record().to_bytes().replace(b'"answer_hash": "ab', b'"answer_hash": "xy'), "answer_hash"),
        (record().to_bytes().replace(b'"removed"', b'"moved"'), "moved"),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, data: bytes, message: str) -> None:
    (path := tmp_path / "20200101T000000.000000Z-a.record.json").write_bytes(data)
    with pytest.raises(ReceiptError, match=message):
        read_record(path)


def test_receipts_are_those_that_were_recorded() -> None:
    text = record().texts[0]
    with pytest.raises(ReceiptError, match="expected an object of the format"):
        receipt_from(text)
    with pytest.raises(ReceiptError, match="expected the one that was recorded"):
        receipt_from(text, b"{ }")
    with pytest.raises(ReceiptError, match="has its hash alone"):
        receipt_from(replace(text, receipt=None))
    with pytest.raises(ReceiptError, match="got none: because"):
        receipt_from(replace(text, receipt=None, receipt_hash=None, without="because"))


@pytest.mark.parametrize("name", (
    *("authorization", "Proxy-Authorization", "authorization_token", "headers", "env", "Cookie", "password"),
    *("api_key", "apiKey", "X-Api-Key", "access_token", "refreshToken", "bearer-token", "client_secret"),
))  # fmt: skip
def test_each_kind_of_credential_is_removed(name: str) -> None:
    kept, removed = body_of(json.dumps({"a": [{name: "t0p"}], "b": {name: {"x": "t0p"}}}).encode())
    assert "t0p" not in json.dumps(kept) and removed == [f"a[0].{name}", f"b.{name}"]


def test_credentials_are_removed_from_bodies() -> None:
    tool = {"type": "mcp", "server_url": "https://x", "Authorization": "t0p", "headers": {"X-Key": "t0p"}}
    body = {
        "tools": [tool, {"mcp_servers": [{"authorization_token": "t0p", "api-key": "t0p"}]}],
        "prompt": "api_key",
        "max_tokens": 3,
        "password": None,
    }
    kept, removed = body_of(json.dumps(body).encode())
    assert "t0p" not in json.dumps(kept)
    assert removed == [
        *("tools[0].Authorization", "tools[0].headers"),
        *("tools[1].mcp_servers[0].authorization_token", "tools[1].mcp_servers[0].api-key"),
    ]
    assert (kept["prompt"], kept["max_tokens"], kept["password"]) == ("api_key", 3, None)
    assert kept["tools"][0]["server_url"] == "https://x"
    assert body_of(b"no json") == (None, ["."])


def test_the_oldest_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    size = len(record("x00").to_bytes())
    folder = RecordFolder(tmp_path, max_bytes=10 * size)
    keep(folder, *(record(f"x{i:02}") for i in range(25)))
    left = [read_head(path).id for path in records_in(tmp_path)]
    assert left == [f"x{i:02}" for i in range(25 - len(left), 25)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * size
    assert len(left) == 9
    assert (folder.counts.kept, folder.counts.removed, folder.counts.lost) == (25, 16, 0)
    assert "oxillama:records_removed_total 16\n" in folder.counts.metrics_text()


def test_a_record_and_its_snapshots_are_removed_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SCAN_SECONDS", 0.0)
    now = [1e9]
    (tmp_path / "another file").write_text("stays")
    folder = RecordFolder(tmp_path, max_seconds=100, clock=lambda: now[0])
    written = threading.Event()
    folder.add(lambda: (record("old"), [b"s"]), 1)
    folder.add(lambda: (written.set(), (record("new"), []))[1], 1)  # type: ignore[func-returns-value]
    assert written.wait(60)
    while folder.counts.kept < 2:
        written.wait(0.01)
    assert [time_of(path.name) for path in records_in(tmp_path)] == pytest.approx([1e9, 1e9], abs=1e-4)
    now[0] += 101
    keep(folder, record("last"))
    assert [read_head(path).id for path in records_in(tmp_path)] == ["last"]
    assert sorted(os.listdir(tmp_path))[1:] == ["another file"]
    assert folder.counts.removed == 2


def test_what_cannot_be_written_is_counted_and_logged_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RecordFolder(tmp_path, max_bytes=1 << 20)
    error = ModelFileError("x: cannot be written: No space left on device")
    monkeypatch.setattr(folder_module, "replaced_file", Mock(side_effect=error))
    monkeypatch.setattr(folder_module, "LOG_SECONDS", 3600.0)
    with caplog.at_level(logging.WARNING, "oxillama.apps.server"):
        keep(folder, *(record(str(i)) for i in range(5)))
    assert [each.message for each in caplog.records] == [
        "1 requests were not recorded: x: cannot be written: No space left on device",
        "4 requests were not recorded",
    ]
    assert (folder.counts.kept, folder.counts.lost) == (0, 5)
    assert list(tmp_path.iterdir()) == []


def test_a_record_leaves_no_snapshots_behind_if_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, original = RecordFolder(tmp_path), folder_module.replaced_file

    def full(path: Path, *args: Any, **how: Any) -> Any:
        if path.name.endswith(folder_module.END):
            raise ModelFileError("full")
        return original(path, *args, **how)

    monkeypatch.setattr(folder_module, "replaced_file", full)
    keep(folder, record(), snapshots=[b"a", b"b"])
    assert list(tmp_path.iterdir()) == [] and folder.counts.lost == 1


def test_a_record_larger_than_the_limit_is_lost_and_removes_no_other(tmp_path: Path) -> None:
    size = len(record("a").to_bytes())
    folder = RecordFolder(tmp_path, max_bytes=4 * size)
    keep(folder, record("a"), record("b", "x" * 4 * size), record("c"))
    assert [read_head(path).id for path in records_in(tmp_path)] == ["a", "c"]
    assert (folder.counts.kept, folder.counts.lost, folder.counts.removed) == (2, 1, 0)


def test_records_that_wait_take_limited_memory(tmp_path: Path) -> None:
    folder, may_go_on = RecordFolder(tmp_path), threading.Event()
    folder.add(lambda: (may_go_on.wait(60), (record("a"), []))[1], 1)  # type: ignore[func-returns-value]
    folder.add(lambda: (record("b"), []), folder_module.MOST_PENDING - 1)
    folder.add(lambda: (record("c"), []), 1)
    may_go_on.set()
    keep(folder)
    assert [read_head(path).id for path in records_in(tmp_path)] == ["a", "b"]
    assert folder.counts.lost == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="record: expected a folder to write to"):
        RecordFolder(file)
