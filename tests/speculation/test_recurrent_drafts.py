"""Drafts of recurrent models: what is accepted runs once, what is rejected leaves the state as it was."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama import KvCacheFullError, SamplerConfig
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.recurrent import RecurrentCache
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.sequence import Sequence
from oxillama.models.decoder import ForwardCancelled
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.speculation.drafters import ModelDrafter
from oxillama.speculation.sampling import DraftSampler
from tests.support.kernels import PRESENT, same_bits
from tests.support.paths import SHARED
from tests.support.serving import (
    AsManyAsMayBe,
    Guesses,
    Serving,
    check_as_alone,
    decoder,
    n_vocab_of,
    use_drafter,
)
from tests.support.spread import pairs
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, RECURRENT, VOCAB

TEXT = tokens_of(40, VOCAB)
WRONG = [(token + 1) % VOCAB for token in TEXT]
PROMPT = 5  # tokens of it that run first

Plain = tuple[np.ndarray, list[np.ndarray]]


def state_of(sequence: Sequence) -> RecurrentCache:
    assert isinstance(sequence.kv, RecurrentCache)
    return sequence.kv


@functools.cache
def plain(name: str) -> Plain:
    """Logits after each token of the text, decoded one by one, and the state after each number of tokens."""
    serving = Serving(name)
    sequence, logits, states = Sequence(serving.pool, TEXT, checkpoints=0), [], []
    while sequence.pending:
        logits.append(serving.runner.forward([(sequence, 1)])[0])
        states.append(present(name, sequence))
    return np.array(logits), [np.zeros_like(states[0]), *states]


def present(name: str, sequence: Sequence) -> np.ndarray:
    """The present state without what is between the parts of two layers."""
    kv = state_of(sequence)
    slot = kv.states.slot(kv.checkpoints[-1][1])
    blocks = [block for layer in decoder(name).layers for block in layer.blocks()]
    parts = [slot[b.offset :][: b.state_floats] for b in blocks if isinstance(b, RecurrentBlock)]
    return np.concatenate(parts)


def begun(serving: Serving, checkpoints: int) -> Sequence:
    """A sequence that has run the prompt, with the next token of the text."""
    sequence = Sequence(serving.pool, TEXT[:PROMPT], checkpoints)
    serving.runner.forward([(sequence, PROMPT)])
    sequence.append(TEXT[PROMPT])
    return sequence


def draft(sequence: Sequence, n: int, right: int) -> None:
    """Drafts ``n`` tokens, of which the first ``right`` are those of the text."""
    at = sequence.total_len
    sequence.draft(TEXT[at : at + right] + WRONG[at + right : at + n])


def check_rows(name: str, sequence: Sequence, start: int, rows: np.ndarray) -> None:
    """Rows of right tokens have the bits of plain decoding; there is one at least."""
    logits, _ = plain(name)
    right = next(
        (i for i in range(start, sequence.total_len) if sequence.tokens[i] != TEXT[i]), sequence.total_len
    )
    assert right > start
    assert same_bits(rows[: right - start], logits[start:right])


def check_state(name: str, sequence: Sequence) -> None:
    _, states = plain(name)
    kv = state_of(sequence)
    assert kv.length == sequence.cached_len
    assert same_bits(present(name, sequence), states[kv.settled])
    kv.states.check_integrity([kv.slots])
    kv.states.records.check_integrity([kv.all_records])


@pytest.mark.parametrize("checkpoints", [0, 3])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_draft_rejected_at_any_row_runs_nothing_twice(name: str, checkpoints: int) -> None:
    serving = Serving(name, threads=1 + checkpoints % 2)
    for n in (1, 4):
        sequence = begun(serving, checkpoints)
        for right in (*range(n + 1), 0, n, n):
            draft(sequence, n, right)
            start = sequence.cached_len
            assert sequence.pending == 1 + n, "an accepted token would run again"
            rows = serving.runner.forward([(sequence, 1 + n)], all_logits=True)
            check_rows(name, sequence, start, rows)
            for token in TEXT[start + 1 : start + 2 + right]:
                sequence.append(token)
            check_state(name, sequence)
        serving.runner.forward([(sequence, sequence.pending)])  # without drafts
        assert not state_of(sequence).records
        check_state(name, sequence)
        sequence.release()
    serving.check_empty()


@pytest.mark.parametrize("target", PRESENT[1:])
@pytest.mark.parametrize("name", RECURRENT)
def test_records_have_the_same_bits_on_every_target(name: str, target: str) -> None:
    running = Running(MODELS[name].file(), target, kv_type="f16")
    sequence = Sequence(running.pool, TEXT[:PROMPT], checkpoints=0)
    running.runner.forward([(sequence, PROMPT)])
    for right in (9, 3, 0, 9):  # more than are replayed at once
        sequence.append(TEXT[sequence.total_len])
        draft(sequence, 9, right)
        start = sequence.cached_len
        rows = running.runner.forward([(sequence, 10)], all_logits=True)
        check_rows(name, sequence, start, rows)
        sequence.truncate(start + 1 + right)
        sequence.keep_drafts()
    check_state(name, sequence)


@pytest.mark.parametrize("name", RECURRENT)
def test_tokens_that_one_pass_each_has_run_can_be_taken_back(name: str) -> None:
    """As a draft model's are: none of them goes into the state before it is certain."""
    serving = Serving(name)
    sequence = begun(serving, checkpoints=0)
    for right in (0, 3, 1, 2, 3):
        start = sequence.cached_len
        serving.runner.forward([(sequence, sequence.pending)])
        for i in range(3):
            draft(sequence, 1, int(i < right))
            assert sequence.pending == 1
            rows = serving.runner.forward([(sequence, 1)])
            assert len(rows) == 1
            if i < right:
                check_rows(name, sequence, sequence.cached_len - 1, rows)
            check_state(name, sequence)
            assert state_of(sequence).settled == start + 1
        sequence.truncate(start + 1 + right)
        assert sequence.cached_len == sequence.total_len
        sequence.keep_drafts()
        sequence.append(TEXT[sequence.total_len])
    sequence.release()
    serving.check_empty()


@pytest.mark.parametrize("name", RECURRENT)
def test_forks_share_records(name: str) -> None:
    serving = Serving(name)
    sequence = begun(serving, checkpoints=0)
    draft(sequence, 4, 4)
    serving.runner.forward([(sequence, 5)])
    sequence.keep_drafts()
    short = Sequence(serving.pool, sequence.tokens)
    short.take_fork(sequence, sequence.cached_len - 2)
    ways = [sequence, sequence.fork(), short]
    assert [way.cached_len for way in ways] == [10, 10, 8]
    for way in ways:
        way.tokens = TEXT[:11]
    draft(ways[1], 2, 1)
    starts, counts = [way.cached_len for way in ways], [way.pending for way in ways]
    rows = serving.runner.forward(list(zip(ways, counts)), all_logits=True)
    for way, start, part in zip(ways, starts, np.split(rows, np.cumsum(counts)[:-1])):
        check_rows(name, way, start, part)
        assert same_bits(present(name, way), plain(name)[1][11])
        way.release()
    serving.check_empty()


@pytest.mark.parametrize(("checkpoints", "kept"), [(0, 0), (3, 8)])
@pytest.mark.parametrize("name", ["mamba2", "rwkv6", "lfm2"])
def test_a_pass_that_fails_loses_no_record_but_with_a_state_in_place(
    name: str, checkpoints: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(name)
    sequence = begun(serving, checkpoints)
    draft(sequence, 3, 2)
    serving.runner.forward([(sequence, 4)])
    for token in TEXT[6:9]:
        sequence.append(token)
    draft(sequence, 2, 2)
    with monkeypatch.context() as patch, pytest.raises(ForwardCancelled):
        patch.setattr(type(decoder(name).layers[-1].mixer), "run", Mock(side_effect=ForwardCancelled))
        serving.runner.forward([(sequence, 3)])
    assert (sequence.cached_len, sequence.tokens) == (kept, TEXT[:9])
    rows = serving.runner.forward([(sequence, sequence.pending)], all_logits=True)
    check_rows(name, sequence, kept, rows)
    check_state(name, sequence)
    sequence.release()
    serving.check_empty()


@pytest.mark.parametrize(("name", "right"), pairs(RECURRENT, [0.0, 0.6, 1.0]))
def test_a_request_runs_each_token_of_its_text_once(
    name: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(name)
    run, rows = serving.runner.complete, []

    def counted(in_flight: Any, *arguments: Any) -> Any:
        sequences = in_flight.sequences
        rows.append(sum(s.scheduled_len - s.cached_len for s in sequences))
        return run(in_flight, *arguments)

    monkeypatch.setattr(serving.runner, "complete", counted)
    request = serving.submit(tokens_of(20, n_vocab_of(name)), max_tokens=24, drafts=5, right=right)
    serving.run(request)
    check_as_alone(serving, request)
    assert request.speculation is not None
    stats = request.speculation.stats
    assert stats.drafted > 0
    prompt, decoding = rows[:2], rows[2:]  # a cache point is within the prompt
    assert sum(prompt) == 20
    assert sum(decoding) == len(decoding) + stats.drafted
    serving.check_empty()


def test_a_state_of_any_size_speculates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.engine.cache.recurrent.CHECKPOINT_BYTES", 0)
    serving = Serving("mamba2")
    sequence = begun(serving, checkpoints=6)
    for _ in range(3):
        draft(sequence, 4, 2)
        assert sequence.pending == 5
        serving.runner.forward([(sequence, 5)])
        for token in TEXT[sequence.total_len - 4 : sequence.total_len - 1]:
            sequence.append(token)
        assert len(state_of(sequence).slots) == 1
        check_state("mamba2", sequence)
    sequence.release()


def test_records_count_as_memory() -> None:
    serving = Serving("mamba")
    states = serving.pool.recurrent_states
    assert states is not None
    sequence = begun(serving, checkpoints=0)
    draft(sequence, 4, 4)
    limit, held = serving.pool.limit, sequence.kv.memory_bytes
    free = limit.available
    assert sequence.shortage(5) == 4 * states.records.slot_bytes > 0
    serving.runner.forward([(sequence, 5)])
    assert limit.available == free - 4 * states.records.slot_bytes
    assert sequence.kv.memory_bytes == held + 4 * states.records.slot_bytes
    sequence.keep_drafts()
    assert sequence.reclaim()
    assert (sequence.cached_len, limit.available) == (PROMPT + 1, free)
    assert not sequence.reclaim()
    sequence.release()


@pytest.mark.parametrize("what", ["drafts", "records"])
def test_drafts_and_records_give_way_before_requests_do(what: str) -> None:
    """The last stream misses a page that the first would need for its drafts, or has in records."""
    serving = Serving("lfm2", page_size=1, max_pages=200, cached_states=0, cached_pages=0, states=2)
    prompts = [tokens_of(10, n_vocab_of("lfm2"), seed=i) for i in range(2)]
    requests = [serving.submit(prompt, max_tokens=20) for prompt in prompts]
    first, last = (request.sequence for request in requests)
    (group,) = serving.pool.groups
    while first.pending != 1 or last.pending != 1:
        serving.step()
    if what == "records":
        first.draft([1, 2, 3, 4])
        serving.runner.forward([(first, 5)])
        first.keep_drafts()
        first.append(5)
        needed = group.stride
    else:
        first.draft([1, 2, 3, 4])
        needed = first.shortage(5)
        assert needed > 5 * group.stride
    taken = group.allocate((serving.pool.limit.available - needed) // group.stride)
    batch = serving.scheduler.schedule()
    assert (len(batch.requests), serving.scheduler.queues.preemptions) == (2, 0)
    group.release(taken)
    for request in requests:
        serving.scheduler.finish(request, "cancelled")
    serving.check_empty()


def test_a_text_that_fits_without_records_fits() -> None:
    serving = Serving("lfm2", page_size=1, max_pages=29, states=2, cached_pages=0, cached_states=0)
    states = serving.pool.recurrent_states
    assert states is not None
    taken = states.allocate()  # a request needs one only
    request = serving.submit(tokens_of(10, n_vocab_of("lfm2")), max_tokens=20, drafts=8, right=1.0)
    for _ in range(60):
        if not serving.loop.step():
            break
    states.release(taken)
    assert (request.finish_reason, len(request.tokens)) == ("length", 20)
    check_as_alone(serving, request)
    assert request.speculation is not None
    assert request.speculation.stats.accepted > 0
    serving.check_empty()


def test_a_draft_model_that_is_recurrent_runs_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving("mamba2")
    drafter = ModelDrafter.__new__(ModelDrafter)
    known: dict[Sequence, Sequence] = {}
    vars(drafter).update(
        name="mamba2", _runner=serving.runner, _n_vocab=VOCAB, _context_size=99, _ends=(), _known=known
    )
    run, positions = serving.runner.complete, []

    def counted(in_flight: Any, *arguments: Any) -> Any:
        sequences = in_flight.sequences
        positions.extend(i for s in sequences for i in range(s.cached_len, s.scheduled_len))
        return run(in_flight, *arguments)

    monkeypatch.setattr(serving.runner, "complete", counted)
    target = Sequence(serving.pool, TEXT[:10])
    for accepted, first in ((0, 0), (2, 10), (4, 13), (3, 17)):
        sampler = DraftSampler(Sampler(SamplerConfig.greedy(), serving.kernels, 0), None)
        del positions[:]
        (found,) = drafter.propose([target], [sampler], [4])
        assert len(found) == 4
        assert len(positions) == len(set(positions))
        (own,) = known.values()
        assert positions[0] == first, "what was right before runs again"
        check = Serving("mamba2")
        whole = Sequence(check.pool, target.tokens + found[:3])
        rows = check.runner.forward([(whole, whole.pending)], all_logits=True)
        assert [int(row.argmax()) for row in rows[-4:]] == found
        assert state_of(own).settled == target.total_len
        target.tokens += [*found[:accepted], (found[accepted % 4] + 1) % VOCAB]
    drafter.forget(target)
    serving.check_empty()


def test_a_pass_that_finds_no_memory_for_records_leaves_none() -> None:
    serving = Serving("mamba", max_pages=2, states=2, cached_pages=0, cached_states=0)
    sequence = begun(serving, checkpoints=0)
    draft(sequence, 30, 30)
    with pytest.raises(KvCacheFullError, match="free bytes for a record"):
        serving.runner.forward([(sequence, 31)])
    assert (sequence.cached_len, len(sequence.kv.slots), sequence.kv.all_records) == (PROMPT, 1, [])
    sequence.drop_drafts()
    serving.runner.forward([(sequence, 1)])
    check_state("mamba", sequence)
    sequence.release()
    serving.check_empty()


def test_a_session_that_speculated_has_a_snapshot_and_goes_on() -> None:
    path = SHARED / "parity" / "mamba.gguf"
    if not path.exists():
        pytest.skip("the shared models are not at hand")
    ids, options = tokens_of(36, 250), {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    engine = InferenceEngine.from_gguf(path, num_threads=1)
    use_drafter(engine.model, AsManyAsMayBe())
    tokens = engine.stream(ids, **options).result().tokens
    guesses = Guesses(ids, tokens, 0.8, 250)
    with engine.session() as session, engine.session() as other:
        session.prefill(ids)
        engine.model.feature("drafters").loaded["guesses"] = guesses
        done = session.stream(**options, speculate="guesses").result()
        assert done.tokens == tokens
        assert done.speculation is not None
        assert done.speculation.accepted > 0
        kept = session.kv_snapshot()
        other.prefill(list(session.tokens))
        other.kv_restore(kept)
        assert same_bits(session.prefill(ids[:3]), other.prefill(ids[:3]))
        other.rewind(0)
        assert same_bits(session.prefill(ids[3:6]), other.prefill(ids + tokens + ids[:6]))
