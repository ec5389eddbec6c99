"""MODEL: a path, or a name of the hub, which is brought into the cache first."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli.console import human_bytes, say
from oxillama.apps.cli.progress import loading_bar, shows_bars
from oxillama.errors import ModelFileError

if TYPE_CHECKING:
    from oxillama import EngineConfig, InferenceEngine
    from oxillama.gguf.hub.listing import HubFile

NAMES = "user/repo:Q4_K_M or hf://user/repo/file.gguf"
DEMO = "demo"
"""The name of the story model that the package ships."""

MEANING = f"GGUF file (of a split one: the first), a model of the Hugging Face Hub ({NAMES}), or {DEMO}"


def add_model(parser: Any, name: str = "model", **how: Any) -> None:
    """The argument MODEL; ``how`` as for argparse, but ``default`` is a text that describes None."""
    default = how.pop("default", None)
    help = MEANING if default is None else f"{MEANING} (default: {default})"
    parser.add_argument(name, **{"metavar": "MODEL", "help": help, **how})


def model_path(model: str, args: argparse.Namespace, projector: bool = False) -> str:
    """The path of the model that an argument names. A path that exists wins over a name.

    Args:
        projector: whether the projector file of a model of the hub is downloaded, too.

    Raises:
        ConfigError: a name fits no model or several; `huggingface_hub` is not installed.
        ModelFileError: there is no such file, and no such model of the hub.
    """
    from oxillama.gguf.hub.names import SCHEME, hub_name

    if os.path.exists(model):
        return model
    if model == DEMO:
        from oxillama.apps.demo import STORY

        return str(STORY)
    name = hub_name(model)
    if name is None:
        if model.count("/") == 1 and not os.path.isdir(os.path.dirname(model)):
            raise ModelFileError(f"{model}: no such file (a model of the hub is named {NAMES})")
        return model  # whoever opens it says what is wrong
    from oxillama.gguf.hub.download import fetch
    from oxillama.gguf.hub.requests import NoAnswer

    try:
        return str(fetch(name, **reports(args), projector=projector))
    except ModelFileError as error:
        if model.startswith(SCHEME) or isinstance(error.__cause__, NoAnswer):
            raise
        raise ModelFileError(f"{model}: no such file, and no model of the hub: {error}") from error


def load_engine(config: EngineConfig, args: argparse.Namespace) -> InferenceEngine:
    """The engine for the arguments' model, with a bar while it loads."""
    from oxillama import InferenceEngine

    with loading_bar(str(config.model_path), shows_bars(args)) as progress:
        return InferenceEngine(config, progress=progress)


def reports(args: argparse.Namespace) -> dict[str, Any]:
    """How `fetch` reports what it does: with bars as the options say, and with notes unless --quiet."""

    def tell(text: str) -> None:
        if not args.quiet:
            say("note", text)

    def announce(file: HubFile) -> None:
        tell(f"downloading {file.path} ({human_bytes(file.size)})")

    return {"progress": shows_bars(args), "announce": announce, "tell": tell}
