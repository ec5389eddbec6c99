"""``verify`` checks the receipts of texts with the model that they name; ``sign`` signs receipts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, printable, say
from oxillama.apps.cli.media import add_media_options, read_part
from oxillama.apps.cli.models import add_model, load_engine, model_path
from oxillama.apps.cli.program import ERROR
from oxillama.apps.cli.terminal import write_text
from oxillama.errors import ConfigError, OxiLlamaError, ReceiptError

if TYPE_CHECKING:
    from oxillama import Generation, InferenceEngine, Receipt, Verification
    from oxillama.apps.decisions.receipt import DecisionReceipt
    from oxillama.apps.evaluation.score_receipt import ScoreReceipt

DIFFERS = 1
CHAIN = ".jsonl"
"""The end of the names of files with signed receipts."""


def add_commands(commands: Any) -> None:
    verify = options.add_command(
        commands,
        "verify",
        help="check the receipts of texts",
        description="Checks that texts follow from what their receipts name: runs prompt and text through "
        "the model in one pass and chooses each token again. The exit code is 0 if all do, 1 if one does "
        "not, 2 if one cannot be checked.",
        examples="""\
  oxillama run model.gguf -p "Once upon a time" --receipt receipt.json
  oxillama verify receipt.json --model model.gguf
  oxillama verify receipts/*.json --model model.gguf --sample 50
""",
    )
    verify.add_argument(
        "receipt",
        metavar="RECEIPT",
        nargs="+",
        help="files that --receipt wrote, and chains (.jsonl) of sign",
    )
    verify.add_argument("--signer", metavar="KEY", help="public key, in hexadecimal digits, of all chains")
    add_model(verify, "--model", required=True)
    add_check_options(verify)
    verify.add_argument("--text", action="store_true", help="write the text that was verified, too")
    verify.set_defaults(command=run_verify)
    sign = options.add_command(
        commands,
        "sign",
        help="sign receipts, in a chain",
        description="Signs receipts with an Ed25519 key, and appends them to a chain: each names the one "
        "before it, so that a text of a conversation cannot be changed, moved or left out unnoticed.",
        examples="""\
  openssl genpkey -algorithm ed25519 -out key.pem
  oxillama sign first.json second.json --key key.pem -o conversation.jsonl
  oxillama verify conversation.jsonl --model model.gguf
""",
    )
    sign.add_argument("receipt", metavar="RECEIPT", nargs="+", help="files that --receipt wrote, in order")
    sign.add_argument("--key", metavar="FILE", required=True, help="PEM file of the private key")
    sign.add_argument("-o", "--output", metavar="FILE", required=True, help="chain to begin or continue")
    sign.set_defaults(command=run_sign)


def add_check_options(parser: Any) -> None:
    """The options with which receipts are checked, in addition to the model."""
    parser.add_argument(
        "--lora",
        metavar="FILE",
        action="append",
        default=[],
        help="LoRA adapter that the receipt names; its scale is the receipt's",
    )
    parser.add_argument(
        "--sample",
        metavar="K",
        type=int,
        help="choose K tokens of each text again, or run K of all decisions, drawn at random; a line says "
        "what that may miss",
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="check with the slow reference implementation alone, without a kernel",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        help="GBNF that the reference follows in the place of the receipt's schema or pattern",
    )
    add_media_options(parser, "of the prompt, in order")
    options.add_named_options(parser, ("num_threads", "mmproj"))
    options.add_progress_option(parser)


def run_verify(args: argparse.Namespace) -> int:
    from oxillama.apps.decisions.files import is_decision
    from oxillama.apps.evaluation.score_receipt import ScoreReceipt, is_score

    if len(args.receipt) > 1 and (args.media or args.mmproj):
        raise ConfigError("media: expected one receipt, whose media they are")
    receipts: dict[str, Receipt] = {}
    scores: dict[str, ScoreReceipt] = {}
    decisions: dict[str, Any] = {}
    code = 0
    for name in args.receipt:
        try:
            if args.signer is None and not name.endswith(CHAIN) and is_score(name):
                scores[name] = ScoreReceipt.load(name)
            elif args.signer is None and not name.endswith(CHAIN) and is_decision(name):
                from oxillama.apps.decisions.receipt import DecisionReceipt  # the module imports the engine

                decisions[name] = DecisionReceipt.load(name)
            else:
                receipts.update(read_receipts(name, args.signer))
        except ReceiptError as error:
            code = failed(error)
    several = len(args.receipt) > 1 or len(receipts) > 1
    code = max(code, verified_scores(args, scores), verified_decisions(args, decisions))
    for name, found in verified(args, receipts):
        code = max(code, print_verdict(args, name, several, found, judged))
    return code


def verified(
    args: argparse.Namespace, receipts: Mapping[str, Receipt]
) -> Iterator[tuple[str, Verification | BaseException]]:
    """The verdict of each receipt by its name, or the error of checking it."""
    check = verified_by_reference if args.reference else verified_by_engine
    for names in alike(receipts):
        yield from zip(names, check(args, [receipts[name] for name in names]))


def judged(found: Verification) -> tuple[bool, str]:
    return bool(found), found.message if found else f"NOT verified: {found.message}"


def same_values(message: str, changed: Sequence[str]) -> tuple[bool, str]:
    """Whether a model gives all values of a receipt, and a line about it: ``message`` if so."""
    return not changed, f"NOT verified: this model differs: {', '.join(changed)}" if changed else message


def print_verdict(
    args: argparse.Namespace, name: str, several: bool, found: Any, judge: Callable[[Any], tuple[bool, str]]
) -> int:
    """Prints the verdict on a receipt, with --text also the text; returns the exit code.

    ``judge`` says whether the receipt is good, and a line about it. Raises errors that are not the library's.
    """
    if isinstance(found, BaseException):
        return failed(found, name if several else "")
    is_good, message = judge(found)
    print(titled(several, name, message))
    if args.text:
        write_text(found.text + ("" if found.text.endswith("\n") else "\n"))
    return 0 if is_good else DIFFERS


def titled(several: bool, name: str, message: str) -> str:
    """The line of one receipt, with its name if there are several."""
    return printable(f"{name}: {message}" if several else message)


def verified_scores(args: argparse.Namespace, receipts: Mapping[str, ScoreReceipt]) -> int:
    """Checks the receipts of scores that `oxillama eval` wrote; the exit code."""
    from oxillama.apps.evaluation.score_receipt import verify_score

    code = 0
    for name in ("text", "reference", "rules", "sample", "media", "mmproj") if receipts else ():
        if getattr(args, name, None):
            raise ConfigError(f"{name}: expected none with the receipt of a score")
    if receipts and (args.lora or any(receipt.adapters for receipt in receipts.values())):
        raise ConfigError("lora: scores with adapters are verified in Python alone (verify_score)")
    for names in alike(receipts):
        with engine_for(args, receipts[names[0]].engine_options) as engine:
            for name in names:
                try:
                    changed: Sequence[str] | OxiLlamaError = verify_score(engine, receipts[name])
                except OxiLlamaError as error:
                    changed = error
                judge = partial(same_values, "this model gives the score")
                code = max(code, print_verdict(args, name, len(args.receipt) > 1, changed, judge))
    return code


def verified_decisions(args: argparse.Namespace, receipts: Mapping[str, DecisionReceipt]) -> int:
    """Checks the receipts of decisions that `oxillama decide` wrote; the exit code."""
    if not receipts:
        return 0
    from oxillama.apps.decisions.receipt import verify_by_reference, verify_decisions
    from oxillama.base.config.engine import PREFIX_CACHE_BYTES
    from oxillama.gguf.model_file import ModelFile
    from oxillama.sessions.verdict import missed
    from oxillama.sessions.verification import positions_of

    code = 0
    alone = ["sample", "media", "mmproj"] if args.reference else []
    for name in ("text", "rules", "lora", *alone):
        if getattr(args, name, None):
            raise ConfigError(f"{name}: expected none with the receipt of a decision")
    for names in alike(receipts):
        chosen = [receipts[name] for name in names]
        drawn = positions_of(len(chosen), args.sample)
        if args.reference:
            with ModelFile.open(model_path(args.model, args)) as file:
                found: Sequence[list[str] | OxiLlamaError] = [
                    verify_by_reference(file, each) for each in chosen
                ]
        else:
            shared = {**chosen[0].engine_options, "prefix_cache_bytes": PREFIX_CACHE_BYTES}
            with engine_for(args, shared) as engine:
                media = [read_part(part) for part in args.media or ()]
                found = verify_decisions(engine, chosen, drawn, media)
        for i, (name, changed) in enumerate(zip(names, found)):
            who = "its scores give" if drawn is not None and i not in drawn else "this model gives"
            judge = partial(same_values, f"{who} these answers")
            code = max(code, print_verdict(args, name, len(args.receipt) > 1, changed, judge))
        if drawn is not None:
            n, k = len(chosen), len(drawn)
            print(
                f"the model ran {k} of {n} receipts: false scores in one are missed with a probability of "
                f"{missed(n, k):.3g}"
            )
    return code


def read_receipts(name: str, signer: str | None) -> dict[str, Receipt]:
    """The receipts of a file by their names; receipts of a chain are numbered, and their signatures checked.

    Raises ReceiptError, also for a file without signatures where a signer is expected.
    """
    from oxillama import Receipt
    from oxillama.sessions.signing import check_chain, load_chain

    if not name.endswith(CHAIN):
        if signer is not None:
            raise ReceiptError(f"signer: expected a chain ({CHAIN}), which is signed, got {name}")
        return {name: Receipt.load(name)}
    chain = load_chain(name)
    check_chain(chain, signer)
    return {f"{name}[{signed.number}]": signed.receipt for signed in chain}


def run_sign(args: argparse.Namespace) -> int:
    """Appends receipts to a chain, whose signatures are checked first."""
    from oxillama import Receipt
    from oxillama.sessions.signing import check_chain, load_chain, load_key, save_chain, sign

    if not args.output.endswith(CHAIN):
        raise ConfigError(f"output: expected a file whose name ends in {CHAIN}, got {args.output}")
    check_writable("output", Path(args.output))
    key = load_key(args.key)
    chain = load_chain(args.output) if Path(args.output).exists() else []
    if chain:
        check_chain(chain)
    for receipt in [Receipt.load(name) for name in args.receipt]:
        chain.append(sign(receipt, key, chain[-1] if chain else None))
    save_chain(args.output, chain)
    signed = f"{len(args.receipt):,} receipt{'' if len(args.receipt) == 1 else 's'}"
    print(f"signed: {signed}, {len(chain):,} in the chain, key {chain[-1].key}")
    return 0


def failed(error: BaseException, name: str = "") -> int:
    """Prints why a receipt was not checked; returns the exit code. Raises errors of other kinds."""
    if not isinstance(error, OxiLlamaError):
        raise error
    say("error", f"{name}: {error}" if name else str(error))
    return ERROR


def alike(receipts: Mapping[str, Any]) -> list[list[str]]:
    """The names of receipts, grouped by the engine that can verify them, in order."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, receipt in receipts.items():
        groups.setdefault(tuple(receipt.engine_options.values()), []).append(name)
    return list(groups.values())


def engine_for(args: argparse.Namespace, needed: Mapping[str, Any]) -> InferenceEngine:
    """The engine of the arguments, with the options that a receipt needs."""
    from oxillama import EngineConfig

    path, options = model_path(args.model, args), {"prefix_cache_bytes": 0, **needed}
    config = EngineConfig(model_path=path, num_threads=args.num_threads, mmproj=args.mmproj, **options)
    return load_engine(config, args)


def verified_by_engine(
    args: argparse.Namespace, receipts: list[Receipt]
) -> Sequence[Verification | BaseException]:
    """Checks receipts of one kind of engine with the kernels."""
    from oxillama import verify_batch

    if args.rules is not None:
        raise ConfigError("rules: expected none without reference, as the library reads every constraint")
    with engine_for(args, receipts[0].engine_options) as engine:
        media = [read_part(part) for part in args.media or ()]
        if len(receipts) == 1:
            return [engine.verify(receipts[0], adapters=args.lora, media=media, sample=args.sample)]
        return verify_batch(engine, receipts, adapters=args.lora, sample=args.sample, return_exceptions=True)


def verified_by_reference(args: argparse.Namespace, receipts: list[Receipt]) -> Sequence[Verification]:
    """Checks receipts without the kernels. Raises Unsupported if the reference lacks an operation."""
    from oxillama.gguf.model_file import ModelFile
    from oxillama.reference.verification import verify

    if args.media or args.mmproj:
        raise ConfigError("mmproj: expected no media with reference, which has no statement of encoders")
    if args.num_threads is not None:
        raise ConfigError("num_threads: expected none with reference, which has one thread")
    if args.sample is not None:
        raise ConfigError("sample: expected none with reference, which checks every token")
    with ExitStack() as opened:
        model, *adapters = (
            opened.enter_context(ModelFile.open(path)) for path in (model_path(args.model, args), *args.lora)
        )
        rules = None if args.rules is None else read_rules(args.rules)
        return [verify(model, receipt, adapters, rules) for receipt in receipts]


def read_rules(path: str) -> str:
    """The text of a grammar's file. Raises ConfigError if it cannot be read."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"rules: {path} cannot be read: {error}") from None


def add_receipt_option(parser: argparse.ArgumentParser, what: str = "write a receipt") -> None:
    """--receipt FILE, of the commands that generate."""
    parser.add_argument(
        "--receipt",
        dest="receipt_path",
        metavar="FILE",
        help=f"{what}, with which oxillama verify checks the text",
    )


def receipt_wanted(args: argparse.Namespace) -> bool:
    """Whether a receipt is to be written. Raises ConfigError if it cannot be, before the work begins."""
    if args.receipt_path is not None:
        check_writable("--receipt", Path(args.receipt_path))
    return args.receipt_path is not None


def write_receipt(generation: Generation, args: argparse.Namespace) -> None:
    """Writes the receipt of a text that was read, if one was asked for."""
    receipt = generation.receipt
    if receipt is not None:
        receipt.save(args.receipt_path)
