"""Measures prefill and decode speed of one model, for `oxillama bench`.

`benchmarks/` in the source tree compares engines with the same functions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oxillama.apps.bench.report import Summary
from oxillama.base.config import checks
from oxillama.base.config.engine import available_cpus

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.base.config import EngineFields


@dataclass(frozen=True)
class ModelSpeed:
    """Results of `bench_model`.

    Attributes:
        load_seconds: time to load the model and run one token.
        prefill_samples, decode_samples: tokens per second, one value for each round.
    """

    model: str
    prompt_tokens: int
    new_tokens: int
    num_threads: int
    load_seconds: float
    prefill_samples: tuple[float, ...]
    decode_samples: tuple[float, ...]

    @property
    def prefill(self) -> Summary:
        """Summary of the rounds' prefill speeds."""
        return Summary.of(self.prefill_samples)

    @property
    def decode(self) -> Summary:
        """Summary of the rounds' decode speeds."""
        return Summary.of(self.decode_samples)


def bench_model(
    path: str | os.PathLike[str],
    *,
    prompt_tokens: int = 512,
    new_tokens: int = 32,
    rounds: int = 10,
    warmup: int = 1,
    progress: Callable[[int, int], object] | None = None,
    **config: Unpack[EngineFields],
) -> ModelSpeed:
    """Measure prefill of ``prompt_tokens`` tokens, then decoding of ``new_tokens`` more, ``rounds`` times.

    Decoding feeds fixed tokens one by one, so it excludes sampling.

    Args:
        warmup: number of rounds before the measured ones.
        progress: called with (rounds done, total rounds) after each round.
        config: fields of `EngineConfig`; the default context size is the number of tokens of a round.

    Raises:
        ConfigError: a count is below 1 (``warmup``: below 0), or an option is out of range. Also the errors
            of loading and running a model.
    """
    counts = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "rounds": rounds}
    for name, count in counts.items():
        checks.integer(name, count, 1)
    checks.integer("warmup", warmup, 0)
    from oxillama import EngineConfig, InferenceEngine

    threads = config.get("num_threads")
    config["num_threads"] = threads = available_cpus() if threads is None else threads
    config.setdefault("context_size", prompt_tokens + new_tokens)
    start = time.perf_counter()
    engine = InferenceEngine(EngineConfig(model_path=os.fspath(path), **config))
    with engine.session() as session:
        n_vocab = len(session.prefill([1]))
    load_seconds = time.perf_counter() - start

    prompt, new = fixed_tokens(prompt_tokens, n_vocab), fixed_tokens(new_tokens, n_vocab)
    prefill, decode = [], []
    for done in range(1, warmup + rounds + 1):
        with engine.session() as session:
            start = time.perf_counter()
            session.prefill(prompt)
            middle = time.perf_counter()
            for token in new:
                session.forward(token)
            end = time.perf_counter()
        prefill.append(prompt_tokens / (middle - start))
        decode.append(new_tokens / (end - middle))
        if progress is not None:
            progress(done, warmup + rounds)
    return ModelSpeed(
        Path(path).name,
        prompt_tokens,
        new_tokens,
        threads,
        load_seconds,
        tuple(prefill[warmup:]),
        tuple(decode[warmup:]),
    )


def fixed_tokens(n: int, n_vocab: int) -> list[int]:
    """``n`` token ids spread over a vocabulary; deterministic, and never id 0."""
    return [1 + i * 7919 % (n_vocab - 1) for i in range(n)]
