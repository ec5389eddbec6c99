"""``decide`` answers typed questions with probabilities; ``calibrate`` fits these to labelled examples."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, read_text
from oxillama.apps.cli.media import add_media_options
from oxillama.apps.cli.models import add_model, load_engine, model_path
from oxillama.apps.cli.terminal import write_text
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.apps.decisions.calibration import Calibration
    from oxillama.engine.engine import InferenceEngine
    from oxillama.engine.features.decisions.answers import Decision
    from oxillama.engine.features.decisions.deciding import Deciding

FAILED = 1
"""The exit code where a request is refused."""


def add_commands(commands: Any) -> None:
    decide = options.add_command(
        commands,
        "decide",
        help="answer typed questions with probabilities",
        description="Answers requests of System One's format (state, questions) or of OpenAI's decisions "
        "(input, questions): one JSON object, or one in each line. Each gives a line of JSON, in the same "
        "order and format; what is wrong with a request is in its answer.",
        examples="""\
  oxillama decide model.gguf request.json
  oxillama decide model.gguf requests.jsonl --receipts receipts
  oxillama decide model.gguf request.json --image parcel.png
""",
    )
    add_model(decide)
    decide.add_argument("file", metavar="FILE", help="file of requests; - reads them from stdin")
    decide.add_argument(
        "--calibration", metavar="FILE", help="temperatures that oxillama calibrate has fitted"
    )
    decide.add_argument(
        "--confidence",
        choices=("peak", "entropy"),
        default="peak",
        help="how confidence is computed (default: peak)",
    )
    decide.add_argument(
        "--threshold",
        type=options.number,
        metavar="P",
        help="say of each answer whether the likeliest option has at least this probability (x_is_sure)",
    )
    decide.add_argument(
        "--receipts",
        metavar="DIR",
        help="folder to write a receipt of each answered request to, by its number, for oxillama verify",
    )
    add_media_options(decide, "before the state of each request")
    add_reading_options(decide)
    options.add_engine_options(decide)
    decide.set_defaults(command=run_decide)
    calibrate = options.add_command(
        commands,
        "calibrate",
        help="fit probabilities of decisions to examples",
        description="Answers requests, one in each line, that have the right answers in the field expected "
        "(by id, or a list; null for none), and fits a temperature for each type of question and number of "
        "options. Prints how reliable the probabilities are before and after.",
        examples="""\
  oxillama calibrate model.gguf labelled.jsonl -o calibration.json
  oxillama decide model.gguf requests.jsonl --calibration calibration.json
""",
    )
    add_model(calibrate)
    calibrate.add_argument(
        "file", metavar="LABELLED", help="file of labelled requests; - reads them from stdin"
    )
    calibrate.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write")
    add_reading_options(calibrate)
    options.add_engine_options(calibrate)
    calibrate.set_defaults(command=run_calibrate)


def add_reading_options(parser: Any) -> None:
    """The options that scores depend on."""
    parser.add_argument(
        "--special-in-content",
        action="store_true",
        help="names of control tokens in texts stand for them, as in llama.cpp",
    )
    parser.add_argument(
        "--readout",
        choices=("names", "labels"),
        help="what is read of a chat model: options' whole names, or their letters (default: names)",
    )
    parser.add_argument(
        "--orders",
        type=options.integer,
        metavar="N",
        help="orders of a choice's options that a chat model is asked in (default: 2)",
    )


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `DecisionOptions`."""
    return {name: getattr(args, name) for name in ("special_in_content", "readout", "orders")}


def run_decide(args: argparse.Namespace) -> int:
    from oxillama.apps.decisions.calibration import Calibration
    from oxillama.apps.decisions.lines import answers
    from oxillama.engine.features.decisions.deciding import DecisionOptions

    calibration = None if args.calibration is None else Calibration.load(args.calibration)
    given = {**reading_options(args), "confidence": args.confidence}
    bodies = requests_of(read_text(args.file, "file"))
    media = [(part["path"], part) for part in args.media or ()]
    n_failed = 0
    with load_engine(options.engine_config(args, model_path(args.model, args, bool(media))), args) as engine:
        chosen = DecisionOptions(**given) if calibration is None else calibration.options(engine, given)
        keep = None if args.receipts is None else Receipts(engine, args.receipts, calibration)
        for answer in answers(engine, bodies, chosen, None if keep is None else keep.write, media):
            n_failed += "error" in answer
            if args.threshold is not None:
                say_whether_sure(answer, args.threshold)
            if keep is not None:
                keep.number += 1
            write_text(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
            sys.stdout.flush()
    return FAILED if n_failed else 0


class Receipts:
    """Writes receipts into a folder without receipts; ``number`` counts the requests.

    Raises ConfigError for a folder with files, or one that cannot be made.
    """

    def __init__(self, engine: InferenceEngine, path: str, calibration: Calibration | None) -> None:
        self.engine = engine
        self.folder: Path = Path(path)
        self.calibration: str | None = None if calibration is None else calibration.digest
        self.number: int = 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise ConfigError(f"receipts: expected an empty folder, got {path}")
        except OSError as error:
            raise ConfigError(f"receipts: {path}: {error.strerror}") from error

    def write(self, state: Any, asked: Deciding, decision: Decision) -> None:
        from oxillama.apps.decisions.receipt import DecisionReceipt

        receipt = DecisionReceipt.of(self.engine, state, asked, decision, self.calibration)
        receipt.save(self.folder / f"{self.number:06}.json")


def say_whether_sure(answer: dict[str, Any], threshold: float) -> None:
    """Adds to each answer whether its likeliest option has at least a probability."""
    found = answer.get("answers", {})
    for each in found.values() if isinstance(found, dict) else found:
        if "probabilities" in each:
            shares = each["probabilities"]
            listed = list(shares.values()) if isinstance(shares, dict) else [p["probability"] for p in shares]
        else:
            yes = each["noul"] if "noul" in each else each["probability"]
            listed = [yes, 1 - yes]
        each["x_is_sure"] = max(listed) >= threshold


def run_calibrate(args: argparse.Namespace) -> int:
    from oxillama.apps.decisions import calibration
    from oxillama.engine.features.decisions.deciding import DecisionOptions

    check_writable("output", Path(args.output))
    given = reading_options(args)
    bodies = list(requests_of(read_text(args.file, "file")))
    with load_engine(options.engine_config(args, model_path(args.model, args)), args) as engine:
        found = calibration.examples(engine, bodies, DecisionOptions(**given))
        if not found:
            raise ConfigError("file: expected questions with right answers, got none")
        kind = found[0].asked.prompts.kind
        temperatures = calibration.fitted(found, kind)
        model = engine.model.fingerprint.content.hex()
    known = found[0].asked.temperatures
    before, after = (calibration.reliability(found, t, kind) for t in (known, temperatures))
    errors = [calibration.calibration_error(bins) for bins in (before, after)]
    facts = {"examples": len(found), "ece": dict(zip(("before", "after"), errors))}
    made = calibration.Calibration(model, args.readout, args.orders, temperatures)
    calibration.save(args.output, made, facts)
    write_text(calibration.report(before, after) + "\n")
    for name, t in temperatures.items():
        write_text(f"{name}: temperature {t}\n")
    return 0


def requests_of(text: str) -> Iterator[Any]:
    """The JSON values of a text: one, or one in each line. Raises ConfigError for none, or a line without."""
    if not text.strip():
        raise ConfigError("file: expected requests, got none")
    try:
        return iter([json.loads(text)])
    except (ValueError, RecursionError):
        return lines_of(text)


def lines_of(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"file: expected JSON in line {number}: {error}") from None
