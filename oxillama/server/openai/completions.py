"""``/v1/completions``: OpenAI's interface for texts that go on from a prompt."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama._version import __version__
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Completion, Generation
from oxillama.samples.seeds import best_samples
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import CompletionBody, Prompt, read_body
from oxillama.server.callers import context
from oxillama.server.errors import ApiError
from oxillama.server.infill import infill_tokens
from oxillama.server.json_text import JsonAnswer
from oxillama.server.openai.logprobs import CompletionLogprobs, joined
from oxillama.server.options import options_of
from oxillama.server.prompt_progress import PromptProgress, with_progress
from oxillama.server.recording import with_receipt
from oxillama.server.running import (
    begin,
    checked_prompt,
    chosen,
    compile_rules,
    connected,
    deltas,
    encoded,
    in_thread,
    prompt_lists,
    receipt_of,
    results,
    text_of,
    times_of,
)
from oxillama.server.scoring import Scored, go_on, score
from oxillama.server.stream import DONE, EventStream, Relay, TextLine, data_line
from oxillama.server.workers import pools

MAX_TOKENS = 16
"""Tokens of a completion where the body does not say, as OpenAI has it."""

FINGERPRINT = f"oxillama-{__version__}"


async def completions(request: Request) -> Response | EventStream:
    """Text that goes on from one prompt, or from several."""
    body = await read_body(request, CompletionBody)
    here, engine = await chosen(request, body.model)
    answer = await in_thread(Answer, engine, here.hosted.name, body, request.state.request_id)
    if body.stream:
        return EventStream(answer.lines(), here.config.ping_seconds)
    return await connected(request, answer.whole())


class Answer:
    """The answer to a body, whole or as a stream.

    Attributes
    ----------
    prompts : token ids of each prompt.
    n, most : texts that are wanted of each prompt, and that are generated.
    top : log-probabilities of so many of the likeliest tokens are wanted; None for none at all.
    has_scores : whether log-probabilities of the prompts are wanted.
    scored : the prompts with theirs.

    Raises ApiError, and errors of the library.
    """

    def __init__(self, engine: InferenceEngine, model: str, body: CompletionBody, request_id: str) -> None:
        self.engine: InferenceEngine = engine
        self.body: CompletionBody = body
        self.top: int | None = body.logprobs
        self.n: int = body.n
        self.most: int = body.n if body.best_of is None else body.best_of
        if self.most < self.n or (body.stream and self.most > self.n):
            wanted = f"at least n, {self.n}" if self.most < self.n else f"n, {self.n}, for a stream"
            raise ApiError(400, f"best_of: expected {wanted}, got {self.most}", param="best_of")
        self.options = options_of(
            body.rest,
            engine,
            {"max_tokens": MAX_TOKENS},
            logprobs=True if self.most > self.n or self.top is not None else None,
            top_logprobs=self.top or None,
            request_id=request_id,
        )
        self.prompts: list[list[int]] = prompt_lists(engine, body.prompt.each)
        if body.suffix:
            infills = [infill_tokens(engine, prompt, body.suffix, "suffix") for prompt in body.prompt.each]
            self.prompts = [checked_prompt(engine, tokens) for tokens in infills]
        self.has_scores: bool = body.echo and self.top is not None
        self.scored: list[Scored] = []
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    async def start(self) -> list[Generation]:
        """Starts the generations, from scored prompts if their log-probabilities are wanted."""
        if not self.has_scores:
            return await begin(self.engine, self.prompts, self.options, self.most)
        await compile_rules(self.engine, self.prompts, self.options)
        gone, engine, adapters = threading.Event(), self.engine, self.options.adapters

        def go_on_all() -> list[Generation]:
            seed = engine.config.seed
            each_of = [partial(go_on, one, n=self.most, seed=seed) for one in self.scored]
            return [each for start in each_of for each in with_receipt(start, self.options)]

        try:
            for prompt in self.prompts:  # one by one: other clients have their turn between them
                wanted = partial(score, engine, prompt, self.top or 0, gone, adapters)
                self.scored.append(await pools().score.run(wanted))
            generations = await in_thread(go_on_all)
            context().generations += generations
            return generations
        finally:
            gone.set()

    async def whole(self) -> Response:
        """The answer as one object."""
        generations = await self.start()
        found = await results(generations)
        if self.most > self.n:
            groups = [found[i : i + self.most] for i in range(0, len(found), self.most)]
            found = [each for group in groups for each in best_samples(group, self.n)]
        choices = [self.choice(i, completion) for i, completion in enumerate(found)]
        return JsonAnswer({**self.head, "choices": choices, "usage": self.usage(generations)})

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A whole text."""
        lists, parts = self.logprobs(), []
        if self.has_scores:
            parts.append(self.prompt_logprobs(lists, index))
        if self.top is not None:
            parts.append(text_logprobs(lists, completion.tokens, completion.logprobs or []))
        return {
            "index": index,
            "text": (self.prompt_text(index) if self.body.echo else "") + completion.text,
            "logprobs": joined(parts) if parts else None,
            "finish_reason": completion.finish_reason,
            **receipt_of(completion),
        }

    async def lines(self) -> AsyncIterator[str | Relay]:
        """The answer as chunks."""
        generations, body = await self.start(), self.body
        lists = [self.logprobs() for _ in generations]
        for index in range(len(generations)) if body.echo else ():
            logprobs = self.prompt_logprobs(lists[index], index) if self.has_scores else None
            yield data_line(self.chunk(index, self.prompt_text(index), logprobs))
        text_line = TextLine(partial(self.chunk, 0))
        found = deltas(generations)
        async for delta in with_progress(generations, found) if body.return_progress else found:
            if isinstance(delta, PromptProgress):
                yield data_line(self.chunk(delta.index, "") | delta.field)
                continue
            index, logprobs = delta.index, None
            if self.top is not None:
                logprobs = text_logprobs(lists[index], delta.tokens, delta.logprobs)
            receipt = receipt_of(generations[index]) if delta.finish_reason else {}
            yield data_line(self.chunk(index, delta.text, logprobs, delta.finish_reason, **receipt))
            if len(generations) == 1 and self.top is None and delta.finish_reason is None:
                yield Relay(generations[0], lambda event: text_line(text_of(event)))
        if body.wants_usage:
            usage = {"usage": self.usage(generations), **times_of(generations)}
            yield data_line({**self.head, "choices": [], **usage})
        yield DONE

    def chunk(
        self, index: int, text: str, logprobs: Any = None, finish_reason: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """A part of a text."""
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **more}
        usage = {"usage": None} if self.body.wants_usage else {}
        return {**self.head, "choices": [choice], **usage}

    def prompt_text(self, index: int) -> str:
        """The prompt of a choice, as text."""
        prompt: Prompt = self.body.prompt.each[index // self.n]
        engine = self.engine
        return prompt if isinstance(prompt, str) else engine.tokenizer.decode(encoded(engine, prompt))

    def logprobs(self) -> CompletionLogprobs:
        return CompletionLogprobs(self.engine.tokenizer, bool(self.top))

    def prompt_logprobs(self, lists: CompletionLogprobs, index: int) -> dict[str, Any]:
        """Of the tokens of a choice's prompt."""
        number = index // self.n
        return lists.of(self.prompts[number], self.scored[number].logprobs)

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Numbers of tokens; a prompt counts once, however many texts go on from it."""
        return usage_of(self.prompts, generations, self.most, self.has_scores)


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
