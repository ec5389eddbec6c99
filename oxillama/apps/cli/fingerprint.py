"""``fingerprint``: hashes of a model's file and logits, which two people compare."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from oxillama.apps.cli.console import print_json, print_rows, printable
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.options import add_command, add_named_options, add_progress_option
from oxillama.errors import ConfigError

DIFFERS = 1
OPTIONS = ("compute", "quantize", "kv_type", "num_threads")
MOST_BYTES = 1 << 16


def add_commands(commands: Any) -> None:
    fingerprint = add_command(
        commands,
        "fingerprint",
        help="hash what a model computes",
        description="Hashes a model's file, and the logits of fixed tokens. Equal files and options give "
        "equal logits on every machine. Both hashes are kept, and read the next time.",
        examples="""\
  oxillama fingerprint --check
  oxillama fingerprint model.gguf
  oxillama fingerprint model.gguf --json
  oxillama fingerprint model.gguf --compare mine.json
""",
    )
    add_model(fingerprint, nargs="?")
    fingerprint.add_argument(
        "--check",
        action="store_true",
        help="compute the logits of the shipped models and of ten small ones, in two ways each, and compare "
        "them with the hashes that the package has; the exit code is 1 if some differ",
    )
    fingerprint.add_argument("--json", action="store_true", help="write JSON")
    fingerprint.add_argument(
        "--compare",
        metavar="FILE",
        help="what --json wrote elsewhere; says what differs, the exit code is then 1",
    )
    add_named_options(fingerprint, OPTIONS)
    add_progress_option(fingerprint)
    fingerprint.set_defaults(command=run_fingerprint)


def run_fingerprint(args: argparse.Namespace) -> int:
    if args.check:
        return run_check(args)
    if args.model is None:
        raise ConfigError("MODEL: expected a model, or --check")
    from oxillama import EngineConfig, InferenceEngine
    from oxillama.sessions.fingerprint import logits_fingerprint

    other = None if args.compare is None else read_fingerprint(args.compare)
    chosen = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
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
        print(printable(difference(mine, other, differing)))
    return DIFFERS if differing else 0


def run_check(args: argparse.Namespace) -> int:
    """Compares this machine's logits with the table of the package; the exit code."""
    from oxillama import _kernels
    from oxillama.apps.testing.claim import checked, names

    others = ("model", "json", "compare", *OPTIONS)
    given = [name for name in others if getattr(args, name) not in (None, False)]
    if given:
        raise ConfigError(f"--check: expected no other argument, got {given[0]}")
    started, differing = time.monotonic(), []
    chosen = names()
    for name, expected, found in checked(chosen):
        equal = set(found) == {expected}
        if not equal:
            differing.append(name)
        other = " and ".join(each[:16] for each in found)
        words = "equal" if equal else f"OTHER: expected {expected[:16]}, got {other}"
        print(printable(f"{name:<42}{expected[:16]}  {words}"), flush=True)
    seconds, target = time.monotonic() - started, _kernels.best().target
    n = len(chosen) - len(differing)
    print(printable(f"{n} of {len(chosen)} models have the bits of the table ({target}, {seconds:.0f} s)"))
    return DIFFERS if differing else 0


def difference(mine: dict[str, Any], other: dict[str, Any], differing: list[str]) -> str:
    """The first cause of a difference, in words; further differences follow from it."""
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
    """The fingerprint in a file that --json wrote. Raises ConfigError for another file."""
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
