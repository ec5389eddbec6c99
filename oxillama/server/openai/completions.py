"""``/v1/completions``: OpenAI's interface for texts that go on from a prompt."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama._version import __version__
from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Completion, Generation
from oxillama.engine.samples import best_samples
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import CompletionBody, Prompt, read_body
from oxillama.server.errors import ApiError
from oxillama.server.infill import infill_tokens
from oxillama.server.openai.logprobs import CompletionLogprobs, joined
from oxillama.server.options import options_of
from oxillama.server.running import (
    Delta,
    Served,
    checked_prompt,
    chosen,
    connected,
    deltas,
    encoded,
    in_thread,
    prompt_lists,
    receipt_of,
    results,
    start,
)
from oxillama.server.scoring import Scored, go_on, score
from oxillama.server.stream import DONE, EventStream, data_line

MAX_TOKENS = 16
"""Tokens of a completion where the body does not say, as OpenAI has it."""

FINGERPRINT = f"oxillama-{__version__}"


@dataclass(frozen=True)
class Plan:
    """A body, made ready to run.

    Attributes
    ----------
    prompts : token ids of each prompt.
    n, most : texts that are wanted of each prompt, and that are generated.
    top : log-probabilities of so many of the likeliest tokens are wanted; None for none at all.
    """

    body: CompletionBody
    prompts: list[list[int]]
    options: GenerationOptions
    n: int
    most: int
    top: int | None

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of the prompts are wanted."""
        return self.body.echo and self.top is not None


def plan_of(engine: InferenceEngine, body: CompletionBody, request_id: str) -> Plan:
    """What a body asks for. Raises ApiError, and errors of the library."""
    n, most = body.n, body.n if body.best_of is None else body.best_of
    if most < n:
        raise ApiError(400, f"best_of: expected at least n, {n}, got {most}", param="best_of")
    if body.stream and most > n:
        raise ApiError(400, f"best_of: expected n, {n}, for a stream, got {most}", param="best_of")
    options = options_of(
        body.rest,
        engine,
        CompletionBody.model_fields,
        {"max_tokens": MAX_TOKENS},
        logprobs=True if most > n or body.logprobs is not None else None,
        top_logprobs=body.logprobs or None,
        request_id=request_id,
    )
    prompts = prompt_lists(engine, body.prompt.each)
    if body.suffix:
        prompts = [with_suffix(engine, prompt, body.suffix) for prompt in body.prompt.each]
    return Plan(body, prompts, options, n, most, body.logprobs)


def with_suffix(engine: InferenceEngine, prompt: Prompt, suffix: str) -> list[int]:
    """A prompt for what stands between it and a suffix."""
    return checked_prompt(engine, infill_tokens(engine, prompt, suffix, "suffix"))


async def completions(request: Request) -> Response | EventStream:
    body = await read_body(request, CompletionBody)
    here, engine = await chosen(request, body.model)
    plan = await in_thread(plan_of, engine, body, request.state.request_id)
    if body.stream:
        return EventStream(events(here, engine, plan), here.config.ping_seconds)
    return await connected(request, whole(here, engine, plan))


async def begin(engine: InferenceEngine, plan: Plan) -> tuple[list[Generation], list[Scored]]:
    """Starts what a plan asks for; its scored prompts, too, if they are wanted."""
    if not plan.scores:
        return await in_thread(start, engine, plan.prompts, plan.options, plan.most), []
    gone = threading.Event()

    def run() -> tuple[list[Generation], list[Scored]]:
        adapters = plan.options.adapters
        scored = [score(engine, prompt, plan.top or 0, gone, adapters) for prompt in plan.prompts]
        seed = engine.config.seed
        return [each for one in scored for each in go_on(one, plan.options, plan.most, seed)], scored

    try:
        return await in_thread(run)
    finally:
        gone.set()


class Answer:
    """Makes the parts of an answer."""

    def __init__(self, here: Served, engine: InferenceEngine, plan: Plan, scored: Sequence[Scored]) -> None:
        self.engine, self.plan, self.scored = engine, plan, scored
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": here.hosted.name,
            "system_fingerprint": FINGERPRINT,
        }

    def prompt_text(self, index: int) -> str:
        """The prompt of a choice, as text."""
        number = index // self.plan.n
        chosen: Prompt = self.plan.body.prompt.each[number]
        return (
            chosen if isinstance(chosen, str) else self.engine.tokenizer.decode(encoded(self.engine, chosen))
        )

    def logprobs(self) -> CompletionLogprobs:
        return CompletionLogprobs(self.engine.tokenizer, bool(self.plan.top))

    def prompt_logprobs(self, lists: CompletionLogprobs, index: int) -> dict[str, Any]:
        """Of the tokens of a choice's prompt."""
        number = index // self.plan.n
        return lists.of(self.plan.prompts[number], self.scored[number].logprobs)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A whole text."""
        plan, parts = self.plan, []
        lists = self.logprobs()
        if plan.scores:
            parts.append(self.prompt_logprobs(lists, index))
        if plan.top is not None:
            parts.append(text_logprobs(lists, completion.tokens, completion.logprobs or []))
        choice: dict[str, Any] = {
            "index": index,
            "text": (self.prompt_text(index) if plan.body.echo else "") + completion.text,
            "logprobs": joined(parts) if parts else None,
            "finish_reason": completion.finish_reason,
        }
        return choice | receipt_of(completion)

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Numbers of tokens; a prompt counts once, however many texts go on from it."""
        return usage_of(self.plan.prompts, generations, self.plan.most, bool(self.scored))


def text_logprobs(
    lists: CompletionLogprobs, tokens: Sequence[int], sampled: Sequence[SampledToken]
) -> dict[str, Any]:
    """Of the tokens of a text, the one that ends it included: callers count on one entry for each token."""
    return lists.of(tokens, [each.raw for each in sampled])


def usage_of(
    prompts: Sequence[list[int]], generations: Sequence[Generation], n: int, is_scored: bool = False
) -> dict[str, Any]:
    """OpenAI's usage: of ``n`` texts for each prompt."""
    n_prompt = sum(map(len, prompts))
    n_text = sum(generation.usage.generated_tokens for generation in generations)
    cached = 0 if is_scored else sum(g.usage.cached_tokens for g in generations[::n])
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_text,
        "total_tokens": n_prompt + n_text,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def whole(here: Served, engine: InferenceEngine, plan: Plan) -> Response:
    """The answer of a body that asks for no stream."""
    generations, scored = await begin(engine, plan)
    answer = Answer(here, engine, plan, scored)
    found = await results(generations)
    if plan.most > plan.n:
        groups = [found[i : i + plan.most] for i in range(0, len(found), plan.most)]
        found = [each for group in groups for each in best_samples(group, plan.n)]
    choices = [answer.choice(i, completion) for i, completion in enumerate(found)]
    return JSONResponse({**answer.head, "choices": choices, "usage": answer.usage(generations)})


async def events(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[str]:
    """The answer of a body that asks for a stream."""
    generations, scored = await begin(engine, plan)
    answer = Answer(here, engine, plan, scored)
    lists = [answer.logprobs() for _ in generations]

    def chunk(index: int, text: str, logprobs: Any, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if plan.body.wants_usage else {}
        return {**answer.head, "choices": [choice], **usage}

    def chunk_of(delta: Delta) -> dict[str, Any]:
        logprobs = None
        if plan.top is not None:
            logprobs = text_logprobs(lists[delta.index], delta.tokens, delta.logprobs)
        made = chunk(delta.index, delta.text, logprobs, delta.finish_reason)
        if delta.finish_reason:
            made["choices"][0] |= receipt_of(generations[delta.index])
        return made

    if plan.body.echo:
        for index in range(len(generations)):
            logprobs = answer.prompt_logprobs(lists[index], index) if plan.scores else None
            yield data_line(chunk(index, answer.prompt_text(index), logprobs))
    async for delta in deltas(generations):
        yield data_line(chunk_of(delta))
    if plan.body.wants_usage:
        yield data_line({**answer.head, "choices": [], "usage": answer.usage(generations)})
    yield DONE
