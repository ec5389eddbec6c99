"""The hub's repositories with GGUF files, by words, and the models of a repository with their sizes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from oxillama.errors import ModelFileError
from oxillama.gguf.hub.download import LOOKUP_SECONDS, is_among
from oxillama.gguf.hub.library import library
from oxillama.gguf.hub.listing import MOST_PAGE_BYTES, check_name, page_of, remote_files
from oxillama.gguf.hub.names import SHARD, HubName, hub_name, is_companion, model_files, models_of, n_missing
from oxillama.gguf.hub.requests import Hub, Refused, shown, within

MOST_FOUND = 20
"""Repositories that a search asks for."""


@dataclass(frozen=True)
class HubRepo:
    """A repository with GGUF files.

    Attributes:
        name: "user/repo".
        downloads: of the last 30 days, as the hub counts them.
    """

    name: str
    downloads: int


@dataclass(frozen=True)
class HubModel:
    """A model of a repository.

    Attributes:
        name: by which it can be downloaded.
        size: in bytes, of all its files.
    """

    name: HubName
    size: int


def repositories(words: str) -> list[HubRepo]:
    """The repositories with GGUF files that fit words, most downloads first.

    Raises:
        NoAnswer: the hub cannot be reached, or what answers is no hub.
        ModelFileError: it refuses, or lists what no repository can be.
        ConfigError: `huggingface_hub` is not installed.
    """
    hub = Hub(library())
    query = {"search": words, "filter": "gguf", "sort": "downloads", "direction": -1, "limit": MOST_FOUND}
    url, until = f"{hub.address}/api/models?{urlencode(query)}", time.monotonic() + LOOKUP_SECONDS
    try:
        with hub.answer("GET", url) as response:
            entries = page_of(hub, hub.text(response, MOST_PAGE_BYTES, until))
    except Refused as error:
        raise ModelFileError(f"search: {error}") from error
    return [repo_of(i, entry) for i, entry in enumerate(entries[:MOST_FOUND])]


def repo_of(i: int, entry: Any) -> HubRepo:
    """The repository of an entry. Raises ModelFileError."""
    found = entry if isinstance(entry, dict) else {}
    name, downloads = found.get("id"), found.get("downloads", 0)
    if not isinstance(name, str) or hub_name(f"{name}:x") is None:
        raise ModelFileError(f"search: [{i}].id: expected user/repo, got {shown(name)}")
    if type(downloads) is not int or downloads < 0:
        raise ModelFileError(f"search: [{i}].downloads: expected a number, got {shown(downloads)}")
    return HubRepo(name, downloads)


def models(repo: str) -> list[HubModel]:
    """The complete models of a repository, the smallest first. Raises as `repositories`."""
    hub, name = Hub(library()), HubName(repo)
    check_name(hub, name)
    until = time.monotonic() + LOOKUP_SECONDS
    try:
        files = within(LOOKUP_SECONDS, lambda: remote_files(hub, name, until))
    except Refused as error:
        raise ModelFileError(f"{repo}: {error}") from error
    found = [
        HubModel(shortest_name(repo, paths, files), sum(files[path].size for path in paths))
        for paths in models_of(files)
        if not is_companion(paths[0]) and not n_missing(paths)
    ]
    return sorted(found, key=lambda model: model.size)


def shortest_name(repo: str, paths: list[str], all_paths: Iterable[str]) -> HubName:
    """user/repo:TAG with the last part of the file's name, if that means this model alone; else its path."""
    shard = SHARD.fullmatch(paths[0])
    stem = shard[1] if shard else paths[0][: -len(".gguf")]
    name = HubName(repo, tag=stem.rpartition("/")[2].rpartition("-")[2].rpartition(".")[2])
    is_tag = hub_name(str(name)) == name and is_among(name, all_paths)
    return name if is_tag and model_files(name, all_paths) == paths else HubName(repo, file=paths[0])
