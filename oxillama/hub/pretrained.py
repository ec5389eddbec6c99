"""Engines for models of the Hugging Face Hub."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from oxillama.config import EngineConfig, checks
from oxillama.errors import ConfigError
from oxillama.hub.download import fetch
from oxillama.hub.names import SCHEME, HubName, hub_name
from oxillama.weights.packer import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oxillama.config import EngineFields

E = TypeVar("E", bound="Pretrained")


class Pretrained:
    """The part of `InferenceEngine` that brings its model from the hub."""

    if TYPE_CHECKING:  # what it calls

        def __init__(self, config: EngineConfig, *, progress: Progress | None = None) -> None: ...

    @classmethod
    def from_pretrained(
        cls: type[E],
        repo_id: str,
        filename: str | None = None,
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> E:
        """An engine for a model of the Hugging Face Hub, which is downloaded unless it is in the cache.

        Parameters
        ----------
        repo_id : "user/repo", or a whole name: "user/repo:Q4_K_M", "hf://user/repo/file.gguf".
        filename : path of a file in the repository, or a pattern: "*Q4_K_M.gguf". Of a split model one of its
            files. None takes the only model of the repository.
        revision : branch, tag or commit; None for the repository's default.
        cache_dir : None for that of `huggingface_hub`.
        token : of a user of the hub; None for the one that is logged in.
        progress : as for `InferenceEngine`; the download shows its own on stderr.
        config : fields of `EngineConfig`.

        Raises
        ------
        ConfigError : no model fits, or several do, with a list; `huggingface_hub` is not installed.
        ModelFileError : it cannot be fetched, or is not what the hub has, and why.

        And whatever making an engine raises.
        """
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
        path = fetch(name, cache_dir=cache_dir, token=token)
        return cls(EngineConfig(model_path=path, **config), progress=progress)
