"""``fingerprint``: hashes of a model's file and logits, which two people compare."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from oxillama.cli.console import print_json, print_rows
from oxillama.cli.models import add_model, model_path
from oxillama.cli.options import add_command, add_named_options, add_progress_option
from oxillama.errors import ConfigError

DIFFERS = 1
MOST_BYTES = 1 << 16


def add_commands(commands: Any) -> None:
    fingerprint = add_command(
        commands,
        "fingerprint",
        help="hash what a model computes",
        description="Hashes a model's file, and the logits of fixed tokens. Equal files and options give "
        "equal logits on every machine. Both hashes are kept, and read the next time.",
        examples="""\
  oxillama fingerprint model.gguf
  oxillama fingerprint model.gguf --json
  oxillama fingerprint model.gguf --compare mine.json
""",
    )
    add_model(fingerprint)
    fingerprint.add_argument("--json", action="store_true", help="write JSON")
    fingerprint.add_argument(
        "--compare",
        metavar="FILE",
        help="what --json wrote elsewhere; says what differs, the exit code is then 1",
    )
    add_named_options(fingerprint, ("compute", "quantize", "kv_type", "num_threads"))
    add_progress_option(fingerprint)
    fingerprint.set_defaults(command=run_fingerprint)


def run_fingerprint(args: argparse.Namespace) -> int:
    from oxillama import EngineConfig, InferenceEngine
    from oxillama.sessions.fingerprint import logits_fingerprint

    other = None if args.compare is None else read_fingerprint(args.compare)
    names = ("compute", "quantize", "kv_type", "num_threads")
    chosen = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    config = EngineConfig(model_path=model_path(args.model, args), prefix_cache_bytes=0, **chosen)
    mine = asdict(logits_fingerprint(config, lambda config: InferenceEngine(config).model))
    if args.json:
        print_json(mine)
    elif other is None:
        print_rows([name, str(value)] for name, value in mine.items() if value is not None)
    if other is None:
        return 0
    differing = [name for name in mine if name != "library" and mine[name] != other.get(name)]
    if not args.json:
        print(difference(mine, other, differing))
    return DIFFERS if differing else 0


def difference(mine: dict[str, Any], other: dict[str, Any], differing: list[str]) -> str:
    """What differs, in words: the first cause alone, since the logits follow from the others."""
    if not differing:
        return f"equal: file {mine['model'][:16]}, logits {mine['logits'][:16]}"
    for name in differing:
        if name != "logits":
            return f"another {name}: expected {other.get(name)}, got {mine[name]}"
    return (
        f"other logits of the same file: expected {other.get('logits')} (oxillama {other.get('library')}), "
        f"got {mine['logits']} (oxillama {mine['library']})"
    )


def read_fingerprint(path: str) -> dict[str, Any]:
    """What --json wrote. Raises ConfigError if it is not that."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"compare: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"compare: expected JSON, got other text: {error}") from None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) for name in ("model", "logits")
    ):
        raise ConfigError("compare: expected what fingerprint --json wrote, got another value")
    return found
