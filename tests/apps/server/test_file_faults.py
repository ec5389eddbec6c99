"""Whatever call of the system about a file of the server fails, slots, their files and the keys are whole."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama import OxiLlamaError, demo
from oxillama.apps.server.callers import Keys
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError
from tests.support.faults import every_fault
from tests.support.server import Answer, Client, serving

FIRST, SECOND = [5, 6, 7, 8], [9, 10, 11]
HEAD = {"Authorization": "Bearer alice"}


@pytest.fixture
def client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    caplog.set_level(logging.CRITICAL)  # a traceback for each answer of 500
    (tmp_path / "slots").mkdir()
    with serving(demo.DRAFT, slot_save_path=tmp_path / "slots", api_keys=("alice", "bob")) as client:
        yield client


def fill(client: Client, prompt: list[int]) -> int:
    """Has slot 0 hold a prompt; its number of tokens."""
    body = {"prompt": prompt, "n_predict": 1, "id_slot": 0, "temperature": 0}
    assert client.ask("/completion", body, headers=HEAD).status == 200
    return tokens(client)


def tokens(client: Client) -> int:
    """Tokens of slot 0."""
    n: int = client.ask("/slots", headers=HEAD).json[0]["n_tokens"]
    return n


def change(client: Client, action: str) -> Answer:
    return client.ask(f"/slots/0?action={action}", {"filename": "s"}, headers=HEAD)


def check_refusal(answer: Answer, folder: Path) -> None:
    assert answer.refusal("type") == (500, "server_error")
    assert "cannot be" in answer.error["message"], answer.error
    assert str(folder) not in answer.text


@pytest.mark.slow
def test_a_call_that_fails_leaves_the_old_file_of_a_slot_or_the_new(client: Client, tmp_path: Path) -> None:
    folder, found = tmp_path / "slots", list[Answer]()
    fill(client, FIRST)
    assert change(client, "save").status == 200
    (path,) = folder.rglob("s")
    old = path.read_bytes()
    n = fill(client, SECOND)

    def before() -> None:
        path.write_bytes(old)

    def after(error: OxiLlamaError | None) -> None:
        assert error is None
        assert [each for each in folder.rglob("*") if each.is_file()] == [path]
        if found[-1].status == 200:
            assert path.read_bytes() != old
        else:
            check_refusal(found[-1], tmp_path)
        is_old = path.read_bytes() == old
        assert change(client, "restore").json["n_restored"] == (len(FIRST) if is_old else n - 1)
        fill(client, SECOND)

    counts = every_fault("save a slot", folder, before, lambda: found.append(change(client, "save")), after)
    assert counts.keys() >= {"open", "write", "fsync", "close", "rename", "stat", "mkdir"}
    assert {answer.status for answer in found} == {200, 500}


@pytest.mark.slow
def test_a_call_that_fails_leaves_the_old_slot_or_the_new(client: Client, tmp_path: Path) -> None:
    found = list[Answer]()
    n_new = fill(client, FIRST)
    assert change(client, "save").status == 200
    n_old = fill(client, SECOND)
    assert n_old != n_new

    def before() -> None:
        fill(client, SECOND)

    def after(error: OxiLlamaError | None) -> None:
        assert error is None
        if found[-1].status == 200:
            assert tokens(client) == n_new
        else:
            check_refusal(found[-1], tmp_path)
            assert tokens(client) == n_old

    counts = every_fault(
        "restore a slot", tmp_path / "slots", before, lambda: found.append(change(client, "restore")), after
    )
    assert counts.keys() >= {"open", "read", "stat", "mkdir"}
    assert {answer.status for answer in found} == {200, 500}
    assert fill(client, FIRST) == n_new
    client.hosted.ready().model.check_integrity()


def test_a_call_that_fails_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old name=a\nother\n")
    config = ServerConfig(api_key_file=path)
    keys = Keys(config)

    def known() -> list[bool]:
        return [keys.caller(key) is not None for key in ("old", "new", "other")]

    def before() -> None:
        path.write_text("old name=a\nother\n")
        keys.reload()
        assert known() == [True, False, True]
        path.write_text("new name=a\nother\n")

    def after(error: OxiLlamaError | None) -> None:
        assert error is None
        assert known() in ([True, False, True], [False, True, True])

    counts = every_fault("read keys", tmp_path, before, keys.reload, after)
    assert counts.keys() >= {"open", "read"}

    def at_the_start(error: OxiLlamaError | None) -> None:
        assert isinstance(error, ConfigError) and "cannot be read" in str(error), error

    assert every_fault("read keys at the start", tmp_path, lambda: None, lambda: Keys(config), at_the_start)


def test_a_missing_file_of_a_slot_is_the_clients_fault(client: Client) -> None:
    answer = change(client, "restore")
    assert answer.refusal("param") == (400, "filename")
    assert answer.error["message"].endswith("got s: no such file")
