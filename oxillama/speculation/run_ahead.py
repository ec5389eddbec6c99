"""A drafter that runs ahead: a model of another engine, in its own threads, while the target verifies.

Proposals stand in a mailbox. The target's step takes those that continue its text, and waits for more of
them no longer than pays. Where the text goes another way, what stands in the mailbox and what is on its way
belong to an older epoch and are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Listed

from oxillama.engine.sequence import Sequence
from oxillama.faults import note
from oxillama.sampling.sampler import Sampler
from oxillama.sessions.session import Session
from oxillama.speculation.drafters import common_length
from oxillama.speculation.sampling import DraftSampler
from oxillama.tokenizer.bridge import TokenizerBridge

log: logging.Logger = logging.getLogger(__name__)

SHARE = 0.5
"""A step waits for proposals at most this share of what the target took for the step before."""


class RunAheadDrafter:
    """Drafts for one request of a target, by a session of another engine.

    Parameters
    ----------
    name : of the draft model, in what is logged and measured.
    open_session : makes a session with the draft model; it is called, and the session closed, by a thread of
        the drafter.
    context_size : max tokens of the session.
    sampler : chooses the drafted tokens.
    target : tokenizer of the target, whose ids the draft model shares.
    prompt : ids of the request. The session runs them while the target runs them too.
    most : tokens that are verified at a time; twice as many are drafted ahead.

    Attributes
    ----------
    has_failed : whether it has given up, and why is logged. The text goes on without drafts.
    """

    def __init__(
        self,
        name: str,
        open_session: Callable[[], Session],
        context_size: int,
        sampler: Sampler,
        target: TokenizerBridge,
        prompt: Listed[int],
        most: int,
    ) -> None:
        self.name = name
        self.has_failed: bool = False
        self._open_session = open_session
        self._sampler = sampler
        self._ends, self._n_vocab = target.eog_ids, target.n_vocab
        self._n_prompt = len(prompt)
        self._most_tokens = context_size
        self._most_ahead = 2 * most + 1  # the drafts of this pass, its bonus token, the drafts of the next
        self._held: list[int] = []  # tokens of the session
        self._certain = list(prompt)
        self._ahead: list[int] = []  # proposals, which follow the certain tokens
        self._epoch = 0  # of the certain tokens and proposals: each continues the one before
        self._is_over = False
        self._changed = threading.Condition()
        self._verified_at = time.perf_counter()  # when the target took the last proposals
        try:
            threading.Thread(target=self._run, name="oxillama drafter", daemon=True).start()
        except RuntimeError:  # the system has no threads
            self._fail()

    # --- for the target -----------------------------------------------------------------------------

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        """As `Drafter.propose`, for the one sequence."""
        ((sequence,), (sampler,), (n,)) = sequences, samplers, counts
        since = time.perf_counter() - self._verified_at
        with self._changed:
            n_tokens = len(sequence.tokens) - len(self._certain)  # in as many steps or fewer
            self._tell(sequence.tokens)
            self._changed.wait_for(lambda: self._has_all(n), SHARE * since / max(1, n_tokens))
            proposals = self._ahead[:n]
        self._verified_at = time.perf_counter()
        return [sampler.copied(proposals)]

    def forget(self, sequence: Sequence | None = None) -> None:
        """Ends it; also from any other thread, and more than once."""
        self._is_over = True
        if self._changed.acquire(timeout=1.0):  # in a forked child nobody may be there to give it back
            self._changed.notify_all()
            self._changed.release()

    def _tell(self, certain: list[int]) -> None:
        """Notes how the text goes on; proposals that do not continue it are dropped."""
        known = self._certain + self._ahead
        if known[: len(certain)] == certain:
            self._ahead = known[len(certain) :]
        else:
            self._ahead = []
            self._epoch += 1
        self._certain = list(certain)
        self._changed.notify_all()

    def _has_all(self, n: int) -> bool:
        """Whether ``n`` proposals are there, or no more will come."""
        return len(self._ahead) >= n or not self._goes_on()

    def _goes_on(self) -> bool:
        """Whether there are proposals to come for the text as it is known."""
        n = len(self._certain) + len(self._ahead)
        is_at_end = bool(self._ahead) and self._ahead[-1] in self._ends
        return not (self.has_failed or self._is_over or n >= self._most_tokens or is_at_end)

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open_session() as session:
                while True:
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_over or self._has_work())
                        if self._is_over:
                            return
                        epoch, text = self._epoch, self._certain + self._ahead
                    token = self._next(session, text)
                    with self._changed:
                        if epoch == self._epoch:
                            self._ahead.append(token)
                            self._changed.notify_all()
        except Exception:  # the text goes on without drafts
            self._fail()

    def _fail(self) -> None:
        if self._is_over:
            return
        note(log, logging.ERROR, "%s: cannot draft", self.name, exc_info=True)
        with self._changed:
            self.has_failed = True
            self._ahead = []
            self._changed.notify_all()

    def _has_work(self) -> bool:
        return len(self._ahead) < self._most_ahead and self._goes_on()

    def _next(self, session: Session, text: list[int]) -> int:
        """The token that the draft model would go on with after ``text``."""
        n = min(common_length(self._held, text), len(text) - 1)  # the last is run: its logits are wanted
        if n < len(self._held):
            session.rewind(n)
            del self._held[n:]
        logits = session.prefill(text[n:])
        self._held = text
        generated = text[self._n_prompt :]
        self._sampler.truncate(common_length(self._sampler.history.tolist(), generated))
        for token in generated[self._sampler.n_generated :]:
            self._sampler.accept(token)
        return self._sampler.sample(logits[: self._n_vocab], text)
