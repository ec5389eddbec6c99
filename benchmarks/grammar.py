"""Grammars: time to compile, to find a mask the first time and again, beside llguidance and XGrammar.

A document is replayed token by token. Every round starts with nothing kept: a new vocabulary, a new grammar.
A mask's time is the least over the rounds, position by position; of these the mean and the 99th
percentile are shown. "Again" is the same document once more with the same compiled grammar.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import grammar_schemas, runs
from benchmarks.grammar_engines import ENGINES, Engine, Oxillama
from benchmarks.grammar_texts import CASES, Case
from oxillama.apps.bench.report import Metric, Row, align
from oxillama.apps.doctor.measure import seconds
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import JsonSchemaCompiler, Vocabulary, apply_grammar_mask


@dataclass
class Times:
    """Seconds: of each compilation; of each mask by round and position, first and again."""

    compile: list[float] = field(default_factory=list)
    first: list[list[float]] = field(default_factory=list)
    again: list[list[float]] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocab", type=Path, required=True, help="GGUF file with a vocabulary")
    parser.add_argument("--peer", choices=[*ENGINES][1:], action="append", default=[], help="repeatable")
    parser.add_argument("--case", choices=[case.name for case in CASES], action="append", help="default: all")
    grammar_schemas.add_arguments(parser)
    runs.add_arguments(parser, warmup=0)


def run(args: argparse.Namespace) -> int:
    """Prints one line per grammar and engine, then what does not depend on a grammar."""
    names, conditions = ["oxillama", *args.peer], ("vocab", "case", "schemas", "models", "only", "any_order")
    shown_as = {"vocab": args.vocab.stem, "schemas": str(args.schemas or "")}
    whole = runs.Run(args, *conditions, engines=names, **shown_as)
    tokenizer = TokenizerBridge.from_gguf(args.vocab)
    tokenizer.vocab_bytes()
    if args.schemas or args.models:
        ours = Oxillama(tokenizer)
        ours.compiler = JsonSchemaCompiler(any_order=args.any_order)
        engines = {name: ours if name == "oxillama" else ENGINES[name](tokenizer) for name in names}
        return of_schemas(args, engines, whole)
    cases = [case for case in CASES if not args.case or case.name in args.case]
    times = {(case.name, name): Times() for case in cases for name in names}
    peers = {name: ENGINES[name](tokenizer) for name in args.peer}
    for round_ in range(args.warmup + args.rounds):
        for case in cases:
            for name in names:
                engine = peers.get(name) or Oxillama(tokenizer)
                measure(engine, case, times[case.name, name] if round_ >= args.warmup else Times())
    lines = [["grammar", "engine", "tokens", "compile, ms (worst)", "mask, us: mean", "p99", "again", "p99"]]
    for (case_name, name), found in times.items():
        lines.append([case_name, name, str(len(found.first[0])), *shown(found)])
    print(f"{args.vocab.stem}: {tokenizer.n_vocab} tokens, {args.rounds} rounds, one thread")
    print_constants(tokenizer)
    results = [row for case in cases for row in case_rows(case.name, {n: times[case.name, n] for n in names})]
    return whole.finish(results, align(lines))


def of_schemas(args: argparse.Namespace, engines: dict[str, Engine], whole: runs.Run) -> int:
    """Prints a table for each group of schemas."""
    found: list[Row] = []
    texts: list[str] = []
    for group, samples in grammar_schemas.groups(args).items():
        rounds = 1 if group == "real schemas" else args.rounds
        outcomes = grammar_schemas.measure(engines, samples, rounds)
        found += grammar_schemas.rows(group, outcomes)
        texts.append(grammar_schemas.shown(group, samples, outcomes, args.slow))
    return whole.finish(found, "\n\n".join(texts))


def case_rows(case: str, times: dict[str, Times]) -> list[Row]:
    """A grammar's rows: the rounds' means."""
    compiled = {name: [1e3 * spent for spent in found.compile] for name, found in times.items()}
    first = {name: [1e6 * float(np.mean(masks)) for masks in found.first] for name, found in times.items()}
    again = {name: [1e6 * float(np.mean(masks)) for masks in found.again] for name, found in times.items()}
    return [
        Row(case, Metric("compile", "ms", higher_is_better=False), compiled),
        Row(case, Metric("mask, mean", "us", higher_is_better=False), first),
        Row(case, Metric("mask again, mean", "us", higher_is_better=False), again),
    ]


def measure(engine: Engine, case: Case, times: Times) -> None:
    """One round of one engine."""
    tokens = engine.tokenizer.encode(case.document, add_special=False)
    gc.collect()
    start = time.perf_counter()
    compiled = engine.compile(case)
    times.compile.append(time.perf_counter() - start)
    times.first.append(list(engine.masks(compiled, tokens, time.perf_counter)))
    times.again.append(list(engine.masks(compiled, tokens, time.perf_counter)))


def shown(times: Times) -> list[str]:
    first, again = np.min(times.first, axis=0) * 1e6, np.min(times.again, axis=0) * 1e6
    compiled = np.array(times.compile) * 1e3
    return [
        f"{np.median(compiled):.1f} ({compiled.max():.1f})",
        f"{first.mean():.2f}",
        f"{np.percentile(first, 99):.1f}",
        f"{again.mean():.2f}",
        f"{np.percentile(again, 99):.1f}",
    ]


def print_constants(tokenizer: TokenizerBridge) -> None:
    """Time and memory of a vocabulary, time to apply masks."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    best = min(seconds(partial(Vocabulary.from_tokenizer, tokenizer)) for _ in range(5))
    print(f"vocabulary: {best * 1e3:.0f} ms, {vocabulary.n_bytes / 1e6:.1f} MB")
    rng = np.random.default_rng(0)
    for share in (0.0, 0.01, 0.5, 0.97):
        mask = np.packbits(rng.random(32 * vocabulary.n_words) < share, bitorder="little").view(np.uint32)
        logits = np.zeros(vocabulary.n_vocab, np.float32)
        apply_times = [seconds(partial(apply_grammar_mask, logits, mask)) for _ in range(200)]
        print(f"apply a mask of {share:.0%}: {np.median(apply_times) * 1e6:.1f} us")
