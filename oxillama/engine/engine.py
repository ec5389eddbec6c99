"""The engine: a model file in, text out."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from oxillama import _kernels
from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import LoraStack
from oxillama.beams.search import UNCHANGED, BeamHypothesis, BeamSearchConfig, beam_search
from oxillama.cache.prefix import PinnedPrefix
from oxillama.compat.engine import ReferenceNames
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.config.adapters import Adapters
from oxillama.engine.chats import Callback, Chats
from oxillama.engine.embedding import Embedding, PoolingMode, embeddings, rankings
from oxillama.engine.generation import Generation, text_of
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt, listed
from oxillama.engine.request import TextRequest
from oxillama.engine.samples import Samples
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.hub.pretrained import Pretrained
from oxillama.locks import NotCopied
from oxillama.models import Spec
from oxillama.observability.metrics import EngineMetrics
from oxillama.sessions.capture import Notes
from oxillama.sessions.options import Stages
from oxillama.sessions.receipt import Receipt
from oxillama.sessions.restore import (
    Loras,
    Source,
    restore_generation,
    restore_session,
    resume,
    snapshot_of_engine,
)
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot
from oxillama.sessions.verification import Verification, verify
from oxillama.speculation.state import Speculation
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.weights.packer import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oxillama.config import EngineFields, GenerationFields, SamplerFields


class InferenceEngine(ReferenceNames, Chats, Samples, Pretrained, NotCopied):
    """Runs one model, for any number of requests at a time and from any thread.

    All that generate or embed at the same time share their batches. Close it, or use it as a context manager,
    or just drop it: its thread ends and its memory is freed when the last of its generations and sessions is
    gone.

    Parameters
    ----------
    config : options, whose ``model_path``, if any, is loaded at once; or that path alone.
    progress : called with (tensor name, bytes) for each tensor as it comes into memory, which then all
        do at once; without it each matrix is packed when it is first used.

    Raises
    ------
    ModelFileError, GGUFError, LoadError, TokenizerError : the model cannot be loaded, and why.
    ConfigError : an option cannot be honoured.
    """

    def __init__(
        self,
        config: EngineConfig | str | os.PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(config, (str, os.PathLike)):
            config = EngineConfig(model_path=config)
        config = EngineConfig() if config is None else config
        self.config: EngineConfig = checks.instance("config", config, EngineConfig)
        self._model: LoadedModel | None = None
        self._default_session: Session | None = None
        self._last = threading.local()
        _kernels.best()  # an unknown target is said at once
        if self.config.model_path is not None:
            self._load(self.config.model_path, progress)

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> InferenceEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        return cls(EngineConfig(model_path=path, **config), progress=progress)

    # --- the model ----------------------------------------------------------------------------------

    def load_model(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
        """Loads a model in place of the present one, which stays if the new one cannot be loaded.

        Generations and sessions of the present model go on with it to their end.
        """
        self._load(path, progress)

    def _load(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> None:
        model = self._new_model(source, progress)
        model.warn(stacklevel=4)
        self._model, self._default_session = model, None
        self._last = threading.local()

    def _new_model(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> LoadedModel:
        return LoadedModel(source, self.config, progress)

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model to run."""
        return self._model is not None

    @property
    def model(self) -> LoadedModel:
        """The model and what runs it. Raises ConfigError if none is loaded."""
        if self._model is None:
            raise ConfigError("model_path: no model is loaded")
        return self._model

    @property
    def spec(self) -> Spec:
        """Sizes and facts of the model."""
        return self.model.spec

    @property
    def tokenizer(self) -> TokenizerBridge:
        """From text to token ids and back."""
        return self.model.tokenizer

    @property
    def context_size(self) -> int:
        """Most tokens in a sequence."""
        return self.model.context_size

    @property
    def metrics(self) -> EngineMetrics:
        """Counters of what the engine does; also as Prometheus text."""
        return self.model.metrics

    def close(self, *, finish: bool = False) -> None:
        """Ends the engine: after the running requests if ``finish``, otherwise they are cancelled.

        Whoever reads a text that is cut so gets EngineClosed. Closing it again does nothing.
        """
        if self._model is not None:
            self._model.close(finish=finish)

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def check_integrity(self) -> None:
        """Asserts that every page is free, cached, or owned by a sequence, and counted once for each."""
        self.model.call(self.model.loop.check_integrity)

    # --- text ---------------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """Starts to generate from a prompt; the `Generation` yields the text piece by piece.

        Parameters
        ----------
        prompt : text, or token ids as they are (no BOS is added to those).
        options : of the request.
        callback : called with each piece that is read; returning False cancels.
        fields : of `GenerationOptions` and `SamplerConfig`, in place of those of ``options`` and its sampler.

        Raises
        ------
        PromptError : the prompt is empty, no prompt, or leaves no room in the context for a token.
        TokenizerError : the text is not valid unicode.
        ConfigError : an option is out of range, or a token id is not in the vocabulary.
        ModelFileError, GGUFError, LoadError : an adapter or a draft model cannot be loaded, and why.
        GrammarError : the grammar is malformed, matches nothing, or is over a limit.
        ReceiptError : more stop strings or adapters were asked for than a receipt may name.
        QueueFull : too many requests are waiting.
        EngineClosed : the engine was closed.

        Reading the text raises KvCacheFullError, if there is not enough memory for this sequence alone, and
        whatever a sampler's stage raises.
        """
        return self._stream(prompt, options, fields, callback)

    def _stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None,
        fields: Mapping[str, Any],
        callback: Callback | None = None,
        *,
        whole: bool = False,
        limited: bool = True,
    ) -> Generation:
        model = self.model
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        model.runner.check_logits()
        tokens = model.prompt_tokens(prompt, free=1)
        request = self._request(tokens, checked, whole)
        generation = Generation(model, request, callback)  # first: it cancels what is dropped
        model.thread.submit(request, limited=limited)
        self._last.generation = generation if whole else weakref.ref(generation)
        return generation

    def _request(
        self,
        tokens: list[int],
        options: GenerationOptions,
        whole: bool,
        speculation: Speculation | None = None,
    ) -> TextRequest:
        """A request that is not submitted yet; ``speculation`` replaces what the options ask for."""
        model = self.model
        adapters = model.adapters.adaptation(options.adapters, tokens)
        sequence = Sequence(model.pool, tokens, checkpoints=0, adapters=adapters)
        request = model.text_request(sequence, options, key=model.prefix_key(options.salt), whole=whole)
        if speculation is not None:
            request.speculation = speculation
        return request

    def _stream_drafted(
        self,
        tokens: list[int],
        options: GenerationOptions,
        speculation: Speculation | None,
        callback: Callback | None = None,
    ) -> Generation:
        """`stream` with drafts of the caller's."""
        request = self._request(tokens, replace(options, speculate="off"), False, speculation)
        generation = Generation(self.model, request, callback)
        self.model.thread.submit(request)
        return generation

    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str:
        """The whole text that `stream` yields; its parameters and errors.

        Raises
        ------
        GenerationTimeout : the timeout came first; the error has the text so far.
        """
        generation = self._stream(prompt, options, fields, callback, whole=callback is None)
        text = text_of(generation.result())
        self._last.generation = generation
        return text

    def stream_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        **fields: Unpack[GenerationFields],
    ) -> list[Generation]:
        """Starts to generate from all prompts together; one handle for each, as `stream` gives them.

        However many there are, none is refused with QueueFull.
        """
        found: list[Generation] = []
        try:
            for prompt in listed(prompts):
                found.append(self._stream(prompt, options, fields, limited=False))
        except BaseException:
            for generation in found:
                generation.cancel()
            raise
        return found

    @overload
    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        *,
        return_exceptions: Literal[False] = False,
        **fields: Unpack[GenerationFields],
    ) -> list[str]: ...

    @overload
    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        *,
        return_exceptions: bool,
        **fields: Unpack[GenerationFields],
    ) -> list[str | BaseException]: ...

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        *,
        return_exceptions: bool = False,
        **fields: Unpack[GenerationFields],
    ) -> list[str | BaseException] | list[str]:
        """The texts of all prompts, generated together; each is the one `generate` gives.

        Parameters
        ----------
        return_exceptions : what a prompt raises stands in the place of its text. Otherwise the first error
            is raised, and the others are cancelled.
        """
        started: list[Generation | Exception] = []
        found: list[str | BaseException] = []
        try:
            for prompt in listed(prompts):
                try:
                    started.append(self._stream(prompt, options, fields, whole=True, limited=False))
                except Exception as error:
                    if not return_exceptions:
                        raise
                    started.append(error)
            for generation in started:
                try:
                    if isinstance(generation, Exception):
                        raise generation
                    found.append(text_of(generation.result()))
                except Exception as error:
                    if not return_exceptions:
                        raise
                    found.append(error)
        except BaseException:
            for generation in started:
                if isinstance(generation, Generation):
                    generation.cancel()
            raise
        return found

    def verify(
        self, receipt: Receipt | str | bytes, *, adapters: Adapters = (), stages: Stages | None = None
    ) -> Verification:
        """Checks a receipt: runs prompt and text as one prompt, and has the sampler choose each token again.

        Parameters
        ----------
        receipt : of a text; or its JSON.
        adapters : among which, and those of the engine, the adapters of the receipt are looked for; the
            scales are those of the receipt.
        stages : the sampler's stages written in Python, by the names that the receipt has for them.

        Raises
        ------
        ReceiptError : it is no receipt, or says what no request can have been.
        ConfigError : the engine has another ``compute``, ``quantize`` or ``kv_type``, or too small a context;
            a stage is not given; an option of the sampler is out of range.
        GrammarError : its grammar is malformed, or over a limit.
        ModelFileError, GGUFError, LoadError : an adapter cannot be loaded, and why.
        KvCacheFullError : there are no pages for the text.

        And whatever a stage written in Python raises.
        """
        return verify(self.model, receipt, adapters, stages)

    def beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        adapters: Adapters = None,
        **sampling: Unpack[SamplerFields],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, the best first.

        Parameters
        ----------
        config : how many beams, and how long.
        adapters : as in `GenerationOptions`.
        **sampling : fields of `SamplerConfig`: a grammar, bans, biases, penalties. Log-probabilities are
            those of the distribution after these; without any, the model's own.

        Raises
        ------
        ConfigError : a field is out of range, or names a stage that needs random numbers.
        PromptError, TokenizerError, GrammarError, KvCacheFullError : as `stream` says.
        """
        return self._beam_search(prompt, config, adapters, sampling)

    def _beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None,
        adapters: Adapters,
        sampling: SamplerFields,
        check: Callable[[], object] = lambda: None,
    ) -> list[BeamHypothesis]:
        """`beam_search`; ``check`` is called before each step and may raise."""
        chosen = BeamSearchConfig() if config is None else checks.instance("config", config, BeamSearchConfig)
        model, sampler = self.model, replace(UNCHANGED, **sampling)
        tokens = model.prompt_tokens(prompt, free=1)
        return beam_search(model, tokens, chosen, sampler, model.adapters.adaptation(adapters, tokens), check)

    def prime_with_prefix(self, prompt: Prompt, *, salt: str = "", adapters: Adapters = None) -> PinnedPrefix:
        """Runs a prompt that others will begin with, and keeps it until it is released.

        Raises what `stream` raises, and KvCacheFullError if it does not fit into ``prefix_cache_bytes``.
        """
        model = self.model
        greedy = {"sampler": SamplerConfig.greedy(), "max_tokens": 1, "salt": salt, "adapters": adapters}
        generation = self._stream(prompt, None, greedy, whole=True)
        generation.result()
        tokens, key = generation.prompt_tokens, model.prefix_key(salt)
        path = generation._text_request.sequence.path(len(tokens))  # with the adapters it was run with
        pinned = model.call(lambda: model.prefix_cache.pin(key, path))
        if pinned is None:
            limit = self.config.prefix_cache_bytes
            raise KvCacheFullError(f"prefix: {len(tokens)} tokens do not fit {limit} bytes of cache")
        return pinned

    # --- vectors ------------------------------------------------------------------------------------

    def embed(
        self,
        text: Prompt,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool = False,
        adapters: Adapters = None,
    ) -> np.ndarray:
        """float32 (n_embd,): the embedding of a text.

        Parameters
        ----------
        pooling : "last", "mean", "max" or "cls"; None for what the model's file says, else the mean of an
            encoder's tokens, the last token of a decoder.
        normalize : whether the vector is scaled to length 1.
        adapters : as in `GenerationOptions`.

        Raises
        ------
        PromptError : the text is empty, no text, or does not fit the context.
        TokenizerError : the text is not valid unicode.
        ConfigError : there is no such pooling.
        """
        vector: np.ndarray = self.embed_batch(
            [text], pooling=pooling, normalize=normalize, adapters=adapters
        )[0]
        return vector

    def embed_batch(
        self,
        texts: Iterable[Prompt],
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool = False,
        adapters: Adapters = None,
    ) -> np.ndarray:
        """float32 (texts, n_embd): the embedding of each text, bit for bit as `embed` gives it."""
        handles = embeddings(self.model, texts, pooling, normalize, adapters)
        vectors = [handle.result() for handle in handles]
        return np.stack(vectors) if vectors else np.empty((0, self.spec.n_embd), np.float32)

    def hidden_states(self, text: Prompt, *, adapters: Adapters = None) -> np.ndarray:
        """float32 (tokens, n_embd): the hidden states of a text's tokens after the last norm."""
        model, tokens = self.model, self.model.prompt_tokens(text)
        return Embedding(model, tokens, np.asarray, model.adapters.adaptation(adapters, tokens)).result()

    def rerank(self, query: str, documents: Iterable[str], *, adapters: Adapters = None) -> np.ndarray:
        """float32 (documents,): how well each document answers the query, by the score of the first label.

        Raises
        ------
        ConfigError : the model is no reranker: the file has no classification head.
        PromptError : query and document do not fit the context together.
        """
        handles = rankings(self.model, query, documents, adapters)
        return np.array([handle.result()[0] for handle in handles], np.float32)

    # --- by hand ------------------------------------------------------------------------------------

    def session(self, *, adapters: Adapters = None) -> Session:
        """A sequence to run by hand, beside any number of others and of requests.

        ``adapters``, as in `GenerationOptions`, apply to all that it runs. Raises ConfigError for one that is
        activated by a prompt.
        """
        return Session(self.model, self.config.sampler, self.model.adapters.adaptation(adapters, None))

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self, notes: Notes = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of."""
        return snapshot_of_engine(self.model, self._default_session, notes)

    def snapshot(self, *, compress: bool = False, notes: Notes = None) -> bytes:
        """The options of the engine, and its own session (`prefill`, `forward_one`), for `resume`.

        Requests and other sessions are not part of it: they have a `snapshot` of their own. Parameters and
        errors are those of `Session.snapshot`.
        """
        return self.capture(notes).serialize(compress=compress)

    def snapshot_to_file(
        self, path: str | os.PathLike[str], *, compress: bool = False, notes: Notes = None
    ) -> None:
        """`snapshot`, to a file, which others see whole or not at all. Raises ModelFileError, too."""
        self.capture(notes).save(path, compress=compress)

    @classmethod
    def resume(
        cls,
        snapshot: Source,
        model_path: str | os.PathLike[str] | None = None,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> InferenceEngine:
        """An engine like the one that a snapshot was taken of, with its session as the engine's own.

        Of a generation's snapshot, an engine like the one it ran in: `resume_generation` goes on with it.

        Parameters
        ----------
        model_path : where the model is now; None for where it was.
        loras : its adapters, or where they are now, if they are not where they were.
        stages : stages of its samplers that are written in Python, by name (``module.qualname``).
        config : fields of `EngineConfig`, in place of those of the snapshot.

        Raises
        ------
        SnapshotIncompatible : it is damaged, or does not fit; ``stages`` lacks a stage, which is named.
        ModelFingerprintMismatch : it is of another model. ConfigError : a field would change the bits.
        ModelFileError, GGUFError, LoadError, TokenizerError : as `InferenceEngine`; or the snapshot's file
            cannot be read.
        """
        engine, session = resume(
            lambda chosen: cls(chosen, progress=progress), snapshot, model_path, config, loras, stages
        )
        engine._default_session = session
        return engine

    def restore_session(self, snapshot: Source, *, loras: Loras = None) -> Session:
        """A session that goes on where another one was (`Session.snapshot`).

        Parameters
        ----------
        loras : its adapters, or where they are now, if they are not where they were.

        Raises
        ------
        SnapshotIncompatible : it is damaged, or does not fit the engine; ModelFingerprintMismatch : it is of
            another model. Nothing has changed then.
        ModelFileError, GGUFError, LoadError : its file, or an adapter, cannot be read.
        KvCacheFullError : there are no pages for it.
        """
        return restore_session(self.model, snapshot, loras)

    def resume_generation(
        self,
        snapshot: Source,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        callback: Callable[[str], object] | None = None,
        **fields: Any,
    ) -> Generation:
        """A generation that goes on where another one was (`Generation.snapshot`), with the same tokens.

        It has the text that was read of the other one, and yields the rest.

        Parameters
        ----------
        loras, stages : as in `resume`.
        callback : as in `stream`.
        fields : of `GenerationOptions` that decide no token: priority, timeout, window, speculate.

        Raises
        ------
        SnapshotIncompatible, ModelFileError, GGUFError, LoadError, KvCacheFullError : as `restore_session`.
        ConfigError : a field decides tokens. QueueFull : as `stream`.
        """
        return restore_generation(self.model, snapshot, fields, loras, stages, callback)

    # --- adapters -----------------------------------------------------------------------------------

    def load_adapter(self, source: str | os.PathLike[str] | LoadedLora) -> LoadedLora:
        """Loads an adapter for later requests, or finds it loaded.

        Raises
        ------
        ModelFileError, GGUFError : the file cannot be read.
        LoadError : it is no LoRA adapter, or does not fit the model; the message names the tensor.
        """
        ((lora, _),) = self.model.adapters.loaded(source)
        return lora

    def unload_adapter(self, lora: LoadedLora) -> None:
        """Frees the memory of an adapter once the requests that use it have ended."""
        self.model.adapters.forget(checks.instance("lora", lora, LoadedLora))

    @property
    def lora_stack(self) -> LoraStack:
        """The adapters of requests that name none of their own; changes hold for later requests."""
        return self.model.adapters.stack

    def __dir__(self) -> list[str]:
        """Without the reference's other names for the same, and without constructors."""
        aliases = {name for name in vars(ReferenceNames) if not name.startswith("_")}
        aliases |= {"from_gguf", "from_pretrained"}
        return [name for name in super().__dir__() if name not in aliases]
