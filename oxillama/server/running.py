"""Starts generations without holding up the event loop, and reads several as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Completion, Generation
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import MOST_CHOICES, Prompt
from oxillama.server.errors import ApiError, ClientGone, invalid, prompt_too_long
from oxillama.toolcalls import Event, TextPart

T = TypeVar("T")

AHEAD = 64
"""Deltas that several generations may be ahead of the client together, beside their own windows."""


@dataclass(frozen=True)
class Delta:
    """What came next of a text.

    Attributes
    ----------
    index : of the text among those of the request.
    event : text, reasoning, or a part of a call; None at the end.
    tokens, logprobs : that brought it; the latter are empty unless they were asked for.
    finish_reason : why the text has ended; None while it goes on.
    """

    index: int
    event: Event | None
    tokens: list[int]
    logprobs: list[SampledToken]
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """Of an event that is text; otherwise empty."""
        return self.event.text if isinstance(self.event, TextPart) else ""


def checked_prompt(
    engine: InferenceEngine, tokens: list[int], *, name: str = "prompt", free: int = 1
) -> list[int]:
    """The tokens of a prompt. Raises ApiError if they leave no room for ``free`` more in the context."""
    if len(tokens) + free > engine.context_size:
        raise prompt_too_long(name, len(tokens), engine.context_size, free)
    return tokens


def prompt_lists(
    engine: InferenceEngine, prompts: list[Prompt] | list[str], *, name: str = "prompt", free: int = 1
) -> list[list[int]]:
    """The token ids of each prompt of a body.

    Parameters
    ----------
    name : of the field that it stands in.
    free : tokens for which the context must have room behind it.

    Raises
    ------
    ApiError : there are too many, or one does not fit the context.
    PromptError : a text is empty.
    TokenizerError : a text is not valid unicode.
    """
    if len(prompts) > MOST_CHOICES:
        raise invalid(name, f"at most {MOST_CHOICES}", len(prompts))
    if "" in prompts:
        raise ApiError(400, f"{name}: is empty", param=name, code="invalid_prompt")
    lists = [encoded(engine, one) for one in prompts]
    return [checked_prompt(engine, tokens, name=name, free=free) for tokens in lists]


def encoded(engine: InferenceEngine, prompt: Prompt, add_special: bool = True) -> list[int]:
    """The token ids of a prompt.

    A text among token ids brings no special tokens of its own, unless it is the first item.
    """
    encode = engine.tokenizer.encode
    if isinstance(prompt, str):
        return encode(prompt, add_special)
    found: list[int] = []
    for i, item in enumerate(prompt):
        found += encode(item, add_special and i == 0) if isinstance(item, str) else [item]
    return found


def start(
    engine: InferenceEngine, prompts: Sequence[list[int]], options: GenerationOptions, n: int
) -> list[Generation]:
    """``n`` generations of each prompt, in order. If one is refused, all are cancelled."""
    if len(prompts) * n > MOST_CHOICES:
        raise ApiError(
            400, f"n: expected at most {MOST_CHOICES} texts in all, got {len(prompts)} times {n}", param="n"
        )
    started: list[Generation] = []
    try:
        for prompt in prompts:
            started += engine.stream_n(prompt, options, n=n)
    except BaseException:
        cancel(started)
        raise
    return started


def cancel(generations: Sequence[Generation]) -> None:
    """Ends them before their next layer."""
    for generation in generations:
        generation.cancel()


async def in_thread(job: Callable[..., T], *arguments: Any) -> T:
    """The result of a job that would hold up the event loop."""
    return await asyncio.to_thread(job, *arguments)


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


async def connected(request: Request, work: Awaitable[T]) -> T:
    """`while_connected`, for a request."""
    return await while_connected(request.receive, work)


async def results(generations: Sequence[Generation]) -> list[Completion]:
    """All texts, whole. Cancels the others when one fails, or when the task is cancelled."""
    try:
        return [checked(await generation) for generation in generations]
    except BaseException:
        cancel(generations)
        raise


def checked(completion: Completion) -> Completion:
    """A completion that was not cancelled. Raises ApiError for one that was: the server is stopping."""
    if completion.finish_reason == "cancelled":
        raise ApiError(503, "the server is stopping", code="shutting_down")
    return completion


async def deltas(generations: Sequence[Generation]) -> AsyncIterator[Delta]:
    """What comes of the generations, as it comes. Cancels all when it is closed before their end."""
    try:
        if len(generations) == 1:
            async for delta in deltas_of(0, generations[0]):
                yield delta
        else:
            async for delta in merged([deltas_of(i, each) for i, each in enumerate(generations)]):
                yield delta
    finally:
        cancel(generations)


async def deltas_of(index: int, generation: Generation) -> AsyncIterator[Delta]:
    """What comes of one generation; the last has the finish reason."""
    n_tokens = n_logprobs = 0

    def delta(event: Event | None, finish_reason: str | None = None) -> Delta:
        nonlocal n_tokens, n_logprobs
        tokens, logprobs = generation.tokens[n_tokens:], (generation.logprobs or [])[n_logprobs:]
        n_tokens, n_logprobs = n_tokens + len(tokens), n_logprobs + len(logprobs)
        return Delta(index, event, tokens, logprobs, finish_reason)

    async for event in generation.events():
        yield delta(event)
    if generation.finish_reason == "cancelled":
        raise ApiError(503, "the server is stopping", code="shutting_down")
    yield delta(None, generation.finish_reason)


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """The items of several streams, each as soon as it comes. Raises what one of them raises."""
    queue: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue(AHEAD)

    async def pump(stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                await queue.put((item, None))
        except Exception as error:
            await queue.put((None, error))
        else:
            await queue.put((None, None))

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    n_left = len(tasks)
    try:
        while n_left:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                n_left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
