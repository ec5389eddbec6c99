"""The names under which others read the metrics: one table, read as Prometheus text and as a dict.

The names are those that vLLM's users know (``prompt_tokens_total``, ``time_to_first_token_seconds``,
``kv_cache_usage_perc``, ...) and, where vLLM has no such name, the names of llama.cpp's server
(``prompt_seconds_total``, ``tokens_predicted_seconds_total``), all with the prefix ``oxillama:``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.base.config import checks
from oxillama.base.distribution import install
from oxillama.engine.features.observability.histogram import Histogram
from oxillama.engine.features.observability.metrics_snapshot import MetricsSnapshot
from oxillama.errors import ConfigError

PREFIX = "oxillama:"

Value = float | Mapping[str, float] | Histogram
"""A number, numbers by the values of the metric's own label, or a histogram."""


@dataclass(frozen=True)
class Metric:
    """A row of the table.

    Attributes:
        kind: "counter" (the text adds ``_total`` to its name), "gauge", "histogram", or "info".
        name: without the prefix.
        attribute: of `MetricsSnapshot`, which has its value.
        text: what it says.
        label: of the metric's own, by whose values it is split; "" for none.
    """

    kind: str
    name: str
    attribute: str
    text: str
    label: str = ""

    def value(self, now: MetricsSnapshot) -> Value:
        """What a snapshot has; counts in a tuple by their places."""
        found: Any = getattr(now, self.attribute)
        return {str(place): n for place, n in enumerate(found)} if isinstance(found, tuple) else found


TABLE = (
    Metric("info", "engine_info", "labels", "Facts of the engine, as labels"),
    Metric("counter", "prompt_tokens", "prompt_tokens", "Tokens of admitted prompts"),
    Metric("counter", "cached_prompt_tokens", "cached_prompt_tokens", "Tokens of prompts that were not run"),
    Metric("counter", "disk_prompt_tokens", "disk_prompt_tokens", "Tokens of prompts read from the disk"),
    Metric("counter", "prefill_tokens", "prefill_tokens", "Tokens of prompts that were run"),
    Metric("counter", "generation_tokens", "generation_tokens", "Tokens sampled"),
    Metric("counter", "prompt_seconds", "prefill_seconds", "Time spent on prompts"),
    Metric("counter", "tokens_predicted_seconds", "decode_seconds", "Time spent on streams"),
    Metric("gauge", "num_requests_running", "running", "Requests that have pages"),
    Metric("gauge", "num_requests_waiting", "waiting", "Requests that wait for pages"),
    Metric("counter", "request_success", "finished", "Requests that ended, by reason", "finished_reason"),
    Metric("counter", "request_errors", "errors", "Requests that ended with an error, by its class", "error"),
    Metric("counter", "requests_refused", "refused", "Requests for which the queue was full"),
    Metric("counter", "num_preemptions", "preemptions", "Requests that had to give up their pages"),
    Metric("histogram", "time_to_first_token_seconds", "time_to_first_token", "Submission to first token"),
    Metric("histogram", "inter_token_latency_seconds", "time_per_output_token", "Token to token of a text"),
    Metric("histogram", "e2e_request_latency_seconds", "request_time", "Submission to end"),
    Metric("histogram", "request_queue_time_seconds", "queue_time", "Submission to admission"),
    Metric("histogram", "request_prefill_time_seconds", "prefill_time", "Admission to first token"),
    Metric("histogram", "request_decode_time_seconds", "decode_time", "First token to last"),
    Metric("histogram", "request_prompt_tokens", "prompt_lengths", "Tokens of a prompt"),
    Metric("histogram", "request_generation_tokens", "text_lengths", "Tokens of a text"),
    Metric("counter", "engine_steps", "steps", "Forward passes"),
    Metric("histogram", "iteration_tokens_total", "step_rows", "Rows of a forward pass"),
    Metric("gauge", "longest_sequence_tokens", "longest_sequence", "The longest prompt with its text so far"),
    Metric("gauge", "kv_cache_usage_perc", "kv_usage", "Share of the pages and states in use, 0 to 1"),
    Metric("gauge", "kv_cache_memory_bytes", "kv_memory_bytes", "Memory of the pages and states"),
    Metric("gauge", "prefix_cache_pages", "kv_pages_cached", "Pages that the prefix cache holds"),
    Metric("counter", "prefix_cache_queries", "prompt_tokens", "Tokens looked up in the prefix cache"),
    Metric("counter", "prefix_cache_hits", "cached_prompt_tokens", "Tokens found in the prefix cache"),
    Metric("gauge", "model_load_seconds", "load_seconds", "Time that loading the model took"),
    Metric("gauge", "model_matrix_bytes", "matrix_bytes", "Memory of the matrices once all are packed"),
    Metric("gauge", "num_adapters", "adapters", "LoRA adapters that are loaded"),
    Metric("counter", "spec_decode_num_drafts", "drafts", "Drafts that were verified"),
    Metric("counter", "spec_decode_num_draft_tokens", "drafted_tokens", "Tokens that speculation tried"),
    Metric("counter", "spec_decode_num_accepted_tokens", "accepted_tokens", "Drafted tokens that were right"),
    Metric(
        "counter", "spec_decode_num_draft_tokens_per_pos", "drafted_at",
        "Tokens that speculation tried, by place in the draft", "position",
    ),
    Metric(
        "counter", "spec_decode_num_accepted_tokens_per_pos", "accepted_at",
        "Drafted tokens that were right, by place in the draft", "position",
    ),
    Metric(
        "gauge", "spec_decode_draft_acceptance_rate", "draft_acceptance_rate",
        "Share of the drafted tokens that were right",
    ),
    Metric("counter", "grammar_masks", "grammar_masks", "Masks that grammars were asked for"),
    Metric("counter", "grammar_mask_seconds", "grammar_seconds", "Time that masks of grammars took"),
    Metric("counter", "snapshots", "snapshots", "Snapshots of sessions and requests"),
)  # fmt: skip

RESERVED = frozenset({"le", *(metric.label for metric in TABLE if metric.label)})
"""Labels that metrics have themselves."""


def plain(now: MetricsSnapshot) -> dict[str, Any]:
    """Each metric by its name; see `EngineMetrics.as_dict`."""
    found: dict[str, Any] = {}
    for metric in TABLE:
        value = metric.value(now)
        if isinstance(value, Histogram):
            buckets = [[None if bound == math.inf else bound, n] for bound, n in value.cumulative()]
            found[metric.name] = {"count": value.count, "sum": value.total, "buckets": buckets}
        else:
            found[metric.name] = dict(value) if isinstance(value, Mapping) else value
    return found


def prometheus_text(snapshots: Iterable[tuple[Mapping[str, str], MetricsSnapshot]]) -> str:
    """Snapshots in the text format of Prometheus, each with labels that no other has.

    Raises:
        ConfigError: the package ``prometheus_client`` is not installed; a label is no text, or one that a
            metric has itself; two snapshots have the same labels, or labels of other names.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        message = f"metrics: expected the package prometheus_client ({install('metrics')}), got none"
        raise ConfigError(message) from error
    labelled = [(checked(labels), now) for labels, now in snapshots]
    for i, (labels, _) in enumerate(labelled):
        if labels in [other for other, _ in labelled[:i]]:
            raise ConfigError(f"labels: expected others for each engine, got {labels} twice")
        if labels.keys() != labelled[0][0].keys():
            raise ConfigError(
                f"labels: expected {sorted(labelled[0][0])} for each engine, got {sorted(labels)}"
            )

    class Collected:
        def collect(self) -> list[Any]:
            return [family(metric, labelled) for metric in TABLE]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return str(generate_latest(registry), "utf-8")


def family(metric: Metric, snapshots: list[tuple[dict[str, str], MetricsSnapshot]]) -> Any:
    """A metric with its values in all snapshots, as ``prometheus_client`` has it."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    names = list(snapshots[0][0]) if snapshots else []
    own = [metric.label] if metric.label else []
    if metric.kind == "info":
        own = sorted({name for _, now in snapshots for name in now.labels} - set(names))
    made = kinds.get(metric.kind, GaugeMetricFamily)(PREFIX + metric.name, metric.text, labels=[*names, *own])
    for labels, now in snapshots:
        value, values = metric.value(now), [labels[name] for name in names]
        if isinstance(value, Histogram):
            buckets = [("+Inf" if b == math.inf else repr(float(b)), n) for b, n in value.cumulative()]
            made.add_metric(values, buckets, value.total)
        elif metric.kind == "info":
            made.add_metric([*values, *(now.labels.get(name, "") for name in own)], 1)
        elif isinstance(value, Mapping):
            for key, n in sorted(value.items()):
                made.add_metric([*values, key], n)
        else:
            made.add_metric(values, value)
    return made


def checked(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels as a dict. Raises ConfigError for one that the text cannot have."""
    for name, value in labels.items():
        for text in (name, value):
            checks.encodable("labels", text)
        # names that begin with "__" are Prometheus' own
        if not (name.isidentifier() and name.isascii()) or name.startswith("__") or name in RESERVED:
            wanted = f"names of letters, digits and _, and not {', '.join(sorted(RESERVED))}"
            raise checks.refuse("labels", wanted, name)
    return dict(labels)
