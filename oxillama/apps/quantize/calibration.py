"""Computes an importance matrix: runs a text through a model, and sums the squared inputs of each matrix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from oxillama.apps.quantize.imatrix import Entry, ImportanceMatrix
from oxillama.base.config import checks
from oxillama.base.config.engine import EngineConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, PromptError
from oxillama.gguf.model_file import TensorInfo
from oxillama.models.weights.packer import Progress
from oxillama.text.tokenizer.tokenizer import first_token


class Recorder:
    """Sums of squares per input column of each matrix; an observer of `Linear`."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}  # float64 (matrices, cols) each
        self.counts: dict[str, np.ndarray] = {}

    def __call__(self, info: TensorInfo, expert: int, x: np.ndarray) -> None:
        n_matrices = info.shape[2] if len(info.shape) > 2 else 1
        if info.name not in self.sums:
            self.sums[info.name] = np.zeros((n_matrices, info.shape[0]))
            self.counts[info.name] = np.zeros(n_matrices, np.int64)
        self.sums[info.name][expert] += np.square(x, dtype=np.float64).sum(axis=0)
        self.counts[info.name][expert] += len(x)

    def entries(self) -> dict[str, Entry]:
        """The sums so far, by tensor name."""
        return {
            name: Entry(sums.astype(np.float32), self.counts[name].astype(np.float32))
            for name, sums in self.sums.items()
        }


def collect_imatrix(
    model: str | os.PathLike[str],
    text: str | os.PathLike[str],
    *,
    chunk_size: int = 512,
    chunks: int | None = None,
    process_output: bool = False,
    num_threads: int | None = None,
    loading: Progress | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImportanceMatrix:
    """Compute the importance matrix of a model for a text, for `quantize_model`.

    The text is divided into chunks of tokens, each run from an empty context. A last chunk that is not full
    is left out, unless it is the only one. If the vocabulary adds a BOS, each chunk begins with it.

    Args:
        model: GGUF file (the first file of a split model).
        text: UTF-8 file, typical of the model's use.
        chunk_size: size of a chunk in tokens.
        chunks: maximum number of chunks; None: all.
        process_output: whether to include the output matrix; rarely useful, and its logits cost time.
        num_threads: None: the CPUs that this process may use.
        loading: called for each tensor when it is loaded.
        progress: called with (chunks done, total chunks).

    Raises:
        ConfigError: an option is out of range, or the text cannot be read.
        PromptError: the text is empty. And the errors of loading a model.
    """
    for name, value in (("chunk_size", chunk_size), ("chunks", chunks)):
        if value is not None:
            checks.integer(name, value, 1)
    content = _read(Path(os.fsdecode(text)))
    if not content:
        raise PromptError(f"text: expected a text, got an empty file {os.fspath(text)}")
    config = EngineConfig(model_path=model, num_threads=num_threads)
    engine = InferenceEngine(config, progress=loading)
    if chunk_size > engine.context_size:
        raise ConfigError(
            f"chunk_size: expected up to {engine.context_size} (context_size), got {chunk_size}"
        )
    tokens = engine.tokenizer.encode(content)
    pieces = [tokens[i : i + chunk_size] for i in range(0, len(tokens), chunk_size)]
    if len(pieces) > 1 and len(pieces[-1]) < chunk_size:
        pieces.pop()
    pieces = pieces[:chunks]
    begin = first_token(engine.tokenizer)
    recorder, loaded = Recorder(), engine.model
    runner = loaded.runner
    for matrices in runner.model.linears():
        if matrices is not runner.model.output or process_output:
            matrices.observer = recorder
    for i, piece in enumerate(pieces):
        sequence = Sequence(runner.pool, piece if begin is None else [begin, *piece[1:]])

        def run(sequence: Sequence = sequence) -> None:
            try:
                runner.forward([(sequence, sequence.pending)], all_logits=process_output)
            finally:
                sequence.release()

        loaded.call(run)
        if progress is not None:
            progress(i + 1, len(pieces))
    return ImportanceMatrix(recorder.entries(), (Path(os.fsdecode(text)).name,), len(pieces), chunk_size)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"text: expected UTF-8, got another byte at {error.start} of {path}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"text: {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
