"""The engine: a model file in, text out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from oxillama import _kernels
from oxillama.base.config import EngineConfig, GenerationOptions, checks
from oxillama.base.config.checks import NO_DECODE_WAIT
from oxillama.base.locks import NotCopied
from oxillama.engine import features
from oxillama.engine.completion import Completion, text_of
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel, Prompt, listed
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import Sequence as TokenSequence
from oxillama.errors import ConfigError
from oxillama.models.weights.packer import Progress
from oxillama.text.chat.bridge import TokenizerBridge

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.base.config import EngineFields, GenerationFields, SamplerFields
    from oxillama.base.config.adapters import Adapters as AdapterOption
    from oxillama.engine.features.beam_search import BeamHypothesis, BeamSearchConfig
    from oxillama.engine.features.decisions.answers import Decision
    from oxillama.engine.features.decisions.deciding import DecisionFields
    from oxillama.engine.features.embeddings import PoolingMode
    from oxillama.engine.features.observability.metrics import EngineMetrics
    from oxillama.models.adapters.registry import Adapters
    from oxillama.sessions.adapters import Loras
    from oxillama.sessions.options import Stages
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.session import Session
    from oxillama.sessions.snapshot import Source
    from oxillama.sessions.verdict import Verification
    from oxillama.sessions.verification import VerifyFields

T = TypeVar("T")

Callback = Callable[[str], object]
"""Is called with each piece of text; returning False cancels."""


class InferenceEngine(NotCopied):
    """Runs one model, for any number of requests at a time and from any thread.

    All that generate or embed at the same time share their batches. Close it, or use it as a context manager,
    or just drop it: its thread ends and its memory is freed when the last of its generations and sessions is
    gone.

    Args:
        config: options, whose ``model_path``, if any, is loaded at once; or that path alone.
        progress: called with (tensor name, bytes) for each tensor as it comes into memory, which then all do
            at once; without it each matrix is packed when it is first used.

    Raises:
        ModelFileError, GGUFError, LoadError, TokenizerError: the model cannot be loaded, and why.
        ConfigError: an option cannot be honoured.
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
        _kernels.best()  # an unknown target is an error at once
        if self.config.model_path is not None:
            self._load(self.config.model_path, progress)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {getattr(self, '_model', None)!r}>"

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

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        pull_mmproj: bool = False,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> InferenceEngine:
        """An engine for a model of the Hugging Face Hub, which is downloaded unless it is in the cache.

        Args:
            repo_id: "user/repo", or a whole name: "user/repo:Q4_K_M", "hf://user/repo/file.gguf".
            filename: a path in the repository, or a pattern: "*Q4_K_M.gguf"; of a split model any of its
                files. None takes the only model of the repository.
            revision: branch, tag or commit.
            cache_dir: as in `huggingface_hub`; None for its default.
            token: as in `huggingface_hub`; None for its default.
            pull_mmproj: whether the repository's projector file, if it has one, is downloaded, too.
            progress: as for `InferenceEngine`; the download shows its own on stderr.
            config: fields of `EngineConfig`.

        Raises:
            ConfigError: no model fits, or several do, with a list; `huggingface_hub` is not installed.
            ModelFileError: the file cannot be fetched, or differs from the hub's. Others as
                `InferenceEngine`.
        """
        path = features.load("hub")(repo_id, filename, revision, cache_dir, token, pull_mmproj)
        return cls(EngineConfig(model_path=path, **config), progress=progress)

    # --- the model ----------------------------------------------------------------------------------

    def _load(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> None:
        model = self._new_model(source, progress)
        model.warn(stacklevel=4)
        self._model = model

    def _new_model(self, source: str | os.PathLike[str] | bytes, progress: Progress | None) -> LoadedModel:
        return LoadedModel(source, self.config, progress)

    @property
    def model(self) -> LoadedModel:
        """The model and what runs it. Raises ConfigError if none is loaded."""
        if self._model is None:
            raise ConfigError("model_path: no model is loaded")
        return self._model

    @property
    def tokenizer(self) -> TokenizerBridge:
        """From text to token ids and back."""
        return self.model.tokenizer

    @property
    def context_size(self) -> int:
        """Max tokens in a sequence."""
        return self.model.context_size

    @property
    def metrics(self) -> EngineMetrics:
        """Counters of the engine; also as Prometheus text."""
        metrics: EngineMetrics = self.model.feature("metrics")
        return metrics

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters of the model: `load`, `forget`, and the `stack` of requests that name none."""
        adapters: Adapters = self.model.feature("adapters")
        return adapters

    def close(self, *, finish: bool = False) -> None:
        """Ends the engine: after the running requests if ``finish``, otherwise they are cancelled.

        The consumer of a text that is cut so gets EngineClosed. Closing it again does nothing.
        """
        if self._model is not None:
            self._model.close(finish=finish)

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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

        Args:
            prompt: text, or token ids as they are (no BOS is added to those).
            options: of the request.
            callback: called with each piece that is read; returning False cancels.
            fields: of `GenerationOptions` and `SamplerConfig`, in place of ``options``' own and its
                sampler's.

        Raises:
            PromptError: the prompt is empty, no prompt, or leaves no room in the context for a token.
            TokenizerError: the text is not valid unicode.
            ConfigError: an option is out of range, or a token id is not in the vocabulary.
            ModelFileError, GGUFError, LoadError: an adapter or a draft model cannot be loaded, and why.
            GrammarError: the grammar is malformed, matches nothing, or is over a limit.
            ReceiptError: more stop strings or adapters were asked for than a receipt may name.
            QueueFull: too many requests are waiting.
            EngineClosed: the engine was closed.

        Reading the text raises KvCacheFullError, if there is not enough memory for this sequence alone, and
        any error of a sampler's stage.
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
        tokens, embeddings = model.prompt_parts(prompt, free=1)
        return self._submit([self._request(tokens, checked, whole, embeddings)], callback, limited=limited)[0]

    def _request(
        self, tokens: list[int], options: GenerationOptions, whole: bool = False, embeddings: Any = None
    ) -> TextRequest:
        """A request that is not submitted yet."""
        model = self.model
        adapters = model.adaptation(options.adapters, tokens)
        sequence = TokenSequence(model.pool, tokens, checkpoints=0, adapters=adapters, embeddings=embeddings)
        return model.text_request(sequence, options, key=model.prefix_key(options.salt), whole=whole)

    def _submit(
        self, requests: Sequence[TextRequest], callback: Callback | None = None, *, limited: bool = True
    ) -> list[Generation]:
        """The handles of requests, all or none of which are queued."""
        made = [Generation(self.model, request, callback) for request in requests]  # cancel what is dropped
        self.model.thread.submit(*requests, limited=limited)
        return made

    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str:
        """The text that follows a prompt: ``generate("Once upon a time", max_tokens=40, seed=1)``.

        Args:
            prompt: text, or token ids as they are (no BOS is added to those). For a conversation see `chat`.
            options: as for `stream`.
            callback: as for `stream`.
            fields: of `GenerationOptions` and `SamplerConfig`: ``max_tokens`` (256; None: all that fit),
                ``temperature`` (0.8; 0: the likeliest tokens), ``top_k``, ``top_p``, ``seed``, ``stop``,
                ``timeout``, ``adapters``; constraints: ``json_schema``, ``grammar``, ``regex``, ``choices``.

        Raises:
            GenerationTimeout: the timeout came first; the error has the text so far. Others as `stream`.
        """
        return text_of(self._stream(prompt, options, fields, callback, whole=callback is None).result())

    def stream_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        **fields: Unpack[GenerationFields],
    ) -> list[Generation]:
        """Starts to generate from all prompts together; one handle for each, as `stream` gives them.

        However many there are, none is refused with QueueFull. One that nobody reads pauses after some
        tokens: who reads one after the other takes `generate_batch`.
        """
        found: list[Generation] = []
        try:
            for prompt in listed(prompts):
                found.append(self._stream(prompt, options, fields, limited=False))
        except BaseException:
            cancel_all(found)
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

        Nobody reads them before the last is whole: prompts run in whole chunks, beside which the texts wait
        for their tokens, unless ``max_decode_wait_ms`` says otherwise.

        Args:
            return_exceptions: a prompt that fails has its error in place of its text. Otherwise the first
                error is raised, and the others are cancelled.
        """
        started: list[Generation | Exception] = []
        found: list[str | BaseException] = []
        is_free = options is None or options.max_decode_wait_ms is None
        given: dict[str, Any] = {**({"max_decode_wait_ms": NO_DECODE_WAIT} if is_free else {}), **fields}
        try:
            for prompt in listed(prompts):
                try:
                    started.append(self._stream(prompt, options, given, whole=True, limited=False))
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
            cancel_all([generation for generation in started if isinstance(generation, Generation)])
            raise
        return found

    def stream_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        **fields: Unpack[GenerationFields],
    ) -> list[Generation]:
        """Starts ``n`` samples of one prompt, which is run once; one handle for each, as `stream` gives them.

        Sample i is what `stream` gives with the seed s + i (modulo 2^64), where s is the seed that is asked
        for, else a new one. Each is a request of its own, to be read or cancelled by itself; they are refused
        with QueueFull, or taken, together. Parameters and errors as `stream`; ConfigError also if
        ``n`` is not 1 to 1024.
        """
        return self._stream_n(prompt, options, fields, n)

    def _stream_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None,
        fields: Mapping[str, Any],
        n: int,
        whole: bool = False,
    ) -> list[Generation]:
        model = self.model
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        model.runner.check_logits()
        tokens, embeddings = model.prompt_parts(prompt, free=1)
        requests = features.load("samples")(
            model, checked, n, lambda options: self._request(tokens, options, whole, embeddings)
        )
        return self._submit(requests)

    def generate_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        best_of: int | None = None,
        **fields: Unpack[GenerationFields],
    ) -> list[Completion]:
        """``n`` whole texts for one prompt, as `stream_n` starts them, in order of their seeds.

        Args:
            best_of: so many are generated, and the ``n`` whose tokens have the highest mean log-probability
                in the model's own distribution are returned, the best first (as OpenAI's ``best_of``
                chooses). Their log-probabilities are noted, asked for or not.

        Raises:
            ConfigError: ``n`` is not 1 to 1024, or ``best_of`` not ``n`` to 1024.

        Other errors as `stream`. A text that a timeout has cut has the finish reason "timeout".
        """
        n, most = features.load("numbers of samples")(n, best_of)
        if best_of is not None:
            fields["logprobs"] = True
        generations = self._stream_n(prompt, options, fields, most, whole=True)
        try:
            found = [generation.result() for generation in generations]
        except BaseException:
            cancel_all(generations)
            raise
        return found if best_of is None else features.load("best samples")(found, n)

    # --- conversations ------------------------------------------------------------------------------

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: None = None,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> str: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: Sequence[Any],
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> Completion: ...

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> str | Completion:
        """The answer to a conversation: `generate` from the prompt that the file's chat template makes.

        Reasoning is not part of the answer; ``stream_chat(...).result()`` has it. See `docs/toolcalls.md`.

        Args:
            messages: mappings with "role" and "content", the user's last message last. A content is a text or
                a list of parts ``{"type": "text", "text": ...}``. Messages of the assistant may have
                "tool_calls", and results of tools the role "tool".
            tools: that the model may call. The answer is then a `Completion`, with text and calls. Every call
                is valid by its tool's schema, unless it is cut off (``failed_calls``).
            template: more variables for the template, e.g. ``{"enable_thinking": False}``.
            callback: as for `stream`.
            fields: as for `stream`; ``tool_choice`` and ``parallel_tool_calls`` are among them.

        Raises:
            ChatTemplateError: the file has no chat template, or it refuses the messages.
            ConfigError: a part of a content is not text; a tool is invalid, or the template cannot show tools
                to the model.
            GrammarError: the schema of a tool cannot be enforced.
        """
        generation = self.stream_chat(
            messages, options, tools=tools, template=template, callback=callback, **fields
        )
        completion = generation.result()
        return text_of(completion) if generation.options.tools is None else completion

    def stream_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """`stream` from the prompt that the file's chat template makes of a conversation; see `chat`.

        The text is parsed as the template writes messages: `Generation.events` has calls and reasoning, the
        text that it yields is the answer alone.
        """
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        said = listed(messages, "messages")
        media = partial(self.model.feature, "media")
        tokens, checked = features.load("chat")(self.tokenizer, said, checked, template, media=media)
        return self._stream(tokens, checked, {}, callback)

    def parse(
        self,
        messages: Iterable[Mapping[str, Any]],
        kind: type[T],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> T:
        """The answer to a conversation as an object: a `chat` whose ``json_schema`` is a type.

        Args:
            messages: as for `chat`.
            template: as for `chat`.
            callback: as for `chat`.
            fields: as for `chat`.
            kind: a dataclass, a pydantic model, a `TypedDict`, an enumeration, or another annotation.

        Raises:
            AnswerCut: the text ended before the object did, by ``max_tokens`` for example.
            GenerationTimeout: the timeout came first.
            TypeError, ValueError: the type refuses what its schema allows, in a validator of its own. Others
                as `chat`.
        """
        asked: Any = {**fields, "json_schema": kind}
        generation = self.stream_chat(messages, options, template=template, callback=callback, **asked)
        found: T = generation.result().parsed
        return found

    # --- vectors ------------------------------------------------------------------------------------

    def embed(
        self,
        text: Prompt,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool = False,
        adapters: AdapterOption = None,
    ) -> np.ndarray:
        """float32 (n_embd,): the embedding of a text, or of a prompt with media (`oxillama.models.media`).

        Args:
            pooling: "last", "mean", "max" or "cls"; None for what the model's file says, else the mean of an
                encoder's tokens, the last token of a decoder.
            normalize: whether the vector is scaled to length 1.
            adapters: as in `GenerationOptions`.

        Raises:
            PromptError: the text is empty, no text, or does not fit the context.
            TokenizerError: the text is not valid unicode.
            ConfigError: there is no such pooling.
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
        adapters: AdapterOption = None,
    ) -> np.ndarray:
        """float32 (texts, n_embd): the embedding of each text, bit for bit as `embed` gives it."""
        handles = features.load("embeddings")(self.model, texts, pooling, normalize, adapters)
        vectors = [handle.result() for handle in handles]
        return np.stack(vectors) if vectors else np.empty((0, self.model.spec.embedding_width), np.float32)

    def hidden_states(self, text: Prompt, *, adapters: AdapterOption = None) -> np.ndarray:
        """float32 (tokens, n_embd): the hidden states of a text's tokens after the last norm."""
        prompts = [(self.model.prompt_tokens(text), None)]
        (handle,) = features.load("hidden states")(self.model, prompts, np.asarray, adapters)
        states: np.ndarray = handle.result()
        return states

    def rerank(self, query: str, documents: Iterable[str], *, adapters: AdapterOption = None) -> np.ndarray:
        """float32 (documents,): how well each document answers the query, by the score of the first label.

        Raises:
            ConfigError: the model is no reranker: the file has no classification head.
            PromptError: query and document do not fit the context together.
        """
        handles = features.load("rerank")(self.model, query, documents, adapters)
        return np.array([handle.result()[0] for handle in handles], np.float32)

    def decide(self, state: Any, questions: Any, **options: Unpack[DecisionFields]) -> Decision:
        """Answers typed questions about a text, or JSON, with a probability for each option.

        Args:
            state: text or JSON. A list of parts as in chats, or messages with such contents, may have
                pictures and sounds for a chat model that takes them; instructions and descriptions, too.
            questions: `Predicate`, `Choice`, `Score`, or mappings with a "type"; listed or by name.
            options: fields of `DecisionOptions`.

        Raises:
            ConfigError: the model is no decision model, or a question is not valid.
            MediaError: a picture or a sound cannot be decoded.
            ChatTemplateError, PromptError, TokenizerError, SamplingError: as `stream` says.
        """
        return self.decide_batch([(state, questions)], **options)[0]

    def decide_batch(
        self, requests: Iterable[tuple[Any, Any]], **options: Unpack[DecisionFields]
    ) -> list[Decision]:
        """The answers to many requests, (state, questions), run together; each is the one `decide` gives."""
        return [each.result() for each in features.load("decisions")(self.model, requests, **options)]

    # --- sessions and receipts -----------------------------------------------------------------------

    def session(self, *, adapters: AdapterOption = None) -> Session:
        """A sequence to run by hand, beside any number of others and of requests.

        ``adapters``, as in `GenerationOptions`, apply to all that it runs. Raises ConfigError for one that is
        activated by a prompt.
        """
        model = self.model
        session: Session = features.load("session")(
            model, self.config.sampler, model.adaptation(adapters, None)
        )
        return session

    def restore(
        self,
        snapshot: Source,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> Session | Generation:
        """The session or the generation that a snapshot was taken of, which continues with the same tokens.

        A generation has the text that was read of the other one, and yields the rest. See `docs/sessions.md`.

        Args:
            snapshot: of `Session.snapshot` or `Generation.snapshot`: its bytes, or the path of a file.
            loras: its adapters, or where they are now, if they are not where they were.
            stages: the sampler's stages written in Python, by the names that the snapshot has for them.
            callback: as for `stream`.
            fields: of `GenerationOptions` that decide no token: priority, timeout, window, speculate.

        Raises:
            SnapshotIncompatible: it is damaged, or does not fit the engine.
            ModelFingerprintMismatch: it is of another model. Nothing has changed then.
            ModelFileError, GGUFError, LoadError: its file, or an adapter, cannot be read.
            ConfigError: a field decides tokens.
            KvCacheFullError: no pages are left.
            QueueFull: as `stream`.
        """
        restore = features.load("restore")
        restored: Session | Generation = restore(self.model, snapshot, fields, loras, stages, callback)
        return restored

    def verify(self, receipt: Receipt | str | bytes, **options: Unpack[VerifyFields]) -> Verification:
        """Checks a receipt: runs prompt and text as one prompt, and has the sampler choose each token again.

        Args:
            receipt: of a text; or its JSON.
            options: ``adapters`` are candidates, besides the engine's adapters; the scales come from the
                receipt. ``stages`` are the sampler's stages written in Python, by the names that the receipt
                has for them. ``media`` are the pictures and sounds of the prompt, in order, as
                `oxillama.models.media` takes them. ``sample`` is a number of tokens to choose again, at
                random positions, without hashing logits; None for all of them.

        Raises:
            ReceiptError, GrammarError: it is no receipt, or says what no request can have been.
            ConfigError: the engine has other options than the receipt says, or too small a context; a stage
                is not given; an option of the sampler is out of range, or allows no ``sample``.
            ModelFileError, GGUFError, LoadError, KvCacheFullError: as `stream` says. And errors of stages.
        """
        verification: Verification = features.load("verify")(self.model, receipt, **options)
        return verification

    def beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        adapters: AdapterOption = None,
        **sampling: Unpack[SamplerFields],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, the best first.

        Args:
            config: how many beams, and how long.
            adapters: as in `GenerationOptions`.
            **sampling: fields of `SamplerConfig`: a grammar, bans, biases, penalties. Log-probabilities come
                from the distribution after these stages; without such fields from the model's own.

        Raises:
            ConfigError: a field is out of range, or names a stage that needs random numbers.
            PromptError, TokenizerError, GrammarError, KvCacheFullError: as `stream` says.
        """
        search = features.load("beam search")
        found: list[BeamHypothesis] = search(self.model, prompt, config, adapters, sampling)
        return found


def cancel_all(generations: Iterable[Generation]) -> None:
    """Ends generations before their next layer."""
    for generation in generations:
        generation.cancel()
