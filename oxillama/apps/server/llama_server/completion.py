"""``/completion`` and ``/infill``: llama-server's own way to ask for text, and to answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import LOGPROB_HELD_BYTES, check_texts, whole_texts, within
from oxillama.apps.server.bodies import InfillBody, NativeBody, read_body
from oxillama.apps.server.errors import fault
from oxillama.apps.server.infill import infill_tokens
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.openai.logprobs import chat_entry, mapped
from oxillama.apps.server.options import options_of
from oxillama.apps.server.prompt_progress import PromptProgress, with_progress
from oxillama.apps.server.running import Delta, checked_prompt, encoded, prompt_lists, timings
from oxillama.apps.server.slot_requests import started
from oxillama.apps.server.stream import EventStream, answered, data_line
from oxillama.apps.server.text_facts import facts_of
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.media.prompt import MediaPrompt
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import SampledToken
from oxillama.text.chat.bridge import TokenizerBridge

ABSENT = object()


async def completion(request: Request) -> Response | EventStream:
    """The continuation of one prompt, or of several."""
    return await answered(request, await read_body(request, NativeBody), Answer)


async def infill(request: Request) -> Response | EventStream:
    """Text between two others."""
    return await answered(request, await read_body(request, InfillBody), Answer)


def infill_prompt(engine: InferenceEngine, body: InfillBody) -> list[int]:
    """The prompt for text between two others. Raises ApiError."""
    others = [(each.filename, each.text) for each in body.input_extra]
    tokens = infill_tokens(engine, body.input_prefix, body.input_suffix, "input_suffix", others)
    tokens += encoded(engine, body.prompt, add_special=False) if body.prompt else []
    return checked_prompt(engine, tokens, name="input_prefix, input_suffix")


class Answer:
    """The answer to a body: an object, or a list for several prompts; or a stream, whose last event has the
    settings and the times.

    Raises ApiError, and errors of the library.
    """

    def __init__(self, engine: InferenceEngine, hosted: Hosted, body: NativeBody) -> None:
        self.engine: InferenceEngine = engine
        self.hosted: Hosted = hosted
        self.body: NativeBody = body
        if body.post_sampling_probs and not body.n_probs:
            raise fault("post_sampling_probs", "expected n_probs beside it, got none", "invalid_value")
        self.options: GenerationOptions = options_of(
            body.rest, engine, {"max_tokens": None}, top_logprobs=body.n_probs or None
        )
        if isinstance(body, InfillBody):
            self.prompts: list[list[int]] = [infill_prompt(engine, body)]
        else:
            self.prompts = prompt_lists(engine, body.prompt.each, media=True, is_list=body.prompt.is_list)
        if not body.stream:
            check_texts(self.options, len(self.prompts))

    def started(self) -> AbstractAsyncContextManager[list[Generation]]:
        """The generations; they keep the slot, if the body names one, until the block ends."""
        return started(self.engine, self.hosted.slots, self.body.id_slot, self.prompts, self.options)

    async def whole(self) -> Response:
        """The answer of a body that asks for no stream."""
        async with self.started() as generations:
            await whole_texts(generations)
        found = []
        for index, generation in enumerate(generations):
            part = self.last_part(index, generation) | {"content": generation.text}
            if self.body.return_tokens:
                part["tokens"] = generation.tokens
            part |= self.probabilities(generation.logprobs or [])
            found.append(wanted(part, self.body.response_fields))
        return JsonAnswer(found if len(found) > 1 else found[0])

    async def lines(self) -> AsyncIterator[str]:
        """The answer of a body that asks for a stream."""
        async with self.started() as generations:
            found = within(generations, LOGPROB_HELD_BYTES)
            async for delta in with_progress(generations, found) if self.body.return_progress else found:
                if isinstance(delta, PromptProgress):
                    empty = Delta(delta.index, None, [], [])
                    part = self.part(empty, generations[delta.index]) | delta.field
                    yield data_line(part | delta.timings if self.body.timings_per_token else part)
                else:
                    yield data_line(self.part(delta, generations[delta.index]))

    def part(self, delta: Delta, generation: Generation) -> dict[str, Any]:
        """An event of a stream."""
        part: dict[str, Any] = {
            "index": delta.index,
            "content": delta.text,
            "tokens": delta.tokens,
            "stop": False,
            "id_slot": self.body.id_slot,
            "tokens_predicted": len(generation.tokens),
            "tokens_evaluated": len(generation.prompt_tokens),
            **self.probabilities(delta.logprobs),
        }
        if self.body.timings_per_token:
            part["timings"] = timings(generation)
        if delta.finish_reason is not None:
            part |= self.last_part(delta.index, generation) | {"tokens": delta.tokens}
            return wanted(part, self.body.response_fields)
        return part

    def last_part(self, index: int, generation: Generation) -> dict[str, Any]:
        """The fields at the end of a text."""
        return {
            "index": index,
            "id_slot": self.body.id_slot,
            **facts_of(self.engine, self.hosted.name, generation, self.prompt_text(index)),
        }

    def prompt_text(self, index: int) -> str | None:
        """The text of a prompt with media, from the body; None: the text of its tokens."""
        has_media = isinstance(self.prompts[index], MediaPrompt)
        return str(self.body.prompt.each[index].text) if has_media else None

    def probabilities(self, sampled: list[SampledToken]) -> dict[str, Any]:
        """Probabilities of tokens and of the likeliest others, if requested: log-probabilities in the model's
        own distribution, or probabilities in the distribution that the tokens were drawn from."""
        if not self.body.n_probs:
            return {}
        each_of = drawn if self.body.post_sampling_probs else raw
        found = mapped(partial(each_of, self.engine.tokenizer), sampled, self.body.n_probs)
        return {"completion_probabilities": found}


def wanted(part: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """The requested fields of an answer; all fields without a request. "a/b" is the field b of a; unknown
    fields are left out."""
    if not paths:
        return part
    found = {}
    for path in paths:
        value: Any = part
        for name in path.split("/"):
            value = value.get(name, ABSENT) if isinstance(value, dict) else ABSENT
        if value is not ABSENT:
            found[path] = value
    return found


def raw(tokenizer: TokenizerBridge, sampled: SampledToken) -> dict[str, Any]:
    """The log-probability of a token in the model's own distribution."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, **chat_entry(tokenizer, token, logprob)}

    top = [entry(token, logprob) for token, logprob in sampled.raw.top]
    return {**entry(sampled.token, sampled.raw.logprob), "top_logprobs": top}


def drawn(tokenizer: TokenizerBridge, sampled: SampledToken) -> dict[str, Any]:
    """The probability of a token in the distribution that it was drawn from; others with 0 are left out."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        found = {"id": token, **chat_entry(tokenizer, token, logprob)}
        del found["logprob"]
        return found | {"prob": math.exp(logprob)}

    top = [entry(token, logprob) for token, logprob in sampled.processed.top if math.exp(logprob) > 0]
    return {**entry(sampled.token, sampled.processed.logprob), "top_probs": top}
