"""The engine: a model file in, text out. Composes tokenizer, model, pages and sampler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Any

import numpy as np

from oxillama import _kernels
from oxillama.cache.pages import PagePool
from oxillama.config import EngineConfig, available_cpus
from oxillama.engine.generation import Generation
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.formats import KV_TYPES
from oxillama.modelfile import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.sampling.chain import Sampler
from oxillama.sampling.params import SamplerConfig
from oxillama.tensor import Loaded, Weights
from oxillama.tokenizer import TokenizerBridge

Prompt = str | Listed[int] | np.ndarray


class InferenceEngine:
    """Runs one model.

    Parameters
    ----------
    config : options; its ``model_path``, if any, is loaded at once.
    progress : called with (tensor name, bytes) for each tensor as it comes into memory, which then all
        do at once; without it each matrix is packed when it is first used.

    Raises
    ------
    ModelFileError, GGUFError, LoadError, TokenizerError : the model cannot be loaded, and why.
    ConfigError : an option cannot be honoured.
    """

    def __init__(self, config: EngineConfig | None = None, *, progress: Loaded | None = None) -> None:
        self.config = config or EngineConfig()
        self.kernels = _kernels.best()
        self.num_threads = self.config.num_threads or available_cpus()
        self.last: Generation | None = None
        self._file: ModelFile | None = None
        if self.config.model_path is not None:
            self.load_model(self.config.model_path, progress=progress)

    @classmethod
    def from_gguf(
        cls, path: str | os.PathLike[str], *, progress: Loaded | None = None, **config: Any
    ) -> InferenceEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        return cls(EngineConfig(model_path=path, **config), progress=progress)

    def load_model(self, path: str | os.PathLike[str], *, progress: Loaded | None = None) -> None:
        """Loads a model in place of the present one, which stays if the new one cannot be loaded."""
        self._load(ModelFile.open(path), progress)

    def load_model_from_bytes(self, data: bytes, *, progress: Loaded | None = None) -> None:
        """The same, from the bytes of a whole GGUF file."""
        self._load(ModelFile.open(data), progress)

    def _load(self, file: ModelFile, progress: Loaded | None) -> None:
        config = self.config
        try:
            spec = read_spec(file)
            if config.tokenizer_path is None:
                tokenizer = TokenizerBridge.from_metadata(file.metadata)
            else:
                tokenizer = TokenizerBridge.from_file(config.tokenizer_path, file.metadata)
            if tokenizer.n_vocab > spec.n_vocab:
                raise LoadError(
                    f"tokenizer: has {tokenizer.n_vocab} tokens, the embedding only {spec.n_vocab} rows"
                )
            weights = Weights(file, self.kernels, self.num_threads, progress)
            model = Decoder(spec, weights)
            if progress is not None:
                for matrices in model.matrices():
                    matrices.pack()
            context = config.context_size or min(spec.context_length, 10**6 - 1)
            shape = model.kv_shape(KV_TYPES[config.kv_type], config.page_size)
        except BaseException:
            file.close()
            raise
        if weights.unused():
            warnings.warn(f"tensors that the model does not use: {', '.join(weights.unused())}", stacklevel=4)
        if context > spec.context_length:
            warnings.warn(
                f"context_size: {context} is more than the {spec.context_length} the model was trained with",
                stacklevel=4,
            )
        if self._file is not None:
            self._file.close()
        self._file, self.spec, self.tokenizer, self.context_size = file, spec, tokenizer, context
        pool = PagePool(shape, config.page_size, max_pages=2**31 - 1)  # memory is taken as it is needed
        self.runner = Runner(model, pool, self.num_threads)
        self._sequence = Sequence(pool)
        self.last = None

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model to run."""
        return self._file is not None

    @property
    def metadata(self) -> dict[str, Any]:
        """The model file's metadata."""
        return self._need_file().metadata

    def _need_file(self) -> ModelFile:
        if self._file is None:
            raise ConfigError("model_path: no model is loaded")
        return self._file

    # --- text -----------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        *,
        sampler: SamplerConfig | None = None,
        max_tokens: int = 256,
        stop: str | Listed[str] = (),
        callback: Callable[[str], object] | None = None,
    ) -> Generation:
        """Starts a fresh sequence and yields its text piece by piece. Never half a character.

        Parameters
        ----------
        prompt : text, or token ids as they are (no BOS is added to those).
        sampler : how to choose tokens; None takes the engine's.
        max_tokens : most tokens to generate.
        stop : strings that end the text; they are not part of it.
        callback : called with each piece; returning False cancels.

        Raises
        ------
        PromptError : the prompt is empty, or leaves no room in the context for a token.
        TokenizerError : the text is not valid unicode.
        ConfigError : an option is out of range.
        """
        self._need_file()
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
            raise ConfigError(f"max_tokens: needs an integer from 0 on, got {max_tokens!r}")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(s, str) and s for s in stops):
            raise ConfigError(f"stop: needs strings that are not empty, got {stop!r}")
        tokens = self._prompt_tokens(prompt)
        if len(tokens) >= self.context_size:
            raise PromptError(
                f"prompt: {len(tokens)} tokens leave no room for more in a context of {self.context_size}"
            )
        self.last = Generation(
            self.runner,
            self.tokenizer,
            Sampler(sampler or self.config.sampler, self.kernels, self.config.seed),
            tokens,
            max_tokens=max_tokens,
            stop=stops,
            context_size=self.context_size,
            chunk=self.config.prefill_chunk_size,
            callback=callback,
        )
        return self.last

    def generate(
        self,
        prompt: Prompt,
        *,
        sampler: SamplerConfig | None = None,
        max_tokens: int = 256,
        stop: str | Listed[str] = (),
        callback: Callable[[str], object] | None = None,
    ) -> str:
        """The whole text that `stream` yields; `finish_reason` then tells why it ended."""
        return "".join(
            self.stream(prompt, sampler=sampler, max_tokens=max_tokens, stop=stop, callback=callback)
        )

    @property
    def finish_reason(self) -> str | None:
        """Why the last generation ended; None if there is none or it goes on."""
        return self.last.finish_reason if self.last else None

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text. Raises TokenizerError if it is not valid unicode."""
        self._need_file()
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Listed[int] | np.ndarray) -> str:
        """Text of token ids."""
        self._need_file()
        return self.tokenizer.decode([int(t) for t in tokens])

    def is_eos(self, token: int) -> bool:
        """Whether a token ends a generation."""
        self._need_file()
        return token in self.tokenizer.eog_ids

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise PromptError("prompt: is empty")
            return self.tokenizer.encode(prompt)
        return self._checked_tokens(prompt)

    def _checked_tokens(self, tokens: Listed[int] | np.ndarray) -> list[int]:
        ids = [int(t) for t in tokens]
        if not ids:
            raise PromptError("prompt: has no tokens")
        wrong = next((t for t in ids if not 0 <= t < self.spec.n_vocab), None)
        if wrong is not None:
            raise PromptError(f"prompt: token {wrong} is not in the vocabulary of {self.spec.n_vocab}")
        return ids

    # --- logits ---------------------------------------------------------------------------------

    def logits(self, tokens: Prompt) -> np.ndarray:
        """float32 (n, vocab): logits after each token of a fresh sequence. Leaves `prefill`'s alone."""
        self._need_file()
        sequence = Sequence(self.runner.pool, self._prompt_tokens(tokens))
        try:
            return self._extend(sequence, all_logits=True)
        finally:
            sequence.release()

    def prefill(self, tokens: Prompt) -> np.ndarray:
        """Appends tokens to the engine's own sequence; float32 (vocab,) logits after the last."""
        self._need_file()
        fresh = self._prompt_tokens(tokens)
        self._sequence.tokens += fresh
        try:
            logits: np.ndarray = self._extend(self._sequence)[0]
            return logits
        except BaseException:
            self._sequence.truncate(len(self._sequence.tokens) - len(fresh))
            raise

    def forward_one(self, token: int) -> np.ndarray:
        """Appends one token to the engine's own sequence; float32 (vocab,) logits after it."""
        return self.prefill([token])

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens`` tokens of the engine's own sequence."""
        self._need_file()
        if isinstance(n_tokens, bool) or not 0 <= n_tokens <= len(self._sequence.tokens):
            raise ConfigError(f"n_tokens: needs 0 to {len(self._sequence.tokens)}, got {n_tokens!r}")
        self._sequence.truncate(n_tokens)

    def reset(self) -> None:
        """Forgets the engine's own sequence."""
        self._need_file()
        self._sequence.release()

    @property
    def kv_cache_seq_len(self) -> int:
        """Tokens in the engine's own sequence."""
        return self._sequence.cached_len if self.is_loaded else 0

    def _extend(self, sequence: Sequence, all_logits: bool = False) -> np.ndarray:
        """Runs what is pending, in chunks; logits of every row, or (1, vocab) of the last."""
        if len(sequence.tokens) > self.context_size:
            raise PromptError(
                f"prompt: {len(sequence.tokens)} tokens do not fit a context of {self.context_size}"
            )
        parts = []
        while sequence.pending:
            n = min(self.config.prefill_chunk_size, sequence.pending)
            parts.append(self.runner.forward([(sequence, n)], all_logits))
        return np.concatenate(parts) if all_logits else parts[-1]
