"""How often a chat model's typed decisions are right, by readout and number of orders.

`decision_cases.json` has 200 labelled texts of four kinds, written for this measurement: whether a writer is
content, the topic of news, what a customer writes about, how good something was (five levels).
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path
from typing import Any

from benchmarks import runs
from oxillama import ChoiceAnswer, InferenceEngine, PredicateAnswer
from oxillama.apps.bench.report import Metric, Row, align

CASES = Path(__file__).with_name("decision_cases.json")
ORDERS = (1, 2, 5)
RIGHT = Metric("right answers", "", True)
LOSS = Metric("log loss", "nats", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    parser.add_argument("--template", help="name or file of the chat template (default: the model's)")
    parser.add_argument("--cases", type=Path, default=CASES, help="labelled texts (default: 200 of them)")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints a line for each readout and number of orders: the share of right answers and the log loss."""
    whole = runs.Run(args, "template", "cases", cases=args.cases.name)
    kinds = json.loads(args.cases.read_text(encoding="utf-8"))
    lines, found = [["readout, orders", *(kind["kind"] for kind in kinds)]], []
    options: dict[str, Any] = {} if args.template is None else {"chat_template": args.template}
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, **options) as engine:
        for readout in ("labels", "names"):
            for orders in ORDERS:
                name = f"{readout}, {orders}"
                lines.append([name])
                for kind in kinds:
                    right, loss = quality(engine, kind, readout=readout, orders=orders)
                    lines[-1].append(f"{right:.2f} ({loss:.2f})")
                    for metric, value in ((RIGHT, right), (LOSS, loss)):
                        found.append(Row(f"{name}, {kind['kind']}", metric, {"oxillama": [value]}))
    return whole.finish(found, align(lines))


def quality(engine: InferenceEngine, kind: dict[str, Any], **options: Any) -> tuple[float, float]:
    """The share of right answers to the cases of a kind, and their mean log loss in nats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the labels have a small share of the probability
        asked = [(state, [kind["question"]]) for state, _ in kind["cases"]]
        answers = [decision[0] for decision in engine.decide_batch(asked, **options)]
    n_right, loss = 0, 0.0
    for answer, (_, expected) in zip(answers, kind["cases"]):
        if isinstance(answer, PredicateAnswer):
            shares = {True: answer.probability, False: 1 - answer.probability}
        elif isinstance(answer, ChoiceAnswer):
            shares = dict(answer.probabilities)
        else:
            shares = dict(enumerate(answer.probabilities))
        n_right += max(shares, key=lambda option: shares[option]) == expected
        loss -= math.log(max(shares[expected], 1e-300))
    return n_right / len(answers), loss / len(answers)
