"""What drafts are worth: tokens a second with them and without, in turns.

The parts: ``demo`` drafts with the demo's small model for its larger one. ``blocks`` drafts with the block
for next-token prediction of the model given, which tells the demo's stories
(tools/train_demo/next_token.py). ``oracle`` has the model given verify drafts of which a fixed share is
right, so many or as many as the engine chooses, beside what the measured cost of the rows allows. ``lookup``
copies parts of the prompt, beside llama.cpp's look-up. ``none`` drafts what is always wrong, for one stream
and eight. ``beams`` is a beam search beside one stream.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import runs
from benchmarks.drafting import FixedLengths, Forced, LlamaCppLookup, Oracle, Work, copying_work
from benchmarks.peers import LlamaCpp
from benchmarks.serving import make_engine, prompts_of
from benchmarks.timing import Subjects
from oxillama import BeamSearchConfig, SamplerConfig, demo
from oxillama.apps.bench.report import Metric, Row, align
from oxillama.apps.doctor.measure import seconds
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.protocols import Drafter
from oxillama.engine.sequence import Sequence as Tokens
from oxillama.errors import ConfigError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.speculation.state import SpeculationStats

PARTS = ("demo", "oracle", "lookup", "none", "beams")
OF_BLOCKS = "blocks"  # not among the default parts: few models have them
RATES = (0.6, 0.8, 0.9)
LENGTHS = (4, 7)
MOST = 8  # drafted tokens, an engine's default
PROMPT = 32  # tokens
CONTEXT = 2048
BEAM = Metric("beams, a step", "ms", higher_is_better=False)
Turn = Callable[[], Mapping[str, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = f"of {', '.join((*PARTS, OF_BLOCKS))} (default: all but the last)"
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=known)
    parser.add_argument("--model", type=Path, help="GGUF file; for all parts but demo")
    parser.add_argument("--peer", choices=[LlamaCpp.name], help="an engine to compare look-ups with")
    runs.add_option(parser, "--new", 64, "tokens of each text", type=int)
    runs.add_threads(parser)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    unknown = [part for part in args.parts if part not in (*PARTS, OF_BLOCKS)]
    if unknown:
        raise ConfigError(f"parts: expected some of {', '.join((*PARTS, OF_BLOCKS))}, got {unknown[0]}")
    if args.model is None and set(args.parts) != {"demo"}:
        raise ConfigError("--model: expected a GGUF file for all parts but demo, got none")
    if args.new < 8:
        raise ConfigError(f"--new: expected at least 8, got {args.new}")
    engines = ["oxillama", *([args.peer] if args.peer else [])]
    whole = runs.Run(args, "threads", "new", engines=engines)
    bench = Bench(whole, args)
    results = [row for part in args.parts for row in getattr(bench, part)()]
    return whole.finish(results)


class Bench:
    """The parts; each returns its rows and prints what is no speed."""

    def __init__(self, whole: runs.Run, args: argparse.Namespace) -> None:
        self.whole, self.args = whole, args
        self._engine: InferenceEngine | None = None

    @property
    def engine(self) -> InferenceEngine:
        """The engine of the model, warmed up."""
        if self._engine is None:
            self._engine = make_engine(self.args.model, self.args.threads, CONTEXT)
        return self._engine

    def demo(self) -> list[Row]:
        """The demo's models, all its prompts, greedy and with a seed; then eight streams together."""
        return self._stories("demo", demo.STORY, str(demo.DRAFT))

    def blocks(self) -> list[Row]:
        """The same with the model given and its block. Raises ConfigError if it has none."""
        with ModelFile.open(self.args.model) as file:
            if not file.metadata.get(f"{read_spec(file).family.name}.nextn_predict_layers"):
                message = "expected a file with a block for next-token prediction, got one without"
                raise ConfigError(f"--model: {message}")
        return self._stories("blocks", self.args.model, "auto")

    def _stories(self, part: str, path: Path, draft: str) -> list[Row]:
        engine = InferenceEngine.from_gguf(path, num_threads=self.args.threads)
        found: list[Row] = []
        ways = {"drafts": draft, "plain": "off"}
        alone = [[prompt] for prompt in demo.PROMPTS]
        cases: list[tuple[list[list[str]], dict[str, Any]]] = [
            (alone, {"temperature": 0.0}),
            (alone, {"temperature": 0.8, "seed": 7}),
            ([[*demo.PROMPTS, *demo.PROMPTS[:2]]], {"temperature": 0.0}),
        ]
        for groups, options in cases:
            n = len(groups[0])
            texts: dict[str, list[list[int]]] = {}
            stats: list[SpeculationStats] = []
            noted = (engine, groups, texts, stats, options, min(200, 4 * self.args.new))
            label = f"{n} stream{'s' * (n > 1)} at temperature {options['temperature']:g}"
            subjects = {name: partial(several, *noted, way) for name, way in ways.items()}
            found += self._compared(f"{part}, {label}", subjects)
            assert texts[draft] == texts["off"], "drafts have changed a text"
            print(f"{part}, {label}: {became(stats)}; texts equal")
        engine.close()
        return found

    def oracle(self) -> list[Row]:
        """Fixed shares of right tokens, fixed and chosen lengths, beside the cost of the rows."""
        engine, (prompt,) = self.engine, prompts_of(1, self.engine.model.spec.n_vocab, PROMPT)
        text, ways = self._plain([prompt])[0], [(rate, k) for rate in RATES for k in (*LENGTHS, 0)]
        taken: dict[str, list[tuple[int, int]]] = {}  # tokens and steps
        subjects: dict[str, Turn] = {"plain": lambda: decoded(engine, [prompt], self.args.new, "off")[0]}
        for rate, k in ways:
            name = f"{rate:.0%} right, {k or 'chosen'}"
            oracle = self._oracle(name, rate, [(prompt, text)], k or MOST)

            def turn(name: str = name, k: int = k) -> Mapping[str, float]:
                with fixed_lengths(engine, k):
                    speed, (done,) = decoded(engine, [prompt], self.args.new, name)
                assert done.tokens == text
                taken.setdefault(name, []).append((len(text), len(text) - done.speculation.accepted))
                return speed

            subjects[oracle.name] = turn
        counts = (1, *(k + 1 for k in LENGTHS))
        subjects["rows"] = lambda: row_seconds(engine, counts)
        samples = self.whole.alternate(subjects)
        costs = {
            n: median(b / a for a, b in zip(samples["rows"]["1"], samples["rows"][str(n)])) for n in counts
        }
        print(
            "a step of n rows, relative to one: " + ", ".join(f"{n}: {cost:.3f}" for n, cost in costs.items())
        )
        lines = [["drafts", "tokens a step", "relative cost", "speed-up", "tokens a step / cost", "of that"]]
        found = []
        for rate, k in ways:
            name = f"{rate:.0%} right, {k or 'chosen'}"
            row = self._row(f"oracle, {name}", "drafts", samples[name], samples["plain"])
            found.append(row)
            tokens, steps = map(sum, zip(*taken[name]))
            speed_up = row.ratio.median if row.ratio else 0.0
            line = [name, f"{tokens / steps:.2f}"]
            if k:
                bound = tokens / steps / costs[k + 1]
                line += [f"{costs[k + 1]:.3f}", f"{speed_up:.2f}", f"{bound:.2f}", f"{speed_up / bound:.2f}"]
            lines.append(line if k else [*line, "", f"{speed_up:.2f}", "", ""])
        print(align(lines))
        return found

    def lookup(self) -> list[Row]:
        """Copying, with and without look-ups, beside llama.cpp with its own look-ups."""
        engine, found = self.engine, []
        peers = {}
        if self.args.peer:
            peers = {n: LlamaCppLookup(self.args.model, self.args.threads, CONTEXT, n) for n in (2, 10)}
        for work in copying_work(self.args.new, engine.model.spec.n_vocab):
            stats: list[Any] = []
            ways = {"lookup": "lookup", "plain": "off"}
            subjects: dict[str, Turn] = {
                **{name: partial(copied, engine, work, way, stats) for name, way in ways.items()},
                **{f"llama.cpp, lookup of {n}": partial(peer.decode, work) for n, peer in peers.items()},
            }
            samples = self.whole.alternate(subjects)
            name = f"lookup, {work.name}"
            for other in list(subjects)[1:]:
                found.append(self._row(name, "lookup", samples["lookup"], samples[other], other))
            print(f"{name}: {became(stats)}")
        for peer in peers.values():
            peer.close()
        return found

    def none(self) -> list[Row]:
        """Drafts that are always wrong, for one stream and eight; and mostly right ones for eight."""
        engine, found = self.engine, []
        for n, rate in ((1, 0.0), (8, 0.0), (8, 0.8)):
            prompts = prompts_of(n, engine.model.spec.n_vocab, PROMPT)
            texts = self._plain(prompts)
            oracle = self._oracle(f"{n} at {rate}", rate, list(zip(prompts, texts)), MOST)

            def turn(way: str, prompts: list[list[int]] = prompts) -> Turn:
                return lambda: decoded(engine, prompts, self.args.new, way)[0]

            name = f"oracle, {n} stream{'s' * (n > 1)}, {rate:.0%} right"
            found += self._compared(name, {"drafts": turn(oracle.name), "plain": turn("off")})
        return found

    def beams(self) -> list[Row]:
        """A step of a beam search beside a step of one stream."""
        engine, (prompt,) = self.engine, prompts_of(1, self.engine.model.spec.n_vocab, PROMPT)
        new = self.args.new

        def search(n: int) -> None:
            engine.beam_search(prompt, BeamSearchConfig(beam_width=4, max_new_tokens=n, early_stopping=False))

        def plain(n: int) -> None:
            engine.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True)

        def step(way: Callable[[int], None]) -> Mapping[str, float]:
            first, whole = (seconds(partial(way, n)) for n in (1, new))  # the first runs the prompt
            return {BEAM.name: (whole - first) / (new - 1) * 1e3}

        subjects: dict[str, Turn] = {"4 beams": partial(step, search), "one stream": partial(step, plain)}
        return self.whole.rows(subjects, [BEAM])

    def _plain(self, prompts: list[list[int]]) -> list[list[int]]:
        return [done.tokens for done in decoded(self.engine, prompts, self.args.new, "off")[1]]

    def _oracle(self, name: str, rate: float, texts: list[tuple[list[int], list[int]]], most: int) -> Oracle:
        oracle = self.engine.model.feature("drafters").loaded[name] = Oracle(name, rate, most)
        oracle.texts = texts
        return oracle

    def _compared(self, name: str, subjects: Subjects) -> list[Row]:
        samples = self.whole.alternate(subjects)
        (first, second) = samples
        return [self._row(name, first, samples[first], samples[second], second)]

    def _row(
        self,
        name: str,
        first: str,
        samples: Mapping[str, list[float]],
        others: Mapping[str, list[float]],
        second: str = "plain",
    ) -> Row:
        model = self.args.model.stem if self.args.model and not name.startswith("demo") else "demo"
        metric = Metric(name, "tok/s", higher_is_better=True)
        return Row(model, metric, {first: samples["decode"], second: others["decode"]})


@contextmanager
def fixed_lengths(engine: InferenceEngine, k: int) -> Iterator[None]:
    """A context in which the engine drafts as much as it may; for ``k`` 0 as much as it chooses."""
    loop, chosen = engine.model.loop, engine.model.loop.drafter
    if k:
        loop.use_drafter(FixedLengths())
    try:
        yield
    finally:
        loop.use_drafter(chosen or Drafter())


def became(stats: Sequence[SpeculationStats]) -> str:
    """What became of drafts."""
    drafted, accepted = sum(s.drafted for s in stats), sum(s.accepted for s in stats)
    passes = max(1, sum(s.passes for s in stats))
    return (
        f"{accepted / max(1, drafted):.1%} of the drafted tokens accepted, {drafted / passes:.2f} drafted "
        f"and {accepted / passes:.2f} accepted in each of {passes / len(stats):.1f} passes of a text"
    )


def decoded(
    engine: InferenceEngine, prompts: Sequence[Any], n: int, way: str, **options: Any
) -> tuple[dict[str, float], list[Any]]:
    """Tokens a second of decoding some prompts together, and the completions."""
    fixed = options or {"temperature": 0, "ignore_eos": True}
    before = engine.metrics_snapshot()
    # without a window: one stream is read after the other, and all of them are to run together
    streams = [engine.stream(p, max_tokens=n, speculate=way, window=None, **fixed) for p in prompts]
    done = [stream.result() for stream in streams]
    engine.model.call(lambda: None)  # the last step has been measured
    after = engine.metrics_snapshot()
    tokens = after.generation_tokens - before.generation_tokens - len(prompts)
    return {"decode": tokens / (after.decode_seconds - before.decode_seconds)}, done


def several(
    engine: InferenceEngine,
    groups: list[list[Any]],
    texts: dict[str, list[list[int]]],
    stats: list[Any],
    options: dict[str, Any],
    n_tokens: int,
    way: str,
) -> dict[str, float]:
    """`decoded` for one group after the other; notes the tokens, and what became of drafts."""
    speeds, said = [], []
    for group in groups:
        speed, done = decoded(engine, group, n_tokens, way, **options)
        speeds.append(speed["decode"])
        said += [completion.tokens for completion in done]
        stats += [completion.speculation for completion in done if completion.speculation]
    assert texts.setdefault(way, said) == said
    return {"decode": len(speeds) / sum(1 / speed for speed in speeds)}


def copied(engine: InferenceEngine, work: Work, way: str, stats: list[Any]) -> dict[str, float]:
    """Tokens a second of a text that is forced."""
    stage = Forced(len(work.prompt), work.text)
    sampler = SamplerConfig(order=(stage, "temperature"), temperature=0.0)
    speed, (done,) = decoded(engine, [work.prompt], len(work.text), way, sampler=sampler)
    assert done.tokens == work.text
    if done.speculation:
        stats.append(done.speculation)
    return speed


def row_seconds(engine: InferenceEngine, counts: Sequence[int], repeats: int = 3) -> dict[str, float]:
    """Seconds of a pass of so many rows of one sequence behind a short text, logits of all rows included."""

    def job() -> dict[str, float]:
        runner, found = engine.model.runner, {}
        sequence = Tokens(engine.model.pool, [5] * 64)
        runner.forward([(sequence, 64)])
        for n in counts:
            taken = []
            for _ in range(repeats):
                sequence.truncate(64)
                sequence.tokens += [7] * n
                taken.append(seconds(lambda n=n: runner.forward([(sequence, n)], all_logits=True)))
            found[str(n)] = median(taken)
        sequence.release()
        return found

    return engine.model.call(job)
