"""A hub is hostile: what it says is checked before it touches the disk, and no step waits for ever."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest

from oxillama import ConfigError, ModelFileError, OxiLlamaError
from oxillama.gguf.hub import download, listing, requests, transfer
from oxillama.gguf.hub.cached import cached_models
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.listing import HubFile, path_fault
from oxillama.gguf.hub.names import HubName
from oxillama.gguf.hub.requests import Hub, NoAnswer, within
from oxillama.gguf.known_hashes import KnownHashes
from tests.support.faulty_hub import COMMIT, FAULTS, LATER, FaultyHub, entry, serving
from tests.support.spread import each, slow

MODEL = bytes(range(256)) * 40
FILE = "m-Q8_0.gguf"
NAME = HubName("user/repo", tag="Q8_0")
TOKEN = "hf_secret"
N_PIECES = 9
"""What a hub sends for a download: a listing in four pieces, a head, a file in four pieces."""
HEADS = (0, 4, 5)
"""Those that begin an answer, where alone most faults are possible."""

SECONDS = 60.0
"""Within which a download ends, whatever happens. The deadlines of `hurried` are shorter."""


MOST_FLOOD = 40 << 20
"""Bytes of a flood that are read: a page of a listing may have 32 MiB."""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyHub]:
    constants = huggingface_hub.constants
    with serving(FaultyHub({FILE: MODEL})) as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 30)
        monkeypatch.setattr(download, "CACHED_SECONDS", 30.0)
        monkeypatch.setattr(transfer, "ATTEMPTS", 1)
        monkeypatch.setattr(transfer, "CHECKED", KnownHashes("downloads", str(cache).encode()))
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two attempts
        yield found


@contextmanager
def hurried(fault: str) -> Iterator[None]:
    """Short deadlines inside the block, for a hub that is silent or slow. Other faults need none."""
    with pytest.MonkeyPatch.context() as patched:
        if fault in ("stops", "drips"):
            patched.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
            patched.setattr(download, "LOOKUP_SECONDS", 0.8)
            patched.setattr(download, "CACHED_SECONDS", 0.8)
            patched.setattr(requests, "HEAD_SECONDS", 0.5)
            patched.setattr(transfer, "SLOW_SECONDS", 0.5)
        yield


def outcome(hub: FaultyHub, **how: Any) -> Path | OxiLlamaError:
    """The path that a download gives, or its error; what must hold for both is checked."""
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found: Path | OxiLlamaError = fetch(NAME, progress=False, token=TOKEN, **how)
        except OxiLlamaError as error:
            assert len(str(error)) < 1000 and str(error).isprintable()
            found = error
    assert time.monotonic() - began < SECONDS
    assert hub.n_flood <= MOST_FLOOD
    assert {token for port, token in hub.tokens if port == hub.ports[0]} <= {f"Bearer {TOKEN}"}
    assert not any(token for port, token in hub.tokens if port != hub.ports[0])
    return found


def refusal(hub: FaultyHub, kinds: Any = ModelFileError) -> str:
    """The text of the error of a download that must fail."""
    found = outcome(hub)
    assert isinstance(found, kinds), found
    return str(found)


def check_disk(cache: Path) -> None:
    """The cache has the model, or nothing of it, and nothing is outside of it."""
    files = [path for path in cache.parent.rglob("*") if path.is_file() and ".locks" not in path.parts]
    files = [path for path in files if path.name != f"{hashlib.sha256(MODEL).hexdigest()}.part.incomplete"]
    assert {path.read_bytes() for path in files} <= {MODEL, COMMIT.encode()}, files
    home = cache.parent.resolve()
    assert all(home in path.resolve().parents for path in files)
    assert [path for path in cache.parent.parent.iterdir() if path != cache.parent] == []


def test_the_pieces_of_a_download(hub: FaultyHub, cache: Path) -> None:
    path = outcome(hub)
    assert isinstance(path, Path) and path.read_bytes() == MODEL
    assert hub.n_pieces == N_PIECES
    check_disk(cache)


@pytest.mark.parametrize("again", [False, slow((True,))], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", each(FAULTS, 3))
def test_a_hub_that_fails_at_each_piece(hub: FaultyHub, cache: Path, fault: str, again: bool) -> None:
    for at in range(N_PIECES) if fault in LATER else HEADS:
        hub.fault, hub.at, hub.again, hub.n_pieces, hub.n_flood = fault, at, again, 0, 0
        with hurried(fault):
            found = outcome(hub)
        if isinstance(found, Path):
            assert found.read_bytes() == MODEL
            for path in (found, found.resolve()):
                path.unlink()
        check_disk(cache)
        hub.fault, hub.tokens = "", []
        whole = outcome(hub)
        assert isinstance(whole, Path), whole
        check_disk(cache)
        for path in (whole, whole.resolve()):
            path.unlink()


@pytest.mark.parametrize("again", [False, slow((True,))], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_hub_that_fails_while_the_model_is_in_the_cache(
    hub: FaultyHub, cache: Path, fault: str, again: bool
) -> None:
    path = outcome(hub)
    assert isinstance(path, Path)
    refused = 0
    for at in range(5) if fault in LATER else HEADS[:2]:
        hub.fault, hub.at, hub.again, hub.n_pieces, hub.n_flood = fault, at, again, 0, 0
        with hurried(fault):
            found = outcome(hub)
        refused += isinstance(found, ModelFileError)
        assert found == path or fault == "says 404", (at, found)
        assert path.read_bytes() == MODEL
        check_disk(cache)
    assert refused == (2 if fault == "says 404" else 0)  # for the listing and for the file


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("../m-Q8_0.gguf", "below the repository"),
        ("a/../../m-Q8_0.gguf", "below the repository"),
        ("a/./m-Q8_0.gguf", "below the repository"),
        ("a//m-Q8_0.gguf", "below the repository"),
        ("/etc/m-Q8_0.gguf", "below the repository"),
        ("..\\m-Q8_0.gguf", "without backslashes"),
        ("a\\m-Q8_0.gguf", "without backslashes"),
        ("C:m-Q8_0.gguf", "without backslashes and drives"),
        ("c:/m-Q8_0.gguf", "without backslashes and drives"),
        ("m\0-Q8_0.gguf", "control characters"),
        ("m\n-Q8_0.gguf", "control characters"),
        ("m\x1b[2J-Q8_0.gguf", "control characters"),
        ("m\x7f-Q8_0.gguf", "control characters"),
        ("m\ud800-Q8_0.gguf", "lone surrogates"),
        ("m" * 10_000 + "-Q8_0.gguf", "names of up to 255"),
        ("a/" * 600 + "m-Q8_0.gguf", "up to 1024 bytes"),
        (5, "a text"),
        (None, "a text"),
        (["m-Q8_0.gguf"], "a text"),
    ],
)
def test_paths_that_a_hub_may_not_list(hub: FaultyHub, cache: Path, path: Any, wanted: str) -> None:
    hub.entries = [{**entry(FILE, MODEL), "path": path}]
    said = refusal(hub)
    assert "files[0].path: expected" in said and wanted in said and ", got" in said
    check_disk(cache)


@pytest.mark.parametrize(
    ("path", "on_windows"),
    [
        *(
            (path, True)
            for path in ("m-Q8_0.gguf", "a/b/m.gguf", "ü.gguf", "..m.gguf", "console.gguf", "com10.gguf")
        ),
        *(
            (path, False)
            for path in ("con.gguf", "a/NUL", "Com1.x.gguf", "lpt².gguf", "a./m.gguf", "a /m.gguf")
        ),
        *((path, False) for path in ("mm:s.gguf", "m*.gguf", "m?.gguf", 'm".gguf', "m|.gguf", "<m>.gguf")),
    ],
)
def test_paths_on_windows(path: str, on_windows: bool) -> None:
    assert path_fault(path, windows=False) is None
    assert (path_fault(path, windows=True) is None) is on_windows


LFS = entry(FILE, MODEL)["lfs"]
SIZES: list[Any] = [-1, 1 << 51, "5", None, True, 5.0, [], 10**400]
RECORDS: list[Any] = [5, "x", [], True]
OIDS: list[Any] = [
    "", "../x", "0" * 40, "g" * 64, "0" * 65, 5, None, LFS["oid"].upper(), LFS["oid"] + "\n",
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(({"size": size}, ".size") for size in SIZES),
        *(({"lfs": lfs}, ".lfs") for lfs in RECORDS),
        *(({"lfs": {**LFS, "oid": oid}}, ".lfs.oid") for oid in OIDS),
        ({"lfs": {**LFS, "size": 5}}, ".lfs.size"),
        ({"lfs": {**LFS, "size": "5"}}, ".lfs.size"),
        *(({"lfs": None, "oid": oid}, ".oid") for oid in ("../../x", "0" * 64, None, 5, "")),
        ({"type": None}, ".type"),
        ({"type": 5}, ".type"),
    ],
)
def test_entries_that_a_hub_may_not_list(
    hub: FaultyHub, cache: Path, change: dict[str, Any], field: str
) -> None:
    hub.entries = [{**entry(FILE, MODEL), **change}]
    said = refusal(hub)
    assert f"files[0]{field}: expected" in said and ", got" in said
    check_disk(cache)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([5], "files[0]: expected an object, got 5"),
        ([None], "files[0]: expected an object, got None"),
        ([entry(FILE, MODEL)] * 2, "files[1].path: expected a file that is listed once, got 'm-Q8_0.gguf'"),
        ({"error": "x"}, "expected a list of files, got"),
        (5, "expected a list of files, got 5"),
        (b"", "expected a listing in JSON, got"),
        (b"[" * 100_000, "expected a listing in JSON, got"),
        (b"<html>\xff", "expected a listing in JSON, got"),
        (b"[1" + b" " * (33 << 20) + b"]", "expected an answer of at most"),
        ([{"type": "directory", "path": FILE}], "it has no GGUF files"),
        ([{"type": "symlink", "path": FILE, "target": "/etc/passwd"}], "it has no GGUF files"),
    ],
)
def test_listings_that_are_none(hub: FaultyHub, cache: Path, entries: Any, said: str) -> None:
    hub.entries = entries
    assert said in refusal(hub, ModelFileError | ConfigError)
    check_disk(cache)


def test_pages_without_an_end(hub: FaultyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_PAGES", 20)
    hub.entries, hub.following = [], "/api/models/user/repo/tree/main?cursor=x"
    assert "at most 20 pages" in refusal(hub)
    monkeypatch.setattr(listing, "MOST_PAGES", 10**9)
    monkeypatch.setattr(download, "LOOKUP_SECONDS", 0.5)
    assert "in" in refusal(hub)


def test_a_listing_that_takes_long_is_not_waited_for(hub: FaultyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = outcome(hub)
    monkeypatch.setattr(listing, "MOST_PAGES", 10**9)
    monkeypatch.setattr(download, "CACHED_SECONDS", 0.5)
    hub.entries, hub.following = [], "/api/models/user/repo/tree/main?cursor=x"
    assert outcome(hub) == path


def test_a_further_page_at_another_host_gets_no_token(hub: FaultyHub) -> None:
    hub.following = f"{hub.other}/api/models/user/repo/tree/main"
    hub.fault, hub.at = "says 500", 4  # the further page
    outcome(hub)
    assert [token for port, token in hub.tokens if port == hub.ports[1]] == [None]
    hub.following = "file:///etc/passwd"
    assert isinstance(outcome(hub), ModelFileError)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *(
            ("ETag", f'"{etag}"', "ETag: expected")
            for etag in ("../../../../../.bashrc", "..\\..\\x", "/etc/passwd", "0" * 64, "a/b")
        ),
        *(("X-Linked-ETag", f'"{etag}"', "X-Linked-ETag: expected") for etag in ("../x", "x", "0" * 64, "")),
        *(
            ("X-Repo-Commit", commit, "X-Repo-Commit: expected 40 hexadecimal digits, got")
            for commit in ("../../x", "main", "0" * 39, "0" * 41, "G" * 40, "", COMMIT.upper())
        ),
        *(("X-Linked-Size", size, "X-Linked-Size: expected 10240") for size in ("-1", "x", "10241", "1e9")),
    ],
)
def test_headers_of_a_file(hub: FaultyHub, cache: Path, name: str, value: str, said: str) -> None:
    hub.heads[name] = value
    assert said in refusal(hub)
    check_disk(cache)


def test_an_etag_that_is_no_hash_says_nothing(hub: FaultyHub, cache: Path) -> None:
    hub.heads["ETag"] = 'W/"some-version:1"'
    found = outcome(hub)
    assert isinstance(found, Path) and found.resolve().name == hashlib.sha256(MODEL).hexdigest()
    check_disk(cache)


@pytest.mark.parametrize("revision", ["..", "a/../..", "/etc", "a\\b", "a\0"])
def test_revisions_that_are_paths(hub: FaultyHub, cache: Path, revision: str) -> None:
    with pytest.raises(ConfigError, match="revision: expected a path"):
        fetch(HubName("user/repo", tag="Q8_0", revision=revision), progress=False)
    assert hub.tokens == []


# --- what was checked is recorded ---------------------------------------------------------------------


def put(cache: Path, data: bytes) -> Path:
    """Puts a file into the cache as another program does."""
    root, digest = cache / "models--user--repo", hashlib.sha256(MODEL).hexdigest()
    for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "blobs" / digest).write_bytes(data)
    (root / "refs" / "main").write_text(COMMIT)
    path = root / "snapshots" / COMMIT / FILE
    path.unlink(missing_ok=True)
    path.symlink_to(f"../../blobs/{digest}")
    return path


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has files count as unchanged for long."""
    monkeypatch.setattr("oxillama.gguf.known_hashes.SETTLE_SECONDS", -60.0)


def test_a_file_of_another_program_is_checked_once(
    hub: FaultyHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    path, counts = put(cache, MODEL), list[str]()
    plain = transfer.digest_for

    def counting(file: HubFile) -> Any:
        counts.append(file.path)
        return plain(file)

    monkeypatch.setattr(transfer, "digest_for", counting)
    assert [outcome(hub) for _ in range(3)] == [path] * 3
    assert counts == [FILE]
    assert outcome(hub, check_all=True) == path and len(counts) == 2
    put(cache, MODEL[::-1])
    assert "expected bytes of hash" in refusal(hub)
    check_disk(cache)
    assert outcome(hub) == path and path.read_bytes() == MODEL


def test_an_interrupted_check_is_done_again(
    hub: FaultyHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    put(cache, MODEL[::-1])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(transfer, "CHUNK", Interrupting())
        fetch(NAME, progress=False, token=TOKEN)
    assert "expected bytes of hash" in refusal(hub)


class Interrupting:
    """Ctrl-C in the place of a number of bytes."""

    def __index__(self) -> int:
        raise KeyboardInterrupt

    def __lt__(self, other: int) -> bool:
        return False

    __gt__ = __lt__


def test_an_interrupted_download_leaves_nothing(
    hub: FaultyHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, call, interrupt)
            fetch(NAME, progress=False, token=TOKEN)
        check_disk(cache)
        assert cached_models() == []
    assert isinstance(outcome(hub), Path)


def interrupt(*given: Any) -> None:
    raise KeyboardInterrupt


def test_a_wrong_file_takes_no_other_file_with_it(hub: FaultyHub, cache: Path, tmp_path: Path) -> None:
    """A link in the cache that leads elsewhere is removed, not what it leads to."""
    path, precious = put(cache, MODEL), tmp_path / "home" / "precious"
    precious.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(precious)
    assert "expected bytes of hash" in refusal(hub)
    assert precious.read_bytes() == b"precious" and not path.is_symlink()


def test_another_process_that_stops_while_it_downloads_is_not_waited_for(
    hub: FaultyHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr(transfer, "WAITING_SECONDS", 0.2)
    locks, told = cache / ".locks" / "models--user--repo", list[str]()
    locks.mkdir(parents=True)
    with FileLock(locks / f"{hashlib.sha256(MODEL).hexdigest()}.lock"):
        assert isinstance(outcome(hub, tell=told.append), Path)
    assert told == [f"waiting for another process that downloads {FILE}"]


# --- deadlines ----------------------------------------------------------------------------------------


def test_a_step_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "NOTICE_SECONDS", 0.01)
    told: list[str] = []
    wait = threading.Event().wait
    assert within(5, lambda: wait(0.1), lambda: told.append("late")) is False
    assert told == ["late"]
    with pytest.raises(NoAnswer, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: wait(5))
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_the_user_is_told_whom_a_download_waits_for(
    hub: FaultyHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requests, "NOTICE_SECONDS", 0.05)
    hub.fault, hub.at = "stops", 0
    with hurried(hub.fault), pytest.raises(ModelFileError):
        fetch(NAME)
    assert f"oxillama: waiting for {hub.url} to list user/repo:Q8_0\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "location", "target"),
    [
        ("https://a/x", "/y", "https://a/y"),
        ("https://a/x", "https://b/y", "https://b/y"),
        ("https://a/x", "http://b/y", None),
        ("http://a/x", "https://b/y", "https://b/y"),
        ("https://a/x", "file:///etc/passwd", None),
        ("https://a/x", "ftp://b/y", None),
        ("https://a/x", "//b/y", "https://b/y"),
        ("https://a/x", "http://", None),
        ("https://a/x", "https://[::1", None),
    ],
)
def test_where_a_redirect_may_lead(start: str, location: str, target: str | None) -> None:
    if target is None:
        with pytest.raises(NoAnswer, match="expected"):
            requests.checked_target(start, location)
    else:
        assert requests.checked_target(start, location) == target


def test_the_token_is_for_the_hubs_own_address() -> None:
    """The same host at another port, or without encryption, is another address."""
    origins = [requests.origin_of(url) for url in ("https://a", "http://a", "https://a:8443", "https://b")]
    assert len(set(origins)) == 4
    assert requests.origin_of("HTTPS://A:443/x") == origins[0]


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_mine")
    for token, sent in (
        (None, "Bearer hf_mine"),
        (True, "Bearer hf_mine"),
        (False, None),
        (" hf_x\n", "Bearer hf_x"),
    ):
        assert Hub(huggingface_hub, token).headers.get("authorization") == sent
    for token in ("hf_\nx: y", "hf_ü", " "):
        with pytest.raises(ConfigError, match="token: expected printable characters of ASCII, got others"):
            _ = Hub(huggingface_hub, token).headers
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert "authorization" not in Hub(huggingface_hub).headers
    with pytest.raises(ConfigError, match="token: expected a user who is logged in"):
        _ = Hub(huggingface_hub, True).headers
