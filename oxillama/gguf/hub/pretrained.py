"""The file of a model of the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

from oxillama.base.config import checks
from oxillama.errors import ConfigError
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.names import SCHEME, HubName, hub_name


def pretrained_path(
    repo_id: str,
    filename: str | None,
    revision: str | None,
    cache_dir: str | os.PathLike[str] | None,
    token: str | bool | None,
    pull_mmproj: bool,
) -> Path:
    """The model's file, downloaded unless it is in the cache; see `InferenceEngine.from_pretrained`."""
    checks.encodable("repo_id", repo_id)
    name = hub_name(repo_id if ":" in repo_id else f"{SCHEME}{repo_id}")
    if name is None or (":" not in repo_id and name.file):
        raise checks.refuse("repo_id", "user/repo or a name such as user/repo:Q4_K_M", repo_id)
    for field, value in {"filename": filename, "revision": revision}.items():
        if value is not None and not checks.encodable(field, value):
            raise checks.refuse(field, "text that is not empty", value)
        if value is not None and ":" in repo_id:
            raise ConfigError(f"{field}: cannot be combined with the name {repo_id}")
    if ":" not in repo_id:
        name = HubName(name.repo, filename or "", revision=revision)
    return fetch(name, cache_dir=cache_dir, token=token, projector=pull_mmproj)
