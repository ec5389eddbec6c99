"""``verify``: checks the receipt of a text with the model it names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.cli import options
from oxillama.cli.console import check_writable
from oxillama.cli.media import add_media_options, read_part
from oxillama.cli.models import add_model, model_path
from oxillama.cli.progress import loading_bar, shows_bars
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama import Generation, InferenceEngine, Receipt, Verification

DIFFERS = 1


def add_commands(commands: Any) -> None:
    verify = options.add_command(
        commands,
        "verify",
        help="check the receipt of a text",
        description="Checks that a text follows from what its receipt names: runs prompt and text through "
        "the model in one pass and chooses each token again. The exit code is 0 if it does, else 1.",
        examples="""\
  oxillama run model.gguf -p "Once upon a time" --receipt receipt.json
  oxillama verify receipt.json --model model.gguf
""",
    )
    verify.add_argument("receipt", metavar="RECEIPT", help="file that --receipt wrote")
    add_model(verify, "--model", required=True)
    verify.add_argument(
        "--lora",
        metavar="FILE",
        action="append",
        default=[],
        help="LoRA adapter that the receipt names; its scale is the receipt's",
    )
    verify.add_argument("--text", action="store_true", help="write the text that was verified, too")
    verify.add_argument(
        "--reference",
        action="store_true",
        help="check with the slow reference implementation alone, without a kernel",
    )
    add_media_options(verify, "of the prompt, in order")
    options.add_named_options(verify, ("num_threads", "mmproj"))
    options.add_progress_option(verify)
    verify.set_defaults(command=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    from oxillama import Receipt
    from oxillama.evaluation.score_receipt import is_score

    if is_score(args.receipt):
        return run_verify_score(args)
    receipt = Receipt.load(args.receipt)
    found = (verified_by_reference if args.reference else verified_by_engine)(args, receipt)
    print(found.message)
    if args.text:
        sys.stdout.write(found.text + ("" if found.text.endswith("\n") else "\n"))
    return 0 if found else DIFFERS


def run_verify_score(args: argparse.Namespace) -> int:
    """Checks the receipt of a score that `oxillama eval` wrote."""
    from oxillama.evaluation.score_receipt import ScoreReceipt, verify_score

    receipt = ScoreReceipt.load(args.receipt)
    for name in ("text", "reference", "media", "mmproj"):
        if getattr(args, name, None):
            raise ConfigError(f"{name}: expected none with the receipt of a score")
    if args.lora or receipt.adapters:
        raise ConfigError("lora: scores with adapters are verified in Python alone (verify_score)")
    with engine_for(args, receipt.engine_options) as engine:
        changed = verify_score(engine, receipt)
    where = "this model gives the score" if not changed else f"this model differs: {', '.join(changed)}"
    print(where)
    return DIFFERS if changed else 0


@contextmanager
def engine_for(args: argparse.Namespace, needed: dict[str, Any]) -> Iterator[InferenceEngine]:
    """The engine of the arguments, with the options that a receipt needs."""
    from oxillama import EngineConfig, InferenceEngine

    config = EngineConfig(
        model_path=model_path(args.model, args),
        num_threads=args.num_threads,
        mmproj=args.mmproj,
        prefix_cache_bytes=0,
        **needed,
    )
    with (
        loading_bar(str(config.model_path), shows_bars(args)) as progress,
        InferenceEngine(config, progress=progress) as engine,
    ):
        yield engine


def verified_by_engine(args: argparse.Namespace, receipt: Receipt) -> Verification:
    """Checks a receipt with the kernels."""
    with engine_for(args, receipt.engine_options) as engine:
        media = [read_part(part) for part in args.media or ()]
        return engine.verify(receipt, adapters=args.lora, media=media)


def verified_by_reference(args: argparse.Namespace, receipt: Receipt) -> Verification:
    """Checks a receipt without the kernels. Raises Unsupported where the reference states too little."""
    from oxillama.gguf.model_file import ModelFile
    from oxillama.reference.verification import verify

    if args.media or args.mmproj:
        raise ConfigError("mmproj: expected no media with reference, which has no statement of encoders")
    if args.lora:
        raise ConfigError("lora: expected none with reference, which has no statement of adapters")
    if args.num_threads is not None:
        raise ConfigError("num_threads: expected none with reference, which has one thread")
    with ModelFile.open(model_path(args.model, args)) as file:
        return verify(file, receipt)


def add_receipt_option(parser: argparse.ArgumentParser, what: str = "write a receipt") -> None:
    """--receipt FILE, of the commands that generate."""
    parser.add_argument(
        "--receipt",
        dest="receipt_path",
        metavar="FILE",
        help=f"{what}, with which oxillama verify checks the text",
    )


def receipt_wanted(args: argparse.Namespace) -> bool:
    """Whether a receipt is to be written. Raises ConfigError if it cannot be: before the work, not after."""
    if args.receipt_path is not None:
        check_writable("receipt", Path(args.receipt_path))
    return args.receipt_path is not None


def write_receipt(generation: Generation, args: argparse.Namespace) -> None:
    """Writes the receipt of a text that was read, if one was asked for."""
    receipt = generation.receipt
    if receipt is not None:
        receipt.save(args.receipt_path)
