"""What one step runs, and the times and tokens that it came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from oxillama.engine.request import Request, TextRequest
from oxillama.engine.runner import Output
from oxillama.engine.sequence import SeqState, Sequence


class Sampled(NamedTuple):
    """The tokens that a step brought a request.

    Attributes
    ----------
    n_tokens : of the text, those that follow in any case included.
    n_drafted, n_accepted : drafted tokens that the step ran, and how many of them the sampler chose, too.
    """

    request: TextRequest
    n_tokens: int
    n_drafted: int
    n_accepted: int


@dataclass(slots=True)
class StepTimes:
    """Seconds of `time.perf_counter` at which the parts of a step began, in order.

    Attributes
    ----------
    propose : drafts. schedule : the batch. launch : the pass. complete : the last part of the pass, which is
        also the whole of it where nothing else is in flight. commit : sequences go on. sample : tokens are
        chosen. end : of the last part.
    """

    propose: float = 0.0
    schedule: float = 0.0
    launch: float = 0.0
    complete: float = 0.0
    commit: float = 0.0
    sample: float = 0.0
    end: float = 0.0


@dataclass(slots=True)
class ScheduledBatch:
    """What one step runs.

    Attributes
    ----------
    requests : whose sequences are scheduled, in order.
    outputs : for each, which rows of the pass are wanted.
    prefills : for each, whether tokens of its prompt are run.
    n_decode, n_prefill : rows of streams, and of prompts.
    admitted, preempted : requests that began, and that gave up their pages, while the batch was put together.
    sampled : the tokens of each stream, once they are sampled.
    times : of the step.
    """

    requests: list[Request] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    prefills: list[bool] = field(default_factory=list)
    n_decode: int = 0
    n_prefill: int = 0
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    times: StepTimes = field(default_factory=StepTimes)

    @property
    def sequences(self) -> list[Sequence]:
        """Those of the requests."""
        return [request.sequence for request in self.requests]

    def add(self, request: Request, n: int) -> None:
        """Schedules ``n`` tokens of a request. Raises KvCacheFullError."""
        sequence = request.sequence
        sequence.schedule(n)
        output = request.output
        self.requests.append(request)
        whole = sequence.scheduled_len == len(sequence.tokens)
        self.outputs.append(output if whole or output.is_all else Output.NONE)
        is_prefill = sequence.state is SeqState.PREFILLING
        self.prefills.append(is_prefill)
        if is_prefill:
            self.n_prefill += n
        else:
            self.n_decode += n

    def output_of(self, request: Request) -> Output:
        """Which rows are wanted of a request."""
        return self.outputs[self.requests.index(request)]
