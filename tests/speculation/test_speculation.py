"""Drafts in the engine: the same text in fewer passes, whatever proposes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, ModelFileError, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.radix import common_length
from oxillama.engine.sequence import Sequence
from oxillama.models.decoder import ForwardCancelled
from oxillama.speculation import speculator as deciding
from oxillama.speculation.drafters import ModelDrafter
from oxillama.speculation.length import COMPARED, CREDIT, IN_A_ROW, SHARE, Acceptance, RowCosts, draft_lengths
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.speculator import Speculator, room
from oxillama.speculation.state import Speculation
from tests.support.serving import (
    AsManyAsMayBe,
    Guesses,
    Serving,
    check_as_alone,
    drafter_of,
    n_vocab_of,
    use_drafter,
)
from tests.support.tiny_models import Tiny, tokens_of
from tests.support.zoo import RECURRENT

PROMPT = demo.PROMPTS[0]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, draft_max=6)
    use_drafter(engine.model, AsManyAsMayBe())
    return engine


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 3},
    "hot": {"temperature": 2.0, "top_k": 0, "seed": 4},
    "penalties": {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.4, "presence_penalty": 0.3},
    "mirostat": {"mirostat": 2, "seed": 6},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05, "seed": 7},
    "grammar": {"grammar": "root ::= [a-z ]+ [.!] root?", "temperature": 0.8, "seed": 8},
    "schema": {"json_schema": SCHEMA, "temperature": 0},
    "min_tokens": {"min_tokens": 50, "temperature": 0.8, "seed": 9},
    "biases": {"logit_bias": {15: 4.0}, "banned_tokens": (260,), "temperature": 0.8, "seed": 10},
    "stop": {"stop": ["her", "the "], "temperature": 0},
}


@pytest.mark.parametrize("drafter", ["lookup", str(demo.DRAFT)], ids=["lookup", "model"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_drafts_change_no_text(engine: InferenceEngine, drafter: str, options: dict[str, Any]) -> None:
    def run(speculate: str) -> Any:
        return engine.stream(PROMPT, max_tokens=80, top_logprobs=2, speculate=speculate, **options).result()

    plain, drafted = run("off"), run(drafter)
    assert (drafted.text, drafted.tokens, drafted.finish_reason, drafted.logprobs) == (
        plain.text,
        plain.tokens,
        plain.finish_reason,
        plain.logprobs,
    )
    assert plain.speculation is None
    assert drafted.speculation is not None
    engine.model.call(engine.model.loop.check_integrity)


def test_a_draft_model_saves_passes(engine: InferenceEngine) -> None:
    steps = engine.metrics.steps
    done = engine.stream(PROMPT, speculate=demo.DRAFT, **GREEDY).result()
    steps = engine.metrics.steps - steps
    stats = done.speculation
    assert stats is not None
    assert stats.acceptance_rate > 0.4
    assert stats.drafted == stats.accepted + stats.rejected > 0
    assert steps == len(done.tokens) - stats.accepted < len(done.tokens) / 2


def test_lookup_saves_passes_where_a_text_repeats(engine: InferenceEngine) -> None:
    prompt = "Mia and Tom. Mia and Tom. Mia and Tom. Mia and"
    done = engine.stream(prompt, speculate="lookup", logit_bias={3: 0.0}, **GREEDY).result()
    assert done.speculation is not None
    assert done.speculation.passes > 0
    assert done.text == engine.generate(prompt, **GREEDY)


def test_requests_with_and_without_drafts_share_a_batch(engine: InferenceEngine) -> None:
    ways = ["off", "lookup", str(demo.DRAFT)] * 2
    texts = [engine.generate(prompt, **GREEDY) for prompt in demo.PROMPTS]
    streams = [engine.stream(p, speculate=way, **GREEDY) for p, way in zip(demo.PROMPTS, ways)]
    assert [stream.result().text for stream in streams] == texts


def test_penalties_of_streams_in_a_batch_see_no_drafts(engine: InferenceEngine) -> None:
    options = {"max_tokens": 40, "temperature": 0, "repetition_penalty": 1.4}
    texts = [engine.generate(prompt, **options) for prompt in demo.PROMPTS[:3]]
    streams = [engine.stream(p, speculate=demo.DRAFT, **options) for p in demo.PROMPTS[:3]]
    assert [stream.result().text for stream in streams] == texts


def test_the_draft_model_keeps_nothing_of_a_request_that_ended(engine: InferenceEngine) -> None:
    drafter = drafter_of(engine, demo.DRAFT)
    assert isinstance(drafter, ModelDrafter)
    for _ in range(3):
        stream = engine.stream(PROMPT, speculate=demo.DRAFT, **GREEDY)
        next(stream)
        stream.close()
    engine.generate(PROMPT, speculate=demo.DRAFT, **GREEDY)
    engine.model.call(lambda: None)
    assert drafter._known == {}
    assert drafter._runner.pool.n_used == 0


def test_an_engine_speculates_by_its_configuration() -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate="lookup") as engine:
        assert engine.stream(PROMPT, max_tokens=4).result().speculation is not None
        assert engine.stream(PROMPT, max_tokens=4, speculate="off").result().speculation is None


def test_a_stage_of_the_user_is_called_for_the_tokens_of_the_text_alone(engine: InferenceEngine) -> None:
    lengths = []

    def stage(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        lengths.append(len(history))

    sampler = SamplerConfig(order=("top_k", stage, "temperature"), temperature=0.8, seed=1)
    done = engine.stream(PROMPT, sampler=sampler, max_tokens=20, speculate=demo.DRAFT).result()
    n_prompt = done.usage.prompt_tokens
    assert lengths == list(range(n_prompt, n_prompt + len(done.tokens)))
    assert done.speculation is not None
    assert done.speculation.accepted > 0


# --- what fails --------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_refused(engine: InferenceEngine, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    words = {
        "model": ("str", "gpt2"),
        "pre": ("str", "gpt-2"),
        "tokens": ("[str]", [f"w{i}" for i in range(50)]),
    }
    words |= {"token_type": ("[i32]", [1] * 50), "merges": ("[str]", [])}
    other.write_bytes(Tiny(metadata={f"tokenizer.ggml.{key}": pair for key, pair in words.items()}).file())
    with pytest.raises(
        ConfigError, match=r"speculate: .* text tokens of .*other\.gguf and the model .* got 0%"
    ):
        engine.generate(PROMPT, speculate=other)
    for path in (tmp_path / "missing.gguf", ""):
        with pytest.raises(ModelFileError):
            engine.generate(PROMPT, speculate=path)
    with pytest.raises(ConfigError, match="speculate: expected"):
        engine.generate(PROMPT, speculate=3)  # type: ignore[arg-type]


class Broken:
    name = "broken"

    def propose(self, *arguments: object) -> list[list[int]]:
        raise RuntimeError("no idea")

    def forget(self, sequence: object) -> None:
        pass


def test_a_drafter_that_fails_costs_no_text(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = engine.generate(PROMPT, **GREEDY)
    monkeypatch.setitem(engine.model.feature("drafters").loaded, "lookup", Broken())
    with caplog.at_level(logging.ERROR, "oxillama"):
        assert engine.generate(PROMPT, **GREEDY, speculate="lookup") == text
    assert "broken: cannot draft" in caplog.text


# --- the loop, step by step ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek32", *RECURRENT[:2]])
def test_rejected_drafts_leave_nothing_behind(name: str) -> None:
    serving = Serving(name)
    request = serving.submit(tokens_of(20, n_vocab_of(name)), max_tokens=24, drafts=5, right=0.5)
    serving.run(request)
    check_as_alone(serving, request)
    assert request.speculation is not None
    assert isinstance(request.speculation.drafter, Guesses)
    assert request.speculation.drafter.n_forgotten == 1
    serving.check_empty()


def test_right_drafts_take_one_pass_each() -> None:
    serving = Serving()
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=25, drafts=5, right=1.0)
    n_steps = serving.run(request)
    assert n_steps == 1 + 24 // 6  # the prompt's, then five drafts and a bonus at a time
    stats = request.speculation.stats  # type: ignore[union-attr]
    assert (stats.drafted, stats.accepted, stats.passes) == (20, 20, 4)


def test_no_more_is_drafted_than_the_text_may_have() -> None:
    serving = Serving()
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=3, drafts=8, right=1.0)
    serving.step()
    assert room(request, 8) == 1
    serving.run(request)
    assert len(request.tokens) == 3


def test_drafts_give_way_where_pages_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for both streams, but not for all of their drafts: nobody is preempted for a draft."""
    serving = Serving(page_size=1, max_pages=36, cached_pages=0)
    short = serving.submit(tokens_of(10, 40), max_tokens=6, drafts=8, right=0.0)
    long = serving.submit(tokens_of(10, 40, seed=1), max_tokens=20, drafts=8, right=0.0)
    run, used = serving.runner.complete, []
    monkeypatch.setattr(
        serving.runner, "complete", lambda *args: used.append(serving.pool.n_used) or run(*args)
    )
    serving.run(short, long)
    assert max(used) == 36
    assert serving.scheduler.queues.preemptions == 0
    check_as_alone(serving, short, long)


class Even(RowCosts):
    """A row of a step takes a tenth of the first one, and drafting no time."""

    def observe(self, n_rows: int, seconds: float) -> None:
        super().observe(n_rows, 1.0 + 0.1 * (n_rows - 1))

    def observe_pass(self, drafter: str, seconds: float) -> None:
        super().observe_pass(drafter, 0.0)


class Slow(Even):
    """Passes of a drafter take a hundred steps."""

    def observe_pass(self, drafter: str, seconds: float) -> None:
        RowCosts.observe_pass(self, drafter, 100.0)


def test_where_drafts_do_not_pay_the_drafter_is_hardly_asked() -> None:
    serving = Serving()
    serving.loop.use_drafter(Speculator(Slow()))
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=150, drafts=4, right=1.0)
    serving.run(request)
    check_as_alone(serving, request)
    assert request.speculation is not None
    stats = request.speculation.stats
    assert 1 <= stats.passes <= 2  # two until it is known what a pass takes
    assert stats.drafted <= 2 * 4


class Fast(RowCosts):
    """Steps of any number of rows take the same time."""

    def observe(self, n_rows: int, seconds: float) -> None:
        super().observe(n_rows, 1.0)


def test_now_and_then_a_step_goes_without_drafts_to_be_compared() -> None:
    serving = Serving()
    serving.loop.use_drafter(Speculator(Fast()))
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=150, drafts=2, right=1.0)
    n_steps = serving.run(request)
    check_as_alone(serving, request)
    stats = request.speculation.stats  # type: ignore[union-attr]
    n_plain = n_steps - 1 - stats.passes
    assert stats.passes // IN_A_ROW <= n_plain <= COMPARED * (stats.passes // IN_A_ROW) + 2


class LongPrompts(Fast):
    """The first draft of a text takes more steps than any text has."""

    def seconds_of_first(self, drafter: str, n_tokens: int) -> float:
        return 1e6


def test_a_first_draft_that_takes_too_long_is_not_weighed_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[int] = []
    monkeypatch.setattr(
        deciding, "draft_lengths", lambda *args, **kwargs: plans.append(1) or draft_lengths(*args, **kwargs)
    )
    serving = Serving()
    serving.loop.use_drafter(Speculator(LongPrompts()))
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=150, drafts=2, right=1.0)
    serving.run(request)
    assert request.speculation.stats.passes == 0  # type: ignore[union-attr]
    assert 1 <= len(plans) <= 3 + 150 // IN_A_ROW  # it is not known at first what a step takes


class DearPrompts(Fast):
    """A first draft takes a hundred steps for each token of the text, and drafting nothing else."""

    def observe_first(self, drafter: str, seconds: float, n_tokens: int) -> None:
        super().observe_first(drafter, 100.0 * n_tokens, n_tokens)

    def observe_pass(self, drafter: str, seconds: float) -> None:
        super().observe_pass(drafter, 0.0)


@pytest.mark.parametrize("costs", [Slow, DearPrompts])
def test_a_text_begins_with_what_is_known_of_the_last_one(costs: type[RowCosts]) -> None:
    """Also that first drafts take more than texts gain."""
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        use_drafter(engine.model, Speculator(costs()))
        options = {"speculate": demo.DRAFT, **GREEDY}
        passes = [engine.stream(PROMPT, **options).result().speculation.passes for _ in range(3)]
        assert passes[0] > 0
        assert passes[1:] == [0, 0]


def test_later_drafts_earn_what_a_first_draft_took() -> None:
    speculator, request = Speculator(), Serving().submit([5], max_tokens=1)
    speculator._debts[request.id] = 5.0
    speculator._note_gain(1.0, 2.0)
    assert speculator._budget.left == pytest.approx(CREDIT + SHARE)
    speculator.ended(request, 0.0)  # before the rest was earned
    assert speculator._budget.left == pytest.approx(CREDIT + SHARE - 3.0)
    speculator._note_gain(1.0, 2.0)
    assert speculator._budget.left == pytest.approx(CREDIT + 2 * SHARE - 1.0)


def test_a_step_that_gains_nothing_pays_no_debt_and_adds_none() -> None:
    speculator, request = Speculator(), Serving().submit([5], max_tokens=1)
    speculator._debts[request.id] = 5.0
    for gained in (-2.0, 0.0):
        speculator._note_gain(1.0, gained)
        assert speculator._debts == {request.id: 5.0}


def test_texts_that_do_not_speculate_save_nothing_for_drafts() -> None:
    serving, speculator = Serving(), Speculator(Even())
    serving.loop.use_drafter(speculator)
    request = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=50)
    serving.run(request)
    assert speculator._budget.left == 0.0
    other = serving.submit(tokens_of(20, n_vocab_of("llama")), max_tokens=50, drafts=4, right=0.0)
    serving.run(other)
    assert speculator._budget.left != 0.0


def test_streams_together_try_drafts_as_often_as_one_of_them() -> None:
    serving = Serving()
    serving.loop.use_drafter(Speculator(Even()))
    prompts = [tokens_of(20, n_vocab_of("llama"), seed=i) for i in range(8)]
    requests = [serving.submit(prompt, max_tokens=200, drafts=4, right=0.0) for prompt in prompts]
    n_steps = serving.run(*requests)
    stats = [request.speculation.stats for request in requests if request.speculation is not None]
    lost = sum(0.1 * each.drafted / 1.7 - each.accepted / 8 for each in stats)  # steps of 8 rows
    assert 0 < lost <= CREDIT + SHARE * n_steps


def test_probes_take_turns() -> None:
    speculator = Speculator(Even())
    speculator._costs.observe(3, 0.0)
    for _ in range(100):
        speculator._budget.note(1.0, None)
    tried = [speculator._probe(3, [4, 4, 4], 0.0, 0.0) for _ in range(3)]
    assert sorted(tried) == [[0, 0, 2], [0, 2, 0], [2, 0, 0]]


def test_a_text_begins_with_what_is_known_of_its_drafter() -> None:
    speculator, drafter = Speculator(), Broken()
    speculator._known["broken"] = Acceptance(accepted=1.0, tried=10.0)
    assert speculator._acceptance(Speculation(drafter, most=4)).rate == pytest.approx(0.1)
    begun = Speculation(drafter, most=4)
    assert begun.stats.acceptance_rate == 0.0
    begun.note(4, 4)
    assert speculator._acceptance(begun).rate > 0.5


def test_a_rollback_forgets_drafts() -> None:
    serving = Serving()
    sequence = Sequence(serving.pool, [1, 2, 3])
    serving.runner.forward([(sequence, 3)])
    sequence.append(4)
    sequence.draft([5, 6])
    sequence.schedule(3)
    sequence.rollback()
    assert (sequence.tokens, sequence.n_drafts, sequence.cached_len) == ([1, 2, 3, 4], 0, 3)
    sequence.release()


def test_a_pass_that_is_given_up_forgets_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving()
    request = serving.submit(tokens_of(20, 40), max_tokens=20, drafts=4)
    serving.step()
    run, failures = serving.runner.complete, iter([True, False, True, True, False])

    def unsteady(*arguments: Any) -> Any:
        if next(failures, False):
            raise ForwardCancelled
        return run(*arguments)

    monkeypatch.setattr(serving.runner, "complete", unsteady)
    serving.run(request)
    check_as_alone(serving, request)


def test_a_failing_pass_with_drafts_is_run_again_without(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving()
    requests = [serving.submit(tokens_of(20, 40, seed=i), max_tokens=20, drafts=4) for i in range(2)]
    serving.step()
    run = serving.runner.complete

    def fails_together(in_flight: Any, *arguments: Any) -> Any:
        if len(in_flight.sequences) > 1:
            raise RuntimeError("together")
        return run(in_flight, *arguments)

    monkeypatch.setattr(serving.runner, "complete", fails_together)
    serving.run(*requests)
    check_as_alone(serving, *requests)


def test_common_length() -> None:
    assert common_length([], [1]) == 0
    assert common_length([1, 2, 3], [1, 2, 3, 4]) == 3
    for i in range(9):
        other = list(range(9))
        other[i] = -1
        assert common_length(list(range(9)), other) == i


@pytest.mark.parametrize("drafter", ["lookup", str(demo.DRAFT)], ids=["lookup", "model"])
def test_the_rejection_rule_gives_another_text(engine: InferenceEngine, drafter: str) -> None:
    options = {"max_tokens": 150, "temperature": 1.0, "seed": 2, "ignore_eos": True, "logprobs": True}

    def run(rule: str) -> Any:
        return engine.stream(PROMPT, speculate=drafter, draft_acceptance=rule, **options).result()

    seeded, rejecting, again = run("seeded"), run("rejection"), run("rejection")
    assert rejecting.text == again.text != seeded.text
    assert len(rejecting.tokens) == len(rejecting.logprobs) == 150
    assert drafter == "lookup" or rejecting.speculation.acceptance_rate > 0.5
    with pytest.raises(ConfigError, match="draft_acceptance: expected one of seeded, rejection"):
        run("typical")


def test_the_rejection_rule_is_plain_decoding_where_nothing_is_random(engine: InferenceEngine) -> None:
    text = engine.generate(PROMPT, **GREEDY)
    assert engine.generate(PROMPT, speculate=demo.DRAFT, draft_acceptance="rejection", **GREEDY) == text


def test_a_draft_model_stops_where_a_further_token_does_not_pay(engine: InferenceEngine) -> None:
    drafter = drafter_of(engine, demo.DRAFT)
    sequences = [Sequence(engine.model.pool, [5, 6, 7]), Sequence(engine.model.pool, [8, 9])]

    def propose(sure: float) -> list[int]:
        samplers = [
            DraftSampler(engine.model.sampler(SamplerConfig.greedy()), pays=pays) for pays in stops(sure)
        ]
        return [len(found) for found in drafter.propose(sequences, samplers, [4, 4])]

    def stops(sure: float) -> list[Any]:
        return [lambda p: p >= sure, lambda p: True]

    assert engine.model.call(lambda: propose(2.0)) == [1, 4]
    assert engine.model.call(lambda: propose(0.0)) == [4, 4]
    for sequence in sequences:
        engine.model.call(lambda sequence=sequence: drafter.forget(sequence))
