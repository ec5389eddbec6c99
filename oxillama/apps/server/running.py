"""Runs generations for requests and reads their events, without holding up the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event as Flag
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from oxillama.apps.server.bodies import MOST_CHOICES
from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, ClientGone, fault, invalid, prompt_too_long, stopping
from oxillama.apps.server.media import MAY_ENCODE, ClientMedia, HasMedia
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.processes import JobTooLate, NoProcess
from oxillama.apps.server.prompt_fields import MediaText, Prompt
from oxillama.apps.server.prompts import bounded
from oxillama.apps.server.recording import with_receipt
from oxillama.apps.server.workers import pools
from oxillama.base.config import GenerationOptions
from oxillama.base.config.server import ServerConfig
from oxillama.base.deadline import DeadlineExceeded
from oxillama.base.events import Event, TextPart
from oxillama.engine.completion import Completion
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.media.feature import GIVE_UP
from oxillama.engine.features.media.prompt import MARKER
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import SampledToken
from oxillama.errors import GrammarError
from oxillama.text.grammar.compiling import COMPILER

T = TypeVar("T")

AT_ONCE = 0.02
"""Seconds that a thread may take to compile a grammar, after which a process does."""

AHEAD = 64
"""Deltas that several generations may be ahead of the client together, beside their own windows."""


# --- the model of a request ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """The server's configuration, its models, and the model of the request.

    Attributes:
        hosted: the model of the request; the default one where it has none.
    """

    config: ServerConfig
    models: Models
    hosted: Hosted


@dataclass
class Lease:
    """A model that a request uses until its answer has ended, and the seconds for which it is then kept."""

    hosted: Hosted
    idle_seconds: float | None = None


def served(request: Request) -> Served:
    """The configuration and the models of a request's application."""
    found: Served = request.app.state.served
    return found


async def chosen(request: Request, name: str | None) -> tuple[Served, InferenceEngine]:
    """The model of a name, the default one for None, loaded and kept until the answer has ended.

    The body must have been read. Raises ApiError, ClientGone if the client goes away meanwhile.
    """
    here = served(request)
    lease = await leased(request, here.models.find(name))
    return replace(here, hosted=lease.hosted), lease.hosted.ready()


async def present(request: Request, name: str | None) -> tuple[Served, InferenceEngine]:
    """`chosen`, for requests that only read: a model that is not there is not loaded. Raises ApiError."""
    here = served(request)
    hosted = here.models.find(name)
    if not hosted.is_ready and hosted.loading is None:
        raise ApiError(
            503, f"model: {hosted.name} is not loaded", type="unavailable_error", code="not_loaded"
        )
    return await chosen(request, name)


async def leased(request: Request, hosted: Hosted) -> Lease:
    """A model, loaded and kept until the answer has ended, when the key has room for one more request.

    Raises as `chosen`; ApiError with 429 for a key over its limits.
    """
    models = served(request).models
    if not request.state.leases and request.method != "GET":
        await enter(request)
    if hosted.is_ready:
        await models.acquire(hosted)
    else:
        await connected(request, models.acquire(hosted))
    lease = Lease(hosted)
    request.state.leases.append(lease)
    return lease


async def enter(request: Request) -> None:
    """Waits until the key has room for one more request, which it has until the answer has ended.

    Raises ApiError for a key over its limits, ClientGone.
    """
    asked = context()
    if not asked.caller.try_enter():
        await connected(request, asked.caller.enter())
    asked.ends.append(asked.caller.leave)


@dataclass(eq=False)
class Leases:
    """A middleware that releases the models of a request when its answer has ended."""

    app: ASGIApp
    models: Models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        leases: list[Lease] = []
        scope.setdefault("state", {})["leases"] = leases
        try:
            await self.app(scope, receive, send)
        finally:
            for lease in leases:
                self.models.release(lease.hosted, lease.idle_seconds)


# --- prompts ------------------------------------------------------------------------------------------


def checked_prompt(
    engine: InferenceEngine, tokens: list[int], *, name: str = "prompt", free: int = 1
) -> list[int]:
    """The tokens of a prompt. Raises ApiError if they leave no room for ``free`` more in the context."""
    if len(tokens) + free > engine.context_size:
        raise prompt_too_long(name, len(tokens), engine.context_size, free)
    return tokens


def prompt_lists(
    engine: InferenceEngine,
    prompts: list[Prompt] | list[str],
    *,
    name: str = "prompt",
    free: int = 1,
    media: bool = False,
    is_list: bool = False,
) -> list[list[int]]:
    """The token ids of each prompt of a body.

    Args:
        name: the field that has the prompts.
        is_list: whether they were given as a list of prompts.
        free: tokens that must fit into the context after the prompt.
        media: whether prompts may have media. They are each a `MediaPrompt` then.

    Raises:
        ApiError: there are too many, or one does not fit the context.
        PromptError: a text is empty.
        TokenizerError: a text is not valid unicode.
    """
    if len(prompts) > MOST_CHOICES:
        raise invalid(name, f"at most {MOST_CHOICES}", len(prompts))
    if not media and any(isinstance(one, MediaText) for one in prompts):
        raise invalid(name, "texts or token ids: /completion, embeddings and chats take media", "media")
    if "" in prompts:
        raise fault(name, "is empty", "invalid_prompt")
    names = [f"{name}[{i}]" if is_list else name for i in range(len(prompts))]
    lists = [encoded(engine, one, name=each, free=free) for one, each in zip(prompts, names, strict=True)]
    return [checked_prompt(engine, tokens, name=name, free=free) for tokens in lists]


def encoded(
    engine: InferenceEngine, prompt: Prompt, add_special: bool = True, name: str = "prompt", free: int = 1
) -> list[int]:
    """The token ids of a prompt; ``free`` tokens must fit into the context after media.

    A text among token ids brings no special tokens of its own, unless it is the first item.
    """
    if isinstance(prompt, MediaText):
        media, texts = ClientMedia(engine, name, free=free), prompt.text.split(MARKER)
        places = [f"{name}.{place}" for place in prompt.places]
        given: Any = media.between(places, texts, prompt.data)
        return given  # type: ignore[no-any-return]
    encode: Callable[..., list[int]] = bounded(engine).encode
    if isinstance(prompt, str):
        return encode(prompt, add_special)
    found: list[int] = []
    for i, item in enumerate(prompt):
        found += encode(item, add_special and i == 0) if isinstance(item, str) else [item]
    return found


# --- jobs, and clients that go away -------------------------------------------------------------------


async def in_thread(job: Callable[..., T], *arguments: Any) -> T:
    """The result of a job that would hold up the event loop, when it is the client's turn.

    A job that finds media begins again in a thread for encoders, which stop when the client goes away. Raises
    ClientGone then.
    """
    with suppress(HasMedia):
        return await pools().prepare.run(job, *arguments, size=context().n_bytes)
    gone, receive = Flag(), context().receive
    work = pools().encode.run(encoding, gone, job, *arguments)
    try:
        return await (work if receive is None else while_connected(receive, work))
    finally:
        gone.set()


def encoding(gone: Flag, job: Callable[..., T], *arguments: Any) -> T:
    """The result of a job that may run encoders, until the client has ``gone``."""
    MAY_ENCODE.set(True)
    GIVE_UP.set(gone.is_set)
    return job(*arguments)


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client goes away. Raises ClientGone then."""
    task: asyncio.Future[T] = asyncio.ensure_future(work)
    gone: asyncio.Future[Any] = asyncio.ensure_future(disconnected(receive))
    both: set[asyncio.Future[Any]] = {task, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def last(items: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """The last of several objects; {} for none."""
    found: dict[str, Any] = {}
    async for item in items:
        found = item
    return found


async def connected(request: Request, work: Awaitable[T]) -> T:
    """`while_connected`, for a request."""
    return await while_connected(request.receive, work)


# --- generations --------------------------------------------------------------------------------------


def start(
    engine: InferenceEngine, prompts: Sequence[list[int]], options: GenerationOptions, n: int = 1
) -> list[Generation]:
    """``n`` generations of each prompt, in order. If one is refused, all are cancelled."""
    if len(prompts) * n > MOST_CHOICES:
        raise fault("n", f"expected at most {MOST_CHOICES} texts in all, got {len(prompts)} times {n}")
    started: list[Generation] = []
    try:
        for prompt in prompts:
            run = partial(streams, engine, prompt, n)
            started += run(options) if context().recording is None else with_receipt(run, options)
        context().generations += started
    except BaseException:
        cancel(started)
        raise
    return started


def streams(
    engine: InferenceEngine, prompt: list[int], n: int, options: GenerationOptions
) -> list[Generation]:
    """``n`` generations of a prompt."""
    return engine.stream_n(prompt, options, n=n) if n > 1 else [engine.stream(prompt, options)]


def start_at_once(
    engine: InferenceEngine, prompts: Sequence[list[int]], options: GenerationOptions, n: int = 1
) -> list[Generation] | None:
    """`start`, in the thread that made the prompts; None if a grammar has to be compiled first."""
    has_rules = options.tools is not None or (options.sampler and options.sampler.constraint) is not None
    return None if has_rules else start(engine, prompts, options, n)


async def begin(
    engine: InferenceEngine,
    prompts: Sequence[list[int]],
    options: GenerationOptions,
    n: int = 1,
    started: list[Generation] | None = None,
) -> list[Generation]:
    """`start`, in threads, after grammars are compiled in threads of their own.

    Args:
        started: the result of `start_at_once`; if it is not None, it is the result.
    """
    if started is not None:
        return started
    await compile_rules(engine, prompts, options)
    return await in_thread(start, engine, prompts, options, n)


async def compile_rules(
    engine: InferenceEngine, prompts: Sequence[list[int]], options: GenerationOptions
) -> None:
    """Compiles the grammar of a request, if it has one, before `start` needs it. Raises GrammarError.

    A process compiles a grammar that a thread cannot compile at once.
    """
    model, sampler, jobs = engine.model, options.sampler, []
    if sampler is not None and sampler.constraint is not None:
        jobs.append(partial(model.feature("constraints").new, sampler))
    if options.tools is not None:
        lists = [getattr(prompt, "tokens", prompt) for prompt in prompts]  # a MediaPrompt's tokens
        jobs += [partial(model.feature("parsers").new, options, tokens) for tokens in lists]
    compile, seconds = pools().compile, context().config.compile_seconds
    for job in jobs:
        try:
            if pools().processes.most and seconds > AT_ONCE:
                with suppress(DeadlineExceeded):
                    await compile.run(job, seconds=AT_ONCE)
                    continue
                with suppress(NoProcess):
                    await compile.run(compiled_in_process, job, seconds, in_process=True)
                    continue
            await compile.run(job, size=context().n_bytes, seconds=seconds)
        except (DeadlineExceeded, JobTooLate) as error:
            raise GrammarError(f"grammar: is not compiled after {seconds:g} s") from error


def compiled_in_process(job: Callable[[], object], seconds: float) -> None:
    """Runs a job, whose grammar a process compiles. Raises GrammarError, JobTooLate, NoProcess."""
    processes = pools().processes
    COMPILER.set(lambda *wanted: processes.run(*wanted, seconds=seconds))
    job()


def cancel(generations: Sequence[Generation]) -> None:
    """Cancels generations, which end before their next layer."""
    for generation in generations:
        generation.cancel()


async def results(generations: Sequence[Generation]) -> list[Completion]:
    """All texts, whole. Cancels the others when one fails, or when the task is cancelled."""
    try:
        found = []
        for generation in generations:
            found.append(await generation)
            check_end(generation)
        return found
    except BaseException:
        cancel(generations)
        raise


def check_end(generation: Generation) -> None:
    """Raises ApiError for a text that was cancelled: the server is stopping."""
    if generation.finish_reason == "cancelled":
        raise stopping()


@dataclass(frozen=True)
class Delta:
    """The next part of a text, with its tokens and log-probabilities.

    Attributes:
        index: the number of the text in the request.
        event: text, reasoning, or a part of a call; None at the end.
        tokens, logprobs: that brought it; the latter are empty unless they were asked for.
        finish_reason: why the text has ended; None while it goes on.
    """

    index: int
    event: Event | None
    tokens: list[int]
    logprobs: list[SampledToken]
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """The text of the event; "" for other events."""
        return text_of(self.event)


def text_of(event: Event | None) -> str:
    """The text of a text event; "" for other events."""
    return event.text if isinstance(event, TextPart) else ""


def deltas(generations: Sequence[Generation]) -> AsyncGenerator[Delta]:
    """The deltas of generations, as they come. Closing the iterator cancels all generations."""
    each = [deltas_of(index, generation) for index, generation in enumerate(generations)]
    return each[0] if len(each) == 1 else merged(each, generations)


async def deltas_of(index: int, generation: Generation) -> AsyncGenerator[Delta]:
    """The deltas of one generation; the last one has the finish reason."""
    n = 0  # tokens that were sent

    def delta(event: Event | None, finish_reason: str | None = None) -> Delta:
        nonlocal n
        before, n = n, len(generation.tokens)
        logprobs = generation.logprobs or []
        return Delta(index, event, generation.tokens[before:], logprobs[before:], finish_reason)

    try:
        async for event in generation.events():
            yield delta(event)
        check_end(generation)
        yield delta(None, generation.finish_reason)
    finally:
        generation.cancel()


async def merged(
    streams: Sequence[AsyncIterator[Delta]], generations: Sequence[Generation]
) -> AsyncGenerator[Delta]:
    """The deltas of several generations, each as soon as it comes. Raises what one of them raises."""
    queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(AHEAD)

    async def pump(stream: AsyncIterator[Delta]) -> None:
        try:
            async for delta in stream:
                await queue.put(delta)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    n_left = len(tasks)
    try:
        while n_left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                n_left -= 1
            else:
                yield found
    finally:
        cancel(generations)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def receipt_of(generation: Generation | Completion) -> dict[str, Any]:
    """The receipt of a text that has ended, if one was asked for, as a field of an answer."""
    if generation.receipt is None or context().hides_receipts:
        return {}
    return {"receipt": generation.receipt.to_json()}


def times_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """llama-server's times, of an answer with one text."""
    return {"timings": timings(generations[0])} if len(generations) == 1 else {}


def timings(generation: Generation) -> dict[str, float]:
    """Tokens and milliseconds of the prompt and of the text, as llama-server's clients read them.

    The first token of a text comes from the last step of the prompt, and so does not count for its speed.
    """
    usage, seconds = generation.usage, generation.timings
    n_run, n_text = seconds.prefill_tokens, usage.generated_tokens
    prompt, text = (n_run, n_run, seconds.prefill), (n_text, seconds.decode_tokens, seconds.decode)
    found = times(usage.cached_tokens, prompt, text)
    drafts = generation.speculation
    if drafts is not None:
        found |= {"draft_n": drafts.drafted, "draft_n_accepted": drafts.accepted}
    return found


def times(n_cached: int, prompt: tuple[int, int, float], text: tuple[int, int, float]) -> dict[str, float]:
    """`timings`: of prompt and text the tokens, those that count for the speed, and seconds, or nan."""
    found: dict[str, float] = {"cache_n": n_cached}
    for name, (n, n_steps, spent) in (("prompt", prompt), ("predicted", text)):
        spent = 0.0 if math.isnan(spent) else spent
        found[f"{name}_n"] = n
        found[f"{name}_ms"] = 1000 * spent
        found[f"{name}_per_token_ms"] = 1000 * spent / n_steps if n_steps > 0 else 0.0
        found[f"{name}_per_second"] = n_steps / spent if spent and n_steps > 0 else 0.0
    return found
