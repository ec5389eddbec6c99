"""The release gate of serving: whatever happens around a request, it gets the bits it gets alone."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.features.beam_search import BeamHypothesis, BeamSearchConfig
from oxillama.engine.features.pipeline.partition import borders_allowed
from oxillama.engine.request import Request
from oxillama.errors import KvCacheFullError
from oxillama.text.grammar import Grammar
from tests.support.serving import NAMES, STACKS, Serving, check_as_alone, decoder, n_vocab_of
from tests.support.tiny_models import tokens_of
from tests.support.zoo import RECURRENT

SAMPLERS = (
    SamplerConfig.greedy(),
    SamplerConfig(temperature=1.5, top_k=0, seed=1),
    SamplerConfig(temperature=0.9, seed=2, repetition_penalty=1.3),
    SamplerConfig(
        temperature=1.2, top_k=0, seed=3, grammar=Grammar.parse('root ::= ([a-g] | "k" [l-p]){3,12} [q-z]*')
    ),
    SamplerConfig(  # most of its tokens must follow, and are appended
        temperature=1.2,
        top_k=0,
        seed=4,
        grammar=Grammar.parse('root ::= ("abce" [g-i] | "klm" [p-r]* "st"){2,6}'),
    ),
)


@dataclass(frozen=True)
class Arrival:
    """A request of a scenario."""

    step: int  # when it comes
    shared: int  # tokens of the common prefix it begins with
    own: int  # tokens of its own
    who: int  # which those are
    max_tokens: int
    sampler: int
    priority: int
    aborted: int  # after so many steps of its life
    pauses: bool  # its reader takes a piece at a time, and not in every step
    drafts: int  # most tokens it drafts, and the share of them that is right
    right: float
    adapters: str
    start: int  # the token from which on the last of them applies
    samples: int  # of its prompt


arrivals = st.builds(
    Arrival, step=st.integers(0, 12), shared=st.sampled_from([0, 5, 16, 33, 64, 70]), own=st.integers(1, 50),
    who=st.integers(0, 3), max_tokens=st.integers(1, 14), sampler=st.integers(0, len(SAMPLERS) - 1),
    priority=st.integers(0, 2), aborted=st.one_of(st.just(10**6), st.integers(0, 12)), pauses=st.booleans(),
    drafts=st.sampled_from([0, 0, 1, 4, 8]), right=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    adapters=st.sampled_from(["", "", *STACKS]), start=st.sampled_from([0, 0, 1, 16, 20, 64, 80]),
    samples=st.sampled_from([1, 1, 1, 4]),
)  # fmt: skip


EXAMPLES = int(os.environ.get("OXILLAMA_EXAMPLES", "200"))


scenarios = given(
    name=st.sampled_from((*NAMES, *RECURRENT)),  # states and pages together are the harder case
    requests=st.lists(arrivals, min_size=1, max_size=8),
    page_size=st.sampled_from([1, 8, 16, 32, 64]),
    threads=st.sampled_from([1, 2]),
    chunk=st.sampled_from([1, 3, 16, 40, 512]),
    tokens_in_memory=st.sampled_from([64, 128, 192, 320, 10**5]),
    states=st.sampled_from([2, 3, 6, 100]),
    cached_pages=st.sampled_from([0, 3, 10**4]),
    cached_states=st.sampled_from([0, 1, 4, 100]),
    spacing=st.sampled_from([4, 16, 64]),
    max_sequences=st.sampled_from([1, 3, 64]),
    wait_ms=st.sampled_from([1e-6, 1e9]),
    kv_type=st.sampled_from(["f16", "f32", "bf16", "q8_0", "q5_1", "iq4_nl", "f16:q5_0", "q8_0:q4_1"]),
    beams=st.sampled_from([0, 0, 1, 2, 4]),
    beams_at=st.integers(0, 12),
    beams_adapted=st.sampled_from(["", "", "a"]),
    stages=st.sampled_from([1, 1, 2, 3]),
)


@pytest.mark.parametrize("examples", [30, pytest.param(EXAMPLES, marks=pytest.mark.slow)])
def test_each_request_gets_the_bits_it_gets_alone(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(scenarios(check_scenario))()


def check_scenario(
    name: str,
    requests: list[Arrival],
    page_size: int,
    threads: int,
    chunk: int,
    tokens_in_memory: int,
    states: int,
    cached_pages: int,
    cached_states: int,
    spacing: int,
    max_sequences: int,
    wait_ms: float,
    kv_type: str,
    beams: int,
    beams_at: int,
    beams_adapted: str,
    stages: int,
) -> None:
    borders = borders_allowed(decoder(name).spec)[: stages - 1]
    serving = Serving(
        name, borders=borders, page_size=page_size, threads=threads, chunk=chunk, kv_type=kv_type,
        max_pages=tokens_in_memory // page_size, states=states, cached_pages=cached_pages,
        cached_states=cached_states, spacing=spacing, max_sequences=max_sequences, max_decode_wait_ms=wait_ms,
        promote_seconds=0.3,
    )  # fmt: skip
    n_vocab = n_vocab_of(name)
    common = tokens_of(100, n_vocab)
    live: list[tuple[Arrival, Request, int]] = []
    ended: list[tuple[Arrival, Request]] = []
    waiting = sorted(requests, key=lambda r: r.step)
    beam_prompt = tuple(common[:20])
    for now in range(20_000):  # a page short and a token a step, readers that pause undo each other
        while waiting and waiting[0].step <= now:
            arrival = waiting.pop(0)
            prompt = common[: arrival.shared] + tokens_of(arrival.own, n_vocab, seed=7 + arrival.who)
            samples = serving.submit_samples(
                prompt,
                arrival.samples,
                max_tokens=arrival.max_tokens,
                sampler=SAMPLERS[arrival.sampler],
                priority=arrival.priority,
                window=1 if arrival.pauses else float("inf"),
                drafts=arrival.drafts,
                right=arrival.right,
                adapters="" if borders else arrival.adapters,  # a pipeline has none
                start=arrival.start,
            )
            live += [(arrival, request, now + 2 * i) for i, request in enumerate(samples)]
        for arrival, request, came in live:
            if now - came == arrival.aborted:
                serving.cancel(request)
            if arrival.pauses and now % 3 == 0:  # asks for a piece more now and then, until it has it
                request.window = len(request.pieces) + 1
        if beams and now == beams_at:
            check_beams(serving, beam_prompt, beams, "" if borders else beams_adapted)
        serving.step()
        ended += [(arrival, request) for arrival, request, _ in live if request.finish_reason]
        live = [entry for entry in live if not entry[1].finish_reason]
        if not live and not waiting:
            break
    assert not live, "not all have ended"
    for arrival, request in ended:
        if request.finish_reason == "error":
            needed = len(request.prompt) + arrival.max_tokens - 1  # the last token is never run
            assert isinstance(request.error, KvCacheFullError)
            # or beams held the pages
            assert beams or serving.pool.pages_for(needed) + 2 * serving.slot_pages > (
                serving.pool.limit.max_bytes // serving.pool.page_stride
            )
        elif request.finish_reason == "cancelled":
            assert arrival.aborted < 10**6
        check_as_alone(serving, request)
    serving.check_empty()


def check_beams(serving: Serving, prompt: tuple[int, ...], width: int, adapters: str) -> None:
    """A beam search beside the requests finds what it finds alone, if there are pages for it."""
    config = BeamSearchConfig(beam_width=width, max_new_tokens=6)
    try:
        found = serving.beams(list(prompt), config, adapters)
    except KvCacheFullError:
        return
    assert found == beams_alone(serving.name, serving.kv_type, prompt, config, adapters)


@functools.cache
def beams_alone(
    name: str, kv_type: str, prompt: tuple[int, ...], config: BeamSearchConfig, adapters: str
) -> list[BeamHypothesis]:
    return Serving(name, kv_type=kv_type).beams(list(prompt), config, adapters)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    page_size=st.sampled_from([16, 64]),
    steps=st.lists(
        st.tuples(st.sampled_from("frx"), st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=14
    ),
)
def test_forks_and_rewinds_change_nobody_elses_bits(
    name: str, page_size: int, steps: list[tuple[str, int, int]]
) -> None:
    """Sequences that fork, rewind and go on differently, over shared pages."""
    from oxillama.engine.sequence import Sequence

    serving = Serving(name, page_size=page_size)
    n_vocab = n_vocab_of(name)
    first = Sequence(serving.pool, tokens_of(40, n_vocab))
    serving.runner.forward([(first, 40)])
    sequences = [first]
    for number, (verb, n, which) in enumerate(steps):
        sequence = sequences[which % len(sequences)]
        if verb == "f":
            sequences.append(sequence.fork())
        elif verb == "r":
            sequence.truncate(min(n, sequence.total_len))
        elif sequence.total_len < 150:
            sequence.tokens += tokens_of(1 + n % 20, n_vocab, seed=number)
            serving.runner.forward([(sequence, sequence.pending)])
        serving.scheduler.check_integrity(sequences)
    for sequence in sequences:
        sequence.tokens.append(1)
        mine = serving.runner.forward([(sequence, sequence.pending)])[0]
        fresh = Sequence(serving.pool, sequence.tokens)
        assert np.array_equal(mine, serving.runner.forward([(fresh, fresh.total_len)])[0])
        fresh.release()
    for sequence in sequences:
        sequence.release()
    serving.check_empty()
