"""``/completion`` and ``/infill``: llama-server's own way to ask for text, and to answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import InfillBody, NativeBody, read_body
from oxillama.server.errors import ApiError
from oxillama.server.infill import infill_tokens
from oxillama.server.llama_server.status import settings
from oxillama.server.openai.logprobs import chat_entry
from oxillama.server.options import options_of
from oxillama.server.running import (
    Delta,
    Served,
    checked_prompt,
    chosen,
    connected,
    deltas,
    in_thread,
    prompt_lists,
    receipt_of,
    results,
    start,
    timings,
)
from oxillama.server.slots import to_its_end
from oxillama.server.stream import EventStream, data_line

ABSENT = object()


@dataclass(frozen=True)
class Plan:
    """A body, made ready to run."""

    body: NativeBody
    prompts: list[list[int]]
    options: GenerationOptions


def options_for(engine: InferenceEngine, body: NativeBody, request_id: str) -> GenerationOptions:
    """The options of a body. Raises ApiError, ConfigError."""
    if body.post_sampling_probs and not body.n_probs:
        message = "post_sampling_probs: expected n_probs beside it, got none"
        raise ApiError(400, message, param="post_sampling_probs", code="invalid_value")
    return options_of(
        body.rest,
        engine,
        type(body).model_fields,
        {"max_tokens": None},
        top_logprobs=body.n_probs or None,
        request_id=request_id,
    )


async def completion(request: Request) -> Response | EventStream:
    """Text that goes on from one prompt, or from several."""
    body = await read_body(request, NativeBody)

    def plan(engine: InferenceEngine) -> Plan:
        options = options_for(engine, body, request.state.request_id)
        return Plan(body, prompt_lists(engine, body.prompt.each), options)

    return await answer(request, body, plan)


async def infill(request: Request) -> Response | EventStream:
    """Text between two others."""
    body = await read_body(request, InfillBody)

    def plan(engine: InferenceEngine) -> Plan:
        others = [(each.filename, each.text) for each in body.input_extra]
        tokens = infill_tokens(engine, body.input_prefix, body.input_suffix, "input_suffix", others)
        tokens += engine.tokenizer.encode(body.prompt, add_special=False) if body.prompt else []
        checked = checked_prompt(engine, tokens, name="input_prefix, input_suffix")
        return Plan(body, [checked], options_for(engine, body, request.state.request_id))

    return await answer(request, body, plan)


async def answer(request: Request, body: NativeBody, plan_of: Any) -> Response | EventStream:
    """Runs what a plan says."""
    here, engine = await chosen(request, body.model)
    plan = await in_thread(plan_of, engine)
    if body.stream:
        return EventStream(events(here, engine, plan), here.config.ping_seconds)
    return await connected(request, whole(here, engine, plan))


@asynccontextmanager
async def started(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[list[Generation]]:
    """The generations of a plan; its slot, if it names one, is its own until the block ends."""
    id = plan.body.id_slot
    if id < 0:
        yield await in_thread(start, engine, plan.prompts, plan.options)
        return
    if len(plan.prompts) > 1:
        message = f"id_slot: expected one prompt for a slot, got {len(plan.prompts)}"
        raise ApiError(400, message, param="id_slot", code="invalid_value")
    async with here.hosted.slots.used(engine, id) as slot:
        yield [await to_its_end(slot.start, engine, plan.prompts[0], plan.options)]


async def whole(here: Served, engine: InferenceEngine, plan: Plan) -> Response:
    """The answer of a body that asks for no stream: an object, or a list for several prompts."""
    async with started(here, engine, plan) as generations:
        await results(generations)
    found = [
        last_part(here, engine, plan, i, each) | {"content": each.text} for i, each in enumerate(generations)
    ]
    for part, generation in zip(found, generations):
        if plan.body.return_tokens:
            part["tokens"] = generation.tokens
        if plan.body.n_probs:
            part["completion_probabilities"] = probabilities(engine, plan.body, generation.logprobs or [])
    found = [wanted(part, plan.body.response_fields) for part in found]
    return JSONResponse(found if len(found) > 1 else found[0])


async def events(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[str]:
    """The answer of a body that asks for a stream; the last event has the settings and the times."""
    async with started(here, engine, plan) as generations:
        async for delta in deltas(generations):
            yield data_line(part_of(here, engine, plan, delta, generations[delta.index]))


def part_of(
    here: Served, engine: InferenceEngine, plan: Plan, delta: Delta, generation: Generation
) -> dict[str, Any]:
    """An event of a stream."""
    part: dict[str, Any] = {
        "index": delta.index,
        "content": delta.text,
        "tokens": delta.tokens,
        "stop": False,
        "id_slot": plan.body.id_slot,
        "tokens_predicted": len(generation.tokens),
        "tokens_evaluated": len(generation.prompt_tokens),
    }
    if plan.body.n_probs:
        part["completion_probabilities"] = probabilities(engine, plan.body, delta.logprobs)
    if plan.body.timings_per_token:
        part["timings"] = timings(generation)
    if delta.finish_reason is not None:
        part |= last_part(here, engine, plan, delta.index, generation) | {"tokens": delta.tokens}
        return wanted(part, plan.body.response_fields)
    return part


def last_part(
    here: Served, engine: InferenceEngine, plan: Plan, index: int, generation: Generation
) -> dict[str, Any]:
    """What is known when a text has ended."""
    prompt = engine.tokenizer.decode(generation.prompt_tokens, skip_special=False)
    kind, word = stop_type(generation)
    found = {
        "index": index,
        "content": "",
        "tokens": [],
        "id_slot": plan.body.id_slot,
        "stop": True,
        "model": here.hosted.name,
        "tokens_predicted": len(generation.tokens),
        "tokens_evaluated": len(generation.prompt_tokens),
        "generation_settings": settings(plan.options) | {"seed": generation.seed},
        "prompt": prompt,
        "has_new_line": "\n" in generation.text,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": len(generation.prompt_tokens) + len(generation.tokens) - 1,
        "timings": timings(generation),
    }
    return found | receipt_of(generation)


def stop_type(generation: Generation) -> tuple[str, str]:
    """Why a text has ended, in llama-server's words, and the stop string, if it was one."""
    if generation.finish_reason != "stop":
        return {"length": "limit"}.get(generation.finish_reason or "", generation.finish_reason or ""), ""
    return ("eos", "") if generation.stop_string is None else ("word", generation.stop_string)


def wanted(part: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """The fields of an answer that are wanted, all for none. "a/b" is the field b of a; what is not there is
    left out."""
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


def probabilities(
    engine: InferenceEngine, body: NativeBody, sampled: list[SampledToken]
) -> list[dict[str, Any]]:
    """Of tokens and of the likeliest others: log-probabilities in the model's own distribution, or
    probabilities in the one that they were drawn from."""
    if body.post_sampling_probs:
        return [drawn(engine, each) for each in sampled]

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, **chat_entry(engine.tokenizer, token, logprob)}

    return [
        {
            **entry(each.token, each.raw.logprob),
            "top_logprobs": [entry(token, logprob) for token, logprob in each.raw.top],
        }
        for each in sampled
    ]


def drawn(engine: InferenceEngine, sampled: SampledToken) -> dict[str, Any]:
    """The probability of a token in the distribution that it was drawn from; others with 0 are left out."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        found = {"id": token, **chat_entry(engine.tokenizer, token, logprob)}
        del found["logprob"]
        return found | {"prob": math.exp(logprob)}

    top = [entry(token, logprob) for token, logprob in sampled.processed.top if math.exp(logprob) > 0]
    return {**entry(sampled.token, sampled.processed.logprob), "top_probs": top}
