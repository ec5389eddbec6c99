"""A drafter that runs ahead: another engine's model, in its own thread, while the target verifies.

Proposals wait in a mailbox. The target's step takes the proposals that continue its text, and waits for more
only as long as that pays. When the text takes another course, a new epoch begins: proposals of older epochs,
in the mailbox or still being computed, are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence as Listed

from oxillama.base.faults import note
from oxillama.engine.cache.radix import common_length
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.sequence import Sequence
from oxillama.sessions.session import Session
from oxillama.speculation.sampling import DraftSampler
from oxillama.text.tokenizer.tokenizer import Tokenizer

log: logging.Logger = logging.getLogger(__name__)

SHARE = 0.5
"""A step waits for proposals at most this share of the target's last step time."""


class RunAheadDrafter:
    """Drafts for one request, with a session of another engine.

    Args:
        name: name of the draft model in logs and measurements.
        open_session: opens a session of the draft model. A thread of the drafter calls it and closes the
            session.
        context_size: max tokens of the session.
        sampler: chooses the drafted tokens.
        target: the target's tokenizer; the draft model has the same ids.
        prompt: ids of the request's prompt. The session runs them at the same time as the target.
        most: max tokens verified at a time; twice as many are drafted ahead.

    Attributes:
        has_failed: whether the drafter has stopped after an error, which is logged. The text continues
            without drafts.
    """

    def __init__(
        self,
        name: str,
        open_session: Callable[[], Session],
        context_size: int,
        sampler: Sampler,
        target: Tokenizer,
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
        self._most_ahead = 2 * most + 1  # drafts of this pass, its bonus token, drafts of the next pass
        self._held: list[int] = []  # tokens in the session
        self._accepted = list(prompt)
        self._ahead: list[int] = []  # proposals after the accepted tokens
        self._epoch = 0  # increases when the text departs from the proposals
        self._is_over = False
        self._changed = threading.Condition()
        self._verified_at = time.perf_counter()  # when the target took the last proposals
        try:
            threading.Thread(target=self._run, name="oxillama drafter", daemon=True).start()
        except RuntimeError:  # the system cannot start a thread
            self._fail()

    # --- for the target -----------------------------------------------------------------------------

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        """Like `Drafter.propose`, for the one sequence."""
        ((sequence,), (sampler,), (n,)) = sequences, samplers, counts
        since = time.perf_counter() - self._verified_at
        with self._changed:
            n_tokens = len(sequence.tokens) - len(self._accepted)  # made by at most as many steps
            self._tell(sequence.tokens)
            self._changed.wait_for(lambda: self._has_all(n), SHARE * since / max(1, n_tokens))
            proposals = self._ahead[:n]
        self._verified_at = time.perf_counter()
        return [sampler.copied(proposals)]

    def forget(self, sequence: Sequence | None = None) -> None:
        """Stop drafting; may be called from any thread, and repeatedly."""
        self._is_over = True
        if self._changed.acquire(timeout=1.0):  # in a forked child, the lock's owner may not exist
            self._changed.notify_all()
            self._changed.release()

    def _tell(self, accepted: list[int]) -> None:
        """Record how the text continues; drop proposals that differ."""
        known = self._accepted + self._ahead
        if known[: len(accepted)] == accepted:
            self._ahead = known[len(accepted) :]
        else:
            self._ahead = []
            self._epoch += 1
        self._accepted = list(accepted)
        self._changed.notify_all()

    def _has_all(self, n: int) -> bool:
        """Whether ``n`` proposals are ready, or no more will come."""
        return len(self._ahead) >= n or not self._goes_on()

    def _goes_on(self) -> bool:
        """Whether more proposals will come for the current text."""
        n = len(self._accepted) + len(self._ahead)
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
                        epoch, text = self._epoch, self._accepted + self._ahead
                    token = self._next(session, text)
                    with self._changed:
                        if epoch == self._epoch:
                            self._ahead.append(token)
                            self._changed.notify_all()
        except Exception:  # the text continues without drafts
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
        """The draft model's next token after ``text``."""
        n = min(common_length(self._held, text), len(text) - 1)  # the last token is run, for its logits
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
