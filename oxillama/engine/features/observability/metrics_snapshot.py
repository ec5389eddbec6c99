"""What an engine has counted, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from oxillama.engine.features.observability.histogram import Histogram

if TYPE_CHECKING:
    from threading import RLock

    from oxillama.engine.cache.pages import CachePool
    from oxillama.engine.cache.prefix import PrefixKvCache
    from oxillama.engine.scheduler import Scheduler
    from oxillama.models.weights.linear import PanelStore

FACTS = ("labels", "load_seconds")
"""Attributes that say how an engine was loaded."""

GAUGES = (
    "running", "waiting", "kv_pages_used", "kv_pages_cached", "kv_states_used", "kv_states_cached",
    "kv_memory_bytes", "kv_usage", "adapters", "matrix_bytes",
)  # fmt: skip
"""Attributes that say how an engine is now; all others, but for the facts and the maxima, are counts."""

MAXIMA = ("longest_sequence",)
"""Attributes that are the most that has been."""


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """The state of an `EngineMetrics` at one moment.

    Attributes:
        labels: facts of the engine that do not change, by name: "model_name", "architecture", "target", ...
        prompt_tokens: of the prompts of admitted requests; cached_prompt_tokens of them were not run, because
            the prefix cache had them. disk_prompt_tokens were read from ``prefix_cache_dir``.
        prefill_tokens: run for prompts, again after a preemption.
        generation_tokens: that were sampled.
        prefill_seconds: time in steps with prompts; steps with both are shared out by rows.
        decode_seconds: time in steps of streams.
        finished: requests by `finish_reason`.
        errors: those that ended with an error, by its class.
        refused: requests for which the queue was full.
        time_to_first_token: in seconds.
        time_per_output_token: in seconds.
        queue_time: in seconds.
        prefill_time: seconds of a request from its admission to its first token.
        decode_time: from there to its last token.
        request_time: from its submission to its end.
        prompt_lengths: tokens of the prompts of requests that have ended.
        text_lengths: tokens of their texts.
        step_rows: rows of each step.
        longest_sequence: tokens of a prompt and its text together, the most so far.
        steps: so far.
        preemptions: so far.
        running: requests that run now.
        waiting: requests that wait now.
        kv_pages_used: held by sequences or the prefix cache now.
        kv_pages_cached: held by the prefix cache now.
        kv_states_used: states of recurrent layers that both hold now.
        kv_states_cached: states that the prefix cache holds now.
        kv_memory_bytes: memory of the pool and its states now.
        kv_usage: share of what it may have that sequences use now, 0 to 1.
        prefix_hits: prompts that began with something known.
        prefix_misses: prompts that did not.
        drafts: that speculation tried.
        drafted_tokens: tokens of the drafts.
        accepted_tokens: drafted tokens that were right.
        drafted_at: drafted tokens by their place in the draft, the first at 0.
        accepted_at: accepted tokens by their place.
        grammar_masks: masks of grammars that were asked for.
        grammar_seconds: time that they took.
        snapshots: of sessions and requests.
        adapters: loaded now.
        load_seconds: that the model took to load.
        matrix_bytes: of its matrices, once all are packed; under a budget, bytes of the matrices in memory
            now.
    """

    labels: Mapping[str, str]
    prompt_tokens: int
    cached_prompt_tokens: int
    disk_prompt_tokens: int
    prefill_tokens: int
    generation_tokens: int
    prefill_seconds: float
    decode_seconds: float
    finished: dict[str, int]
    errors: dict[str, int]
    refused: int
    time_to_first_token: Histogram
    time_per_output_token: Histogram
    queue_time: Histogram
    prefill_time: Histogram
    decode_time: Histogram
    request_time: Histogram
    prompt_lengths: Histogram
    text_lengths: Histogram
    step_rows: Histogram
    longest_sequence: int
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
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    grammar_masks: int
    grammar_seconds: float
    snapshots: int
    adapters: int
    load_seconds: float
    matrix_bytes: int

    def after(self, earlier: MetricsSnapshot | None) -> MetricsSnapshot:
        """This snapshot with the counts of both; ``earlier`` is of an engine that was closed before."""
        if earlier is None:
            return self
        names = [field.name for field in fields(self) if field.name not in (*FACTS, *GAUGES)]
        both = {name: (getattr(earlier, name), getattr(self, name)) for name in names}
        return replace(
            self, **{name: max(two) if name in MAXIMA else total(*two) for name, two in both.items()}
        )

    def closed(self) -> MetricsSnapshot:
        """This snapshot of an engine that has been closed since: its gauges are 0."""
        nothing: dict[str, Any] = dict.fromkeys(GAUGES, 0)
        return replace(self, **nothing)

    @property
    def prefill_tokens_per_second(self) -> float:
        """0 before anything was run."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens a second of all streams together; 0 before the first."""
        return self.generation_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Share of the drafted tokens that were right; 0 before anything was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0


def total(first: Any, second: Any) -> Any:
    """The sum of two counts, of two dicts or tuples of counts, or of two histograms."""
    if isinstance(first, Mapping):
        return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}
    if isinstance(first, tuple):
        return tuple(n + m for n, m in zip_longest(first, second, fillvalue=0))
    return first + second


def gauges(
    pool: CachePool,
    prefix: PrefixKvCache,
    scheduler: Scheduler,
    store: PanelStore,
    matrix_bytes: int,
    features: dict[str, Any],
) -> dict[str, Any]:
    """The present values of an engine, by the names of `MetricsSnapshot`."""
    resident = store.resident_bytes
    adapters = features.get("adapters")
    return {
        "prompt_tokens": prefix.looked_up_tokens,
        "cached_prompt_tokens": prefix.hit_tokens,
        "disk_prompt_tokens": scheduler.queues.prefixes.fetched_tokens,
        "prefix_hits": prefix.hits,
        "prefix_misses": prefix.misses,
        "preemptions": scheduler.queues.preemptions,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "kv_pages_used": pool.n_used,
        "kv_pages_cached": prefix.n_pages,
        "kv_states_used": 0 if pool.recurrent_states is None else pool.recurrent_states.n_used,
        "kv_states_cached": prefix.n_states,
        "kv_memory_bytes": pool.memory_bytes,
        "adapters": 0 if adapters is None else adapters.n_loaded,
        "matrix_bytes": matrix_bytes if resident is None else resident,
        "kv_usage": (pool.limit.used - prefix.idle_bytes) / pool.limit.max_bytes,
    }


def snapshot_of(metrics: Any, gauges: dict[str, Any], lock: RLock) -> MetricsSnapshot:
    """The counts of an engine's metrics at one moment, with its gauges."""
    with lock:
        timer = metrics.mask_timer
        found = {
            **gauges,
            "grammar_masks": timer.masks,
            "grammar_seconds": timer.seconds,
            "refused": metrics.n_refused,
        }
        names = (field.name for field in fields(MetricsSnapshot) if field.name not in found)
        return MetricsSnapshot(**found, **{name: copied(getattr(metrics, name)) for name in names})


def copied(count: Any) -> Any:
    """A count that later steps do not change."""
    if isinstance(count, Histogram):
        return count.copy()
    return dict(count) if isinstance(count, dict) else tuple(count) if isinstance(count, list) else count
