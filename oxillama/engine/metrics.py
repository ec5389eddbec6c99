"""Counters, gauges and histograms of an engine.

The names in the Prometheus text are those that vLLM's users know (``prompt_tokens_total``,
``time_to_first_token_seconds``, ``kv_cache_usage_perc``, ...) and, where vLLM has none, llama.cpp's
server's (``prompt_seconds_total``, ``tokens_predicted_seconds_total``), all prefixed ``oxillama:``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oxillama.config import checks
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.engine.request import Request
    from oxillama.engine.scheduler import ScheduledBatch

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass
class Histogram:
    """Counts of values up to each bound, their sum, and how many there were."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """nan without values."""
        return self.total / self.count if self.count else math.nan

    def copy(self) -> Histogram:
        return Histogram(self.bounds, list(self.counts), self.total)


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """The state of an `EngineMetrics` at one moment.

    Attributes
    ----------
    prompt_tokens : of the prompts of admitted requests; cached_prompt_tokens of them were not run, because
        the prefix cache had them. disk_prompt_tokens were read from ``prefix_cache_dir``.
    prefill_tokens, generation_tokens : run for prompts (again, after a preemption), and sampled.
    prefill_seconds, decode_seconds : time in steps, mixed ones shared out by rows.
    finished : requests by `finish_reason`.
    time_to_first_token, time_per_output_token, queue_time : seconds.
    steps, preemptions : so far.
    running, waiting : requests now.
    kv_pages_used, kv_pages_cached : held by sequences or the prefix cache now, and by the latter.
    kv_states_used, kv_states_cached : the same of states of recurrent layers.
    kv_memory_bytes : memory of the pool and its states now. kv_usage : share of what it may have that
        sequences use now, 0 to 1.
    prefix_hits, prefix_misses : prompts that began, or did not begin, with something known.
    drafted_tokens, accepted_tokens : that speculation tried, and that were right.
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    disk_prompt_tokens: int
    prefill_tokens: int
    generation_tokens: int
    prefill_seconds: float
    decode_seconds: float
    finished: dict[str, int]
    time_to_first_token: Histogram
    time_per_output_token: Histogram
    queue_time: Histogram
    steps: int
    preemptions: int
    running: int
    waiting: int
    kv_pages_used: int
    kv_pages_cached: int
    kv_states_used: int
    kv_states_cached: int
    kv_memory_bytes: int
    kv_usage: float
    prefix_hits: int
    prefix_misses: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def prefill_tokens_per_second(self) -> float:
        """0 before anything was run."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Of all streams together; 0 before anything was run."""
        return self.generation_tokens / self.decode_seconds if self.decode_seconds else 0.0


class EngineMetrics:
    """Counters of one engine.

    Parameters
    ----------
    gauges : returns the present values of the gauges, by the names of `MetricsSnapshot`.
    """

    def __init__(self, gauges: Callable[[], dict[str, Any]]) -> None:
        self._gauges = gauges
        self.steps = 0
        self.prefill_tokens = 0
        self.generation_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.finished: Counter[str] = Counter()
        self.time_to_first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.time_per_output_token = Histogram(TOKEN_BUCKETS)
        self.queue_time = Histogram(FIRST_TOKEN_BUCKETS)

    def step(self, batch: ScheduledBatch, seconds: float) -> None:
        """A step has been run and sampled."""
        share = seconds * batch.n_prefill / (batch.n_prefill + batch.n_decode)
        self.steps += 1
        self.prefill_tokens += batch.n_prefill
        self.prefill_seconds += share
        self.decode_seconds += seconds - share

    def token(self, request: Request, now: float) -> None:
        """A request has got a token."""
        self.generation_tokens += 1
        if math.isnan(request.first_token_at):
            request.first_token_at = now
            self.time_to_first_token.add(now - request.submitted_at)
            self.queue_time.add(request.admitted_at - request.submitted_at)
        else:
            self.time_per_output_token.add(now - request.last_token_at)
        request.last_token_at = now

    def draft(self, drafted: int, accepted: int) -> None:
        """Drafted tokens of a request have been verified."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted

    def end(self, request: Request) -> None:
        """A request has ended."""
        self.finished[request.finish_reason or "?"] += 1

    def snapshot(self) -> MetricsSnapshot:
        """All of it, as it is now."""
        return MetricsSnapshot(
            **self._gauges(),
            prefill_tokens=self.prefill_tokens,
            generation_tokens=self.generation_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            finished=dict(self.finished),
            time_to_first_token=self.time_to_first_token.copy(),
            time_per_output_token=self.time_per_output_token.copy(),
            queue_time=self.queue_time.copy(),
            steps=self.steps,
        )

    def prometheus(self, labels: dict[str, str] | None = None) -> str:
        """All of it as Prometheus text; ``labels`` are put on every line.

        Raises
        ------
        ConfigError : the package ``prometheus_client`` is not installed, or a label is no text.
        """
        for pair in (labels or {}).items():
            for text in pair:
                checks.encodable("labels", text)
        return prometheus_text(self.snapshot(), labels or {})


COUNTERS = {
    "prompt_tokens": "Tokens of admitted prompts",
    "cached_prompt_tokens": "Tokens of prompts that the prefix cache had",
    "disk_prompt_tokens": "Tokens of prompts that were read from the disk",
    "prefill_tokens": "Tokens of prompts that were run",
    "generation_tokens": "Tokens sampled",
    "prompt_seconds": "Time spent on prompts",
    "tokens_predicted_seconds": "Time spent on streams",
    "prefix_cache_queries": "Tokens looked up in the prefix cache",
    "prefix_cache_hits": "Tokens found in the prefix cache",
    "num_preemptions": "Requests that had to give up their pages",
    "engine_steps": "Forward passes",
    "spec_decode_num_draft_tokens": "Tokens that speculation tried",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were right",
}
GAUGES = {
    "num_requests_running": "Requests that have pages",
    "num_requests_waiting": "Requests that wait for pages",
    "kv_cache_usage_perc": "Share of the pages and states in use, 0 to 1",
    "kv_cache_memory_bytes": "Memory of the pages and states",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "From a request to its first token"),
    "inter_token_latency_seconds": ("time_per_output_token", "From token to token of a stream"),
    "request_queue_time_seconds": ("queue_time", "From a request to its admission"),
}


def prometheus_text(now: MetricsSnapshot, labels: dict[str, str]) -> str:
    """A snapshot in the text format of Prometheus."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    except ImportError as error:
        message = "metrics: expected the package prometheus_client (pip install prometheus-client), got none"
        raise ConfigError(message) from error
    values: dict[str, float] = {
        "prompt_tokens": now.prompt_tokens,
        "cached_prompt_tokens": now.cached_prompt_tokens,
        "disk_prompt_tokens": now.disk_prompt_tokens,
        "prefill_tokens": now.prefill_tokens,
        "generation_tokens": now.generation_tokens,
        "prompt_seconds": now.prefill_seconds,
        "tokens_predicted_seconds": now.decode_seconds,
        "prefix_cache_queries": now.prompt_tokens,
        "prefix_cache_hits": now.cached_prompt_tokens,
        "num_preemptions": now.preemptions,
        "engine_steps": now.steps,
        "spec_decode_num_draft_tokens": now.drafted_tokens,
        "spec_decode_num_accepted_tokens": now.accepted_tokens,
        "num_requests_running": now.running,
        "num_requests_waiting": now.waiting,
        "kv_cache_usage_perc": now.kv_usage,
        "kv_cache_memory_bytes": now.kv_memory_bytes,
    }
    names, label_values = list(labels), list(labels.values())
    families: list[Any] = []
    for kind, table in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for name, text in table.items():
            family = kind(f"oxillama:{name}", text, labels=names)
            family.add_metric(label_values, values[name])
            families.append(family)
    ended = CounterMetricFamily(
        "oxillama:request_success", "Requests that ended", labels=[*names, "finished_reason"]
    )
    for reason, n in sorted(now.finished.items()):
        ended.add_metric([*label_values, reason], n)
    families.append(ended)
    for name, (attribute, text) in HISTOGRAMS.items():
        histogram: Histogram = getattr(now, attribute)
        buckets, below = [], 0
        for bound, n in zip((*histogram.bounds, math.inf), histogram.counts):
            below += n
            buckets.append(("+Inf" if bound == math.inf else repr(bound), below))
        spread = HistogramMetricFamily(f"oxillama:{name}", text, labels=names)
        spread.add_metric(label_values, buckets, histogram.total)
        families.append(spread)

    class Collected:
        def collect(self) -> list[Any]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return str(generate_latest(registry), "utf-8")
