"""From a model file to what runs it: weights, tokenizer, pages, scheduler, engine thread; and its prompts."""

from __future__ import annotations

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence as Listed, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from oxillama import _kernels
from oxillama._kernels import Kernels
from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig, available_cpus, checks
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.base.config.sampler import ORDER
from oxillama.base.lazy_import import lazy
from oxillama.base.locks import ForkedOpen, NotCopied
from oxillama.engine import features
from oxillama.engine.building import (
    EngineFactory,
    load_decoder,
    load_weights,
    packed_file,
    weight_store,
)
from oxillama.engine.cache.prefix import PrefixKvCache, prefix_key
from oxillama.engine.loop import EngineLoop
from oxillama.engine.protocols import WeightStore
from oxillama.engine.request import TextRequest
from oxillama.engine.sampling.chain import SamplerChain
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Sequence
from oxillama.engine.thread import EngineThread
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.weights.packer import Progress
from oxillama.text.chat.bridge import TokenizerBridge

if TYPE_CHECKING:
    from oxillama.engine.cache.pages import CachePool
    from oxillama.engine.runner import Runner
    from oxillama.gguf.fingerprint import ModelFingerprint
    from oxillama.models.spec import Spec

with_template: Callable[..., Any] = lazy("oxillama.text.chat.known_templates:with_template")
fingerprint_of: Callable[..., Any] = lazy("oxillama.gguf.fingerprint:ModelFingerprint.of_loaded")

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Prompt = str | Listed[int] | np.ndarray
"""Text, or token ids that are taken as they are (no BOS is added to those)."""


class LoadedModel(NotCopied):
    """A model and everything that runs it; it ends its thread when nobody refers to it any more.

    The file is read and the weights are packed by its thread, which alone enters OpenMP.

    Args:
        source: path of a GGUF file (of a split one: the first), or its bytes.
        progress: called with (tensor name, bytes) for each tensor as it comes into memory, which then all do
            at once; without it each matrix is packed when it is first used.
        factory: makes the parts of the engine; None for an engine in one process.

    Raises:
        ModelFileError, GGUFError, LoadError, TokenizerError: the model cannot be loaded, and why.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        config: EngineConfig,
        progress: Progress | None = None,
        factory: EngineFactory | None = None,
    ) -> None:
        self.config = config
        self.kernels: Kernels = _kernels.best()
        self.thread: EngineThread = EngineThread()
        self.factory: EngineFactory = EngineFactory() if factory is None else factory
        self._features: dict[str, Any] = {}
        self._observers: dict[str, Any] = {}  # apart: observers may refer to the other features
        self._making = ForkedOpen()
        self._chain: SamplerChain | None = None  # kept for a request with equal options
        try:
            self.thread.call(lambda: self._load(source, progress))
        except BaseException:
            self.thread.close(wait=False)
            raise

    def _load(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> None:
        config, started = self.config, time.perf_counter()
        self.file: ModelFile = ModelFile.open(source)
        file = self.file
        try:
            self.spec: Spec = read_spec(file)
            self.tokenizer: TokenizerBridge = load_tokenizer(file, config)
            spec, n_tokens = self.spec, self.tokenizer.n_vocab
            if n_tokens > spec.n_vocab:
                raise LoadError(f"tokenizer: has {n_tokens} tokens, the embedding only {spec.n_vocab} rows")
            self.context_size: int = config.context_size or min(spec.context_length, MAX_CONTEXT)
            self.packed_note: str
            packed, self.packed_note = packed_file(file, config)
            weights = load_weights(file, self.kernels, config, progress, weight_store(packed, config))
            here = self.factory.spec(spec, file)
            model = load_decoder(here, weights, self.context_size, pack_now=progress is not None)
            self.pool: CachePool = self.factory.pool(model, config)
            n_threads = config.num_threads or available_cpus()
            self.runner: Runner = self.factory.runner(model, self.pool, n_threads)
            if packed is not None and packed.absent:
                self.packed_note = f"{packed.path}: has no panels of {', '.join(packed.absent)}"
            self.prefix_cache: PrefixKvCache = PrefixKvCache(self.pool, config.prefix_cache_bytes)
            self.scheduler: Scheduler = Scheduler(
                config.scheduler, self.pool, self.prefix_cache, config.prefill_chunk_size
            )
            for name in features.asked(features.PREFIX_STORE, config):
                self.scheduler.queues.prefixes = features.load(name)(self, self.scheduler.queues.prefixes)
            features.add_observers(self, self._observers)
            loop = EngineLoop(self.runner, self.scheduler, *self._observers.values())
            for name in features.asked(features.LOAD, config):  # now, not when a request waits for it
                self.feature(name)
        except BaseException:
            file.close()
            self.factory.close()
            raise
        self.thread.loop = loop
        self.unused_tensors: list[str] = self.factory.unused(weights.unused())
        seconds = time.perf_counter() - started
        loop.observers.notify("loaded", seconds)
        log.info(
            "loaded a model of architecture %s in %.1f s: %d layers, context %d, %s kernels on %d threads",
            spec.family.name, seconds, spec.n_layers, self.context_size, self.kernels.target,
            self.runner.n_threads,
        )  # fmt: skip

    # --- features -------------------------------------------------------------------------------------

    def feature(self, name: str) -> Any:
        """What a feature keeps of this model, made when it is first asked for (`features.FEATURES`).

        Raises ConfigError if its module is not installed.
        """
        found = self.made(name)
        if found is None:
            factory = features.load(name)
            with self._making.lock:
                found = self._features.get(name)
                if found is None:
                    found = self._features[name] = factory(self)
        return found

    def made(self, name: str) -> Any | None:
        """`feature`, if it has been asked for; None before that."""
        return self._observers.get(name, self._features.get(name))

    def adaptation(self, option: Any, tokens: list[int] | None) -> Any:
        """The adapters of a sequence (`oxillama.models.adapters.stack.Adaptation`); None without adapters.

        Args:
            option: of the request; None for the engine's adapters.
            tokens: the prompt; None for a sequence whose prompt is not known yet.

        Raises as `oxillama.models.adapters.registry.Adapters.adaptation`.
        """
        if option == () or (option is None and self.made("adapters") is None):
            return None
        return self.feature("adapters").adaptation(option, tokens)

    def __repr__(self) -> str:
        state = "open" if self.thread.is_open else "closed"
        return f"<{type(self).__name__}: {self.name!r}, context of {self.context_size}, {state}>"

    # --- facts ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the model in the file's metadata, else the file's name."""
        paths = self.file.paths
        name = str(self.file.metadata.get("general.name") or (paths[0].stem if paths else "model"))
        return name.encode(errors="replace").decode()

    def warn(self, stacklevel: int) -> None:
        """Warns of tensors and options of the file that have no effect, and of a long context."""
        spec, found = self.spec, []
        if self.unused_tensors:
            found.append(f"tensors that the model does not use: {', '.join(self.unused_tensors)}")
        if spec.unread:
            found.append(f"options that the model does not have: {', '.join(spec.unread)}")
        if self.context_size > spec.context_length:
            trained = spec.context_length
            found.append(
                f"context_size: {self.context_size} is more than the {trained} the model was trained with"
            )
        if self.packed_note:
            found.append(self.packed_note)
        for message in found:
            warnings.warn(message, stacklevel=stacklevel + 1)

    @functools.cached_property
    def fingerprint(self) -> ModelFingerprint:
        """Fingerprint of the file, of the options that decide bits (not the KV type), and the contract."""
        context = str(self.context_size) if self.spec.depends_on_context else None
        found: ModelFingerprint = fingerprint_of(self.file, self.config, context)
        return found

    def prefix_key(self, salt: str = "") -> bytes:
        """The key of the prefix cache's tree for a salt. The cache itself belongs to this model alone."""
        return prefix_key(b"", salt=salt)

    @property
    def store(self) -> WeightStore:
        """Where the packed matrices come from."""
        return self.runner.model.store

    # --- running --------------------------------------------------------------------------------------

    @property
    def loop(self) -> EngineLoop:
        """The loop that the thread steps."""
        assert self.thread.loop is not None
        return self.thread.loop

    def call(self, job: Callable[[], T]) -> T:
        """Runs a job on the engine thread between two steps, with the pages to itself."""
        return self.thread.call(job)

    def check_integrity(self) -> None:
        """Asserts that every page is free, cached, or owned by a sequence, and counted once for each."""
        self.call(self.loop.check_integrity)

    def prompt_tokens(self, prompt: Prompt, *, free: int = 0) -> list[int]:
        """Token ids of a prompt that leaves room for ``free`` more. Raises PromptError, TokenizerError."""
        return prompt_tokens(prompt, self.tokenizer, self.spec.n_vocab, self.context_size - free)

    def prompt_parts(self, prompt: Prompt, *, free: int = 0) -> tuple[list[int], Any]:
        """The tokens of a prompt, and the input embeddings of its media or None."""
        embeddings = getattr(prompt, "embeddings", None)
        text = prompt if embeddings is None else prompt.tokens  # type: ignore[union-attr]
        return self.prompt_tokens(text, free=free), embeddings

    def sampler(self, config: SamplerConfig) -> Sampler:
        """A sampler for a request, with its constraint. Raises ConfigError, GrammarError."""
        constraint = None if config.constraint is None else self.feature("constraints").new(config)
        is_plain = constraint is None and config.order is ORDER and not config.logit_bias
        chain = self._chain if is_plain else None
        if chain is None or chain.config != config:
            chain = SamplerChain.from_config(config, self.kernels, self.tokenizer)
            chain.check_vocabulary(self.tokenizer.n_vocab)
            self._chain = chain if is_plain else self._chain
        return Sampler(chain, seed=self.config.seed, constraint=constraint)

    def text_request(
        self, sequence: Sequence, options: GenerationOptions, *, key: bytes | None, **kind: Any
    ) -> TextRequest:
        """A request that continues a sequence, with the features that its options ask for.

        ``kind`` : as for `TextRequest`. Raises as `InferenceEngine.stream`.
        """
        self.runner.check_logits()
        if (options.n_top_logprobs or 0) > self.spec.n_vocab:
            raise ConfigError(
                f"top_logprobs: expected at most {self.spec.n_vocab}, got {options.n_top_logprobs}"
            )
        assert options.sampler is not None
        sampler, parser = options.sampler, None
        for name in features.asked(features.PARSER, options):
            parser = self.feature(name).new(options, sequence.tokens)
        if parser is not None:
            kind["shown"] = parser.shown
            sampler = parser.sampler(options)
        request = TextRequest(
            sequence, options, self.sampler(sampler), self.tokenizer, self.context_size, key=key, **kind
        )
        if parser is not None:
            request.new_parser = parser.parser
        for name in features.asked(features.REQUEST, options, self.config):
            features.load(name)(self, request)
        return request

    def close(self, *, finish: bool = False) -> None:
        """Ends the thread: after the requests if ``finish``, otherwise they are cancelled."""
        self.thread.close(finish=finish)
        self.loop.observers.notify("close")
        self.factory.close()
        self.scheduler.queues.prefixes.close()

    def __del__(self) -> None:
        if hasattr(self, "thread"):
            self.thread.close(wait=False)


def load_tokenizer(file: ModelFile, config: EngineConfig) -> TokenizerBridge:
    """The tokenizer of the file, or the one that the configuration names."""
    metadata, template = file.metadata, config.chat_template
    if template is not None:
        metadata = with_template(metadata, template)
    if config.tokenizer_path is None:
        return TokenizerBridge.from_metadata(metadata)
    return TokenizerBridge.from_file(config.tokenizer_path, metadata)


def prompt_tokens(prompt: Prompt, tokenizer: TokenizerBridge, n_vocab: int, most: int) -> list[int]:
    """The token ids of a prompt.

    Args:
        n_vocab: ids must lie below.
        most: tokens that there is room for.

    Raises:
        PromptError: the prompt is empty, too long, or neither text nor token ids of the vocabulary.
        TokenizerError: the text is not valid unicode.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError("prompt: is empty")
        tokens = tokenizer.encode(prompt)
    else:
        return checked_tokens(prompt, n_vocab, most)
    check_room(len(tokens), most)
    return tokens


def check_room(n: float, most: int) -> None:
    """Raises PromptError if there are more tokens than there is room for."""
    if n > most:
        raise PromptError(f"prompt: expected at most {most} tokens for the context, got {n}")


def checked_tokens(tokens: Any, n_vocab: int, most: int, *, least: int = 1) -> list[int]:
    """Token ids as ints. All of them are checked at once.

    Raises PromptError unless they are a sequence or array of ``least`` to ``most`` ids below ``n_vocab``.
    """
    found = None
    if tokens.ndim > 0 if isinstance(tokens, np.ndarray) else isinstance(tokens, Listed):
        check_room(checks.length(tokens), most)  # before it is listed: a range may be of any length
        found = checks.items(tokens)
    if found is None:
        raise PromptError(f"prompt: expected text or token ids, got {type(tokens).__name__}")
    if len(found) < least:
        raise PromptError("prompt: has no tokens")
    ids = _int64(found)
    if ids is None or (len(ids) and not 0 <= ids.min() <= ids.max() < n_vocab):
        for token in found:
            if not checks.is_token(token) or token >= n_vocab:
                raise PromptError(f"prompt: expected token ids below {n_vocab}, got {checks.shown(token)}")
    return [int(token) for token in found] if ids is None else ids.tolist()


def _int64(values: list[Any]) -> np.ndarray | None:
    """Python's and NumPy's integers as int64; None if there are other values, or one that does not fit."""
    if not all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in set(map(type, values))):
        return None
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def listed(values: Iterable[T], name: str = "prompts") -> list[T]:
    """A list of prompts, texts or messages. Raises ConfigError for one text, which would be a list of its
    letters."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}: expected a list of {name}, got {type(values).__name__}")
    if isinstance(values, Sized) and checks.length(values) > checks.MOST_ITEMS:  # a range
        raise ConfigError(f"{name}: expected at most {checks.MOST_ITEMS}, got {checks.shown(values)}")
    return list(values)
