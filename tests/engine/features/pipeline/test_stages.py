"""A model in stages gives the bits of the model in one process, wherever it is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oxillama.base.config import SamplerConfig
from oxillama.engine.cache.kv_pool import KvCachePool
from oxillama.engine.features.pipeline.partition import borders_allowed, layer_costs, split
from oxillama.engine.protocols import Drafter
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import Output, SeqState, Sequence
from oxillama.errors import ConfigError
from oxillama.models.page_groups import page_groups
from tests.support import zoo
from tests.support.kernels import same_bits
from tests.support.serving import NAMES, Serving, check_as_alone, decoder, model_file, n_vocab_of
from tests.support.tiny_models import tokens_of

ALL = dict.fromkeys([*NAMES, *zoo.MODELS])
CUT = [name for name in ALL if borders_allowed(decoder(name).spec)]


def states_of(serving: Serving, prompt: list[int]) -> list[np.ndarray]:
    """Hidden states of a prompt's tokens, run in two chunks, and of one that goes on from a fork."""
    sequence, found = Sequence(serving.pool, prompt), []
    whole = not serving.runner.model.spec.causal  # an encoder runs a text in one pass
    for n in (len(prompt),) if whole else (11, len(prompt) - 11):
        sequence.schedule(n)
        (rows,) = serving.runner.run([sequence], [Output.ALL_HIDDEN])
        sequence.commit()
        found.append(rows)
    if not whole:
        fork = sequence.fork()
        for each in (fork, sequence):  # the second one writes a page of its own
            each.tokens += tokens_of(3, n_vocab_of(serving.name), seed=len(found))
            found.append(serving.runner.forward([(each, each.pending)], all_logits=True, states=True))
        fork.release()
    sequence.release()
    return found


@pytest.mark.parametrize("name", CUT)
def test_every_family_wherever_it_is_cut(name: str) -> None:
    allowed = borders_allowed(decoder(name).spec)
    prompt = tokens_of(29, n_vocab_of(name))
    expected = states_of(Serving(name), prompt)
    cuts = [[border] for border in allowed]
    cuts += [allowed[:2]] if len(allowed) > 1 else []
    for borders in cuts:
        found = states_of(Serving(name, borders=borders), prompt)
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True)), borders


def test_no_pages_need_no_memory() -> None:
    serving = Serving("llama", borders=[1])
    (stage,) = serving.stages
    assert len(stage.read_pages(0, [])) == 0
    stage.write_pages(0, [], stage.read_pages(0, []))
    assert stage.pool.groups[0].n_pages == 0


def test_few_models_cannot_be_cut() -> None:
    assert len(CUT) > 100
    for name in set(ALL) - set(CUT):
        spec = decoder(name).spec
        assert spec.n_layers == 1 or any(layer.kv_from is not None for layer in spec.layers)


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "rwkv7", "gpt-oss", "qwen3next"])
def test_batches_are_under_way_together(name: str) -> None:
    """The streams are divided; each gets its own bits, and preempted ones again."""
    spec = decoder(name).spec
    serving = Serving(name, borders=borders_allowed(spec)[:1], max_pages=20, states=12, chunk=16)
    prompts = [tokens_of(9 + 5 * i, n_vocab_of(name), seed=i) for i in range(7)]
    requests = [
        serving.submit(prompt, max_tokens=12, sampler=SamplerConfig(temperature=1.0, seed=i), drafts=i % 3)
        for i, prompt in enumerate(prompts)
    ]
    together = 0
    while any(request.finish_reason is None for request in requests):
        assert serving.step()
        together = max(together, len(serving.scheduler.in_flight))
    assert together >= 2, "nothing was under way while the next batch was scheduled"
    check_as_alone(serving, *requests)
    serving.check_empty()


def test_streams_are_divided_among_the_stages() -> None:
    serving = Serving("gemma3", borders=[2, 4], chunk=512)
    requests = [serving.submit(tokens_of(8, 40, seed=i), max_tokens=9) for i in range(7)]
    most = 0
    while any(request.finish_reason is None for request in requests):
        batch = serving.scheduler.schedule()
        serving.scheduler.recover()
        if batch.requests and not batch.n_prefill:
            most = max(most, len(batch.requests))
            running = [r for r in serving.scheduler.running if r.sequence.state is SeqState.DECODING]
            assert len(batch.requests) <= -(-len(running) // 3)
        serving.step()
    assert most >= 2


def test_a_request_in_a_stage_is_ended_when_it_has_landed() -> None:
    serving = Serving("llama", borders=[1])
    first, second = (serving.submit(tokens_of(20, 40, seed=i), max_tokens=30) for i in range(2))
    while not serving.scheduler.in_flight:
        serving.step()
    in_flight = serving.scheduler.in_flight[0]
    serving.cancel(in_flight)
    assert in_flight.finish_reason is None, "a stage still writes its pages"
    serving.run(first, second)
    assert in_flight.finish_reason == "cancelled"
    serving.check_empty()


def test_pages_of_all_stages_are_those_of_one_process() -> None:
    """Bytes of pages and states; what one of them gives, the other takes."""
    for name in ("gemma3", "jamba", "llama"):
        spec = decoder(name).spec
        here, spread = Serving(name), Serving(name, borders=borders_allowed(spec)[:1])
        prompt = tokens_of(40, n_vocab_of(name))
        taken = []
        for serving in (here, spread):
            sequence = Sequence(serving.pool, prompt)
            serving.runner.forward([(sequence, 40)])
            taken.append(sequence.kv.snapshot(40))
        for mine, theirs, group in zip(*taken, [*here.pool.groups, None]):
            assert mine.shape == theirs.shape
            if isinstance(group, KvCachePool):
                layout, size = group.layout, group.page_size
                assert layout.page_bytes(size) == group.page_bytes
        for serving, other in ((here, taken[1]), (spread, taken[0])):
            sequence = Sequence(serving.pool, [*prompt, 1])
            sequence.kv.restore(other, 40)
            sequence.cached_len = sequence.scheduled_len = 40
            rows = serving.runner.forward([(sequence, 1)])
            fresh = Sequence(here.pool, [*prompt, 1])
            assert same_bits(rows, here.runner.forward([(fresh, 41)]))


def test_groups_of_stages() -> None:
    spec = decoder("gemma3").spec
    whole = page_groups(spec)
    for border in borders_allowed(spec):
        parts = [page_groups(replace(spec, part=part)) for part in ((0, border), (border, spec.n_layers))]
        for group, *stages in zip(whole, *parts):
            assert sorted(sum((stage.layers for stage in stages), ())) == list(group.layers)


def test_layers_are_divided_by_bytes_and_speed() -> None:
    file, spec = model_file("gemma3"), decoder("gemma3").spec
    costs = layer_costs(spec, file)
    assert len(costs) == spec.n_layers and all(cost > 0 for cost in costs)
    assert sum(costs) < sum(info.nbytes for info in file.tensors.values())
    even = split(spec, file, [1, 1])
    assert even[0][0] == 0 and even[-1][1] == spec.n_layers and even[0][1] == even[1][0]
    (_, border), _ = split(spec, file, [1e9, 1])
    assert border == spec.n_layers - 1, "nearly everything is for the fast one"
    (_, border), _ = split(spec, file, [1, 1e9])
    assert border == 1
    assert split(spec, file, [1, 1], [2]) == [(0, 2), (2, spec.n_layers)]
    for wrong in ([0], [spec.n_layers], [1, 2], []):
        with pytest.raises(ConfigError, match="borders"):
            split(spec, file, [1, 1], wrong)
    with pytest.raises(ConfigError, match="stages: expected at most"):
        split(spec, file, [1] * (spec.n_layers + 1))


def test_no_border_between_layers_that_share_keys() -> None:
    spec = decoder("gemma4").spec
    sharing = [(i, layer.kv_from) for i, layer in enumerate(spec.layers) if layer.kv_from is not None]
    assert sharing
    for border in borders_allowed(spec):
        assert all(own >= border or i < border for i, own in sharing)


def test_no_border_between_layers_that_share_a_choice() -> None:
    spec = decoder("glm-dsa").spec
    assert [layer.selected_by for layer in spec.layers] == [0, 0, 2]
    assert borders_allowed(spec) == [2]
    assert borders_allowed(decoder("deepseek32").spec) == [1, 2]


class InFlightSeen(Drafter):
    """Proposes nothing; notes how many requests are in flight, and whether it was given one of them."""

    def __init__(self, serving: Serving) -> None:
        self.serving, self.n_in_flight, self.was_given_one = serving, 0, False

    def propose(self, requests: list[TextRequest]) -> None:
        in_flight = self.serving.scheduler.in_flight
        self.n_in_flight += len(in_flight)
        self.was_given_one = self.was_given_one or any(request in in_flight for request in requests)


def test_a_drafter_is_given_no_request_in_flight() -> None:
    serving = Serving("llama", borders=[1])
    drafter = InFlightSeen(serving)
    serving.loop.use_drafter(drafter)
    serving.run(*[serving.submit(tokens_of(10, 40, seed=n), max_tokens=8) for n in range(3)])
    assert drafter.n_in_flight and not drafter.was_given_one
