"""The engine for asyncio: the same requests, awaited.

The kernels run in the engine's thread and without the interpreter's lock, so the event loop goes on.
Text reaches the loop with one call per step, however many streams it is for. A consumer that falls
behind pauses its own stream alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from oxillama.config import GenerationOptions, checks
from oxillama.config.adapters import Adapters
from oxillama.engine import features
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Completion, Generation, text_of
from oxillama.engine.handle import Handle
from oxillama.engine.loading import Prompt
from oxillama.errors import EngineClosed
from oxillama.locks import NotCopied

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.beams.search import BeamHypothesis, BeamSearchConfig
    from oxillama.config import EngineFields, GenerationFields, SamplerFields
    from oxillama.embeddings.pooling import PoolingMode
    from oxillama.sessions.adapters import Loras
    from oxillama.sessions.options import Stages
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.session import Session
    from oxillama.sessions.snapshot import Source
    from oxillama.sessions.verdict import Verification

H = TypeVar("H", bound=Handle)
T = TypeVar("T")

POLL = 0.01
"""Seconds between two looks whether requests have ended."""


class AsyncEngine(NotCopied):
    """Runs the requests of an asyncio program.

    To be used as ``async with``, or closed with `aclose`, both of which close the engine too if it was made
    by `from_gguf`. Cancelling a task cancels what it waits for.

    Parameters
    ----------
    engine : whose model it runs. It may be used otherwise at the same time.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine: InferenceEngine = checks.instance("engine", engine, InferenceEngine)
        self.engine.model.runner  # noqa: B018  # raises ConfigError if none is loaded
        self._owns_engine = False
        self._is_closed = False
        self._is_cut = False  # closed, without waiting for what runs
        self._live: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._apart_tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], **config: Unpack[EngineFields]) -> AsyncEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        made = cls(InferenceEngine.from_gguf(path, **config))
        made._owns_engine = True
        return made

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """Starts a request, as `InferenceEngine.stream`; read it with ``async for``, or await the whole."""
        return self._running(self._open().stream(prompt, options, **fields))

    def submit(self, prompt: Prompt, **fields: Unpack[GenerationFields]) -> Generation:
        """The former name of `stream`; it will go."""
        warnings.warn("AsyncEngine.submit is called stream now", DeprecationWarning, stacklevel=2)
        return self.stream(prompt, **fields)

    async def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str:
        """The whole text, as `InferenceEngine.generate`; cancelling the task cancels the request."""
        return text_of(await self._running(self._open()._stream(prompt, options, fields, whole=True)))

    def stream_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        **fields: Unpack[GenerationFields],
    ) -> list[Generation]:
        """Starts ``n`` samples of one prompt, as `InferenceEngine.stream_n`."""
        samples = self._open().stream_n(prompt, options, n=n, **fields)
        return [self._running(sample) for sample in samples]

    async def generate_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        best_of: int | None = None,
        **fields: Unpack[GenerationFields],
    ) -> list[Completion]:
        """``n`` whole texts, as `InferenceEngine.generate_n`; cancelling the task cancels all of them."""
        n, most = features.load("numbers of samples")(n, best_of)
        if best_of is not None:
            fields["logprobs"] = True
        samples = self._open()._stream_n(prompt, options, fields, most, whole=True)
        try:
            for sample in samples:
                self._running(sample)
            found = [await sample for sample in samples]
        except BaseException:
            for sample in samples:
                sample.cancel()
            raise
        return found if best_of is None else features.load("best samples")(found, n)

    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str | Completion:
        """The answer to a conversation, as `InferenceEngine.chat`: text, or with tools a `Completion`."""
        generation = self.stream_chat(messages, options, template=template, **fields)
        completion = await generation
        return text_of(completion) if generation.options.tools is None else completion

    def stream_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """Starts to answer a conversation, as `InferenceEngine.stream_chat`."""
        return self._running(self._open().stream_chat(messages, options, template=template, **fields))

    async def beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        adapters: Adapters = None,
        **sampling: Unpack[SamplerFields],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, as `InferenceEngine.beam_search`.

        A thread of the event loop's default executor runs it. Cancelling the task ends it after its step.
        """
        model, search = self._open().model, features.load("beam search")
        return await self._apart(lambda check: search(model, prompt, config, adapters, sampling, check))

    async def verify(
        self, receipt: Receipt | str | bytes, *, adapters: Adapters = (), stages: Stages | None = None
    ) -> Verification:
        """Checks a receipt, as `InferenceEngine.verify`; in a thread, as `beam_search`."""
        model, verify = self._open().model, features.load("verify")
        return await self._apart(lambda check: verify(model, receipt, adapters, stages, check))

    async def snapshot(
        self,
        of: Generation | Session,
        *,
        compress: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The `snapshot` of a generation or a session, taken in a thread."""
        if not hasattr(of, "capture"):
            raise checks.refuse("of", "a generation or a session", of)
        self._open()
        return await self._apart(lambda check: of.snapshot(compress=compress, notes=notes))

    async def restore(
        self, snapshot: Source, *, loras: Loras = None, stages: Stages | None = None, **fields: Any
    ) -> Session | Generation:
        """A session or a generation that goes on, as `InferenceEngine.restore`; begun in a thread."""
        engine = self._open()
        found = await self._apart(
            lambda check: engine.restore(snapshot, loras=loras, stages=stages, **fields)
        )
        return self._running(found) if isinstance(found, Generation) else found

    async def _apart(self, run: Callable[[Callable[[], object]], T]) -> T:
        """What ``run`` returns, in a thread of the event loop's default executor.

        It is given what raises EngineClosed once its task was cancelled, or the engine closed.
        """
        is_left = threading.Event()

        def check() -> None:
            if self._is_cut or is_left.is_set():
                raise EngineClosed("engine: is closed")

        def whole() -> T:
            try:
                return run(check)
            except EngineClosed:
                if is_left.is_set():
                    return None  # type: ignore[return-value]  # nobody waits for it
                raise

        task = asyncio.ensure_future(asyncio.to_thread(whole))
        self._apart_tasks.add(task)
        task.add_done_callback(self._apart_tasks.discard)
        try:
            return await asyncio.shield(task)
        finally:
            is_left.set()

    async def embed(
        self,
        text: Prompt,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool = False,
        adapters: Adapters = None,
    ) -> np.ndarray:
        """float32 (n_embd,): the embedding of a text, as `InferenceEngine.embed`."""
        vector: np.ndarray = (
            await self.embed_batch([text], pooling=pooling, normalize=normalize, adapters=adapters)
        )[0]
        return vector

    async def embed_batch(
        self,
        texts: Iterable[Prompt],
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool = False,
        adapters: Adapters = None,
    ) -> np.ndarray:
        """float32 (texts, n_embd): the embedding of each text, as `InferenceEngine.embed_batch`."""
        model = self._open().model
        handles = [
            self._running(handle)
            for handle in features.load("embeddings")(model, texts, pooling, normalize, adapters)
        ]
        vectors = [await handle for handle in handles]
        return np.stack(vectors) if vectors else np.empty((0, model.spec.n_embd), np.float32)

    async def rerank(self, query: str, documents: Iterable[str], *, adapters: Adapters = None) -> np.ndarray:
        """float32 (documents,): the score of each document, as `InferenceEngine.rerank`."""
        handles = [
            self._running(handle)
            for handle in features.load("rerank")(self._open().model, query, documents, adapters)
        ]
        return np.array([(await handle)[0] for handle in handles], np.float32)

    def _open(self) -> InferenceEngine:
        """The engine. Raises EngineClosed after `aclose`."""
        if self._is_closed:
            raise EngineClosed("engine: is closed")
        return self.engine

    def _running(self, handle: H) -> H:
        self._live.add(handle)
        return handle

    async def aclose(self, *, finish: bool = False) -> None:
        """Ends its requests: waits for them if ``finish``, otherwise cancels them. Closes the engine too if
        it was made by `from_gguf`."""
        self._is_closed = True
        self._is_cut = not finish
        for handle in list(self._live):
            if finish:
                handle._open_window()
            else:
                handle.cancel(EngineClosed("engine: is closed"))
            while handle.is_running:
                await asyncio.sleep(POLL)
        while self._apart_tasks:
            await asyncio.sleep(POLL)
        if self._owns_engine:
            await asyncio.to_thread(self.engine.close, finish=finish)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
