"""The state of a sampler: histories, forks, rollback, snapshots, grammars, batches, the user's own stages."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.apps.demo import STORY
from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.batch import sample_batch
from oxillama.engine.sampling.breakers import breaker_tables, sequences
from oxillama.engine.sampling.chain import SamplerChain
from oxillama.engine.sampling.logprobs import token_logprobs
from oxillama.engine.sampling.sampler import Sampler, sample
from oxillama.errors import ConfigError, SamplingError
from oxillama.reference.rows import softmax
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.kernels import PRESENT, normal
from tests.support.paths import DOCS

KERNELS = load(PRESENT[0])
PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
VOCAB = 400

EVERYTHING: dict[str, Any] = {
    "temperature": 1.3, "top_k": 60, "typical_p": 0.98, "xtc_probability": 0.4, "repetition_penalty": 1.2,
    "frequency_penalty": 0.1, "repetition_window": -1, "dry_multiplier": 0.7, "dry_allowed_length": 1,
    "dry_sequence_breakers": ((3,), (4, 5)), "dynatemp_range": 0.4,
}  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    {},
    EVERYTHING,
    PLAIN,
    {"temperature": 0.0},
    {"mirostat": 1, "temperature": 1.0},
    {"mirostat": 2, "temperature": 1.0, "repetition_penalty": 1.1},
]


def rows(n: int, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    return normal(n, vocab, seed=seed, std=3)


def sampler_of(options: dict[str, Any], seed: int = 5, **others: Any) -> Sampler:
    return Sampler(SamplerConfig(**options), KERNELS, seed, **others)


class Even:
    """A constraint: tokens alternate between even and odd; records what it was told."""

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab, self.taken = vocab, list[int]()

    def mask(self) -> np.ndarray:
        allowed = np.arange(32 * ((self.vocab + 31) // 32)) % 2 == len(self.taken) % 2
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def advance(self, token: int) -> None:
        assert token % 2 == len(self.taken) % 2
        self.taken.append(token)

    def rollback(self, n: int) -> None:
        del self.taken[len(self.taken) - n :]

    def fork(self) -> Even:
        copy = Even(self.vocab)
        copy.taken = self.taken.copy()
        return copy


# --- history ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CONFIGS)
def test_a_history_that_is_known_and_one_that_is_passed_are_the_same(options: dict[str, Any]) -> None:
    known, told, as_array = (sampler_of(options) for _ in range(3))
    history = [7, 9, 7, 9, 30]
    known.feed(history)
    for logits in rows(80):
        token = known.sample(logits)
        assert told.sample(logits, history) == token
        assert as_array.sample(logits, np.array(history)) == token
        history.append(token)
    assert known.history.tolist() == history
    assert known.n_generated == 80


def test_feeding_is_for_the_prompt() -> None:
    sampler = sampler_of({})
    sampler.feed(range(3))
    sampler.feed([4])
    sampler.accept(9)
    assert sampler.history.tolist() == [0, 1, 2, 4, 9]
    with pytest.raises(SamplingError, match="feed: expected before the first of 1"):
        sampler.feed([1])


def test_sampling_does_not_change_the_logits() -> None:
    logits = rows(1)[0]
    before = logits.copy()
    for options in CONFIGS:
        sampler_of(options).sample(logits, [1, 2, 1, 2])
    assert np.array_equal(logits, before)


def test_logits_of_other_kinds_are_taken_or_refused() -> None:
    logits = rows(1)[0]
    token = sampler_of({}).sample(logits)
    assert sampler_of({}).sample(logits.astype(np.float64)) == token
    assert sampler_of({}).sample(np.repeat(logits, 2)[::2]) == token
    for wrong in (rows(2), np.empty(0, np.float32), np.float32(3)):
        with pytest.raises(SamplingError, match="logits: expected one row"):
            sampler_of({}).sample(wrong)


# --- fork, rollback, snapshot ----------------------------------------------------------------------


@pytest.mark.parametrize("options", CONFIGS)
@pytest.mark.parametrize("constrained", [False, True])
def test_rollback_takes_everything_back(options: dict[str, Any], constrained: bool) -> None:
    sampler = sampler_of(options, constraint=Even() if constrained else None)
    logits = rows(40)
    tokens = [sampler.sample(row) for row in logits]
    state = sampler.state()
    for n in (0, 1, 7, 39, 40):
        sampler.rollback(n)
        assert sampler.n_generated == 40 - n
        assert [sampler.sample(row) for row in logits[40 - n :]] == tokens[40 - n :]
        assert sampler.state() == state
    sampler.truncate(3)
    assert sampler.history.tolist() == tokens[:3]
    for n in (4, -1):
        with pytest.raises(SamplingError, match="rollback: expected 0 to 3"):
            sampler.rollback(n)


@pytest.mark.parametrize("options", CONFIGS)
def test_a_fork_goes_its_own_way(options: dict[str, Any]) -> None:
    sampler = sampler_of(options, constraint=Even())
    logits = rows(60)
    for row in logits[:20]:
        sampler.sample(row)
    fork = sampler.fork()
    ahead = [fork.sample(row) for row in logits[20:]]
    assert sampler.n_generated == 20
    assert [sampler.sample(row) for row in logits[20:]] == ahead
    if "temperature" not in options or options["temperature"]:
        other = sampler.fork(seed=99)
        assert other.seed == 99
        assert [other.sample(row) for row in logits] != [sampler.sample(row) for row in logits]


def test_a_fork_and_its_origin_take_in_different_tokens() -> None:
    sampler = sampler_of({}, constraint=Even())
    sampler.feed([1, 2])
    sampler.accept(4)
    fork = sampler.fork()
    fork.accept(7)
    sampler.accept(9)
    fork.accept(8)
    assert fork.history.tolist() == [1, 2, 4, 7, 8]
    assert sampler.history.tolist() == [1, 2, 4, 9]
    assert (fork.n_generated, sampler.n_generated) == (3, 2)


@pytest.mark.parametrize("options", CONFIGS)
def test_a_snapshot_goes_on_elsewhere(options: dict[str, Any]) -> None:
    sampler = sampler_of(options, constraint=Even())
    sampler.feed([1, 2, 3])
    logits = rows(60)
    for row in logits[:25]:
        sampler.sample(row)
    state = json.loads(json.dumps(sampler.state()))
    resumed = sampler_of(options, seed=1, constraint=Even())
    resumed.sample(logits[0])
    resumed.restore(state)
    assert resumed.seed == sampler.seed
    assert [resumed.sample(row) for row in logits[25:]] == [sampler.sample(row) for row in logits[25:]]
    assert resumed.state() == sampler.state()
    resumed.rollback(60)
    assert resumed.history.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"random": 0},
        {"random": 2**64},
        {"mu": "x"},
        {"mu": float("nan")},
        {"tokens": [1, -1]},
        {"tokens": None},
        {"tokens": []},
        {"before": [[1, 2, 3]]},
        {"before": [[0, 1.0]]},
        {"seed": None},
    ],
)
def test_a_state_that_is_none_changes_nothing(change: dict[str, Any]) -> None:
    sampler = sampler_of({})
    sampler.sample(rows(1)[0])
    state = sampler.state()
    for wrong in (state | change, {}):
        with pytest.raises(SamplingError, match="state: expected what"):
            sampler.restore(wrong)
        assert sampler.state() == state


# --- what cannot be chosen -------------------------------------------------------------------------


@pytest.mark.parametrize("options", CONFIGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_error_leaves_the_state_as_it_was(options: dict[str, Any], bad: float) -> None:
    sampler = sampler_of(options, constraint=Even())
    sampler.sample(rows(1)[0])
    state = sampler.state()
    logits = np.full(VOCAB, bad, np.float32)
    for call in (sampler.sample, sampler.distribution, sampler.sample_with_logprobs):
        with pytest.raises(SamplingError, match=r"logits: (hold a NaN|every token is masked)"):
            call(logits)
    assert sampler.state() == state


@pytest.mark.parametrize("options", CONFIGS)
def test_a_token_that_the_grammar_refuses_leaves_the_state_as_it_was(options: dict[str, Any]) -> None:
    class Refusing(Even):
        def advance(self, token: int) -> None:
            if self.taken:
                raise SamplingError("grammar: refuses")
            super().advance(token)

    sampler = sampler_of(options, constraint=Refusing())
    logits = rows(1)[0]
    sampler.sample(logits)
    state = sampler.state()
    for call in (sampler.sample, sampler.sample_with_logprobs):
        with pytest.raises(SamplingError, match="refuses"):
            call(logits)
        assert sampler.state() == state


def test_a_mask_bans_and_biases_can_leave_nothing() -> None:
    logits = np.zeros(3, np.float32)
    for options in (
        {"banned_tokens": (0, 1, 2)},
        {"logit_bias": dict.fromkeys(range(3), -np.inf)},
        {"allowed_tokens": (1,), "banned_tokens": (1,)},
    ):
        for more in ({}, {"temperature": 0.0}, {"mirostat": 2}):
            with pytest.raises(SamplingError, match="every token is masked"):
                sampler_of({**options, **more}).sample(logits)
    nan = np.float32([0, np.nan, 0])
    with pytest.raises(SamplingError, match="NaN"):
        sampler_of({"banned_tokens": (1,)}).sample(nan)


# --- grammars --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [31, 32, 33, 400, 5000])
@pytest.mark.parametrize("options", CONFIGS)
def test_only_what_the_mask_allows_is_chosen(options: dict[str, Any], vocab: int) -> None:
    constraint = Even(vocab)
    sampler = sampler_of(options, constraint=constraint)
    tokens = [sampler.sample(row) for row in rows(30, vocab=vocab)]
    assert constraint.taken == tokens
    assert [token % 2 for token in tokens] == [i % 2 for i in range(30)]
    sampler.accept(2)
    assert constraint.taken[-1] == 2


def test_a_mask_keeps_the_distribution_of_the_rest() -> None:
    logits = rows(1, vocab=3001)[0]
    ids, p = sampler_of(PLAIN, constraint=Even(3001)).distribution(logits)
    wanted = softmax(logits[::2].copy())
    assert ids.tolist() == list(range(0, 3001, 2))
    assert np.allclose(p, wanted, atol=1e-6)


def test_a_mask_after_allowed_tokens() -> None:
    sampler = sampler_of(PLAIN | {"allowed_tokens": (50, 3, 4, 99)}, constraint=Even())
    assert sampler.distribution(rows(1)[0])[0].tolist() in ([4, 50], [50, 4])


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(SamplingError, match="mask: expected 13 numbers"):
        sampler_of({}, constraint=Even(500)).sample(rows(1)[0])


# --- ends of generations, breakers -----------------------------------------------------------------


def test_the_end_is_not_chosen_before_its_time() -> None:
    tokenizer = TokenizerBridge.from_gguf(STORY)
    (eos,) = tokenizer.eog_ids
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    logits[eos] = 9
    sampler = sampler_of({"temperature": 0.0, "min_tokens": 3}, tokenizer=tokenizer)
    assert [sampler.sample(logits) == eos for _ in range(5)] == [False] * 3 + [True] * 2
    sampler.rollback(3)
    assert [sampler.sample(logits) == eos for _ in range(2)] == [False, True]
    sampler = sampler_of({"temperature": 0.0, "ignore_eos": True}, tokenizer=tokenizer)
    assert eos not in [sampler.sample(logits) for _ in range(5)]


def test_breakers_are_the_tokens_that_contain_or_begin_them() -> None:
    tokenizer = TokenizerBridge.from_gguf(STORY)
    pieces = tokenizer.vocab_bytes()
    found = list(sequences('."', tokenizer))
    assert {s[0] for s in found if len(s) == 1} == {i for i, p in enumerate(pieces) if b'."' in p}
    longer = [s for s in found if len(s) > 1]
    assert longer
    for first, *rest in longer:
        assert pieces[first].endswith(b".")
        assert b"".join(pieces[t] for t in rest) == b'"'
    assert breaker_tables(('."',), tokenizer) is breaker_tables(('."',), tokenizer)
    kinds, numbers = breaker_tables(((3,), (3, 4), (6, 7, 8)), None)
    assert kinds.tolist() == [0, 0, 0, 3, 0, 0, 2]
    assert numbers.tolist() == [2, 3, 4, 3, 6, 7, 8]


# --- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("target", PRESENT)
def test_a_batch_gives_each_sequence_its_own_tokens(target: str, n_threads: int) -> None:
    def make() -> list[Sampler]:
        configs = [SamplerConfig(**CONFIGS[i % len(CONFIGS)], seed=i) for i in range(13)]
        return [Sampler(config, load(target)) for config in configs]

    alone, together = make(), make()
    histories: list[list[int]] = [[i, i, 3] for i in range(13)]
    for step in range(15):
        logits = rows(13, seed=step, vocab=1500)
        wanted = [s.sample(row, h) for s, row, h in zip(alone, logits, histories, strict=True)]
        assert sample_batch(together, logits, histories, n_threads=n_threads) == wanted
        for history, token in zip(histories, wanted, strict=True):
            history.append(token)
    assert [s.state() for s in alone] == [s.state() for s in together]


def test_one_sequences_error_is_its_own() -> None:
    samplers = [sampler_of({}, seed=i) for i in range(4)]
    samplers[2] = sampler_of({"banned_tokens": (VOCAB,)})
    logits = rows(4)
    logits[1, 5] = np.nan
    wanted = [sampler_of({}, seed=i).sample(logits[i]) for i in (0, 3)]
    first, nan, config, last = sample_batch(samplers, logits, n_threads=2)
    assert [first, last] == wanted
    assert isinstance(nan, SamplingError) and isinstance(config, ConfigError)
    assert [s.n_generated for s in samplers] == [1, 0, 0, 1]


def test_a_batch_of_stages_in_python_and_of_vocabularies() -> None:
    def first_only(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        logits[ids != len(history)] = -np.inf

    samplers = [sampler_of(o) for o in ({}, {"order": (first_only, "temperature")}, {"top_k": 1})]
    logits = [rows(1)[0], rows(1)[0], rows(1, vocab=900)[0]]
    tokens = sample_batch(samplers, logits, [[], [1] * 17, []], n_threads=2)
    assert tokens == [sampler_of({}).sample(logits[0]), 17, int(logits[2].argmax())]
    with pytest.raises(SamplingError, match="one row and history for each of 3"):
        sample_batch(samplers, logits[:2])
    with pytest.raises(SamplingError, match="different objects"):
        sample_batch([samplers[0]] * 2, logits[:2])
    assert sample_batch([], []) == []


def test_sampling_without_state() -> None:
    logits = rows(1)[0]
    config = SamplerConfig(**EVERYTHING)
    history = [3, 4, 5, 3, 4]
    wanted = Sampler(config, KERNELS, 8).sample(logits, history)
    assert sample(logits, config, history, seed=8) == wanted
    assert sample(logits, SamplerChain.from_config(config), history, seed=8) == wanted


# --- stages of the user's own ----------------------------------------------------------------------


def test_a_stage_of_the_users_own_stands_in_its_place() -> None:
    seen: list[Any] = []

    def halve(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> Any:
        seen.append((ids, logits.copy(), history.copy()))
        return [x / 2 for x in logits.tolist()]

    logits = rows(1)[0]
    sampler = sampler_of(PLAIN | {"top_k": 5, "order": ("top_k", halve, "temperature")})
    sampler.feed([4, 8])
    ids, p = sampler.distribution(logits)
    five = np.argsort(-logits)[:5]
    assert seen[0][0].tolist() == five.tolist() == ids.tolist()
    assert np.array_equal(seen[0][1], logits[five]) and seen[0][2].tolist() == [4, 8]
    assert np.allclose(p, softmax(logits[five] / 2), atol=1e-6)
    counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=VOCAB)
    assert np.abs(counts[five] / 4000 - p).max() < 0.03 and counts.sum() == counts[five].sum()


def test_stages_before_and_after_one_of_the_users_own_act_once() -> None:
    config = PLAIN | {"temperature": 2.0, "top_k": 3, "order": ("temperature", lambda i, x, h: None, "top_k")}
    logits = rows(1)[0]
    ids, p = sampler_of(config).distribution(logits)
    assert np.allclose(p, softmax(logits[ids] / 2), atol=1e-6)


def test_the_documented_stage_works() -> None:
    page = DOCS / "adding-a-sampler.md"
    if not page.is_file():
        pytest.skip("only the package was unpacked")
    names: dict[str, Any] = {}
    exec(page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], names)
    sampler = Sampler(names["config"], KERNELS, seed=1)
    tokens = [sampler.sample(row) for row in np.repeat(rows(1), 200, axis=0)]
    assert all(a != b for a, b in pairwise(tokens)) and len(set(tokens)) > 2


def test_stages_of_the_users_own_see_what_is_left_and_can_drop_it() -> None:
    def drop(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
        return np.where(np.isin(ids, [3, 4]), logits, -np.inf)

    def look(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        assert sorted(ids.tolist()) == [3, 4]

    sampler = sampler_of({"order": (drop, look, "temperature")})
    assert {sampler.sample(row) for row in rows(30)} == {3, 4}
    sampler = sampler_of({"order": (lambda i, x, h: np.full(len(i), -np.inf), "temperature")})
    with pytest.raises(SamplingError, match="every token is masked"):
        sampler.sample(rows(1)[0])


def test_a_stage_may_sample() -> None:
    config = SamplerConfig(seed=1)

    def look_ahead(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        sample(rows(1, seed=9)[0], config)
        token_logprobs(rows(1, seed=9)[0], 3, top=5)

    logits = rows(1)[0]
    with_stage = sampler_of({"order": ("top_k", look_ahead, "top_p", "min_p", "temperature")})
    without = sampler_of({})
    assert [with_stage.sample(logits) for _ in range(20)] == [without.sample(logits) for _ in range(20)]


class Faulty(Even):
    """A constraint with a mistake in it."""

    def mask(self) -> np.ndarray:
        raise ZeroDivisionError


def test_a_fault_of_one_sequences_own_code_leaves_all_as_they_were() -> None:
    samplers = [sampler_of({}, seed=i) for i in range(3)]
    samplers.append(sampler_of({}, constraint=Faulty()))
    before = [sampler.state() for sampler in samplers]
    results = sample_batch(samplers, rows(4))
    assert isinstance(results[3], ZeroDivisionError)
    assert [sampler.state() == state for sampler, state in zip(samplers, before)] == [False] * 3 + [True]


def test_an_interrupt_of_one_sequences_own_code_leaves_all_as_they_were() -> None:
    stage = {"order": ("top_k", lambda ids, logits, history: None, "temperature")}

    class Interrupted(Even):
        def mask(self) -> np.ndarray:
            raise KeyboardInterrupt

    samplers = [sampler_of(stage if i % 2 else {}, seed=i) for i in range(4)]
    samplers.append(sampler_of({}, constraint=Interrupted()))
    before = [sampler.state() for sampler in samplers]
    with pytest.raises(KeyboardInterrupt):
        sample_batch(samplers, rows(5), tops=[2, None, None, None, None])
    assert [sampler.state() for sampler in samplers] == before


@pytest.mark.parametrize("result", [np.zeros(3), np.full(VOCAB, np.nan), np.full(VOCAB, np.inf)])
def test_a_stage_that_gives_nonsense_is_refused(result: np.ndarray) -> None:
    sampler = sampler_of({"order": (lambda i, x, h: result, "temperature")})
    state = sampler.state()
    with pytest.raises(SamplingError, match=r"expected 400 logits|NaN or"):
        sampler.sample(rows(1)[0])
    assert sampler.state() == state


# --- log-probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [5, 400, 40_000])
def test_raw_logprobs(vocab: int) -> None:
    logits = rows(1, vocab=vocab)[0]
    logits[2] = logits[4] = 7.0
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    for top in (0, 3, 5000):
        found = token_logprobs(logits, 1, top)
        assert found.token == 1 and abs(found.logprob - exact[1]) < 2e-6
        order = np.argsort(-logits, kind="stable")[:top]
        assert [i for i, _ in found.top] == order.tolist()
        assert np.allclose([x for _, x in found.top], exact[order], atol=2e-6)
    logits[3] = -np.inf
    assert token_logprobs(logits, 3).logprob == -np.inf


def test_logprobs_refuse_what_has_none() -> None:
    for token in (-1, 5):
        with pytest.raises(SamplingError, match=f"token: {token} is not in the vocabulary of 5"):
            token_logprobs(np.zeros(5, np.float32), token)
    for bad, text in ((np.nan, "NaN"), (-np.inf, "masked")):
        with pytest.raises(SamplingError, match=text):
            token_logprobs(np.full(5, bad, np.float32), 0)


@pytest.mark.parametrize("options", CONFIGS)
def test_processed_logprobs_are_those_of_the_draw(options: dict[str, Any]) -> None:
    plain, asked = sampler_of(options), sampler_of(options)
    for logits in rows(20, vocab=3000):
        ids, p = asked.distribution(logits)
        found = asked.sample_with_logprobs(logits, top=4)
        assert found.token == plain.sample(logits) == found.processed.token == found.raw.token
        wanted = dict(zip(ids.tolist(), np.log(p).tolist(), strict=True))
        assert abs(found.processed.logprob - wanted[found.token]) < 2e-6
        best = sorted(wanted.items(), key=lambda pair: (-pair[1], pair[0]))[:4]
        assert [i for i, _ in found.processed.top] == [i for i, _ in best]
        assert np.allclose([x for _, x in found.processed.top], [x for _, x in best], atol=2e-6)
        assert found.raw == token_logprobs(logits, found.token, 4)
    assert plain.state() == asked.state()
