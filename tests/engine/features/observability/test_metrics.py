"""What the metrics say: whose time a step is, when tokens come, what is in use, cumulative buckets."""

from __future__ import annotations

import json
import math
import re
import time

import pytest

from oxillama import ConfigError, SamplerConfig, demo, metrics_text
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.batch import Sampled, ScheduledBatch, StepTimes
from oxillama.engine.features.observability.exposition import TABLE
from oxillama.engine.features.observability.histogram import Histogram
from oxillama.engine.features.observability.metrics import EngineMetrics
from oxillama.engine.features.observability.metrics_snapshot import FACTS, GAUGES, MAXIMA
from oxillama.engine.loop import Observers
from oxillama.engine.protocols import Observer
from oxillama.engine.request import Request
from tests.support.paths import DOCS
from tests.support.serving import Serving
from tests.support.tiny_models import tokens_of

GREEDY = SamplerConfig.greedy()


def test_a_mixed_step_is_shared_out_by_rows() -> None:
    metrics = EngineMetrics(dict)
    for n_prefill, n_decode, seconds in ((30, 10, 4.0), (0, 3, 1.0), (5, 0, 2.0)):
        times = StepTimes(propose=1.0, end=1.0 + seconds)
        metrics.stepped(ScheduledBatch(n_prefill=n_prefill, n_decode=n_decode, times=times), 0.0)
    assert (metrics.prefill_seconds, metrics.decode_seconds) == (5.0, 2.0)
    assert (metrics.steps, metrics.prefill_tokens) == (3, 35)


def test_the_step_that_gives_the_first_token_is_the_prompts() -> None:
    serving = Serving(chunk=8)
    one = serving.submit(tokens_of(20, 40), max_tokens=1)
    serving.run(one)
    assert one.decode_seconds == 0.0 < one.prefill_seconds
    prefill = one.prefill_seconds
    more = serving.submit(tokens_of(20, 40, seed=1), max_tokens=4)
    serving.run(more)
    assert more.decode_seconds > 0.0 and more.prefill_seconds > 0.0
    assert one.prefill_seconds == prefill


def test_a_tokens_latency_counts_from_the_token_before() -> None:
    serving = Serving()
    request = serving.submit(tokens_of(20, 40), max_tokens=6)
    serving.run(request)
    first, between = serving.metrics.time_to_first_token, serving.metrics.time_per_output_token
    assert (first.count, between.count) == (1, 5)
    assert between.total == pytest.approx(request.last_token_at - request.first_token_at)
    assert first.total == pytest.approx(request.first_token_at - request.submitted_at)


def test_the_longest_sequence_is_kept() -> None:
    serving = Serving()
    for n_prompt, n_text in ((20, 6), (30, 2), (5, 3)):
        serving.run(serving.submit(tokens_of(n_prompt, 40), max_tokens=n_text))
    assert serving.metrics.longest_sequence == 32


def test_what_only_the_prefix_cache_holds_is_not_in_use() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, kv_memory_limit=64 << 20)
    engine.generate("The old toad went to the sea. " * 4, sampler=GREEDY, max_tokens=3)
    idle = engine.model.call(engine.metrics_snapshot)
    assert idle.kv_pages_used == idle.kv_pages_cached > 0
    assert idle.kv_usage == 0.0
    with engine.session() as session:
        session.prefill("word " * 40)
        used = engine.model.call(engine.metrics_snapshot)
        pages = used.kv_pages_used - used.kv_pages_cached
        pool = engine.model.pool
        assert used.kv_usage == pages * pool.page_stride / pool.limit.max_bytes > 0.0


def test_histograms_count_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    assert math.isnan(histogram.mean)
    before = histogram.copy()
    for value in (0.5, 1.0, 1.5, 3.0, 9.0, 9.0):
        histogram.add(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert (histogram.count, histogram.mean) == (6, 4.0)
    assert before.count == 0


def test_whoever_has_the_end_finds_it_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EngineMetrics.ended

    def slow(metrics: EngineMetrics, request: Request, now: float) -> None:
        time.sleep(0.05)
        real(metrics, request, now)

    monkeypatch.setattr(EngineMetrics, "ended", slow)
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate="lookup")
    prefill = 0.0
    for n in (1, 2, 3):
        done = engine.stream("Once upon a time", sampler=GREEDY, max_tokens=1).result()
        now = engine.metrics_snapshot()
        assert now.finished == {"length": n}
        assert (now.steps, now.running) == (n, 0)
        prefill += done.timings.prefill
        assert 0.0 < prefill == pytest.approx(now.prefill_seconds)


def test_errors_are_counted_by_their_class() -> None:
    def stage(ids: object, logits: object, history: object) -> None:
        raise ZeroDivisionError

    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    with pytest.raises(ZeroDivisionError):
        engine.generate("Once", sampler=SamplerConfig(order=("temperature", stage)))
    engine.generate("Once", max_tokens=1)
    now = engine.metrics_snapshot()
    assert (now.finished, now.errors) == ({"error": 1, "length": 1}, {"ZeroDivisionError": 1})


def test_an_observer_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def stepped(self, batch: ScheduledBatch, now: float) -> None:
            raise ZeroDivisionError

        def ended(self, request: Request, now: float) -> None:
            told.append(request.id)

    told: list[int] = []
    serving = Serving()
    serving.loop.observers = Observers([Broken(), serving.metrics])
    request = serving.submit(tokens_of(20, 40), max_tokens=3)
    serving.run(request)
    assert (request.finish_reason, told) == ("length", [1])
    assert serving.metrics.generation_tokens == 3
    assert "an observer failed" in caplog.messages


def test_drafts_are_counted_by_their_place() -> None:
    metrics = EngineMetrics(dict)
    for drafted, accepted in ((3, 1), (0, 0), (2, 2), (1, 0)):
        sampled = Sampled(Serving().request([1]), 0, drafted, accepted)
        metrics.stepped(ScheduledBatch(n_decode=1, sampled=[sampled]), 0.0)
    assert (metrics.drafts, metrics.drafted_tokens, metrics.accepted_tokens) == (3, 6, 3)
    assert (metrics.drafted_at, metrics.accepted_at) == ([3, 2, 1], [2, 1, 0])


def test_a_request_that_is_preempted_has_queued_once() -> None:
    serving = Serving(max_pages=6)
    requests = [serving.submit(tokens_of(30, 40, seed=n), max_tokens=40) for n in range(3)]
    serving.run(*requests)
    metrics = serving.metrics
    assert serving.scheduler.queues.preemptions > 0
    assert metrics.queue_time.count == metrics.decode_time.count == 3
    for request in requests:
        assert request.submitted_at <= request.admitted_at < request.first_token_at
    waits = sum(request.first_token_at - request.admitted_at for request in requests)
    assert metrics.prefill_time.total == pytest.approx(waits)
    assert metrics.text_lengths.total == sum(request.n_generated for request in requests)
    assert metrics.prompt_lengths.total == 90


def test_masks_of_grammars_are_timed() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    engine.generate("Once", max_tokens=3)
    before = engine.metrics_snapshot()
    assert (before.grammar_masks, before.grammar_seconds) == (0, 0.0)
    engine.generate("Once", max_tokens=5, regex="[a-z ]{200}")
    now = engine.metrics_snapshot()
    assert now.grammar_masks == 5
    assert now.grammar_seconds > 0.0


# --- as others read them ----------------------------------------------------------------------------


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Each sample of a Prometheus text by its name and labels; none comes twice, nor any metric's type."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is optional")
    families = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples) == sum(bool(line) and line[0] != "#" for line in text.split("\n"))
    return found


def test_buckets_of_prometheus_are_cumulative() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    for value in (0.02, 0.02, 0.3, 100.0):
        engine.metrics.time_to_first_token.add(value)
    found = parsed(engine.metrics.prometheus({}))
    name = "oxillama:time_to_first_token_seconds"
    counts = [found[f"{name}_bucket", (("le", le),)] for le in ("0.01", "0.025", "0.25", "0.5", "60.0")]
    assert counts == [0, 2, 2, 3, 3]
    assert [found[f"{name}_bucket", (("le", le),)] for le in ("120.0", "+Inf")] == [4, 4]
    assert (found[f"{name}_count", ()], found[f"{name}_sum", ()]) == (4, 100.34)


def test_one_text_for_several_engines() -> None:
    engines = {name: InferenceEngine.from_gguf(demo.STORY, num_threads=1) for name in ("a", 'b "\n')}
    for n, engine in enumerate(engines.values(), 1):
        engine.generate("Once upon a time", max_tokens=n)
    found = parsed(metrics_text({name: engine.metrics for name, engine in engines.items()}))
    for n, name in enumerate(engines, 1):
        label = ("model_name", name)
        assert found["oxillama:generation_tokens_total", (label,)] == n
        assert found["oxillama:request_success_total", (("finished_reason", "length"), label)] == 1
    assert parsed(metrics_text({})) == {}


def test_the_text_and_the_dict_say_the_same() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate="lookup")
    engine.generate("the fox the fox the fox the", max_tokens=30)
    plain = json.loads(json.dumps(engine.metrics.as_dict()))
    found = parsed(engine.metrics.prometheus({}))
    assert plain.keys() == {metric.name for metric in TABLE}
    assert len(TABLE) == len(plain)
    assert plain["spec_decode_num_draft_tokens"] == sum(
        plain["spec_decode_num_draft_tokens_per_pos"].values()
    )
    for metric in TABLE:
        value, name = plain[metric.name], f"oxillama:{metric.name}"
        if metric.kind == "histogram":
            assert [found[f"{name}_count", ()], found[f"{name}_sum", ()]] == [value["count"], value["sum"]]
            assert value["buckets"][-1] == [None, value["count"]]
        elif metric.kind == "info":
            assert found[name, tuple(sorted(value.items()))] == 1
            assert value["model_name"] == engine.metrics.labels["model_name"] != ""
        else:
            name += "_total" * (metric.kind == "counter")
            items = value.items() if metric.label else [(None, value)]
            for key, n in items:
                assert found[name, () if key is None else ((metric.label, key),)] == n


def test_the_counts_of_closed_engines_are_added() -> None:
    engines = [InferenceEngine.from_gguf(demo.STORY, num_threads=1) for _ in range(2)]
    for n, engine in zip((12, 30), engines):
        engine.generate("the fox the fox the fox the", max_tokens=n)
        engine.metrics.time_to_first_token.add(0.25)
        engine.metrics._count_draft(n // 6, 2)
    engines[0].metrics.errors["OSError"] += 1
    first, second = (engine.metrics.snapshot() for engine in engines)
    both = second.after(first)
    assert second.after(None) == second
    assert both.generation_tokens == first.generation_tokens + second.generation_tokens == 42
    assert both.finished == {"length": 2} and both.errors == {"OSError": 1}
    assert (both.drafts, both.drafted_tokens, both.accepted_tokens) == (2, 7, 4)
    assert (both.drafted_at, both.accepted_at) == ((2, 2, 1, 1, 1), (2, 2, 0, 0, 0))
    latency, (a, b) = both.time_to_first_token, (first.time_to_first_token, second.time_to_first_token)
    assert (latency.count, latency.total) == (4, a.total + b.total)
    assert latency.counts == [n + m for n, m in zip(a.counts, b.counts)]
    assert [getattr(both, name) for name in (*FACTS, *GAUGES)] == [
        getattr(second, name) for name in (*FACTS, *GAUGES)
    ]
    assert both.kv_memory_bytes > 0 < both.matrix_bytes
    after_the_close = both.closed()
    assert not any(getattr(after_the_close, name) for name in GAUGES)
    lengths = [second.longest_sequence, first.longest_sequence]
    assert both.longest_sequence == first.after(second).longest_sequence == max(lengths) > min(lengths)
    assert after_the_close.generation_tokens == 42 and after_the_close.labels == second.labels


def test_what_is_no_gauge_is_added() -> None:
    facts = {"labels", "load_seconds", "draft_acceptance_rate"}
    gauges = {metric.attribute for metric in TABLE if metric.kind == "gauge"} - facts
    counts = {metric.attribute for metric in TABLE if metric.kind in ("counter", "histogram")}
    assert gauges <= {*GAUGES, *MAXIMA} and not counts & {*GAUGES, *FACTS}


@pytest.mark.parametrize("labels", [{"le": "1"}, {"a-b": "1"}, {"": "1"}, {"__a": "1"}, {"error": "x"}])
def test_labels_that_the_text_cannot_have(labels: dict[str, str]) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    with pytest.raises(ConfigError, match="labels: expected names"):
        engine.metrics.prometheus(labels)


@pytest.mark.skipif(not (DOCS / "observability.md").is_file(), reason="only the package was unpacked")
def test_the_page_has_every_metric_once() -> None:
    text = (DOCS / "observability.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(metric.name for metric in TABLE)
