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

from oxillama.apps.server.answer_size import (
    LOGPROB_BYTES,
    LOGPROB_HELD_BYTES,
    check_size,
    check_texts,
    whole_texts,
    within,
)
from oxillama.apps.server.bodies import CompletionBody, read_body
from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import fault
from oxillama.apps.server.infill import infill_tokens
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.openai.logprobs import CompletionLogprobs
from oxillama.apps.server.options import options_of
from oxillama.apps.server.prompt_fields import Prompt
from oxillama.apps.server.prompt_progress import PromptProgress, with_progress
from oxillama.apps.server.recording import with_receipt
from oxillama.apps.server.running import (
    begin,
    checked_prompt,
    compile_rules,
    encoded,
    in_thread,
    prompt_lists,
    receipt_of,
    text_of,
    times_of,
)
from oxillama.apps.server.scoring import Scored, go_on, score
from oxillama.apps.server.stream import DONE, EventForwarder, EventStream, TextLine, answered, data_line
from oxillama.apps.server.workers import pools
from oxillama.base.config import GenerationOptions
from oxillama.base.version import __version__
from oxillama.engine.completion import Completion
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.sample_seeds import best_samples
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import TokenLogprobs

MAX_TOKENS = 16
"""Tokens of a completion where the body does not say, as OpenAI has it."""


async def completions(request: Request) -> Response | EventStream:
    """The continuation of one prompt, or of several."""
    return await answered(request, await read_body(request, CompletionBody), Answer)


class Answer:
    """The answer to a body, whole or as a stream.

    Attributes:
        prompts: token ids of each prompt.
        n, most: texts that are wanted of each prompt, and that are generated.
        top: how many of the likeliest tokens have log-probabilities; None: no log-probabilities.
        has_scores: whether log-probabilities of the prompts are wanted.
        scored: the prompts with theirs.

    Raises ApiError, and errors of the library.
    """

    def __init__(self, engine: InferenceEngine, hosted: Hosted, body: CompletionBody) -> None:
        self.engine: InferenceEngine = engine
        self.body: CompletionBody = body
        self.top: int | None = body.logprobs
        self.n: int = body.n
        self.most: int = body.n if body.best_of is None else body.best_of
        if self.most < self.n or (body.stream and self.most > self.n):
            wanted = f"at least n, {self.n}" if self.most < self.n else f"n, {self.n}, for a stream"
            raise fault("best_of", f"expected {wanted}, got {self.most}")
        self.options: GenerationOptions = options_of(
            body.rest,
            engine,
            {"max_tokens": MAX_TOKENS},
            logprobs=True if self.most > self.n or self.top is not None else None,
            top_logprobs=self.top or None,
        )
        self.prompts: list[list[int]] = prompt_lists(engine, body.prompt.each)
        if body.suffix:
            infills = [infill_tokens(engine, prompt, body.suffix, "suffix") for prompt in body.prompt.each]
            self.prompts = [checked_prompt(engine, tokens) for tokens in infills]
        self.has_scores: bool = body.echo and self.top is not None
        if not body.stream:
            check_texts(self.options, len(self.prompts) * self.most)
        if body.echo:
            check_size(self.n * sum(map(self.echo_bytes, range(len(self.prompts)))), "prompt, n, logprobs")
        self.scored: list[Scored] = []
        self.head: dict[str, Any] = head_of("cmpl", "text_completion", hosted.name)

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
            for prompt in self.prompts:  # a prompt at a time, so that other clients have turns
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
        found = await whole_texts(generations)
        if self.most > self.n:
            groups = [found[i : i + self.most] for i in range(0, len(found), self.most)]
            found = [each for group in groups for each in best_samples(group, self.n)]
        choices = [self.choice(i, completion) for i, completion in enumerate(found)]
        return JsonAnswer({**self.head, "choices": choices, "usage": self.usage(generations)})

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A whole text."""
        tokens: list[int] = []
        known: list[TokenLogprobs | None] = []
        if self.has_scores:
            tokens += self.prompts[index // self.n]
            known += self.scored[index // self.n].logprobs
        tokens += completion.tokens
        known += [each.raw for each in completion.logprobs or []]
        return {
            "index": index,
            "text": (self.prompt_text(index) if self.body.echo else "") + completion.text,
            "logprobs": None if self.top is None else self.logprobs().of(tokens, known),
            "finish_reason": completion.finish_reason,
            **receipt_of(completion),
        }

    async def lines(self) -> AsyncIterator[str | EventForwarder]:
        """The answer as chunks."""
        generations, body = await self.start(), self.body
        lists = [self.logprobs() for _ in generations]
        for index in range(len(generations)) if body.echo else ():
            logprobs = None
            if self.has_scores:
                number = index // self.n
                logprobs = lists[index].of(self.prompts[number], self.scored[number].logprobs)
            yield data_line(self.chunk(index, self.prompt_text(index), logprobs))
        text_line = TextLine(partial(self.chunk, 0))
        found = within(generations, LOGPROB_HELD_BYTES)
        async for delta in with_progress(generations, found) if body.return_progress else found:
            if isinstance(delta, PromptProgress):
                yield data_line(self.chunk(delta.index, "") | delta.field)
                continue
            index, logprobs = delta.index, None
            if self.top is not None:
                logprobs = lists[index].of(delta.tokens, [each.raw for each in delta.logprobs])
            receipt = receipt_of(generations[index]) if delta.finish_reason else {}
            yield data_line(self.chunk(index, delta.text, logprobs, delta.finish_reason, **receipt))
            if len(generations) == 1 and self.top is None and delta.finish_reason is None:
                yield EventForwarder(generations[0], lambda event: text_line(text_of(event)))
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

    def echo_bytes(self, number: int) -> int:
        """Bytes of a prompt in an answer, about, with the log-probabilities of its tokens."""
        given, n = self.body.prompt.each[number], len(self.prompts[number])
        each = 0 if self.top is None else LOGPROB_BYTES * (1 + self.top)
        return (len(given) if isinstance(given, str) else 4 * n) + n * each

    def logprobs(self) -> CompletionLogprobs:
        return CompletionLogprobs(self.engine.tokenizer, self.top or 0)

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Numbers of tokens; a prompt counts once, however many texts continue it."""
        return usage_of(self.prompts, generations, self.most, self.has_scores)


def head_of(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """The fields of every part of an answer; the id begins with ``prefix``."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"oxillama-{__version__}",
    }


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
