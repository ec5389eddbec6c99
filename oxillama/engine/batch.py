"""What one step runs, and the times and tokens that it came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from oxillama.engine.request import Request, TextRequest
from oxillama.engine.sequence import Output, SeqState, Sequence


class Sampled(NamedTuple):
    """The tokens that a step brought a request.

    Attributes:
        n_tokens: of the text, those that follow in any case included.
        n_drafted, n_accepted: drafted tokens that the step ran, and how many of them the sampler chose, too.
    """

    request: TextRequest
    n_tokens: int
    n_drafted: int
    n_accepted: int


@dataclass(slots=True, eq=False, repr=False)
class StepTimes:
    """Seconds of `time.perf_counter` at which the parts of a step began, in order.

    Attributes:
        propose: drafts.
        schedule: the batch.
        launch: the pass.
        complete: the last part of the pass, which is also the whole of it where nothing else is in flight.
        commit: sequences go on.
        sample: tokens are chosen.
        end: of the last part.
    """

    propose: float = 0.0
    schedule: float = 0.0
    launch: float = 0.0
    complete: float = 0.0
    commit: float = 0.0
    sample: float = 0.0
    end: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class ScheduledBatch:
    """What one step runs.

    Attributes:
        requests: what is scheduled, in order.
        sequences: of the requests.
        outputs: for each, which rows of the pass are wanted.
        prefills: for each, whether tokens of its prompt are run.
        n_decode: rows of streams.
        n_prefill: rows of prompts.
        admitted: requests that began while the batch was put together.
        preempted: requests that gave up their pages meanwhile.
        sampled: the tokens of each stream, once they are sampled.
        times: of the step.
    """

    requests: list[Request] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    prefills: list[bool] = field(default_factory=list)
    n_decode: int = 0
    n_prefill: int = 0
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    times: StepTimes = field(default_factory=StepTimes)
    _before: list[tuple[TextRequest, int, int, int]] = field(default_factory=list)

    def add(self, request: Request, n: int) -> None:
        """Schedules ``n`` tokens of a request. Raises KvCacheFullError."""
        sequence = request.sequence
        sequence.schedule(n)
        self.requests.append(request)
        self.sequences.append(sequence)
        is_wanted = sequence.scheduled_len > request.first_wanted % len(sequence.tokens)
        self.outputs.append(request.output if is_wanted else Output.NONE)
        is_prefill = sequence.state is SeqState.PREFILLING
        self.prefills.append(is_prefill)
        self.n_prefill += n if is_prefill else 0
        self.n_decode += 0 if is_prefill else n

    def begin_sampling(self, streams: list[tuple[TextRequest, np.ndarray, int]]) -> None:
        """Notes how far the requests of streams are before a step's rows are sampled."""
        for request, _, _ in streams:
            self._before.append((request, request.n_generated, request.sequence.n_drafts, request.n_accepted))

    def end_sampling(self) -> None:
        """Notes in `sampled` what the rows came to."""
        for request, n_generated, n_drafts, n_accepted in self._before:
            n = request.n_generated - n_generated
            self.sampled.append(Sampled(request, n, n_drafts, request.n_accepted - n_accepted))
