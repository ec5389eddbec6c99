"""What the core of the engine knows of features: one protocol for each kind.

The core schedules, runs and samples requests, and keeps and delivers their tokens. Everything else an engine
can do is a module behind one of these protocols. A module is imported when an option first asks for it
(`engine.features`), and the core runs without it.

Two of the protocols belong to lower floors, whose classes call them: `TokenConstraint` says which tokens may
come next, `WeightStore` brings the packed matrices of linear layers into memory.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.request import Request, TextRequest
from oxillama.engine.runner import HiddenHook
from oxillama.engine.sequence import Sequence
from oxillama.models.weights.linear import PanelStore as WeightStore

if TYPE_CHECKING:
    from oxillama.engine.sampling.protocols import TokenConstraint

__all__ = [
    "Drafter",
    "HiddenHook",
    "Holder",
    "Observer",
    "OutputParser",
    "PrefixStore",
    "TokenConstraint",
    "WeightStore",
]


class Holder(NamedTuple):
    """References to pages by group, to slots of recurrent states, and to records."""

    pages: Listed[list[int]]
    slots: list[int]
    records: list[int]

    @classmethod
    def of(cls, sequence: Sequence) -> Holder:
        """The references of a sequence."""
        return cls(sequence.pages, sequence.kv.slots, sequence.kv.all_records)


class OutputParser(Protocol):
    """Takes a text apart into events: answer, reasoning, tool calls."""

    def feed(self, text: str) -> list[Any]:
        """The events that a piece of text completes."""

    def finish(self) -> list[Any]:
        """The events of what was held back, when the text has ended."""


class PrefixStore(Protocol):
    """Keeps what was computed of the beginnings of prompts, for later requests that begin alike.

    Keys and values depend on nothing but the tokens before them, so a hit changes no bit. A store may wrap
    another one, for which it then answers, too.

    Attributes:
        fetched_tokens: of prefixes that came from outside the memory, so far.
    """

    @property
    def fetched_tokens(self) -> int: ...

    def arrive(self, request: Request) -> None:
        """A request is queued. `Request.is_held` keeps it from admission while its prompt is fetched."""

    def begin(self, request: Request) -> None:
        """Has a sequence without pages adopt the longest prefix that is known. The last token is never part
        of it: its logits are wanted."""

    def admit(self, request: Request) -> None:
        """A request runs from now on."""

    def wait(self, request: Request) -> None:
        """A request has lost its pages and waits for admission again."""

    def at_most(self, request: Request, n: int) -> int:
        """How many of ``n`` tokens of a prompt may run in the next pass."""

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        """Whether another request is about to compute a prefix that this one will adopt.

        Args:
            running: all requests that run.
            batched: running requests that are in flight or in the next batch.
        """

    def insert(self, request: Request) -> None:
        """Part of a prompt has been run."""

    def keep(self, request: Request) -> None:
        """A request is about to lose its pages, because it has ended or is preempted."""

    def end(self, request: Request) -> None:
        """A request has ended; called after `keep`."""

    def needed_from(self, request: Request) -> float:
        """The first token whose pages the store still has to read; inf for none."""

    def reclaim(self, but: Request | None = None) -> bool:
        """Frees what is kept only for requests that wait, ``but`` for one request; whether there was any."""

    def lose(self) -> None:
        """The memory of all pages is lost."""

    def close(self) -> None:
        """Waits until everything that is to last is written. For any thread."""

    def holders(self) -> list[Holder]:
        """What the store has references of; also asserts that its own counts are right."""


class Observer:
    """Hears what happens; a base class whose methods do nothing. The engine thread calls each method, unless
    the method says otherwise.

    Times are seconds of the scheduler's clock.
    """

    def loaded(self, seconds: float) -> None:
        """The model has been loaded, in so many seconds."""

    def queued(self, request: Request) -> None:
        """A request has come in; it has its number now."""

    def refused(self, n: int) -> None:
        """The queue was full for ``n`` requests. Called from any thread."""

    def admitted(self, request: Request) -> None:
        """A request runs from now on, or again after a preemption."""

    def preempted(self, request: Request) -> None:
        """A request has given up its pages and waits for others."""

    def stepped(self, batch: ScheduledBatch, now: float) -> None:
        """A step has been run and sampled. The requests' times of tokens are those before this step."""

    def ended(self, request: Request, now: float) -> None:
        """A request has ended; its consumer learns of it afterwards."""

    def delivered(self, n_events: int, began: float, scheduler: Any) -> None:
        """A turn of the loop is over.

        Args:
            n_events: requests that have new events; 0 where there was nothing to do.
            began: seconds of `time.perf_counter` when the delivery began.
            scheduler: with the requests that run and wait.
        """

    def close(self) -> None:
        """The engine was closed, and its thread has ended. Called from any thread, perhaps more than once."""


class Drafter(Observer):
    """Proposes the next tokens of running requests (speculative decoding; Leviathan et al., 2023);
    a base class whose methods propose nothing.

    The core verifies proposals and accepts them: it samples each row in order and keeps going while the
    sampled token equals the proposed one. So a draft changes no text. A drafter logs its errors and drafts no
    more. As an observer it hears how long a step took and what became of its drafts
    (`ScheduledBatch.sampled`), and when to free what it keeps of a request.
    """

    def propose(self, requests: list[TextRequest]) -> None:
        """Adds proposals to the sequences of some decoding requests (`Sequence.draft`), before a step."""

    def hidden_hooks(self, requests: Listed[Request]) -> Listed[HiddenHook | None]:
        """The hook for the hidden states of each request's rows, or None; () without hooks."""
        return ()
