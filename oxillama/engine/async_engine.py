"""The engine for asyncio: the methods of `InferenceEngine`, awaited.

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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from oxillama.base.config import GenerationOptions, checks
from oxillama.base.config.adapters import Adapters
from oxillama.base.locks import NotCopied
from oxillama.engine import features
from oxillama.engine.completion import Completion, text_of
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.engine.handle import Handle
from oxillama.engine.loading import Prompt
from oxillama.errors import EngineClosed

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.base.config import EngineFields, GenerationFields
    from oxillama.engine.features.beam_search import BeamHypothesis, BeamSearchConfig
    from oxillama.engine.features.decisions.answers import Decision
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.session import Session
    from oxillama.sessions.snapshot import Source
    from oxillama.sessions.verdict import Verification

H = TypeVar("H")
P = ParamSpec("P")
T = TypeVar("T")

POLL = 0.01
"""Seconds between two looks whether requests have ended."""


def _like(
    method: Callable[Concatenate[InferenceEngine, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[AsyncEngine, P], Coroutine[Any, Any, T]]]:
    """Gives a coroutine function the signature and the docstring of a method of `InferenceEngine`."""
    found: Any = wraps(method)
    return found  # type: ignore[no-any-return]


def _started(
    method: Callable[Concatenate[InferenceEngine, P], H],
) -> Callable[Concatenate[AsyncEngine, P], H]:
    """A method of `InferenceEngine` that starts requests, for an `AsyncEngine`, which ends them."""

    @wraps(method)
    def start(self: AsyncEngine, /, *args: P.args, **kwargs: P.kwargs) -> H:
        started: H = getattr(self._open(), method.__name__)(*args, **kwargs)
        return self._running(started)

    return start


async def all_of(handles: Sequence[Awaitable[T]]) -> list[T]:
    """The results of requests in their order. If one fails or the task is cancelled, cancels the others."""
    try:
        return [await handle for handle in handles]
    except BaseException:
        for handle in handles:
            handle.cancel()  # type: ignore[attr-defined]
        raise


class AsyncEngine(NotCopied):
    """Runs the requests of an asyncio program.

    To be used as ``async with``, or closed with `aclose`, both of which close the engine too if it was made
    by `from_gguf`. Cancelling a task cancels what it waits for. `stream`, `stream_n` and `stream_chat` begin
    generations as the methods of `InferenceEngine` do; coroutines, with the parameters and errors there, are
    `generate`, `generate_n`, `embed`, `embed_batch`, `rerank`, `decide`, `decide_batch`, `beam_search`
    and `verify`.

    Args:
        engine: whose model it runs. It may be used otherwise at the same time.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine: InferenceEngine = checks.instance("engine", engine, InferenceEngine)
        self.engine.model.runner  # noqa: B018  # raises ConfigError if none is loaded
        self._owns_engine = False
        self._is_closed = False
        self._is_cut = False  # closed, without waiting for what runs
        self._live: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._apart_tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.engine!r}>"

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], **config: Unpack[EngineFields]) -> AsyncEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        made = cls(InferenceEngine.from_gguf(path, **config))
        made._owns_engine = True
        return made

    stream = _started(InferenceEngine.stream)
    stream_n = _started(InferenceEngine.stream_n)
    stream_chat = _started(InferenceEngine.stream_chat)

    def submit(self, prompt: Prompt, **fields: Unpack[GenerationFields]) -> Generation:
        """The former name of `stream`; it will go."""
        warnings.warn("AsyncEngine.submit is called stream now", DeprecationWarning, stacklevel=2)
        return self.stream(prompt, **fields)

    @_like(InferenceEngine.generate)
    async def generate(self, *args: Any, **kwargs: Any) -> str:
        return text_of(await self.stream(*args, **kwargs))

    @_like(InferenceEngine.generate_n)
    async def generate_n(
        self, *args: Any, n: int, best_of: int | None = None, **kwargs: Any
    ) -> list[Completion]:
        n, most = features.load("numbers of samples")(n, best_of)
        kwargs |= {} if best_of is None else {"logprobs": True}
        found = await all_of(self.stream_n(*args, n=most, **kwargs))
        return found if best_of is None else features.load("best samples")(found, n)

    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str | Completion:
        """The answer to a conversation, as `InferenceEngine.chat`: a text, or with tools a `Completion`."""
        generation = self.stream_chat(messages, options, template=template, **fields)
        completion = await generation
        return text_of(completion) if generation.options.tools is None else completion

    @_like(InferenceEngine.embed)
    async def embed(self, text: Prompt, **options: Any) -> np.ndarray:
        vector: np.ndarray = (await self.embed_batch([text], **options))[0]
        return vector

    @_like(InferenceEngine.embed_batch)
    async def embed_batch(self, texts: Iterable[Prompt], **options: Any) -> np.ndarray:
        model = self._open().model
        vectors = await all_of(self._running(features.load("embeddings")(model, texts, **options)))
        return np.stack(vectors) if vectors else np.empty((0, model.spec.embedding_width), np.float32)

    @_like(InferenceEngine.rerank)
    async def rerank(self, query: str, documents: Iterable[str], **options: Any) -> np.ndarray:
        handles = features.load("rerank")(self._open().model, query, documents, **options)
        return np.array([scores[0] for scores in await all_of(self._running(handles))], np.float32)

    @_like(InferenceEngine.decide)
    async def decide(self, state: Any, questions: Any, **options: Any) -> Decision:
        return (await self.decide_batch([(state, questions)], **options))[0]

    @_like(InferenceEngine.decide_batch)
    async def decide_batch(self, requests: Iterable[tuple[Any, Any]], **options: Any) -> list[Decision]:
        model, start = self._open().model, features.load("decisions")
        started = await asyncio.to_thread(start, model, requests, **options)
        found = [await all_of(self._running(each.readings)) for each in started]
        return [each.warned(each.decision(rows)) for each, rows in zip(started, found)]

    # --- in a thread of the event loop's default executor; cancelling the task ends the work after its step

    @_like(InferenceEngine.beam_search)
    async def beam_search(
        self,
        prompt: Prompt,
        config: BeamSearchConfig | None = None,
        *,
        adapters: Adapters = None,
        **sampling: Any,
    ) -> list[BeamHypothesis]:
        model, search = self._open().model, features.load("beam search")
        return await self._apart(lambda check: search(model, prompt, config, adapters, sampling, check))

    @_like(InferenceEngine.verify)
    async def verify(self, receipt: Receipt | str | bytes, **options: Any) -> Verification:
        model, verify = self._open().model, features.load("verify")
        return await self._apart(lambda check: verify(model, receipt, check=check, **options))

    async def snapshot(
        self,
        of: Generation | Session,
        *,
        compress: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The `snapshot` of a generation or a session."""
        if not hasattr(of, "capture"):
            raise checks.refuse("of", "a generation or a session", of)
        self._open()
        return await self._apart(lambda check: of.snapshot(compress=compress, notes=notes))

    async def restore(self, snapshot: Source, **options: Any) -> Session | Generation:
        """A session or a generation that goes on; parameters and errors of `InferenceEngine.restore`."""
        engine = self._open()
        found = await self._apart(lambda check: engine.restore(snapshot, **options))
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

    def _open(self) -> InferenceEngine:
        """The engine. Raises EngineClosed after `aclose`."""
        if self._is_closed:
            raise EngineClosed("engine: is closed")
        return self.engine

    def _running(self, started: H) -> H:
        """A handle or a list of handles, which `aclose` ends."""
        handles: Any = started if isinstance(started, list) else [started]
        self._live.update(handles)
        return started

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
