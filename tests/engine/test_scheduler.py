"""What runs when: streams before prompts, chunks, admission, preemption, priorities, deadlines, the queue."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama.engine.features.embeddings import EmbeddingRequest
from oxillama.engine.runner import InFlight
from oxillama.engine.scheduler import ScheduledBatch
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import KvCacheFullError, QueueFull, RequestFailed, SamplingError
from tests.support.kernels import same_bits
from tests.support.serving import Letters, Recorded, Serving, check_as_alone, n_vocab_of
from tests.support.tiny_models import tokens_of

LONG = 60
"""Tokens that take more than a few steps; no greedy text of the tiny models ends before them."""


def prompt(n: int, seed: int = 0) -> list[int]:
    return tokens_of(n, 40, seed=seed)


def batches(serving: Serving) -> list[ScheduledBatch]:
    """Collects what every later step runs."""
    seen: list[ScheduledBatch] = []
    real = serving.scheduler.schedule

    def schedule() -> ScheduledBatch:
        seen.append(real())
        return seen[-1]

    serving.scheduler.schedule = schedule  # type: ignore[method-assign]
    return seen


def test_the_states_of_a_request() -> None:
    serving = Serving(chunk=8)
    request = serving.submit(prompt(20), max_tokens=2)
    states = [request.sequence.state]
    while request.finish_reason is None:
        serving.step()
        states.append(request.sequence.state)
    expected = [SeqState.WAITING, *[SeqState.PREFILLING] * 2, SeqState.DECODING, SeqState.FINISHED]
    assert states == expected
    assert serving.scheduler.drain_finished() == []  # the core has taken it
    serving.check_empty()


def test_lengths_are_asserted() -> None:
    sequence = Sequence(Serving().pool, prompt(20))
    sequence.schedule(5)
    assert (sequence.cached_len, sequence.scheduled_len, sequence.total_len) == (0, 5, 20)
    with pytest.raises(AssertionError):
        sequence.schedule(1)  # before the first is committed
    sequence.commit()
    with pytest.raises(AssertionError):
        sequence.schedule(16)  # more than there is
    sequence.scheduled_len = 4
    with pytest.raises(AssertionError):
        sequence.check()


def test_streams_run_in_every_step_of_a_long_prompt() -> None:
    serving = Serving(chunk=16)
    stream = serving.submit(prompt(5), max_tokens=LONG)
    serving.step()
    seen = batches(serving)
    long = serving.submit(prompt(150, seed=1), max_tokens=2)
    n = len(stream.tokens)
    while not long.tokens:
        serving.step()
        n += 1
        assert len(stream.tokens) == n
    assert all(b.n_decode == 1 and b.n_decode + b.n_prefill <= 17 for b in seen)
    assert len(seen) == math.ceil(150 / 16)
    serving.run(stream, long)
    check_as_alone(serving, stream, long)


def test_a_chunk_beside_streams_takes_no_longer_than_they_may_wait() -> None:
    serving = Serving(chunk=512, max_decode_wait_ms=100)
    stream = serving.submit(prompt(5), max_tokens=LONG)
    serving.step()
    batch = ScheduledBatch(n_prefill=100)
    serving.scheduler.budget.observe(batch, 0.2)  # two milliseconds a row
    serving.submit(prompt(150, seed=1), max_tokens=1)
    seen = batches(serving)
    serving.step()
    assert (seen[0].n_decode, seen[0].n_prefill) == (1, 47)  # 50 rows would be six tiles of 8 and two rows
    serving.scheduler.budget.row_seconds = 1.0
    serving.step()
    assert seen[1].n_prefill == 16  # it goes on, however slowly
    serving.cancel(stream)
    serving.step()
    assert seen[2].n_prefill == 150 - 47 - 16  # nobody waits


def test_a_reader_that_has_just_left_is_expected_back() -> None:
    serving = Serving(chunk=512, max_decode_wait_ms=100)
    stream = serving.submit(prompt(5), max_tokens=LONG, window=1)
    while not stream.pieces:
        serving.step()
    serving.scheduler.budget.row_seconds = 0.002
    serving.submit(prompt(150, seed=1), max_tokens=1)
    seen = batches(serving)
    serving.step()
    assert (seen[0].n_decode, seen[0].n_prefill) == (0, 48)
    serving.scheduler.budget.row_seconds = 0.002
    serving.clock.now += 2
    serving.step()
    assert seen[1].n_prefill == 150 - 48


def chunk_beside(streams: list[float | None], **config: Any) -> int:
    """Rows of a long prompt in a step beside streams of some ``max_decode_wait_ms``.

    A row of a prompt takes 2 ms, a step of streams alone 40.
    """
    serving = Serving(chunk=512, **config)
    for i, wait in enumerate(streams):
        serving.submit(prompt(5, seed=i + 2), max_tokens=LONG, max_decode_wait_ms=wait)
    serving.step()
    serving.scheduler.budget.decode_seconds, serving.scheduler.budget.row_seconds = 0.04, 0.002
    serving.submit(prompt(150, seed=1), max_tokens=1)
    seen = batches(serving)
    serving.step()
    assert seen[0].n_decode == len(streams)
    return seen[0].n_prefill


def test_a_chunk_is_cut_for_the_least_patient_stream() -> None:
    assert chunk_beside([None], max_decode_wait_ms=100) == 23  # 30 rows in 60 ms: three tiles
    assert chunk_beside([120.0, 1e9], max_decode_wait_ms=50) == 38
    assert chunk_beside([1e9, None], max_decode_wait_ms=100) == 30
    assert chunk_beside([None]) == 55  # 4 steps of streams: 160 ms


def test_no_chunk_is_cut_where_nobody_reads() -> None:
    assert chunk_beside([1e9, 1e9], max_decode_wait_ms=100) == 150
    assert chunk_beside([None], max_decode_wait_ms=1e9) == 150


def test_the_time_of_streams_is_not_the_prompts() -> None:
    scheduler = Serving().scheduler
    scheduler.budget.observe(ScheduledBatch(n_decode=4), 0.04)
    assert scheduler.budget.decode_seconds == 0.04
    scheduler.budget.observe(ScheduledBatch(n_decode=4, n_prefill=30), 0.1)
    assert scheduler.budget.row_seconds == pytest.approx(0.002)
    scheduler.budget.observe(ScheduledBatch(n_decode=4), 0.05)
    assert scheduler.budget.decode_seconds == pytest.approx(0.043)
    scheduler.budget.observe(ScheduledBatch(n_decode=4, n_prefill=30), 0.03)  # half its share
    assert scheduler.budget.row_seconds == pytest.approx(0.002 + 0.3 * (0.0005 - 0.002))


def test_the_measured_speed_follows_the_steps() -> None:
    scheduler = Serving().scheduler
    scheduler.budget.observe(ScheduledBatch(n_prefill=100), 1.0)
    assert scheduler.budget.row_seconds == 0.01
    scheduler.budget.observe(ScheduledBatch(n_prefill=4), 1.0)  # too few to tell
    assert scheduler.budget.row_seconds == 0.01
    for _ in range(30):
        scheduler.budget.observe(ScheduledBatch(n_prefill=60, n_decode=40), 2.0)
    assert scheduler.budget.row_seconds == pytest.approx(0.02, rel=1e-3)


def test_prompts_share_a_step_the_shortest_rest_first() -> None:
    serving = Serving(chunk=32)
    long, short = serving.submit(prompt(100)), serving.submit(prompt(10, seed=1))
    serving.step()
    assert len(short.tokens) == 1
    assert long.sequence.cached_len == 22
    serving.run(long, short)


def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    serving = Serving(chunk=16, promote_seconds=1.0)
    long = serving.submit(prompt(100))
    for i in range(200):
        serving.submit(prompt(16, seed=i + 1), max_tokens=1)
        serving.clock.now += 0.2
        serving.step()
        if long.tokens:
            break
    assert long.tokens
    assert i < 30


def test_the_higher_priority_goes_first() -> None:
    serving = Serving(max_sequences=1)
    first = serving.submit(prompt(10), max_tokens=3)
    serving.step()
    low, high = (serving.submit(prompt(10, seed=p + 1), max_tokens=3, priority=p) for p in (0, 5))
    serving.run(high)
    assert first.finish_reason
    assert not low.tokens
    serving.run(low)


def test_the_higher_priority_takes_pages_from_the_lower() -> None:
    serving = Serving(max_pages=4)
    low = serving.submit(prompt(40), max_tokens=20)
    serving.step()
    high = serving.submit(prompt(40, seed=1), max_tokens=3, priority=1)
    serving.step()  # it had been given its token already
    serving.step()
    assert low.sequence.state is SeqState.PREEMPTED
    serving.run(high)
    assert low.finish_reason is None
    serving.run(low)
    check_as_alone(serving, low, high)
    serving.check_empty()


@pytest.mark.parametrize("runs", [False, True])
def test_what_waits_with_pages_of_a_session_gives_way(runs: bool) -> None:
    serving = Serving(max_pages=5 if runs else 4, cached_pages=0)
    session = Sequence(serving.pool, prompt(40))
    serving.runner.forward([(session, 40)], False)
    serving.loop.hold(session, weakref.ref(serving))
    first = [serving.submit(prompt(5, seed=2), max_tokens=20, priority=1)] if runs else []
    serving.step()
    waits = serving.request(prompt(40), max_tokens=6)
    waits.sequence.take_fork(session, 39)
    serving.loop.release(session)
    serving.loop.add(waits)
    urgent = serving.submit(prompt(40, seed=1), max_tokens=6, priority=1)
    serving.step()
    assert urgent in serving.scheduler.running
    serving.run(*first, waits, urgent)
    assert serving.scheduler.queues.preemptions == 0
    check_as_alone(serving, *first, waits, urgent)
    serving.check_empty()


@pytest.mark.parametrize("cached_pages", [0, 1000])
def test_when_pages_run_out_the_latest_gives_way_and_goes_on_later(cached_pages: int) -> None:
    serving = Serving(max_pages=7, cached_pages=cached_pages)
    requests = [serving.submit(prompt(30, seed=i), max_tokens=40) for i in range(3)]
    serving.run(*requests)
    assert serving.scheduler.queues.preemptions > 0
    assert {request.finish_reason for request in requests} <= {"length", "stop"}
    check_as_alone(serving, *requests)
    serving.check_empty()


def test_a_reader_that_pauses_is_the_first_to_give_way() -> None:
    serving = Serving(max_pages=5)
    paused = serving.submit(prompt(40), max_tokens=LONG, window=1)
    while not paused.pieces:
        serving.step()
    other = serving.submit(prompt(40, seed=1), max_tokens=30)
    serving.run(other)
    assert serving.scheduler.queues.preemptions == 1
    assert paused.sequence.state is SeqState.PREEMPTED
    paused.window = math.inf
    serving.run(paused)
    check_as_alone(serving, paused)
    serving.check_empty()


def test_a_tenant_waits_a_step_however_many_of_another_go_on_after_a_pause() -> None:
    serving = Serving(max_sequences=2)
    paused = [serving.submit(prompt(5, seed=i), max_tokens=LONG, window=1) for i in range(6)]
    for request in paused:
        request.tenant = "a"
    while not all(request.pieces for request in paused):
        serving.step()
    assert len(serving.scheduler.running) == 6  # each left its place to the next one
    for request in paused:
        request.window = math.inf
    other = serving.submit(prompt(5, seed=9), max_tokens=1)
    other.tenant = "b"
    serving.step()
    assert other.finish_reason is not None
    assert sum(request in serving.scheduler.running for request in paused) == 1
    serving.run(*paused)
    check_as_alone(serving, *paused)


def test_a_stream_that_grows_takes_from_one_that_pauses_not_from_a_later_one() -> None:
    serving = Serving(max_pages=8, cached_pages=0)
    paused = serving.submit(prompt(30), max_tokens=LONG, window=1)
    while not paused.pieces:
        serving.step()
    later = [serving.submit(prompt(30, seed=i), max_tokens=24) for i in (1, 2)]
    serving.step()
    assert len(serving.scheduler.running) == 3
    serving.run(*later)
    assert sum(len(request.tokens) for request in later) == 48
    assert paused.sequence.state is SeqState.PREEMPTED
    assert serving.scheduler.queues.preemptions == 1
    serving.cancel(paused)
    serving.check_empty()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba2", "jamba"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_hidden_states_of_a_request_that_is_preempted_come_once(name: str, steps: int) -> None:
    def states(preempted: bool) -> np.ndarray:
        serving = Serving(name, chunk=16, cached_pages=0, cached_states=0)
        tokens = tokens_of(60, n_vocab_of(name))
        request = EmbeddingRequest(Sequence(serving.pool, tokens, checkpoints=0), lambda rows: rows.copy())
        serving.loop.add(request)
        for _ in range(steps):
            serving.step()
        if preempted:
            assert 0 < request.sequence.cached_len < 60
            serving.scheduler.queues.preempt(request, ScheduledBatch())
        while request.finish_reason is None:
            serving.step()
        found: Any = request.events.get()
        return found

    expected = states(False)
    assert expected.shape[0] == 60
    assert same_bits(states(True), expected)


@pytest.mark.parametrize(("pages", "n_prompt", "n_text"), [(8, 100, 3), (4, 30, 20)])
def test_nobody_is_admitted_to_pages_that_others_will_need(pages: int, n_prompt: int, n_text: int) -> None:
    """For the rest of a prompt, or for the next page of a stream."""
    serving = Serving(max_pages=pages, chunk=16 if n_prompt > 64 else 64, cached_pages=0)
    first = serving.submit(prompt(n_prompt), max_tokens=n_text)
    serving.step()
    second = serving.submit(prompt(30, seed=1), max_tokens=3)
    serving.step()
    assert second.sequence.state is SeqState.WAITING
    serving.run(first, second)
    assert serving.scheduler.queues.preemptions == 0


def test_no_more_are_preempted_than_must_be() -> None:
    serving = Serving(max_pages=5, cached_pages=0)
    low = [serving.submit(prompt(20, seed=i), max_tokens=10) for i in range(2)]
    serving.step()
    high = serving.submit(prompt(20, seed=2), max_tokens=3, priority=1)
    serving.run(high)
    assert serving.scheduler.queues.preemptions == 1
    assert [request.sequence.state for request in low] == [SeqState.DECODING, SeqState.PREEMPTED]
    serving.run(*low)
    serving.check_empty()


def test_nobody_overtakes_one_for_whom_there_is_no_room_yet() -> None:
    serving = Serving(max_pages=8, cached_pages=0)
    first = serving.submit(prompt(60), max_tokens=LONG, priority=1)
    serving.step()
    big = serving.submit(prompt(90, seed=1), max_tokens=2, priority=1)
    small = serving.submit(prompt(10, seed=2), max_tokens=2)
    while first.finish_reason is None:
        serving.step()
        assert big.sequence.state is SeqState.WAITING or first.finish_reason
        assert not small.tokens
    serving.run(big, small)


def test_a_reader_that_pauses_takes_nobodys_place() -> None:
    serving = Serving(max_sequences=1)
    paused = serving.submit(prompt(10), max_tokens=LONG, window=1)
    while not paused.pieces:
        serving.step()
    other = serving.submit(prompt(10, seed=1), max_tokens=5)
    serving.run(other)
    assert len(other.tokens) == 5
    assert paused.finish_reason is None


def test_a_preempted_request_is_counted_once_and_its_work_is_kept() -> None:
    serving = Serving(max_pages=6)
    low = serving.submit(prompt(40), max_tokens=30)
    while len(low.tokens) < 3:
        serving.step()
    high = serving.submit(prompt(40, seed=1), max_tokens=3, priority=1)
    seen = batches(serving)
    serving.run(high, low)
    assert serving.scheduler.queues.preemptions == 1
    assert (serving.prefix.hits, serving.prefix.misses) == (0, 2)
    assert serving.prefix.looked_up_tokens == 80
    assert low.n_cached == 0
    assert sum(batch.n_prefill for batch in seen) <= 40 + 2  # the urgent prompt, the last tokens twice
    check_as_alone(serving, low)


def test_the_same_prompt_under_another_key_is_not_waited_for() -> None:
    serving = Serving(chunk=100)
    seen = batches(serving)
    requests = [serving.submit(prompt(40), max_tokens=2, key=key) for key in (b"a", b"b", b"a")]
    serving.step()
    assert seen[0].requests == requests[:2]
    serving.run(*requests)


def test_free_memory_is_given_back_when_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxillama.engine import loop

    monkeypatch.setattr(loop, "KEEP_BYTES", 0)
    serving = Serving(cached_pages=0)
    requests = [serving.submit(prompt(20, seed=i), max_tokens=1 + i) for i in range(2)]
    serving.run(requests[0])
    assert serving.pool.memory_bytes > 0
    serving.run(requests[1])
    assert serving.pool.memory_bytes == 0


def test_what_nobody_reads_is_not_run() -> None:
    serving = Serving()
    request = serving.submit(prompt(10), window=2)
    while serving.step():
        pass
    assert len(request.pieces) == 2
    request.pieces.popleft()
    assert serving.step()
    assert not serving.step()


def test_a_request_that_can_never_fit_fails_alone() -> None:
    serving = Serving(max_pages=3)
    big = serving.submit(prompt(100))
    small = serving.submit(prompt(10), max_tokens=3)
    serving.run(big, small)
    assert big.finish_reason == "error"
    assert isinstance(big.error, KvCacheFullError)
    assert "7 pages of 16 tokens needed, 3 available" in str(big.error)
    check_as_alone(serving, small)
    grows = serving.submit(prompt(40), max_tokens=LONG)
    serving.run(grows)
    assert isinstance(grows.error, KvCacheFullError)
    assert len(grows.tokens) == 48 - 40 + 1
    serving.check_empty()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancelling_frees_everything_at_once(steps: int) -> None:
    serving = Serving(chunk=8, cached_pages=0)
    request = serving.submit(prompt(20), max_tokens=LONG)
    for _ in range(steps):
        serving.step()
    serving.cancel(request)
    assert request.finish_reason == "cancelled"
    assert request.sequence.state is SeqState.FINISHED
    serving.check_empty()


def test_nothing_is_shown_behind_a_stop_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest in the decoder, for example half a character, is not shown either."""
    serving = Serving()
    whole = serving.submit(prompt(10), max_tokens=6)
    serving.run(whole)
    text = "".join(whole.pieces)
    monkeypatch.setattr(Letters, "flush", lambda self: "?")
    request = serving.submit(prompt(10), max_tokens=6, stop=(text[3],))
    other = serving.submit(prompt(10), max_tokens=6)
    serving.run(request, other)
    assert "".join(request.pieces) == text[: text.index(text[3])]
    assert request.finish_reason == "stop"
    assert "".join(other.pieces) == text + "?"


def test_logits_that_are_kept_hold_no_others() -> None:
    serving = Serving()
    requests = [serving.submit(prompt(10, seed=i), max_tokens=3) for i in range(3)]
    serving.run(*requests)
    for row in (row for request in requests for row in request.logits):
        assert row.base is None or row.base.nbytes == row.nbytes


def test_what_was_held_back_is_not_shown_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving()
    whole = serving.submit(prompt(10), max_tokens=6)
    serving.run(whole)
    text = "".join(whole.pieces)
    request = serving.submit(prompt(10), max_tokens=6, stop=(text[2] + "\0",))
    while len(request.sequence.tokens) < 13:
        serving.step()
    monkeypatch.setattr(request.sampler, "row", Mock(side_effect=ZeroDivisionError))
    serving.run(request)
    assert isinstance(request.error, RequestFailed)
    assert isinstance(request.error.__cause__, ZeroDivisionError)
    assert "".join(request.pieces) == text[:2]


def test_deadlines() -> None:
    serving = Serving()
    waits, runs = serving.submit(prompt(10), timeout=5.0, window=0), serving.submit(prompt(10), timeout=100)
    serving.step()
    serving.clock.now += 6
    serving.run(waits)
    assert waits.finish_reason == "timeout"
    serving.run(runs)
    check_as_alone(serving, runs)


def test_the_next_deadline_is_that_of_any_request() -> None:
    serving = Serving(max_sequences=1)
    assert serving.scheduler.next_deadline() == math.inf
    requests = [serving.submit(prompt(10, seed=i), timeout=t) for i, t in enumerate((9.0, 5.0, 7.0))]
    serving.step()
    assert [request.sequence.state for request in requests[1:]] == [SeqState.WAITING] * 2
    assert serving.scheduler.next_deadline() == requests[1].deadline


def test_what_ends_in_a_pass_ends_the_pass_when_it_is_most_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(chunk=64)
    small, half, late = (
        serving.submit(prompt(n, seed=n), max_tokens=2, timeout=timeout)
        for n, timeout in ((5, 100), (24, 100), (29, 10))
    )
    real, answers = serving.runner.complete, list[bool]()

    def complete(in_flight: InFlight, cancelled: Any) -> list[np.ndarray | None]:
        assert sum(s.scheduled_len for s in in_flight.sequences) == 58
        for event in (
            lambda: None,
            lambda: serving.loop.cancel(small),
            lambda: serving.loop.cancel(half),  # with the first exactly half of the rows
        ):
            event()
            answers.append(cancelled())
        rows = real(in_flight, cancelled)
        serving.clock.now += 11
        cancelled()
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(serving.runner, "complete", complete)
        serving.step()
    assert answers == [False, False, False]
    reasons = [request.finish_reason for request in (small, half, late)]
    assert reasons == ["cancelled", "cancelled", "timeout"]
    serving.check_empty()


def test_the_queue_has_an_end() -> None:
    serving = Serving(max_waiting=3, max_sequences=1)
    for i in range(3):
        serving.loop.check_room("")
        serving.submit(prompt(5, seed=i))
    with pytest.raises(QueueFull, match="max_waiting: 3 requests may wait, and 3 do"):
        serving.loop.check_room("")
    assert issubclass(QueueFull, RuntimeError)
    serving.step()
    serving.loop.check_room("")
    with pytest.raises(QueueFull):
        serving.loop.check_room("", coming=[serving.request(prompt(5))])  # one request is on its way


def test_no_tenant_takes_anothers_place_in_the_queue() -> None:
    serving = Serving(max_waiting=2, max_sequences=1)
    coming = [serving.request(prompt(5), tenant="b")]
    for i in range(2):
        serving.loop.check_room("a", coming=coming)
        serving.submit(prompt(5, seed=i), tenant="a")
    with pytest.raises(QueueFull, match="max_waiting: 2 requests may wait, and 2 do"):
        serving.loop.check_room("a", coming=coming)
    serving.loop.check_room("b", coming=coming)
    serving.submit(prompt(5, seed=2), tenant="b")
    with pytest.raises(QueueFull):
        serving.loop.check_room("b", coming=coming)
    serving.step()


def test_more_prompts_than_may_run_take_turns() -> None:
    serving = Serving(max_sequences=2)
    requests = [serving.submit(prompt(10, seed=i), max_tokens=4) for i in range(5)]
    while serving.step():
        assert len(serving.scheduler.running) <= 2
    check_as_alone(serving, *requests)


def test_a_request_without_anything_to_do_ends_at_once() -> None:
    serving = Serving()
    request = serving.submit(prompt(10), max_tokens=0)
    serving.step()
    assert request.finish_reason == "length"
    assert serving.prefix.misses == 0


def spoil(
    monkeypatch: pytest.MonkeyPatch, serving: Serving, bad: Recorded, change: Callable[[Any], np.ndarray]
) -> None:
    """Has passes give what ``change`` makes of the rows of one request, or raise what it raises."""
    real = serving.runner.complete

    def complete(in_flight: InFlight, *args: Any) -> list[np.ndarray | None]:
        found = zip(in_flight.sequences, real(in_flight, *args))
        rows = [(sequence is bad.sequence, None if row is None else row.copy()) for sequence, row in found]
        return [change(row) if is_bad and row is not None else row for is_bad, row in rows]

    monkeypatch.setattr(serving.runner, "complete", complete)


def lack_memory(row: np.ndarray) -> np.ndarray:
    raise MemoryError("too much")


@pytest.mark.parametrize("name", ["llama", "jamba"])
def test_what_the_model_raises_ends_the_request_that_is_at_fault(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(name)
    good, bad = (serving.submit(tokens_of(10, n_vocab_of(name), seed=i), max_tokens=6) for i in range(2))
    serving.step()
    serving.step()
    spoil(monkeypatch, serving, bad, lack_memory)
    serving.run(good, bad)
    assert isinstance(bad.error, MemoryError)
    assert good.error is None
    check_as_alone(serving, good)
    serving.check_empty()


def test_logits_that_are_not_numbers_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving()
    good, bad = (serving.submit(prompt(10, seed=i), max_tokens=6) for i in range(2))
    spoil(monkeypatch, serving, bad, lambda row: np.full_like(row, np.nan))
    serving.run(good, bad)
    assert isinstance(bad.error, SamplingError)
    check_as_alone(serving, good)


def test_a_pass_that_is_run_again_gives_the_rows_of_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state is lost with its pass: all tokens run again, perhaps in chunks of other sizes."""
    serving, n_vocab = Serving("mamba", chunk=20), n_vocab_of("mamba")
    tokens = tokens_of(40, n_vocab)
    alone = Sequence(serving.pool, tokens, checkpoints=0)
    expected = serving.runner.forward([(alone, 40)], all_logits=True, states=True).copy()
    alone.release()
    bad = serving.submit(tokens_of(5, n_vocab, seed=1), max_tokens=LONG)
    serving.step()
    wanted = EmbeddingRequest(Sequence(serving.pool, tokens, checkpoints=0), np.array)
    serving.loop.add(wanted)
    serving.scheduler.budget.row_seconds = 1e-9  # a chunk is full but for the stream's row
    serving.step()
    assert wanted.sequence.cached_len == 19
    spoil(monkeypatch, serving, bad, lack_memory)
    while wanted.finish_reason is None:
        serving.step()
    assert isinstance(bad.error, MemoryError)
    assert same_bits(wanted.events.get_nowait(), expected)
    serving.check_empty()


@pytest.mark.parametrize("where", ["complete", "add"])
def test_an_interrupted_step_leaves_the_others_as_they_were(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(chunk=4)
    requests = [serving.submit(prompt(10, seed=i), max_tokens=6) for i in range(3)]
    for _ in range(9):
        serving.step()
    owner = serving.runner if where == "complete" else ScheduledBatch
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, where, Mock(side_effect=KeyboardInterrupt))
        serving.loop.step()
    serving.run(*requests)
    check_as_alone(serving, *requests)
    serving.check_empty()


def test_what_a_sampler_raises_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(chunk=4)
    requests = [serving.submit(prompt(10, seed=i), max_tokens=6) for i in range(3)]
    for _ in range(9):
        serving.step()
    monkeypatch.setattr(requests[1].sampler, "row", Mock(side_effect=SystemExit))
    serving.run(*requests)
    assert requests[1].finish_reason == "error"
    assert isinstance(requests[1].error, RequestFailed)
    assert isinstance(requests[1].error.__cause__, SystemExit)
    check_as_alone(serving, *requests)
    serving.check_empty()
