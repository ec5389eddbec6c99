"""What the metrics say: whose time a step is, when tokens come, what is in use, cumulative buckets."""

from __future__ import annotations

import math

import pytest

from oxillama import InferenceEngine, SamplerConfig, demo
from oxillama.engine.metrics import EngineMetrics, Histogram
from oxillama.engine.scheduler import ScheduledBatch
from tests.support.serving import Serving
from tests.support.tiny_models import tokens_of

GREEDY = SamplerConfig.greedy()


def test_a_mixed_step_is_shared_out_by_rows() -> None:
    metrics = EngineMetrics(dict)
    metrics.step(ScheduledBatch(n_prefill=30, n_decode=10), 4.0)
    metrics.step(ScheduledBatch(n_decode=3), 1.0)
    metrics.step(ScheduledBatch(n_prefill=5), 2.0)
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
    first, between = serving.loop.metrics.time_to_first_token, serving.loop.metrics.time_per_output_token
    assert (first.count, between.count) == (1, 5)
    assert between.total == pytest.approx(request.last_token_at - request.first_token_at)
    assert first.total == pytest.approx(request.first_token_at - request.submitted_at)


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


def test_buckets_of_prometheus_are_cumulative() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is optional")
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    for value in (0.02, 0.02, 0.3, 100.0):
        engine.metrics.time_to_first_token.add(value)
    name = "oxillama:time_to_first_token_seconds_bucket"
    found = {
        sample.labels["le"]: sample.value
        for family in parser.text_string_to_metric_families(engine.metrics.prometheus())
        for sample in family.samples
        if sample.name == name
    }
    assert (found["0.01"], found["0.025"], found["0.25"], found["0.5"]) == (0, 2, 2, 3)
    assert (found["60.0"], found["300.0"], found["+Inf"]) == (3, 4, 4)
