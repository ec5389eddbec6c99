"""The engine: a model file in, text out. Composes tokenizer, model, pages, scheduler and sampler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Any, Literal, overload

import numpy as np
from blake3 import blake3

from oxillama import _kernels
from oxillama.cache.kv_pool import KvCachePool, KvLayout
from oxillama.cache.prefix import PinnedPrefix, PrefixKvCache, prefix_key
from oxillama.config.engine import EngineConfig, available_cpus
from oxillama.config.sampler import SamplerConfig
from oxillama.engine.constraints import Constraints
from oxillama.engine.core import EngineCore
from oxillama.engine.embedding import Embedder
from oxillama.engine.generation import Generation
from oxillama.engine.metrics import EngineMetrics, MetricsSnapshot
from oxillama.engine.request import Request, refuse_logprobs, wanted_logprobs
from oxillama.engine.runner import Runner
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.stepwise import Prompt, Stepwise
from oxillama.errors import ConfigError, KvCacheFullError, LoadError, PromptError
from oxillama.formats import KV_TYPES
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.sampling.chain import Sampler
from oxillama.sampling.logprobs import SampledToken
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.weights.file_types import named_format
from oxillama.weights.loader import Weights
from oxillama.weights.packer import Progress

SAMPLE_BYTES = 256  # of a tensor, for its model's key


class InferenceEngine(Stepwise, Embedder):
    """Runs one model, for any number of requests at a time and from any thread.

    Threads that generate at the same time share their batches.

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

    def __init__(self, config: EngineConfig | None = None, *, progress: Progress | None = None) -> None:
        self.config = config or EngineConfig()
        self.kernels = _kernels.best()
        self.num_threads = self.config.num_threads or available_cpus()
        self.last: Generation | None = None
        self._file: ModelFile | None = None
        if self.config.model_path is not None:
            self.load_model(self.config.model_path, progress=progress)

    @classmethod
    def from_gguf(
        cls, path: str | os.PathLike[str], *, progress: Progress | None = None, **config: Any
    ) -> InferenceEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        return cls(EngineConfig(model_path=path, **config), progress=progress)

    def load_model(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
        """Loads a model in place of the present one, which stays if the new one cannot be loaded."""
        self._load(ModelFile.open(path), progress)

    def load_model_from_bytes(self, data: bytes, *, progress: Progress | None = None) -> None:
        """The same, from the bytes of a whole GGUF file."""
        self._load(ModelFile.open(data), progress)

    def _load(self, file: ModelFile, progress: Progress | None) -> None:
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
            wanted = None if config.quantize is None else named_format(config.quantize, "quantize")
            weights = Weights(file, self.kernels, self.num_threads, progress, wanted, config.compute)
            context = config.context_size or min(spec.context_length, 10**6 - 1)
            model = Decoder(spec, weights, context)
            if progress is not None:
                for matrices in model.linears():
                    matrices.pack()
            shape = model.kv_shape(KV_TYPES[config.kv_type], config.page_size)
            layout = KvLayout(*model.kv_dims(), config.kv_type)
            pool = KvCachePool(shape, layout, config.page_size, config.kv_memory_limit)
            runner = Runner(model, pool, self.num_threads)
        except BaseException:
            file.close()
            raise
        if weights.unused():
            warnings.warn(f"tensors that the model does not use: {', '.join(weights.unused())}", stacklevel=4)
        if spec.unread:
            warnings.warn(f"options that the model does not have: {', '.join(spec.unread)}", stacklevel=4)
        if context > spec.context_length:
            warnings.warn(
                f"context_size: {context} is more than the {spec.context_length} the model was trained with",
                stacklevel=4,
            )
        if self._file is not None:
            self._file.close()
        self._file, self.spec, self.tokenizer, self.context_size = file, spec, tokenizer, context
        self._model_key = content_key(file)
        self.prefix_cache = PrefixKvCache(pool, config.prefix_cache_bytes)
        self.runner = runner
        scheduler = Scheduler(config.scheduler, pool, self.prefix_cache, config.prefill_chunk_size)
        self.metrics = EngineMetrics(self._gauges)
        self.core = EngineCore(self.runner, scheduler, self.metrics)
        self.constraints = Constraints(tokenizer)
        self._new_sequence()
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

    def metrics_snapshot(self) -> MetricsSnapshot:
        """What the engine has done and holds; `metrics` counts it, and writes it as Prometheus text."""
        self._need_file()
        return self.metrics.snapshot()

    def _gauges(self) -> dict[str, Any]:
        pool, prefix, scheduler = self.runner.pool, self.prefix_cache, self.core.scheduler
        return {
            "prompt_tokens": prefix.looked_up_tokens,
            "cached_prompt_tokens": prefix.hit_tokens,
            "prefix_hits": prefix.hits,
            "prefix_misses": prefix.misses,
            "preemptions": scheduler.preemptions,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_pages_used": pool.n_used,
            "kv_pages_cached": prefix.n_pages,
            "kv_states_used": 0 if pool.recurrent_states is None else pool.recurrent_states.n_used,
            "kv_states_cached": prefix.n_states,
            "kv_memory_bytes": pool.memory_bytes,
            "kv_usage": (pool.max_pages - pool.n_available - prefix.n_idle) / pool.max_pages,
        }

    def check_integrity(self) -> None:
        """Asserts that every page is free, cached, or owned by a sequence, and counted once for each."""
        with self.core.exclusive():
            self.core.scheduler.check_integrity([self._sequence])

    # --- text -----------------------------------------------------------------------------------

    def prepare(
        self,
        prompt: Prompt,
        *,
        sampler: SamplerConfig | None = None,
        max_tokens: int = 256,
        stop: str | Listed[str] = (),
        priority: int = 0,
        timeout: float | None = None,
        salt: str = "",
        keep_logits: bool = False,
        logprobs: bool = False,
        top_logprobs: int | None = None,
    ) -> Request:
        """A request for `core`, with its options checked as `stream` says."""
        self._need_file()
        self.runner.check_logits()
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
            raise ConfigError(f"max_tokens: needs an integer from 0 on, got {max_tokens!r}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ConfigError(f"priority: needs an integer, got {priority!r}")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ConfigError(f"timeout: needs seconds above 0, got {timeout!r}")
        n_top = wanted_logprobs(logprobs, top_logprobs, self.spec.n_vocab)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(s, str) and s for s in stops):
            raise ConfigError(f"stop: needs strings that are not empty, got {stop!r}")
        tokens = self._prompt_tokens(prompt)
        if len(tokens) >= self.context_size:
            raise PromptError(
                f"prompt: {len(tokens)} tokens leave no room for more in a context of {self.context_size}"
            )
        return Request(
            self.runner.pool,
            self.tokenizer,
            self._sampler(sampler or self.config.sampler),
            tokens,
            key=prefix_key(self._model_key, salt=salt),
            max_tokens=max_tokens,
            stop=stops,
            context_size=self.context_size,
            priority=priority,
            timeout=timeout,
            keep_logits=keep_logits,
            top_logprobs=n_top,
        )

    def _sampler(self, config: SamplerConfig) -> Sampler:
        """A request's own sampler, its grammar with it."""
        constraint = self.constraints.of(config)
        seed, tokenizer = self.config.seed, self.tokenizer
        return Sampler(config, self.kernels, seed, tokenizer=tokenizer, constraint=constraint)

    def stream(
        self,
        prompt: Prompt,
        *,
        sampler: SamplerConfig | None = None,
        max_tokens: int = 256,
        stop: str | Listed[str] = (),
        callback: Callable[[str], object] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        salt: str = "",
        logprobs: bool = False,
        top_logprobs: int | None = None,
    ) -> Generation:
        """Starts a fresh sequence and yields its text piece by piece. Never half a character.

        Parameters
        ----------
        prompt : text, or token ids as they are (no BOS is added to those).
        sampler : how to choose tokens; None takes the engine's.
        max_tokens : most tokens to generate.
        stop : strings that end the text; they are not part of it.
        callback : called with each piece; returning False cancels.
        priority : requests with a higher one go first.
        timeout : seconds after which it ends, with what there is; None for never.
        salt : prompts share what was computed of them only with others of the same salt.
        logprobs : whether `Generation.logprobs` notes each token's log-probability, raw and processed.
        top_logprobs : the same, and this many of the likeliest tokens of either distribution.

        Raises
        ------
        PromptError : the prompt is empty, or leaves no room in the context for a token.
        TokenizerError : the text is not valid unicode.
        ConfigError : an option is out of range.
        Busy : when it is first asked for text, if too many requests are waiting.
        KvCacheFullError : when it is asked for text, if there is not enough memory for this sequence alone.
        """
        request = self.prepare(
            prompt,
            sampler=sampler,
            max_tokens=max_tokens,
            stop=stop,
            priority=priority,
            timeout=timeout,
            salt=salt,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )
        self.last = Generation(self.core, request, callback=callback)
        return self.last

    def generate(
        self,
        prompt: Prompt,
        *,
        sampler: SamplerConfig | None = None,
        max_tokens: int = 256,
        stop: str | Listed[str] = (),
        callback: Callable[[str], object] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        salt: str = "",
        logprobs: bool = False,
        top_logprobs: int | None = None,
    ) -> str:
        """The whole text that `stream` yields; `finish_reason` then tells why it ended."""
        generation = self.stream(
            prompt,
            sampler=sampler,
            max_tokens=max_tokens,
            stop=stop,
            callback=callback,
            priority=priority,
            timeout=timeout,
            salt=salt,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )
        generation.eager = callback is None
        return "".join(generation)

    def generate_with_config(self, prompt: Prompt, config: SamplerConfig, **options: Any) -> str:
        """`generate` with the sampler ``config``."""
        return self.generate(prompt, sampler=config, **options)

    def generate_with_logits(self, prompt: Prompt, **options: Any) -> tuple[str, np.ndarray]:
        """The text, and float32 (tokens, vocab): the logits that each token was chosen from."""
        self.last = generation = Generation(self.core, self.prepare(prompt, keep_logits=True, **options))
        generation.eager = True
        text = "".join(generation)
        rows = generation.logits or []
        return text, np.array(rows, np.float32).reshape(len(rows), self.spec.n_vocab)

    @overload
    def generate_batch(
        self, prompts: Listed[Prompt], *, return_exceptions: Literal[False] = False, **options: Any
    ) -> list[str]: ...

    @overload
    def generate_batch(
        self, prompts: Listed[Prompt], *, return_exceptions: bool, **options: Any
    ) -> list[str | BaseException]: ...

    def generate_batch(
        self, prompts: Listed[Prompt], *, return_exceptions: bool = False, **options: Any
    ) -> list[str | BaseException] | list[str]:
        """The texts of all prompts, generated together; each is the one `generate` gives.

        Parameters
        ----------
        options : as for `stream`, the same for all.
        return_exceptions : what a prompt raises stands in the place of its text. Otherwise the first error
            is raised, and the others are cancelled.
        """
        refuse_logprobs(options, "generate_batch_with_logprobs")
        requests = self._run_batch(prompts, options, return_exceptions)
        return [request.error or "".join(request.pieces) for request in requests]

    def generate_batch_with_logprobs(
        self, prompts: Listed[Prompt], *, top_logprobs: int = 0, **options: Any
    ) -> list[tuple[str, list[SampledToken]]]:
        """`generate_batch`, and of each prompt's tokens the log-probabilities (see `Generation.logprobs`)."""
        requests = self._run_batch(prompts, {**options, "top_logprobs": top_logprobs})
        return [("".join(request.pieces), request.logprobs or []) for request in requests]

    def _run_batch(
        self, prompts: Listed[Prompt], options: dict[str, Any], keep_errors: bool = False
    ) -> list[Request]:
        """Requests that have ended, each with its text in pieces, or its error."""
        requests = [self.prepare(prompt, **options) for prompt in prompts]
        try:
            for request in requests:
                request.ahead = float("inf")
                self.core.submit(request, limited=False)
            for request in requests:
                self.core.join(request)
                if request.error is not None and not keep_errors:
                    raise request.error
        except BaseException:
            for request in requests:
                self.core.cancel(request)
            raise
        return requests

    def prime_with_prefix(self, prompt: Prompt, *, salt: str = "") -> PinnedPrefix:
        """Runs a prompt that others will begin with, and keeps it until it is released.

        Raises what `stream` raises, and KvCacheFullError if it does not fit into ``prefix_cache_bytes``.
        """
        self._need_file()
        request = self.prepare(prompt, sampler=SamplerConfig.greedy(), max_tokens=1, salt=salt)
        "".join(Generation(self.core, request))
        with self.core.exclusive():
            pinned = self.prefix_cache.pin(request.key, request.prompt)
        if pinned is None:
            limit = self.config.prefix_cache_bytes
            raise KvCacheFullError(f"prefix: {len(request.prompt)} tokens do not fit {limit} bytes of cache")
        return pinned

    @property
    def logprobs(self) -> list[SampledToken] | None:
        """Log-probabilities of the last generation's tokens; None if they were not asked for."""
        return self.last.logprobs if self.last else None

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

    def decode_token(self, token: int) -> str:
        """Text of one token; what is not a whole character becomes U+FFFD."""
        return self.detokenize([token])

    def vocab_bytes(self) -> list[bytes]:
        """The bytes each token stands for."""
        self._need_file()
        return self.tokenizer.vocab_bytes()


def content_key(file: ModelFile) -> bytes:
    """A hash of a model file's tensors: their names, formats and shapes, and a sample of each one's bytes.

    It tells models apart without reading them. The pages of a cache never outlive the model they were made
    with, so nothing hangs on two files that were made to agree in it.
    """
    hashed = blake3()
    for name in sorted(file.tensors):
        info, data = file.tensors[name], file.data(name)
        hashed.update(f"{name} {info.format.name} {info.shape}\n".encode())
        hashed.update(data[:SAMPLE_BYTES].tobytes())
        hashed.update(data[len(data) // 2 :][:SAMPLE_BYTES].tobytes())
    return hashed.digest()
