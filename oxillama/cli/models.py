"""MODEL: a path, or a name of the hub, which is brought into the cache first."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from oxillama.cli.console import human_bytes, say
from oxillama.cli.progress import shows_bars
from oxillama.errors import ModelFileError

if TYPE_CHECKING:
    from oxillama.hub.download import HubFile

NAMES = "user/repo:Q4_K_M or hf://user/repo/file.gguf"
MEANING = f"GGUF file (of a split one: the first), or a model of the Hugging Face Hub: {NAMES}"


def add_model(parser: Any, name: str = "model", **how: Any) -> None:
    """The argument MODEL; ``how`` as for argparse, but ``default`` are words for what None stands for."""
    default = how.pop("default", None)
    help = MEANING if default is None else f"{MEANING} (default: {default})"
    parser.add_argument(name, **{"metavar": "MODEL", "help": help, **how})


def model_path(model: str, args: argparse.Namespace, projector: bool = False) -> str:
    """The path of the model that an argument names. A path that exists wins over a name.

    Parameters
    ----------
    projector : whether the projector file of a model of the hub is downloaded, too.

    Raises
    ------
    ConfigError : a name fits no model or several; `huggingface_hub` is not installed.
    ModelFileError : there is no such file, and no such model of the hub.
    """
    from oxillama.hub.names import SCHEME, hub_name

    if os.path.exists(model):
        return model
    name = hub_name(model)
    if name is None:
        if model.count("/") == 1 and not os.path.isdir(os.path.dirname(model)):
            raise ModelFileError(f"{model}: no such file (a model of the hub is named {NAMES})")
        return model  # whoever opens it says what is wrong
    from oxillama.hub.download import fetch

    try:
        how = {"progress": shows_bars(args), "announce": announcer(args)}
        return str(fetch(name, **how, projector=projector))
    except ModelFileError as error:
        if model.startswith(SCHEME):
            raise
        raise ModelFileError(f"{model}: no such file, and no model of the hub: {error}") from error


def announcer(args: argparse.Namespace) -> Any:
    """Says what is downloaded."""

    def announce(file: HubFile) -> None:
        if not args.quiet:
            say("note", f"downloading {file.path} ({human_bytes(file.size)})")

    return announce
