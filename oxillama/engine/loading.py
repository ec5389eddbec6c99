"""From a model file to what runs it: weights, tokenizer, pages, scheduler, engine thread."""

from __future__ import annotations

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from oxillama import _kernels
from oxillama._version import __version__
from oxillama.adapters.registry import Adapters
from oxillama.cache.kv_pool import KvLayout
from oxillama.cache.pool import CachePool
from oxillama.cache.prefix import PrefixKvCache, prefix_key
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, available_cpus
from oxillama.config.engine import MAX_CONTEXT
from oxillama.disk_prefixes.folder import BLOCK, BlockFolder
from oxillama.disk_prefixes.store import DiskPrefixes, blocks_root
from oxillama.engine.building import load_decoder, load_weights, panel_store
from oxillama.engine.loop import EngineLoop
from oxillama.engine.packing import open_packed
from oxillama.engine.prompts import Prompt, prompt_tokens
from oxillama.engine.request import TextRequest
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Sequence
from oxillama.engine.thread import EngineThread
from oxillama.errors import ConfigError, LoadError, ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.locks import NotCopied
from oxillama.models import Decoder, read_spec
from oxillama.models.page_groups import PageGroup
from oxillama.observability.metrics import EngineMetrics
from oxillama.observability.request_log import RequestLog
from oxillama.observability.tracing import Traced, Untraced
from oxillama.offload.pager import LayerPager
from oxillama.sampling.random import Xorshift64
from oxillama.sampling.sampler import Sampler
from oxillama.sessions.recorder import Recorder, receipt_head
from oxillama.speculation.drafters import Drafter
from oxillama.speculation.jump_forward import JumpForward, jumps
from oxillama.speculation.loading import Drafters, matrix_bytes
from oxillama.speculation.state import Speculation
from oxillama.structured.constraints import Constraints
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.toolcalls.parsing import Reading, Readings
from oxillama.weights.packer import Progress

T = TypeVar("T")

log = logging.getLogger(__name__)


class LoadedModel(NotCopied):
    """A model and everything that runs it; it ends its thread when nobody refers to it any more.

    The file is read and the weights are packed by its thread, which alone enters OpenMP.

    Parameters
    ----------
    source : path of a GGUF file (of a split one: the first), or its bytes.
    progress : called with (tensor name, bytes) for each tensor as it comes into memory, which then all do at
        once; without it each matrix is packed when it is first used.
    parts : makes the parts of the engine; None for those of an engine in one process.

    Raises
    ------
    ModelFileError, GGUFError, LoadError, TokenizerError : the model cannot be loaded, and why.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        config: EngineConfig,
        progress: Progress | None = None,
        parts: Untraced | None = None,
    ) -> None:
        self.config = config
        self.kernels = _kernels.best()
        self.thread = EngineThread()
        self.parts = Untraced() if parts is None else parts
        try:
            self.thread.call(lambda: self._load(source, progress))
        except BaseException:
            self.thread.close(wait=False)
            raise

    def _load(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> None:
        config, started = self.config, time.perf_counter()
        self.file = file = ModelFile.open(source)
        try:
            self.spec = spec = read_spec(file)
            self.tokenizer = tokenizer = load_tokenizer(file, config)
            self.tokenizer_digest = digest_of(config.tokenizer_path)
            if tokenizer.n_vocab > spec.n_vocab:
                raise LoadError(
                    f"tokenizer: has {tokenizer.n_vocab} tokens, the embedding only {spec.n_vocab} rows"
                )
            self.context_size = config.context_size or min(spec.context_length, MAX_CONTEXT)
            packed, self.packed_note = open_packed(file, config)
            weights = load_weights(file, self.kernels, config, progress, panel_store(packed, config))
            if config.trace is not None:
                self.parts = Traced(config.trace, self.name)
            here = self.parts.spec(spec, file)
            model = load_decoder(here, weights, self.context_size, pack_now=progress is not None)
            self.pool = pool = self.parts.pool(model, config)
            self.runner = self.parts.runner(model, pool, config.num_threads or available_cpus())
            if packed is not None and packed.absent:
                self.packed_note = f"{packed.path}: has no panels of {', '.join(packed.absent)}"
            disk = (
                None
                if config.prefix_cache_dir is None
                else self._blocks(config.prefix_cache_dir, model.page_groups)
            )
            self.adapters = Adapters(model)
            for lora, scale in self.adapters.loaded(config.adapters):
                self.adapters.stack.push(lora, scale)
            self.drafters = Drafters(file, self.runner, tokenizer, config, self.context_size)
            default = "lookup" if config.draft_corpora else "off"
            wanted = default if config.speculate is None else os.fspath(config.speculate)
            if wanted != "off":  # now, and not when a request waits for it
                self.drafters.load(wanted)
        except BaseException:
            file.close()
            self.parts.close()
            raise
        self.unused_tensors = self.parts.unused(weights.unused())
        grain = 1 if disk is None else BLOCK
        self.prefix_cache = PrefixKvCache(pool, config.prefix_cache_bytes, grain=grain)
        self.scheduler = Scheduler(config.scheduler, pool, self.prefix_cache, config.prefill_chunk_size)
        if disk is not None:
            self.scheduler.disk = DiskPrefixes(*disk, pool, self.prefix_cache, self.thread.post)
        gauges = Gauges(self.pool, self.prefix_cache, self.scheduler, self.adapters, model)
        self.metrics = EngineMetrics(gauges, self._labels(), self.parts.mask_timer())
        self.constraints = Constraints(tokenizer, self.metrics.mask_timer)
        self.readings = Readings(tokenizer)
        self.thread.loop = self.parts.loop(self.runner, self.scheduler, self.metrics, RequestLog())
        gauges.load_seconds = time.perf_counter() - started
        log.info(
            "loaded a model of architecture %s in %.1f s: %d layers, context %d, %s kernels on %d threads",
            spec.family.name, gauges.load_seconds, spec.n_layers, self.context_size, self.kernels.target,
            self.runner.n_threads,
        )  # fmt: skip

    def _blocks(
        self, path: str | os.PathLike[str], groups: tuple[PageGroup, ...]
    ) -> tuple[BlockFolder, bytes, list[KvLayout]]:
        """For `DiskPrefixes`: the folder, the hash of what decides bits, the layout of each page group."""
        folder, kv_type = BlockFolder(path, self.config.prefix_cache_dir_bytes), self.config.kv_type
        groups = groups if self.spec.attending else ()
        # bits may change from version to version
        shape = f"{__version__} {kv_type} {[(group.layers, group.sizes) for group in groups]}"
        layouts = [KvLayout(*group.sizes, kv_type) for group in groups]
        return folder, blocks_root(self.fingerprint.digest, shape.encode()), layouts

    @property
    def name(self) -> str:
        """Of the model: as the file says, else the file's name."""
        paths = self.file.paths
        name = str(self.file.metadata.get("general.name") or (paths[0].stem if paths else "model"))
        return name.encode(errors="replace").decode()

    def _labels(self) -> dict[str, str]:
        """Facts for the metrics."""
        return {
            "model_name": self.name,
            "architecture": self.spec.family.name,
            "target": self.kernels.target,
            "threads": str(self.runner.n_threads),
            "kv_type": self.config.kv_type,
            "version": __version__,
        }

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

    @property
    def loop(self) -> EngineLoop:
        """What the thread steps."""
        assert self.thread.loop is not None
        return self.thread.loop

    def call(self, job: Callable[[], T]) -> T:
        """Runs a job on the engine thread between two steps, with the pages to itself."""
        return self.thread.call(job)

    def prompt_tokens(self, prompt: Prompt, *, free: int = 0) -> list[int]:
        """Token ids of a prompt that leaves room for ``free`` more. Raises PromptError, TokenizerError."""
        return prompt_tokens(prompt, self.tokenizer, self.spec.n_vocab, self.context_size - free)

    def prefix_key(self, salt: str = "") -> bytes:
        """The key of the prefix cache's tree for a salt. The cache itself belongs to this model alone."""
        return prefix_key(b"", salt=salt)

    @functools.cached_property
    def fingerprint(self) -> ModelFingerprint:
        """Of the file and of the options that decide bits, but for the KV type."""
        config = self.config
        settings = {"compute": config.compute, "quantize": config.quantize}
        if self.spec.depends_on_context:
            settings["context_size"] = str(self.context_size)
        return ModelFingerprint.compute(self.file, settings)

    @functools.cached_property
    def jump_forward(self) -> JumpForward:
        """What finds the tokens that must follow."""
        return JumpForward(self.tokenizer)

    def sampler(self, config: SamplerConfig) -> Sampler:
        """A sampler of its own for a request, with its grammar. Raises ConfigError, GrammarError."""
        constraint = self.constraints.of(config)
        sampler = Sampler(
            config, self.kernels, self.config.seed, tokenizer=self.tokenizer, constraint=constraint
        )
        sampler.chain.check_vocabulary(self.tokenizer.n_vocab)
        return sampler

    def text_request(
        self, sequence: Sequence, options: GenerationOptions, *, key: bytes | None, **kind: Any
    ) -> TextRequest:
        """A request that goes on from a sequence; ``kind`` as for `TextRequest`."""
        self.runner.check_logits()
        if (options.n_top_logprobs or 0) > self.spec.n_vocab:
            raise ConfigError(
                f"top_logprobs: expected at most {self.spec.n_vocab}, got {options.n_top_logprobs}"
            )
        assert options.sampler is not None
        reading = self.readings.of(options, sequence.tokens)
        sampler = self.sampler(constrained(options, reading))
        request = TextRequest(
            sequence, options, sampler, self.tokenizer, self.context_size, key=key, reading=reading, **kind
        )
        if jumps(options, sampler):
            request.jump = self.jump_forward
        if options.receipt:
            facts = (self.fingerprint, self.config, self.context_size, sequence.adapters, request.prompt)
            followed = replace(options, sampler=sampler.config)
            request.recorder = Recorder(receipt_head(*facts, followed, sampler.seed))
        drafter = self.drafter(options.speculate)
        if drafter is not None:
            by_rejection = options.draft_acceptance == "rejection"
            random = Xorshift64(~sampler.seed) if by_rejection else None  # apart from the sampler's own
            request.speculation = Speculation(drafter, self.config.draft_max, random)
        return request

    def drafter(self, speculate: str | os.PathLike[str] | None) -> Drafter | None:
        """What drafts for a request that asks for this; None if nothing does. A model is loaded once.

        Raises
        ------
        ModelFileError, GGUFError, LoadError, TokenizerError : the draft model cannot be loaded.
        ConfigError : it cannot draft for this model, and why.
        """
        chosen = self.config.speculate if speculate is None else speculate
        if chosen is None or chosen == "off":
            return None
        name = os.fspath(chosen)
        return self.drafters.loaded.get(name) or self.call(lambda: self.drafters.load(name))

    def close(self, *, finish: bool = False) -> None:
        """Ends the thread: after the requests if ``finish``, otherwise they are cancelled."""
        self.thread.close(finish=finish)
        self.parts.close()
        if self.scheduler.disk is not None:
            self.scheduler.disk.flush()

    def __del__(self) -> None:
        if hasattr(self, "thread"):
            self.thread.close(wait=False)


def constrained(options: GenerationOptions, reading: Reading | None) -> SamplerConfig:
    """The options of the sampler, with the grammar of the text that is to be read.

    Raises ConfigError if there are two grammars, or if a receipt could not tell where the text ends.
    """
    assert options.sampler is not None
    if reading is not None and reading.shown and options.receipt and options.stop:
        raise ConfigError("receipt: cannot be combined with stop strings where special tokens are text")
    if reading is None or reading.grammar is None:
        return options.sampler
    if options.sampler.constraint is not None:
        raise ConfigError(f"tools: cannot be combined with {options.sampler.constraint}")
    return replace(options.sampler, grammar=reading.grammar)


class Gauges:
    """The gauges of an engine, by the names of `MetricsSnapshot`."""

    def __init__(
        self,
        pool: CachePool,
        prefix: PrefixKvCache,
        scheduler: Scheduler,
        adapters: Adapters,
        model: Decoder,
    ) -> None:
        self.pool, self.prefix, self.scheduler, self.adapters = pool, prefix, scheduler, adapters
        self.model, self.matrix_bytes = model, matrix_bytes(model)
        self.load_seconds = 0.0

    def __call__(self) -> dict[str, Any]:
        pool, prefix, scheduler, store = self.pool, self.prefix, self.scheduler, self.model.store
        return {
            "prompt_tokens": prefix.looked_up_tokens,
            "cached_prompt_tokens": prefix.hit_tokens,
            "disk_prompt_tokens": 0 if scheduler.disk is None else scheduler.disk.n_tokens,
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
            "adapters": self.adapters.n_loaded,
            "load_seconds": self.load_seconds,
            "matrix_bytes": store.resident_bytes if isinstance(store, LayerPager) else self.matrix_bytes,
            "kv_usage": (pool.limit.used - prefix.idle_bytes) / pool.limit.max_bytes,
        }


def load_tokenizer(file: ModelFile, config: EngineConfig) -> TokenizerBridge:
    """The tokenizer of the file, or the one that the configuration names."""
    if config.tokenizer_path is None:
        return TokenizerBridge.from_metadata(file.metadata)
    return TokenizerBridge.from_file(config.tokenizer_path, file.metadata)


def digest_of(path: str | os.PathLike[str] | None) -> str:
    """Hexadecimal BLAKE3 of a file; "" for None."""
    if path is None:
        return ""
    try:
        return blake3(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
