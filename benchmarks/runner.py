"""An engine as the benchmarks see it: five small methods, around which `Runner` measures the time.

All engines get the same work: fixed token ids, a float16 KV cache unless asked otherwise, the logits of the
last token as float32, no sampling. An engine's package is imported when it is loaded, so that either can be
measured where the other is missing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.apps.bench.machine import peak_rss
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError, ModelFileError, SamplingError

Logits = NDArray[np.float32]


class Runner(ABC):
    """An engine with one model and one sequence.

    Attributes:
        module, package: that the engine is imported from, and that it is installed by.
        appends: whether the engine appends token ids to a context and returns logits. Otherwise only the
            number of the ids counts, and the logits are zeros.
        kv_types: that the engine can be asked for.
        kv_type: of its cache.
        load_seconds: time to open the model until it can be run.
        first_token_seconds: time to open the model and run one token, which reads memory-mapped weights.
        n_vocab: tokens in the vocabulary.
        logits: those of the last token of the last `prefill` or `extend`, float32 (n_vocab,).
    """

    name: str
    module: str
    package: str
    appends: bool = True
    kv_types: Collection[str] = ("f16",)
    kv_type: str = "f16"
    load_seconds: float
    first_token_seconds: float
    n_vocab: int
    logits: Logits
    _module: Any = None

    def __init__(
        self, model: Path, threads: int, context: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model = model
        self.threads = threads
        self.context = context
        self._clock = clock

    def keep(self, kv_type: str) -> None:
        """Has the engine keep keys and values so. Raises ConfigError for a type it cannot be asked for."""
        if kv_type not in self.kv_types:
            raise ConfigError(f"{self.name}: expected a KV type of {', '.join(self.kv_types)}, got {kv_type}")
        if kv_type != self.kv_type:
            self.name, self.kv_type = f"{self.name} {kv_type}", kv_type

    def load(self) -> None:
        """Import the engine, then open the model and run one token, timed.

        Raises ConfigError when the engine is not installed, ModelFileError or LoadError for the model.
        """
        if not self.model.is_file():
            raise ModelFileError(f"{self.model}: expected a GGUF model, got no such file")
        self._import()
        start = self._clock()
        self._open()
        self.load_seconds = self._clock() - start
        self.clear()
        logits = self._forward([1])
        self.first_token_seconds = self._clock() - start
        self.n_vocab = len(logits)
        self._check(logits)

    def prefill(self, tokens: Sequence[int]) -> float:
        """Seconds to run ``tokens`` from an empty context, up to the last one's logits."""
        self.clear()
        return self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> float:
        """Seconds to append ``tokens`` to the context, up to the last one's logits."""
        start = self._clock()
        logits = self._forward(tokens)
        seconds = self._clock() - start
        self._check(logits)
        self.logits = logits.copy()
        return seconds

    def decode(self, n: int) -> float:
        """Seconds to append ``n`` fixed tokens one at a time, each up to its logits."""
        tokens = fixed_tokens(n, self.n_vocab)
        start = self._clock()
        for token in tokens:
            self._forward_one(token)
        return self._clock() - start

    def job(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> float:
        """Seconds to run all prompts at once, and ``new[i]`` greedy tokens behind prompt i.

        Raises ConfigError for an engine that has one sequence here.
        """
        raise ConfigError(f"{self.name}: expected an engine that runs many prompts at once for --job")

    @property
    def peak_rss(self) -> int:
        """The most memory the whole process has had resident, in bytes."""
        return peak_rss()

    def _check(self, logits: Logits) -> None:
        if not np.isfinite(logits).all():
            raise SamplingError(f"{self.model}: {self.name} computed logits that are not finite")

    @abstractmethod
    def version(self) -> str:
        """Version of the engine, imported or not yet loaded."""

    @abstractmethod
    def clear(self) -> None:
        """Empty the context."""

    @abstractmethod
    def close(self) -> None:
        """Free the model and its memory; may be called at any time."""

    def _import(self) -> None:
        """Import the engine's package; ConfigError when that fails."""
        try:
            self._module = import_module(self.module)
        except (ImportError, OSError, RuntimeError) as error:
            message = f"peer {self.name}: expected the package {self.package}, got {error}"
            raise ConfigError(message) from error

    @abstractmethod
    def _open(self) -> None:
        """Open the model with a float16 KV cache of ``context`` tokens."""

    @abstractmethod
    def _forward(self, tokens: Sequence[int]) -> Logits:
        """Append ``tokens`` and return the last one's logits (valid until the next call)."""

    def _forward_one(self, token: int) -> Logits:
        """Append one token and return its logits."""
        return self._forward([token])


class PromptRunner(Runner):
    """An engine without a call that appends to a context: it takes a prompt, and generates behind it.

    Prefill is the time to the first new token, decoding that from the first to the last.
    """

    appends = False
    _vocab_size: int
    _prompt: Sequence[int] = ()

    def version(self) -> str:
        self._import()
        return f"{self.module.replace('_', '-')} {self._module.__version__}"

    def clear(self) -> None: ...

    def _forward(self, tokens: Sequence[int]) -> Logits:
        self._prompt = tokens
        self._times(1)
        return np.zeros(self._vocab_size, np.float32)

    def decode(self, n: int) -> float:
        times = self._times(n + 1)
        return times[-1] - times[0]

    @abstractmethod
    def _times(self, n: int) -> list[float]:
        """When each of ``n`` tokens came behind the prompt."""
