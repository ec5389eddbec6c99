"""Sessions: sequences that the caller runs step by step, rewinds, forks and continues."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from oxillama.base.config import GenerationOptions, SamplerConfig, checks
from oxillama.base.faults import fault
from oxillama.base.locks import ForkedOpen, NotCopied
from oxillama.engine.completion import Captured, text_of
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel, Prompt, checked_tokens
from oxillama.engine.loop import EngineLoop
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import Sequence
from oxillama.errors import (
    ConfigError,
    EngineClosed,
    OxiLlamaError,
    PositionBeyondEnd,
    PromptError,
)
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.models.adapters.stack import Adaptation
from oxillama.sessions.capture import Notes, snapshot_of_sequence
from oxillama.sessions.sequences import SequenceCopy, model_facts, page_data, restore_sequence
from oxillama.sessions.snapshot import EngineSnapshot

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.base.config import GenerationFields

T = TypeVar("T")


@dataclass(frozen=True)
class KvSnapshot:
    """The result of `Session.kv_snapshot`.

    Attributes:
        tokens: ids of the sequence.
        data: uint8, the keys and values that the next token attends to, by position, and the recurrent state.
        kv_type: the KV cache's type.
        fingerprint: the model's fingerprint, including the options that affect bits.
        adapters: (fingerprint, scale) of each adapter in use.
        embeddings: input embeddings of some tokens, or None.
    """

    tokens: list[int]
    data: np.ndarray
    kv_type: str
    fingerprint: ModelFingerprint
    adapters: tuple[tuple[bytes, float], ...] = ()
    embeddings: Any = None


class Session(NotCopied, Captured):
    """A sequence of an engine, independent of other sessions and of requests; made by `engine.session()`.

    Its passes alternate with the engine's steps, chunk by chunk. It keeps its pages until it is closed or
    garbage-collected. Threads may share it; calls are serialized.
    """

    def __init__(
        self,
        model: LoadedModel,
        default_sampler: SamplerConfig,
        adapters: Adaptation | None,
        embeddings: Any = None,
    ) -> None:
        self._model = model
        self._default_sampler = default_sampler
        self._lock = ForkedOpen()  # otherwise two threads' tokens would mix
        self._request: TextRequest | None = None  # the generation that continues this sequence
        self._is_closed = False
        self.is_evictable: bool = False
        self._sequence = sequence = Sequence(model.pool, adapters=adapters, embeddings=embeddings)
        held_by = weakref.ref(self)
        model.call(lambda: model.loop.hold(sequence, held_by))

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Session: {len(self)} tokens, {self._sequence.cached_len} of them run, {state}>"

    def __len__(self) -> int:
        """The number of tokens in the sequence."""
        return len(self._settled().tokens)

    @property
    def tokens(self) -> list[int]:
        """The token ids of the sequence."""
        return list(self._settled().tokens)

    @property
    def embeddings(self) -> Any:
        """Input embeddings of some tokens, or None."""
        return self._settled().embeddings

    @property
    def adapters(self) -> Adaptation | None:
        """The adapters that the tokens are run with, or None."""
        return self._sequence.adapters

    def _call(self, job: Callable[[], T]) -> T:
        """Run a job on the engine thread; unexpected errors become an OxiLlamaError."""
        try:
            return self._model.call(partial(self._alone, job))
        except OxiLlamaError:
            raise
        except Exception as error:
            raise fault(error) from error

    def give_way(self) -> None:
        """Let requests that lack memory take the session's pages; its tokens are run again when needed."""
        self._model.feature("evictable sessions")
        self.is_evictable = True

    def _alone(self, job: Callable[[], T]) -> T:
        """Run a job during which the session's own pages are not taken."""
        is_evictable, self.is_evictable = self.is_evictable, False
        try:
            return job()
        finally:
            self.is_evictable = is_evictable

    # --- passes -------------------------------------------------------------------------------------

    def prefill(self, prompt: Prompt) -> np.ndarray:
        """Append tokens and run them; returns float32 (vocab,) logits after the last.

        Raises:
            PromptError, TokenizerError: as `InferenceEngine.stream`. The sequence is then unchanged.
            KvCacheFullError: there are not enough free pages. The sequence is then unchanged.
        """
        logits: np.ndarray = self._append(prompt, all_logits=False)[-1]
        return logits

    def forward(self, token: int) -> np.ndarray:
        """Append one token and run it; returns float32 (vocab,) logits after it."""
        return self.prefill([token])

    def logits(self, prompt: Prompt) -> np.ndarray:
        """Append tokens and run them; returns float32 (n, vocab), the logits after each of them."""
        return self._append(prompt, all_logits=True)

    def append(self, prompt: Prompt) -> None:
        """Append tokens without running them; the next pass or generation runs them.

        Raises PromptError and TokenizerError as `prefill` does. The sequence is then unchanged.
        """
        fresh, embeddings = self._model.prompt_parts(prompt)
        with self._lock.lock:
            sequence = self._idle_sequence()
            self._check_room(sequence, len(fresh))
            self._add(sequence, fresh, embeddings)

    def _add(self, sequence: Sequence, tokens: list[int], embeddings: Any) -> None:
        """Append tokens, some of which have input embeddings."""
        if embeddings is not None:
            sequence.embeddings = embeddings.behind(sequence.embeddings, len(sequence.tokens))
        sequence.tokens += tokens

    def _check_room(self, sequence: Sequence, n: int) -> None:
        most, found = self._model.context_size, len(sequence.tokens) + n
        if found > most:
            raise PromptError(f"prompt: expected at most {most} tokens in all, got {found}")

    def _append(self, prompt: Prompt, all_logits: bool) -> np.ndarray:
        fresh, embeddings = self._model.prompt_parts(prompt)
        with self._lock.lock:
            sequence = self._idle_sequence()
            n_before, before = len(sequence.tokens), sequence.embeddings
            self._check_room(sequence, len(fresh))
            try:
                if sequence.pending:  # appended before, or to be run again after a rewind
                    self._run_pending(sequence, all_logits=False)
                self._add(sequence, fresh, embeddings)
                return self._run_pending(sequence, all_logits)[-len(fresh) :]  # earlier rows may run again
            except BaseException:
                self._call(lambda: sequence.truncate(n_before))
                sequence.embeddings = before
                raise

    def recompute(self) -> None:
        """Run the tokens again if their pages were taken (`give_way`). Raises KvCacheFullError."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            if sequence.tokens and not sequence.cached_len:
                self._run_pending(sequence, all_logits=False)

    def _run_pending(self, sequence: Sequence, all_logits: bool) -> np.ndarray:
        """Run the pending tokens in chunks; returns the logits of every row, or (1, vocab) of the last."""
        chunk, runner = self._model.config.prefill_chunk_size, self._model.runner
        parts: list[np.ndarray] = []
        while sequence.pending:
            part = [(sequence, sequence.extend_to_span(min(chunk, sequence.pending)))]
            rows = self._call(lambda part=part: runner.forward(part, all_logits))  # type: ignore[misc]
            parts = [*parts, rows] if all_logits else [rows]
        return np.concatenate(parts)

    def whole_from(self, position: int) -> int:
        """The first position that must run in the same pass as ``position``; often ``position`` itself."""
        embeddings = self._sequence.embeddings
        spans = () if embeddings is None else embeddings.whole
        return next((start for start, end in spans if start <= position < end), position)

    def _idle_sequence(self) -> Sequence:
        """The sequence. Raises ConfigError while a generation continues it."""
        if self._is_closed:
            raise ConfigError("session: is closed")
        request = self._request
        if request is not None:
            if request.cancelled or request.finish_reason is not None:
                self._end_request()
            elif request.sequence is not self._sequence:
                raise ConfigError("session: a generation goes on from here, it must end first")
            self._request = None
        return self._sequence

    def _settled(self) -> Sequence:
        """The sequence, with all tokens of a generation that was cancelled."""
        request = self._request
        if request is not None and request.cancelled and request.finish_reason is None:
            with self._lock.lock, suppress(ConfigError, EngineClosed):  # closed, or called from a step
                self._idle_sequence()
        return self._sequence

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Keep other threads from the session for several calls, none of which a generation may interrupt.

        Raises ConfigError while a generation goes on; one that was cancelled hands over its tokens first.
        """
        with self._lock.lock:
            self._idle_sequence()
            yield

    def _end_request(self) -> None:
        """End the generation that continues this sequence, and take over its tokens."""
        if self._request is not None:
            self._model.thread.cancel(self._request)
            self._call(self._model.scheduler.reap)  # hands the sequence over to this session
        self._request = None

    # --- back, aside, and on ------------------------------------------------------------------------

    def rewind(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` tokens. Raises PositionBeyondEnd, a ConfigError, if there are fewer.

        A recurrent model goes back to an earlier checkpoint, and runs the remaining tokens again with the
        next pass. Raises ConfigError for a position inside a picture or sound.
        """
        with self._lock.lock:
            sequence = self._idle_sequence()
            n = checks.integer("n_tokens", n_tokens, 0)
            if n > len(sequence.tokens):
                raise PositionBeyondEnd(n, len(sequence.tokens))
            embeddings = sequence.embeddings and sequence.embeddings.cut(n)
            self._call(lambda: sequence.truncate(n))
            sequence.embeddings = embeddings

    def fork(self) -> Session:
        """Make another session with the same tokens; pages are copied on write."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            made = Session(self._model, self._default_sampler, sequence.adapters)
            fork = made._sequence

            def take() -> None:
                fork.tokens = list(sequence.tokens)
                fork.embeddings = sequence.embeddings
                fork.take_fork(sequence, sequence.cached_len)

            self._call(take)
            return made

    def stream(
        self,
        options: GenerationOptions | None = None,
        *,
        callback: Callable[[str], object] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """Generate from here; the generated tokens become part of the sequence when the generation has ended.

        Until then the session can do nothing else. Parameters and errors as for `InferenceEngine.stream`;
        also PromptError if the session has no tokens.
        """
        return self._start(options, callback, fields, whole=False)

    def generate(
        self,
        options: GenerationOptions | None = None,
        *,
        callback: Callable[[str], object] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str:
        """The whole text of `stream`. Raises GenerationTimeout if the text is incomplete at the timeout."""
        return text_of(self._start(options, callback, fields, whole=callback is None).result())

    def _start(
        self,
        options: GenerationOptions | None,
        callback: Callable[[str], object] | None,
        fields: GenerationFields,
        whole: bool,
    ) -> Generation:
        model = self._model
        checked = GenerationOptions.of(options, fields, self._default_sampler)
        with self._lock.lock:
            sequence = self._idle_sequence()
            if not 0 < len(sequence.tokens) < model.context_size:
                least = "at least one token" if not sequence.tokens else "room for a token"
                raise PromptError(f"session: expected {least}, got {len(sequence.tokens)} tokens")
            if checked.adapters is not None:
                asked = model.adaptation(checked.adapters, None)
                if asked != sequence.adapters:
                    raise ConfigError("adapters: expected those of the session, got others")
            fork = Sequence(
                model.pool,
                sequence.tokens,
                adapters=sequence.adapters,
                embeddings=sequence.embeddings,
            )
            keep = partial(hand_over, weakref.ref(self), model.loop)
            request = model.text_request(fork, checked, key=None, whole=whole, keep=keep)
            generation = Generation(model, request, callback, self)  # cancels the request when dropped

            def begin() -> None:
                model.loop.check_room(request.tenant)
                # the last token is run again for its logits
                fork.take_fork(sequence, min(sequence.cached_len, len(fork.tokens) - 1))
                model.loop.add(request)

            self._request = request
            try:
                self._call(begin)
            except Exception:
                self._request = None
                raise
            except BaseException:  # Ctrl-C: the request may have been added already
                generation.cancel()
                raise
            return generation

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self, notes: Notes = None) -> EngineSnapshot:
        """The snapshot that `snapshot` serializes."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            copy = self._call(lambda: SequenceCopy.of(sequence))
            return snapshot_of_sequence(self._model, copy, "session", sequence.adapters, notes)

    def replace_sequence(
        self, tokens: list[int], n_cached: int, data: list[np.ndarray], embeddings: Any = None
    ) -> None:
        """Replace the sequence: tokens, pages of the tokens that were run (`page_data`), and input
        embeddings.

        Raises KvCacheFullError; the sequence is then unchanged.
        """
        with self._lock.lock:
            sequence = self._idle_sequence()
            self._call(lambda: restore_sequence(sequence, tokens, n_cached, data, embeddings))

    # --- keys and values ----------------------------------------------------------------------------

    def kv_snapshot(self) -> KvSnapshot:
        """A copy of the sequence: its tokens, keys, values and recurrent state."""
        with self._lock.lock:
            sequence, model = self._idle_sequence(), self._model
            self._call(sequence.settle)
            if sequence.pending:
                self._run_pending(sequence, all_logits=False)
            copy = self._call(lambda: SequenceCopy.of(sequence))
            parts = [copy.kv(model)] + ([] if copy.state is None else [copy.state.view(np.uint8)])
            return KvSnapshot(
                copy.tokens,
                np.concatenate(parts),
                model.config.kv_type,
                model.fingerprint,
                named(sequence.adapters),
                sequence.embeddings,
            )

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """Replace the sequence by a snapshot.

        Raises:
            ConfigError: the snapshot is of another model, or of one loaded with other ``compute``,
                ``quantize`` or ``kv_type``; or it was modified.
            PromptError: the tokens do not fit the context, or are not in the vocabulary.
            KvCacheFullError: there are not enough pages. The sequence is unchanged in all these cases.
        """
        checks.instance("snapshot", snapshot, KvSnapshot)
        with self._lock.lock:
            sequence, model = self._idle_sequence(), self._model
            wanted, kind = model.config.kv_type, snapshot.kv_type
            if kind != wanted:
                raise ConfigError(f"snapshot: expected kv_type {wanted}, got {checks.shown(kind)}")
            checks.instance("snapshot: fingerprint", snapshot.fingerprint, ModelFingerprint)
            data = checks.instance("snapshot: data", snapshot.data, np.ndarray)
            if snapshot.fingerprint != model.fingerprint:
                raise ConfigError(
                    f"snapshot: expected one of model {model.fingerprint.display()}, "
                    f"got one of {snapshot.fingerprint.display()}"
                )
            if snapshot.adapters != named(sequence.adapters):
                raise ConfigError("snapshot: expected the adapters of the session, got others")
            tokens = checked_tokens(snapshot.tokens, model.spec.n_vocab, model.context_size, least=0)
            n, facts = len(tokens), model_facts(model)
            n_bytes = sum(facts.kv_bytes(n))
            expected = n_bytes + (4 * facts.state_floats if n else 0)
            if data.dtype != np.uint8 or data.shape != (expected,):
                found = f"{data.dtype} {data.shape}"
                raise ConfigError(f"snapshot: expected uint8 ({expected},) for {n} tokens, got {found}")
            state = data[n_bytes:].copy().view(np.float32) if expected > n_bytes else None
            pages = page_data(model, data[:n_bytes], state, n)
            self.replace_sequence(tokens, n, pages, snapshot.embeddings)

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the pages; a generation that continues the session is cancelled."""
        with self._lock.lock:
            if not self._is_closed:
                with suppress(EngineClosed):  # the engine has already freed the pages
                    self._end_request()
                    self._call(lambda: self._model.loop.release(self._sequence))
            self._is_closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_sequence") and not self._is_closed:
            self._model.thread.wake()  # the engine loop then frees the pages


def named(adapters: Adaptation | None) -> tuple[tuple[bytes, float], ...]:
    """(fingerprint, scale) of each adapter."""
    applied = () if adapters is None else adapters.applied
    return tuple((item.lora.fingerprint, item.scale) for item in applied)


def hand_over(to: weakref.ref[Session], loop: EngineLoop, sequence: Sequence) -> None:
    """Give a request's sequence to its session, if that still exists; runs on the engine thread."""
    session = to()
    if session is None or session._is_closed:
        sequence.release()
        return
    loop.release(session._sequence)
    loop.hold(sequence, weakref.ref(session))
    session._sequence = sequence


class EvictableSessions:
    """Frees pages of a model's idle sessions after `Session.give_way`, when requests lack memory."""

    def __init__(self, model: LoadedModel) -> None:
        self._held = model.loop.held
        self._limit = model.pool.limit
        self._limit.reclaim_from(self.reclaim)

    def reclaim(self, n_bytes: int) -> None:
        """Free ``n_bytes`` if possible, from the sequences held longest."""
        target = self._limit.available + n_bytes
        for sequence, owner in self._held.items():
            if self._limit.available >= target:
                break
            if getattr(owner(), "is_evictable", False):
                sequence.forget()
