"""Counts what happens in an engine. `exposition` has the names under which others read the counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from oxillama.base.lazy_import import lazy
from oxillama.base.locks import ForkedOpen
from oxillama.base.version import __version__
from oxillama.engine.building import matrix_bytes
from oxillama.engine.features.observability.histogram import Histogram
from oxillama.engine.protocols import Observer

if TYPE_CHECKING:
    from oxillama.engine.batch import ScheduledBatch
    from oxillama.engine.features.observability.metrics_snapshot import MetricsSnapshot
    from oxillama.engine.loading import LoadedModel
    from oxillama.engine.request import Request

new_snapshot: Callable[..., Any] = lazy("oxillama.engine.features.observability.metrics_snapshot:snapshot_of")
gauges: Callable[..., Any] = lazy("oxillama.engine.features.observability.metrics_snapshot:gauges")

REQUEST_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0, 1800.0,
)  # fmt: skip
"""Seconds: a small model's first token to a large model's long text."""

TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds from token to token."""

LENGTH_BUCKETS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
)  # fmt: skip
"""Tokens of a prompt or a text."""

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Rows of a step."""


class MaskTimer:
    """Adds up the masks that grammars were asked for, of all states that it is given to.

    Attributes:
        masks: so far.
        seconds: that they took together.
    """

    def __init__(self) -> None:
        self.masks: int = 0
        self.seconds: float = 0.0

    def note(self, start: float, end: float) -> None:
        """A mask was asked for at ``start`` and there at ``end``, by `time.perf_counter`."""
        self.masks += 1
        self.seconds += end - start


class EngineMetrics(Observer):
    """Counters of one engine. For any thread.

    The counts of a step precede the ends of the requests that the step has ended.

    Args:
        gauges: returns the present values of the gauges, by the names of `MetricsSnapshot`.
        labels: see `MetricsSnapshot`.

    Attributes:
        mask_timer: counts the masks of grammars.
    """

    def __init__(
        self,
        gauges: Callable[[], dict[str, Any]],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._gauges = gauges
        self._lock = ForkedOpen()
        self.labels: dict[str, str] = dict(labels or {})
        self.mask_timer: MaskTimer = MaskTimer()
        self.load_seconds: float = 0.0
        self.steps: int = 0
        self.prefill_tokens: int = 0
        self.generation_tokens: int = 0
        self.prefill_seconds: float = 0.0
        self.decode_seconds: float = 0.0
        self.drafts: int = 0
        self.drafted_tokens: int = 0
        self.accepted_tokens: int = 0
        self.drafted_at: list[int] = []
        self.accepted_at: list[int] = []
        self.n_refused: int = 0
        self.snapshots: int = 0
        self.finished: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.time_to_first_token: Histogram = Histogram(REQUEST_BUCKETS)
        self.time_per_output_token: Histogram = Histogram(TOKEN_BUCKETS)
        self.queue_time: Histogram = Histogram(REQUEST_BUCKETS)
        self.prefill_time: Histogram = Histogram(REQUEST_BUCKETS)
        self.decode_time: Histogram = Histogram(REQUEST_BUCKETS)
        self.request_time: Histogram = Histogram(REQUEST_BUCKETS)
        self.prompt_lengths: Histogram = Histogram(LENGTH_BUCKETS)
        self.text_lengths: Histogram = Histogram(LENGTH_BUCKETS)
        self.step_rows: Histogram = Histogram(ROW_BUCKETS)
        self.longest_sequence: int = 0

    @classmethod
    def of(cls, model: LoadedModel) -> EngineMetrics:
        """The metrics of a model that is being loaded."""
        labels = {
            "model_name": model.name,
            "architecture": model.spec.family.name,
            "target": model.kernels.target,
            "threads": str(model.runner.n_threads),
            "kv_type": model.config.kv_type,
            "version": __version__,
        }
        # no reference to the model, whose thread ends when nobody refers to it
        decoder, held = model.runner.model, (model.pool, model.prefix_cache, model.scheduler)
        return cls(partial(gauges, *held, decoder.store, matrix_bytes(decoder), model._features), labels)

    def loaded(self, seconds: float) -> None:
        self.load_seconds = seconds

    def refused(self, n: int) -> None:
        with self._lock.lock:
            self.n_refused += n

    def stepped(self, batch: ScheduledBatch, now: float) -> None:
        times, rows = batch.times, batch.n_prefill + batch.n_decode
        seconds = times.end - times.propose
        share = seconds * batch.n_prefill / rows
        with self._lock.lock:
            self.steps += 1
            self.prefill_tokens += batch.n_prefill
            self.prefill_seconds += share
            self.decode_seconds += seconds - share
            self.step_rows.add(rows)
            for request, n, drafted, accepted in batch.sampled:
                if n:
                    self._count_tokens(request, n, now)
                if drafted:
                    self._count_draft(drafted, accepted)

    def _count_tokens(self, request: Request, n: int, now: float) -> None:
        """Counts the tokens that a request got together."""
        self.generation_tokens += n
        self.longest_sequence = max(self.longest_sequence, request.sequence.total_len)
        if math.isnan(request.first_token_at):
            self.time_to_first_token.add(now - request.submitted_at)
            self.queue_time.add(request.admitted_at - request.submitted_at)
            self.prefill_time.add(now - request.admitted_at)
        else:
            self.time_per_output_token.add(now - request.last_token_at)
        for _ in range(n - 1):
            self.time_per_output_token.add(0.0)

    def _count_draft(self, drafted: int, accepted: int) -> None:
        self.drafts += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        for counts, n in ((self.drafted_at, drafted), (self.accepted_at, accepted)):
            counts.extend([0] * (drafted - len(counts)))
            for place in range(n):
                counts[place] += 1

    def ended(self, request: Request, now: float) -> None:
        reason = request.finish_reason or "?"
        with self._lock.lock:
            self.finished[reason] += 1
            if reason == "error":
                self.errors[type(request.error).__name__] += 1
            self.request_time.add(now - request.submitted_at)
            self.prompt_lengths.add(len(request.prompt))
            if not math.isnan(request.first_token_at):
                self.decode_time.add(request.last_token_at - request.first_token_at)
                self.text_lengths.add(len(request.sequence.accepted) - len(request.prompt))

    def snapshot_taken(self) -> None:
        """A snapshot of a session or a request has been taken."""
        with self._lock.lock:
            self.snapshots += 1

    def snapshot(self) -> MetricsSnapshot:
        """All of it, as it is now."""
        found: MetricsSnapshot = new_snapshot(self, self._gauges(), self._lock.lock)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Each metric by its name in the Prometheus text, without the prefix; values for JSON.

        A metric with a label of its own is a dict by the values of that label. A histogram is a dict of
        "count", "sum" and "buckets": pairs of an upper bound (None for the last) and the values up to it.
        """
        from oxillama.engine.features.observability.exposition import plain  # on use

        return plain(self.snapshot())

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """All of it as Prometheus text; `metrics_text` writes the metrics of several engines.

        Args:
            labels: are put on every line; None for ``model_name`` alone, the name of the model.

        Raises:
            ConfigError: the package ``prometheus_client`` is not installed, or a label is no text.
        """
        if labels is None:
            labels = {"model_name": self.labels.get("model_name", "")}
        from oxillama.engine.features.observability.exposition import prometheus_text

        return prometheus_text([(labels, self.snapshot())])


def metrics_text(engines: Mapping[str, EngineMetrics]) -> str:
    """The Prometheus text of several engines' metrics.

    Args:
        engines: by the name that each line of an engine has as its label ``model_name``.

    Raises:
        ConfigError: the package ``prometheus_client`` is not installed, or a name is no text.
    """
    from oxillama.engine.features.observability.exposition import prometheus_text

    return prometheus_text([({"model_name": name}, m.snapshot()) for name, m in engines.items()])
