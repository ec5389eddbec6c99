"""A multiple-choice task of lm-evaluation-harness: this library in batches, one request at a time, and
llama-cpp-python.

    python -m benchmarks harness --model model.gguf

The harness makes the requests of a task from a local file: questions of random words of the vocabulary, with
four choices of three words. Each engine answers them in turn, through the harness. llama-cpp-python keeps the
keys and values of what a prompt begins with as the one before, and evaluates the rest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from oxillama.apps.bench.report import Metric
from oxillama.base.config import EngineConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError

SPEED = Metric("answers", "requests/s", higher_is_better=True)

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""

CONTEXT = 1024
"""Tokens that the engines have room for."""

CHOICES = 4
"""Of a question."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--questions", 8)
    runs.add_option(parser, "--words", 60, "of a question")
    runs.add_option(parser, "--batch-size", 64)
    runs.add_arguments(parser, rounds=5)


def write_tasks(folder: Path, engine: InferenceEngine, n: int, n_questions: int, n_words: int) -> None:
    """Writes ``n`` tasks, choices0 and so on, each with questions of its own: no prompt comes again."""
    tokenizer = engine.tokenizer
    pieces = [tokenizer.decode([token]).strip() for token in range(tokenizer.n_vocab)]
    words = sorted({piece for piece in pieces if len(piece) > 1 and piece.isascii() and piece.isalnum()})
    for number in range(n):
        rng = np.random.default_rng(number)
        documents = [
            {
                "question": " ".join(rng.choice(words, n_words)),
                "choices": [" ".join(rng.choice(words, 3)) for _ in range(CHOICES)],
                "answer": 0,
            }
            for _ in range(n_questions)
        ]
        path = folder / f"choices{number}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in documents), encoding="utf-8")
        task = TASK.format(name=f"choices{number}", path=path)
        (folder / f"choices{number}.yaml").write_text(task, encoding="utf-8")


def model_of(engine: InferenceEngine, batch_size: int, *, alone: bool = False) -> Any:
    """The harness's model of an engine; ``alone`` has each request run before the next one begins."""
    from oxillama.apps.evaluation.harness import OxillamaLM
    from oxillama.apps.evaluation.scoring import Score, scores

    class OneAtATime(OxillamaLM):
        def _scores(self, pairs: list[tuple[list[int], list[int]]]) -> list[Score]:
            return [scores(self.engine, [pair], batch_size=1)[0] for pair in pairs]

    return (OneAtATime if alone else OxillamaLM)(engine, batch_size=batch_size)


def peer_of(path: Path, threads: int, engine: InferenceEngine) -> Any:
    """The harness's model of llama-cpp-python, which gets the tokens that our model gets."""
    from oxillama.apps.evaluation.harness import OxillamaLM

    try:
        import llama_cpp
    except ImportError as error:
        raise ConfigError("llama-cpp-python: expected the package, got none") from error
    llama = llama_cpp.Llama(
        str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
    )

    class Peer(OxillamaLM):
        known: tuple[int, ...] = ()

        def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
            return [self.one(context, continuation) for _, context, continuation in requests]

        def one(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
            tokens = [*context, *continuation][:-1]
            most = min(len(context) - 1, len(self.known))
            n = next((i for i in range(most) if tokens[i] != self.known[i]), most)
            llama._ctx.kv_cache_seq_rm(-1, n, -1)
            llama.n_tokens = n
            llama.eval(tokens[n:])
            self.known = tuple(tokens)
            rows = llama.scores[len(context) - 1 : len(tokens)].astype(np.float64)
            top = rows.max(axis=1)
            chosen = rows[np.arange(len(continuation)), continuation]
            total = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            return float((chosen - total).sum()), bool((chosen == top).all())

    return Peer(engine)


def run(args: argparse.Namespace) -> int:
    names = ["oxillama", "one at a time", "llama-cpp-python"]
    conditions = ("threads", "questions", "words", "batch_size")
    whole = runs.Run(args, *conditions, engines=("oxillama", "llama-cpp-python"))
    from lm_eval import evaluate
    from lm_eval.tasks import TaskManager, get_task_dict

    n_turns = args.rounds + args.warmup
    with tempfile.TemporaryDirectory() as folder:
        config: dict[str, Any] = {"model_path": str(args.model), "num_threads": args.threads}
        batched = InferenceEngine(EngineConfig(**config, context_size=CONTEXT))
        alone = InferenceEngine(EngineConfig(**config, context_size=CONTEXT, prefix_cache_bytes=0))
        write_tasks(Path(folder), batched, n_turns, args.questions, args.words)
        manager = TaskManager(include_path=folder, include_defaults=False)
        answered: dict[str, list[Any]] = {name: [] for name in names}

        def turn(name: str, model: Any, numbers: Iterator[int]) -> dict[str, float]:
            task = f"choices{next(numbers)}"
            tasks = get_task_dict([task], manager)
            began = time.perf_counter()
            found = evaluate(model, tasks, bootstrap_iters=0)
            seconds = time.perf_counter() - began
            answers = [sample["filtered_resps"] for sample in found["samples"][task]]
            answered[name] += [score for each in answers for score, _ in each]
            return {SPEED.name: CHOICES * args.questions / seconds}

        models = (
            model_of(batched, args.batch_size),
            model_of(alone, 1, alone=True),
            peer_of(args.model, args.threads, batched),
        )
        subjects = {
            name: partial(turn, name, model, iter(range(n_turns))) for name, model in zip(names, models)
        }
        rows = whole.rows(subjects, [SPEED], args.model.name)
    ours, single, theirs = (np.array(answered[name]) for name in names)
    same = "the same" if (ours == single).all() else "NOT the same"
    print(f"log-likelihoods in batches and one at a time are {same}; the peer's differ by")
    print(f"{np.abs(ours - theirs).max():.3g} at most, of {np.abs(ours).mean():.3g} on average\n")
    return whole.finish(rows)
