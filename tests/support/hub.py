"""A server on this machine that speaks the part of the hub's interface that downloads need."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TREE = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/tree/([^/]+)")
RESOLVE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """What the server has, and what it was asked.

    Attributes:
        repos: bytes of files by path, by repository.
        wrong: bytes to send in place of a file's own.
        cuts: how many of the next answers end in the middle.
        asked: method, path and Range of each request, in order.
        tokens: that were sent.
        private: whether a token is needed.
        gate: a file's second half is sent when it is open.
        listed: entries that a search finds; None for the repositories whose names have its words.
    """

    repos: dict[str, dict[str, bytes]]
    wrong: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    private: bool = False
    gate: threading.Event | None = None
    listed: list[Any] | None = None
    url: str = ""

    def downloads(self) -> list[str]:
        """Names of the files that were asked for, once for each request."""
        found = (RESOLVE.fullmatch(path) for method, path, _ in self.asked if method == "GET")
        return [match[3] for match in found if match]


@contextmanager
def used(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serves ``hub`` inside the block, as the hub of this process, with a cache in ``folder``."""
    from huggingface_hub import constants

    with serving(hub):
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves ``hub`` at its ``url`` inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def respond(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range")))
            hub.tokens.append(self.headers.get("Authorization"))
            if path == "/api/models":
                words = parse_qs(urlsplit(self.path).query)["search"][0]
                found = [{"id": repo, "downloads": 1234} for repo in hub.repos if words in repo]
                self.answer(json.dumps(found if hub.listed is None else hub.listed).encode())
                return
            tree, file = TREE.fullmatch(path), RESOLVE.fullmatch(path)
            repo = (tree or file or {1: ""})[1]
            if repo not in hub.repos or (hub.private and not self.headers.get("Authorization")):
                self.fail(401, "RepoNotFound")
            elif (tree or file)[2] not in ("main", COMMIT):  # type: ignore[index]
                self.fail(404, "RevisionNotFound")
            elif tree:
                self.answer(json.dumps([entry(*item) for item in hub.repos[repo].items()]).encode())
            elif file and file[3] in hub.repos[repo]:
                self.send_file(file[3], hub.repos[repo][file[3]])
            else:
                self.fail(404, "EntryNotFound")

        def send_file(self, name: str, data: bytes) -> None:
            digest = hashlib.sha256(data).hexdigest()
            sent = hub.wrong.get(name, data)
            found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start = int(found[1]) if found else 0
            extra = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if start:
                extra["Content-Range"] = f"bytes {start}-{len(sent) - 1}/{len(sent)}"
            self.answer(sent[start:], 206 if start else 200, extra)

        def fail(self, status: int, code: str) -> None:
            self.answer(b"{}", status, {"X-Error-Code": code, "X-Error-Message": code})

        def answer(self, data: bytes, status: int = 200, extra: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(extra or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cuts and RESOLVE.fullmatch(urlsplit(self.path).path):
                hub.cuts -= 1
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            elif hub.gate is not None and RESOLVE.fullmatch(urlsplit(self.path).path):
                self.wfile.write(data[: len(data) // 2])
                hub.gate.wait(60)
                with suppress(OSError):  # the client was killed
                    self.wfile.write(data[len(data) // 2 :])
            else:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def entry(path: str, data: bytes) -> dict[str, Any]:
    """A file as the tree lists it: large ones with SHA-256, others with Git's SHA-1."""
    oid = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
    if path.endswith(".gguf"):
        digest = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
    return found
