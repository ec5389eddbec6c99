"""``pull``, ``list`` and ``rm``: models of the Hugging Face Hub, in the cache that all programs share."""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import human_bytes, print_json, print_rows, printable
from oxillama.apps.cli.models import NAMES, reports
from oxillama.errors import ConfigError


def add_commands(commands: Any) -> None:
    pull = options.add_command(
        commands,
        "pull",
        help="download a model",
        description="Brings a model into the cache of huggingface_hub, as the hub has it now, and compares "
        "the files that are there already with their hashes. A projector file (mmproj) of the repository "
        "comes with the model. HF_ENDPOINT, HF_HOME and HF_TOKEN have effect.",
        examples="""\
  oxillama pull Qwen/Qwen3-4B-GGUF
  oxillama pull Qwen/Qwen3-4B-GGUF:Q8_0
  oxillama pull hf://Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf
""",
    )
    pull.add_argument("name", metavar="NAME", help=f"{NAMES}; user/repo is the model in Q4_K_M")
    pull.add_argument("--no-mmproj", action="store_true", help="download no projector file (mmproj)")
    options.add_progress_option(pull)
    pull.set_defaults(command=run_pull)

    listed = options.add_command(
        commands,
        "list",
        help="list the models that were downloaded",
        description="Lists the GGUF models in the cache of huggingface_hub, by names to use as MODEL.",
    )
    listed.add_argument("--json", action="store_true", help="write JSON")
    listed.set_defaults(command=run_list)

    removed = options.add_command(
        commands,
        "rm",
        help="delete a model that was downloaded",
        description="Deletes a model's files from the cache of huggingface_hub.",
    )
    removed.add_argument("name", metavar="NAME", help=f"as list shows it, or {NAMES}")
    removed.set_defaults(command=run_rm)


def hub_name_of(text: str) -> Any:
    """The name of a model. Raises ConfigError for an invalid text."""
    from oxillama.gguf.hub.names import hub_name

    name = hub_name(text)
    if name is None:
        raise ConfigError(f"name: expected {NAMES}, got {text}")
    return name


def run_pull(args: argparse.Namespace) -> int:
    from oxillama.gguf.hub.download import fetch
    from oxillama.gguf.hub.names import REPO, SCHEME

    name = hub_name_of(SCHEME * bool(re.fullmatch(REPO, args.name)) + args.name)
    path = fetch(name, **reports(args), check_all=True, projector=not args.no_mmproj)
    print(printable(str(path)))
    return 0


def run_list(args: argparse.Namespace) -> int:
    from oxillama.gguf.hub.cached import cached_models

    models = cached_models()
    if args.json:
        print_json(
            [
                {
                    "name": str(model.name),
                    "bytes": model.size,
                    "last_used": model.last_used,
                    "files": [str(path) for path in model.paths],
                    "missing_files": model.missing,
                }
                for model in models
            ]
        )
        return 0
    rows = [("model", "size", "last used")]
    for model in models:
        size = human_bytes(model.size) + (f", {model.missing} files are missing" if model.missing else "")
        rows.append((str(model.name), size, time.strftime("%Y-%m-%d", time.localtime(model.last_used))))
    print_rows(rows, right=(1,))
    return 0


def run_rm(args: argparse.Namespace) -> int:
    from oxillama.gguf.hub.cached import remove

    name = hub_name_of(args.name)
    freed = remove(name)
    print(printable(f"deleted {name}: {human_bytes(freed)}"))
    return 0
