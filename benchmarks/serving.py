"""Many requests at once: batched decoding beside llama.cpp's, shared prefixes, streams beside a long prompt.

Batched decoding takes turns with the peer. A turn decodes N sequences
together behind short prompts of their own; ours go through the engine as users' requests do, scheduler and
sampler included, the peer's through its batch interface with fixed tokens and nothing around it.
"""

from __future__ import annotations

import argparse
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import over_http, plot, runs
from benchmarks.peers import LlamaCpp
from benchmarks.vllm import Vllm
from oxillama.apps.bench.report import Metric, Row, Summary, align
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.measure import seconds
from oxillama.errors import PromptError

PROMPT = 16  # tokens of each sequence's prompt
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def add_arguments(command: argparse.ArgumentParser) -> None:
    runs.add_model(command)
    what = "to compare with: llama.cpp, decoding together, or over HTTP oxillama-w8a8, vllm or the path of a "
    what += "llama-server; repeatable"
    command.add_argument("--peer", type=engine_or_server, action="append", default=[], help=what)
    what = "libraries for vLLM's server alone, by colons (LD_PRELOAD)"
    command.add_argument("--vllm-preload", metavar="LIBS", help=what)
    runs.add_option(command, "--sequences", [1, 8, 32], "sequences at once", type=int, nargs="*")
    runs.add_option(command, "--new", 16, "tokens of each", type=int)
    runs.add_option(command, "--prefix", 1024, "tokens of the shared prefix; 0 leaves it out", type=int)
    what = "tokens of a long prompt beside a stream (default: leave it out)"
    command.add_argument("--long", type=int, default=0, help=what)
    what = "streams at once over HTTP, beside generate_batch (default: leave them out)"
    command.add_argument("--clients", type=runs.positive, nargs="*", default=[], metavar="N", help=what)
    what = "tokens of a long prompt beside four streams over HTTP (default: leave it out)"
    command.add_argument("--http-long", type=int, default=0, help=what)
    what = "limits of the wait of streams over HTTP while prompts come; 1e9 for none"
    command.add_argument("--waits", type=float, nargs="*", default=[], metavar="MS", help=what)
    runs.add_option(command, "--mixed-prompt", 512, "tokens of such a prompt")
    what = "tokens of a peer's step with --waits, -b or --max-num-batched-tokens"
    runs.add_option(command, "--peer-batches", [32, 128, 512], what, nargs="*")
    command.add_argument("--plot", type=Path, help="draw --waits as .svg or .png")
    runs.add_arguments(command)


def engine_or_server(text: str) -> str | Path:
    """The name of the engine that is a peer, or the path of a server."""
    return text if text in (LlamaCpp.name, Vllm.name, over_http.W8A8) else Path(text)


def run(args: argparse.Namespace) -> int:
    names = ("threads", "sequences", "new", "prefix", "long", "clients", "http_long", "waits", "mixed_prompt")
    with_engine = LlamaCpp.name in args.peer
    engines = ["oxillama", *(peer for peer in args.peer if isinstance(peer, str))]
    if args.plot is not None:
        plot.check(args.plot)
    whole = runs.Run(args, *names, engines=engines)
    context = max(args.prefix + 128, args.long + 1024, 512)
    engine = make_engine(args.model, args.threads, context)
    results: list[Row] = []
    if args.sequences:
        peer = BatchedLlamaCpp(args.model, args.threads, 32 * 64) if with_engine else None
        if peer is not None:
            peer.load()
        for n in args.sequences:
            results += measure_decoding(whole, engine, peer, n, args.new, whole.model)
        if peer is not None:
            peer.close()
        print(align([["sequences", "outside of the model, of a step"], *overheads(engine, args)]), flush=True)
    if args.prefix:
        print(align(first_tokens(engine, args.prefix)))
    if args.long:
        print(align(worst_gap(engine, args.long)))
    if args.clients:
        results += over_http.beside_library(whole, engine, args)
    n_vocab = engine.model.spec.n_vocab
    engine.close()
    if args.http_long:
        results += over_http.beside_prompt(whole, args, n_vocab)
    if args.waits:
        results += over_http.waits(whole, args, n_vocab)
    return whole.finish(results)


def make_engine(model: Path, threads: int, context: int) -> Any:
    """An engine for the model, with everything in memory."""
    from oxillama.compat.engine import InferenceEngine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the context may be longer than the model was trained with
        engine = InferenceEngine.from_gguf(
            model, num_threads=threads, context_size=context, prefix_cache_bytes=4 << 30
        )
    engine.logits(fixed_tokens(8, 1000))
    return engine


class BatchedLlamaCpp(LlamaCpp):
    """llama.cpp with many sequences in one context, through its own batches."""

    n_seq_max = 64

    def prefill_all(self, prompts: Sequence[Sequence[int]]) -> None:
        """Empties the context and runs a prompt for each sequence, a few at a time."""
        self.clear()
        for i, prompt in enumerate(prompts):
            self._decode([(token, at, i) for at, token in enumerate(prompt)])

    def decode_all(self, n_sequences: int, start: int, n: int) -> float:
        """Seconds to append ``n`` fixed tokens to each sequence, one of each at a time, logits included."""
        tokens = fixed_tokens(n, self.n_vocab)
        begun = time.perf_counter()
        for at, token in enumerate(tokens):
            self._decode([(token, start + at, i) for i in range(n_sequences)])
            for i in range(n_sequences):
                self._module.llama_get_logits_ith(self._context, i)
        return time.perf_counter() - begun

    def _decode(self, cells: Sequence[tuple[int, int, int]]) -> None:
        """One batch of (token, position, sequence), all with logits."""
        batch = self._module.llama_batch_init(len(cells), 0, 1)
        batch.n_tokens = len(cells)
        for i, (token, position, sequence) in enumerate(cells):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, 1
        status = self._module.llama_decode(self._context, batch)
        self._module.llama_batch_free(batch)
        if status != 0:
            raise PromptError(f"{self.model}: llama_decode of {len(cells)} tokens returned {status}")


def prompts_of(n: int, n_vocab: int, length: int = PROMPT) -> list[list[int]]:
    """Prompts that share nothing."""
    rng = np.random.default_rng()
    return [rng.integers(3, n_vocab, length).tolist() for _ in range(n)]


def measure_decoding(whole: runs.Run, engine: Any, peer: Any, n: int, new: int, model: str) -> list[Row]:
    """Tokens per second of ``n`` sequences together; ``peer`` may be None."""
    metric = Metric(f"decode, {n} sequences", "tok/s", higher_is_better=True)

    def ours() -> dict[str, float]:
        before = engine.metrics_snapshot()
        generate(engine, prompts_of(n, engine.model.spec.n_vocab), new + 1)  # the first token is the prompt's
        after = engine.metrics_snapshot()
        tokens = after.generation_tokens - before.generation_tokens - n
        return {metric.name: tokens / (after.decode_seconds - before.decode_seconds)}

    def theirs() -> dict[str, float]:
        peer.prefill_all(prompts_of(n, peer.n_vocab))
        return {metric.name: n * new / peer.decode_all(n, PROMPT, new)}

    subjects: dict[str, Callable[[], dict[str, float]]] = {"oxillama": ours}
    if peer is not None:
        subjects[peer.name] = theirs
    return whole.rows(subjects, [metric], model)


def generate(engine: Any, prompts: Sequence[Sequence[int]], n: int) -> None:
    """Runs all prompts together, ``n`` greedy tokens each."""
    from oxillama import SamplerConfig

    engine.generate_batch(prompts, max_tokens=n, ignore_eos=True, sampler=SamplerConfig(**GREEDY))


def overheads(engine: Any, args: argparse.Namespace) -> list[list[str]]:
    """Share of the time that is not spent in the model: scheduling, sampling, decoding of text."""
    found = []
    for n in args.sequences:
        inside, runner = [0.0], engine.model.runner
        real = runner.complete

        def timed(*given: Any, real: Any = real, inside: list[float] = inside) -> Any:
            begun = time.perf_counter()
            try:
                return real(*given)
            finally:
                inside[0] += time.perf_counter() - begun

        runner.complete = timed
        total = seconds(partial(generate, engine, prompts_of(n, engine.model.spec.n_vocab), args.new))
        runner.complete = real
        found.append([str(n), f"{1 - inside[0] / total:.2%}"])
    return found


def first_tokens(engine: Any, length: int, n: int = 16) -> list[list[str]]:
    """Time to the first token of requests, one after the other, that begin with the same tokens."""
    prefix = prompts_of(1, engine.model.spec.n_vocab, length)[0]
    tails = prompts_of(n, engine.model.spec.n_vocab, 8)
    first, *others = [seconds(partial(generate, engine, [prefix + tail], 1)) for tail in tails]
    rest = Summary.of(others)
    head = ["shared prefix", "first request, s", f"the {n - 1} others, median s", "worst s", "others / first"]
    share = f"{rest.median / first:.1%}, worst {rest.max / first:.1%}"
    return [head, [str(length), f"{first:.3f}", f"{rest.median:.4f}", f"{rest.max:.4f}", share]]


def worst_gap(engine: Any, length: int) -> list[list[str]]:
    """The longest that a running stream waits for a token while a long prompt is run beside it."""
    steps: list[tuple[float, int]] = []  # seconds and rows of prompts
    tell = engine.metrics.stepped

    def stepped(batch: Any, now: float) -> None:
        steps.append((batch.times.end - batch.times.propose, batch.n_prefill))
        tell(batch, now)

    engine.metrics.stepped = stepped
    (long,) = prompts_of(1, engine.model.spec.n_vocab, length)
    stream = engine.stream(prompts_of(1, engine.model.spec.n_vocab)[0], max_tokens=None, window=None)
    for _ in range(4):
        next(stream)
    begun = time.perf_counter()
    other = threading.Thread(target=generate, args=(engine, [long], 1))
    other.start()
    times = []
    while other.is_alive() and next(stream, None) is not None:
        times.append(time.perf_counter())
    other.join()
    total = time.perf_counter() - begun
    stream.close()
    engine.metrics.stepped = tell
    mixed = [(taken, n) for taken, n in steps if n and taken < total / 2][1:]
    step_seconds = Summary.of([taken for taken, _ in mixed])
    gaps = np.diff(times)
    head = ["long prompt", "total s", "stream's tokens", "chunk, median", "step, median s", "step, worst s"]
    row = [str(length), f"{total:.1f}", str(len(times)), f"{np.median([n for _, n in mixed]):.0f}"]
    row += [f"{step_seconds.median:.3f}", f"{step_seconds.max:.3f}"]
    head += ["gap, median s", "gap, worst s", "worst gap / median step"]
    row += [f"{np.median(gaps):.3f}", f"{gaps.max():.3f}", f"{gaps.max() / step_seconds.median:.2f}"]
    return [list(pair) for pair in zip(head, row)]
