"""The files of a repository, as the hub lists them. All that a hub says is checked here."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.hub.names import HubName
from oxillama.gguf.hub.requests import Hub, NoAnswer, shown

MOST_PAGES = 1000
MOST_PAGE_BYTES = 32 << 20
MOST_FILES = 100_000
"""Limits of a listing: its pages, the bytes of a page, and its GGUF files."""

MOST_SIZE = 1 << 50
"""The largest size of a file in bytes."""

MOST_PATH_BYTES = 1024
MOST_NAME_BYTES = 255
"""The longest path, and the longest name in a path, in bytes of UTF-8."""

SHA256 = re.compile(r"[0-9a-f]{64}")
SHA1 = re.compile(r"[0-9a-f]{40}")
RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
"""Names of devices on Windows, with any ending."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes:
        path: in the repository, with slashes.
        size: in bytes.
        digest: hexadecimal SHA-256 of a large file, Git's SHA-1 of another one.
    """

    path: str
    size: int
    digest: str


def remote_files(hub: Hub, name: HubName, until: float) -> dict[str, HubFile]:
    """The GGUF files of a repository, by path.

    Args:
        until: the time of the deadline (`time.monotonic`).

    Raises:
        Refused: there is no such repository or revision.
        NoAnswer: no answer in time, or no listing.
        ModelFileError: a path, a size or a hash that a file cannot have.
    """
    url = (
        f"{hub.address}/api/models/{name.repo}/tree/{quote(name.revision or 'main', safe='')}?recursive=true"
    )
    found: dict[str, HubFile] = {}
    for _ in range(MOST_PAGES):
        with hub.answer("GET", url) as response:
            entries = page_of(hub, hub.text(response, MOST_PAGE_BYTES, until))
            following = response.links.get("next", {}).get("url")
        for i, entry in enumerate(entries):
            if (file := file_of(name, i, entry)) is None:
                continue
            if file.path in found:
                raise expected(name, f"[{i}].path", "a file that is listed once", file.path)
            found[file.path] = file
        if len(found) > MOST_FILES:
            raise expected(name, "", f"at most {MOST_FILES} GGUF files", len(found))
        if not following:
            return found
        url = urljoin(url, following)
        if time.monotonic() > until:
            raise NoAnswer(f"{hub.address}: expected the end of the listing in time, got a further page")
    raise NoAnswer(f"{hub.address}: expected a listing of at most {MOST_PAGES} pages, got more")


def page_of(hub: Hub, text: bytes) -> list[Any]:
    """The entries of a page. Raises NoAnswer for another text."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise NoAnswer(f"{hub.address}: expected a listing in JSON, got {shown(text[:60])}") from None
    if not isinstance(entries, list):
        raise NoAnswer(f"{hub.address}: expected a list of files, got {shown(entries)}")
    return entries


def file_of(name: HubName, i: int, entry: Any) -> HubFile | None:
    """The file of an entry; None for folders and for files that are not GGUF. Raises ModelFileError."""
    at = f"[{i}]"
    if not isinstance(entry, dict):
        raise expected(name, at, "an object", entry)
    kind, path = entry.get("type"), entry.get("path")
    if not isinstance(kind, str):
        raise expected(name, f"{at}.type", "a text", kind)
    if not isinstance(path, str):
        raise expected(name, f"{at}.path", "a text", path)
    if kind != "file" or not path.lower().endswith(".gguf"):
        return None
    if wanted := path_fault(path):
        raise expected(name, f"{at}.path", wanted, path)
    size, digest = checked_size(name, f"{at}.size", entry), entry.get("oid")
    lfs = entry.get("lfs")
    if lfs is None:
        if not isinstance(digest, str) or not SHA1.fullmatch(digest):
            raise expected(name, f"{at}.oid", "40 hexadecimal digits", digest)
        return HubFile(path, size, digest)
    if not isinstance(lfs, dict):
        raise expected(name, f"{at}.lfs", "an object", lfs)
    digest = lfs.get("oid", lfs.get("sha256"))
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise expected(name, f"{at}.lfs.oid", "64 hexadecimal digits", digest)
    if "size" in lfs and checked_size(name, f"{at}.lfs.size", lfs) != size:
        raise expected(name, f"{at}.lfs.size", f"{size}, the size of the file", lfs["size"])
    return HubFile(path, size, digest)


def checked_size(name: HubName, field: str, entry: Mapping[str, Any]) -> int:
    """The size in an entry. Raises ModelFileError."""
    size = entry.get("size")
    if type(size) is not int or not 0 <= size <= MOST_SIZE:
        raise expected(name, field, f"a number of bytes up to {MOST_SIZE}", size)
    return size


def expected(name: HubName, field: str, wanted: str, got: object) -> ModelFileError:
    """The error of a field of the listing."""
    return ModelFileError(f"{name}: files{field}: expected {wanted}, got {shown(got)}")


def path_fault(path: str, windows: bool = os.name == "nt") -> str | None:
    """What was expected of a path in a repository that cannot be a path below a folder; None for a good one.

    Args:
        windows: whether the path is to be one on Windows.
    """
    try:
        n_bytes = [len(part.encode()) for part in path.split("/")]
    except UnicodeEncodeError:
        return "a path without lone surrogates"
    if any(ord(one) < 32 or ord(one) == 127 for one in path):
        return "a path without control characters"
    if "\\" in path or re.match(r"[A-Za-z]:", path):
        return "a path with slashes, without backslashes and drives"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "a path below the repository"
    if max(n_bytes) > MOST_NAME_BYTES or sum(n_bytes) + len(n_bytes) > MOST_PATH_BYTES:
        return f"a path of up to {MOST_PATH_BYTES} bytes, names of up to {MOST_NAME_BYTES}"
    if windows:
        for part in path.split("/"):
            if RESERVED.fullmatch(part) or part[-1] in ". " or any(one in '<>:"|?*' for one in part):
                return "names that Windows allows"
    return None


def check_name(hub: Hub, name: HubName) -> None:
    """Raises ModelFileError for a repository, ConfigError for a revision, that cannot be one."""
    try:
        hub.package.utils.validate_repo_id(name.repo)
    except hub.package.errors.HFValidationError as error:
        raise ModelFileError(f"{name}: {str(error).splitlines()[0]}") from error
    if any(part in (".", "..") for part in name.repo.split("/")):
        raise ModelFileError(f"{name}: expected user/repo, got {shown(name.repo)}")
    if name.revision is not None and (wanted := path_fault(name.revision)):
        raise ConfigError(f"revision: expected {wanted}, got {shown(name.revision)}")


def commit_of(hub: Hub, name: HubName, file: HubFile) -> str:
    """The commit that a revision is, as the hub says with a file.

    Raises as `remote_files`; ModelFileError, too, if what it says of the file is not what it has listed.
    """
    with hub.answer(
        "HEAD", address_of(hub, name, name.revision or "main", file), is_enough=says_commit
    ) as got:
        headers: Mapping[str, str] = got.headers
    commit, size, linked = (headers.get(f"x-{it}") for it in ("repo-commit", "linked-size", "linked-etag"))
    where = f"{name}: {file.path}"
    if commit is None:
        raise NoAnswer(f"{hub.address}: expected the header X-Repo-Commit, got none")
    if not SHA1.fullmatch(commit):
        raise ModelFileError(f"{where}: X-Repo-Commit: expected 40 hexadecimal digits, got {shown(commit)}")
    if size is not None and size != str(file.size):
        raise ModelFileError(f"{where}: X-Linked-Size: expected {file.size}, as listed, got {shown(size)}")
    for field, etag in (("X-Linked-ETag", linked), ("ETag", headers.get("etag"))):
        digest = (etag or file.digest).removeprefix("W/").strip('"')
        is_hash = len(digest) == len(file.digest) and re.fullmatch("[0-9a-fA-F]+", digest) is not None
        if digest != file.digest and (field == "X-Linked-ETag" or (is_hash and linked is None)):
            raise ModelFileError(f"{where}: {field}: expected {file.digest}, as listed, got {shown(etag)}")
        if re.search(r"[/\\\x00-\x1f\x7f]", digest):
            raise ModelFileError(f"{where}: {field}: expected a name of a version, got {shown(etag)}")
    return commit


def says_commit(headers: Mapping[str, str]) -> bool:
    """Whether a response comes from the hub itself, and not from where a file lies."""
    return "x-repo-commit" in headers


def address_of(hub: Hub, name: HubName, revision: str, file: HubFile) -> str:
    """The address of a file's bytes."""
    return f"{hub.address}/{name.repo}/resolve/{quote(revision, safe='')}/{quote(file.path)}"
