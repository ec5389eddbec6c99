"""Sessions: sequences that the caller runs by hand, rewinds, forks and continues."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from oxillama.adapters.stack import Adaptation
from oxillama.config import GenerationOptions, SamplerConfig, checks
from oxillama.engine.generation import Generation, text_of
from oxillama.engine.loading import LoadedModel, Prompt, checked_tokens
from oxillama.engine.loop import EngineLoop
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import Sequence
from oxillama.engine.snapshots import Captured
from oxillama.errors import (
    ConfigError,
    EngineClosed,
    OxiLlamaError,
    PositionBeyondEnd,
    PromptError,
)
from oxillama.faults import fault
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.locks import ForkedOpen, NotCopied
from oxillama.sessions.capture import Notes, snapshot_of_sequence
from oxillama.sessions.sequences import SequenceCopy, model_facts, page_data, restore_sequence
from oxillama.sessions.snapshot import EngineSnapshot

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.config import GenerationFields

T = TypeVar("T")


@dataclass(frozen=True)
class KvSnapshot:
    """What `Session.kv_snapshot` took.

    Attributes
    ----------
    tokens : ids of the sequence.
    data : uint8, the keys and values that the next token sees, by position, and the recurrent state.
    kv_type : how they are kept.
    fingerprint : of the model that computed them, and of what else decides bits.
    adapters : (fingerprint, scale) of each adapter that they were computed with.
    given : embeddings that some tokens were run with; None for none.
    """

    tokens: list[int]
    data: np.ndarray
    kv_type: str
    fingerprint: ModelFingerprint
    adapters: tuple[tuple[bytes, float], ...] = ()
    given: Any = None


class Session(NotCopied, Captured):
    """One sequence of an engine, beside any number of others and of requests; made by `engine.session()`.

    Its passes take turns with the engine's steps, a chunk at a time. It holds its pages until it is closed,
    or until nobody refers to it any more. Threads may share it; each call is then run by itself.
    """

    def __init__(
        self,
        model: LoadedModel,
        default_sampler: SamplerConfig,
        adapters: Adaptation | None,
        given: Any = None,
    ) -> None:
        self._model = model
        self._default_sampler = default_sampler
        self._lock = ForkedOpen()  # two threads' tokens would mix
        self._request: TextRequest | None = None  # that goes on from here
        self._is_closed = False
        self.gives_way: bool = False
        self._sequence = sequence = Sequence(model.pool, adapters=adapters, given=given)
        held_by = weakref.ref(self)
        model.call(lambda: model.loop.hold(sequence, held_by))

    def __len__(self) -> int:
        """Tokens in the sequence."""
        return len(self._sequence.tokens)

    @property
    def tokens(self) -> list[int]:
        """Ids of the sequence."""
        return list(self._sequence.tokens)

    @property
    def given(self) -> Any:
        """Embeddings that some tokens are run with; None for none."""
        return self._sequence.given

    @property
    def adapters(self) -> Adaptation | None:
        """That its tokens are run with; None for none."""
        return self._sequence.adapters

    def _call(self, job: Callable[[], T]) -> T:
        """What a job of the engine thread returns, or an error of ours."""
        try:
            return self._model.call(partial(self._alone, job))
        except OxiLlamaError:
            raise
        except Exception as error:
            raise fault(error) from error

    def give_way(self) -> None:
        """Lets requests that lack memory have its pages: its tokens are then run again when it goes on."""
        self._model.feature("giving way")
        self.gives_way = True

    def _alone(self, job: Callable[[], T]) -> T:
        """Runs a job, which does not take the pages of this session for the session itself."""
        gives_way, self.gives_way = self.gives_way, False
        try:
            return job()
        finally:
            self.gives_way = gives_way

    # --- passes -------------------------------------------------------------------------------------

    def prefill(self, prompt: Prompt) -> np.ndarray:
        """Appends tokens; float32 (vocab,) logits after the last.

        Raises
        ------
        PromptError, TokenizerError : as `InferenceEngine.stream` says. The sequence is then as it was.
        KvCacheFullError : there are no pages for them; the same.
        """
        logits: np.ndarray = self._append(prompt, all_logits=False)[-1]
        return logits

    def forward(self, token: int) -> np.ndarray:
        """Appends one token; float32 (vocab,) logits after it."""
        return self.prefill([token])

    def logits(self, prompt: Prompt) -> np.ndarray:
        """Appends tokens; float32 (n, vocab), the logits after each of them."""
        return self._append(prompt, all_logits=True)

    def append(self, prompt: Prompt) -> None:
        """Appends tokens that are run with the next ones, or by the next generation.

        Raises PromptError, TokenizerError, as `prefill`. The sequence is then as it was.
        """
        fresh, given = self._model.prompt_parts(prompt)
        with self._lock.lock:
            sequence = self._idle_sequence()
            self._check_room(sequence, len(fresh))
            self._add(sequence, fresh, given)

    def _add(self, sequence: Sequence, tokens: list[int], given: Any) -> None:
        """Appends tokens, some of which are run with given rows."""
        if given is not None:
            sequence.given = given.behind(sequence.given, len(sequence.tokens))
        sequence.tokens += tokens

    def _check_room(self, sequence: Sequence, n: int) -> None:
        most, found = self._model.context_size, len(sequence.tokens) + n
        if found > most:
            raise PromptError(f"prompt: expected at most {most} tokens in all, got {found}")

    def _append(self, prompt: Prompt, all_logits: bool) -> np.ndarray:
        fresh, given = self._model.prompt_parts(prompt)
        with self._lock.lock:
            sequence = self._idle_sequence()
            n_before, before = len(sequence.tokens), sequence.given
            self._check_room(sequence, len(fresh))
            try:
                if sequence.pending:  # what was appended, or what a cut has left to be run again
                    self._run_pending(sequence, all_logits=False)
                self._add(sequence, fresh, given)
                return self._run_pending(sequence, all_logits)[-len(fresh) :]  # some may have run again
            except BaseException:
                self._call(lambda: sequence.truncate(n_before))
                sequence.given = before
                raise

    def recompute(self) -> None:
        """Runs the tokens again if their pages went to others (`give_way`). Raises KvCacheFullError."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            if sequence.tokens and not sequence.cached_len:
                self._run_pending(sequence, all_logits=False)

    def _run_pending(self, sequence: Sequence, all_logits: bool) -> np.ndarray:
        """Runs what is pending, in chunks; logits of every row, or (1, vocab) of the last."""
        chunk, runner = self._model.config.prefill_chunk_size, self._model.runner
        parts: list[np.ndarray] = []
        while sequence.pending:
            part = [(sequence, sequence.uncut(min(chunk, sequence.pending)))]
            rows = self._call(lambda part=part: runner.forward(part, all_logits))  # type: ignore[misc]
            parts = [*parts, rows] if all_logits else [rows]
        return np.concatenate(parts)

    def whole_from(self, position: int) -> int:
        """Where rows begin that are run in one pass with that of ``position``; that itself for no others."""
        given = self._sequence.given
        spans = () if given is None else given.whole
        return next((start for start, end in spans if start <= position < end), position)

    def _idle_sequence(self) -> Sequence:
        """The sequence, if nothing generates from it."""
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

    def _end_request(self) -> None:
        """Ends the request that goes on from here, and takes what it has run."""
        if self._request is not None:
            self._model.thread.cancel(self._request)
            self._call(self._model.scheduler.reap)  # after it, the sequence is this session's
        self._request = None

    # --- back, aside, and on ------------------------------------------------------------------------

    def rewind(self, n_tokens: int) -> None:
        """Keeps the first ``n_tokens`` tokens. Raises PositionBeyondEnd, a ConfigError, if there are fewer.

        A recurrent model goes back to a checkpoint before them and runs the rest again with the next tokens.
        Raises ConfigError for a position inside a medium.
        """
        with self._lock.lock:
            sequence = self._idle_sequence()
            n = checks.integer("n_tokens", n_tokens, 0)
            if n > len(sequence.tokens):
                raise PositionBeyondEnd(n, len(sequence.tokens))
            given = sequence.given and sequence.given.cut(n)
            self._call(lambda: sequence.truncate(n))
            sequence.given = given

    def fork(self) -> Session:
        """Another session with the same tokens; pages are shared until one of them writes."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            made = Session(self._model, self._default_sampler, sequence.adapters)
            fork = made._sequence

            def take() -> None:
                fork.tokens = list(sequence.tokens)
                fork.given = sequence.given
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
        """Generates from here; what it generates becomes part of the sequence when it has ended.

        Until then the session can do nothing else. Parameters and errors are those of
        `InferenceEngine.stream`; PromptError also if the session has no tokens.
        """
        return self._start(options, callback, fields, whole=False)

    def generate(
        self,
        options: GenerationOptions | None = None,
        *,
        callback: Callable[[str], object] | None = None,
        **fields: Unpack[GenerationFields],
    ) -> str:
        """The whole text that `stream` yields. Raises GenerationTimeout if there would have been more."""
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
            fork = Sequence(model.pool, sequence.tokens, adapters=sequence.adapters, given=sequence.given)
            keep = partial(hand_over, weakref.ref(self), model.loop)
            request = model.text_request(fork, checked, key=None, whole=whole, keep=keep)
            generation = Generation(model, request, callback, self)  # it cancels what is dropped

            def begin() -> None:
                model.loop.check_room(request.tenant)
                # not the last token, whose logits are wanted again
                fork.take_fork(sequence, min(sequence.cached_len, len(fork.tokens) - 1))
                model.loop.add(request)

            self._request = request
            try:
                self._call(begin)
            except Exception:
                self._request = None
                raise
            except BaseException:  # the user's Ctrl-C: it begins all the same
                generation.cancel()
                raise
            return generation

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self, notes: Notes = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of."""
        with self._lock.lock:
            sequence = self._idle_sequence()
            copy = self._call(lambda: SequenceCopy.of(sequence))
            return snapshot_of_sequence(self._model, copy, "session", sequence.adapters, notes)

    def replace_sequence(
        self, tokens: list[int], n_cached: int, data: list[np.ndarray], given: Any = None
    ) -> None:
        """Puts tokens, the pages of those that were run (`page_data`) and given rows in the sequence's place.

        Raises KvCacheFullError; the sequence is then as it was.
        """
        with self._lock.lock:
            sequence = self._idle_sequence()
            self._call(lambda: restore_sequence(sequence, tokens, n_cached, data, given))

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
                sequence.given,
            )

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """Puts a snapshot in place of the sequence.

        Raises
        ------
        ConfigError : it is of another model, or of one that was loaded with other ``compute``, ``quantize``
            or ``kv_type``; or it is not as `kv_snapshot` made it.
        PromptError : its tokens do not fit the context, or are not of the vocabulary.
        KvCacheFullError : there are no pages for it. The sequence is as it was in all cases.
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
            self.replace_sequence(tokens, n, pages, snapshot.given)

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees its pages; a generation that goes on from here is cancelled."""
        with self._lock.lock:
            if not self._is_closed:
                with suppress(EngineClosed):  # its pages are gone with the engine
                    self._end_request()
                    self._call(lambda: self._model.loop.release(self._sequence))
            self._is_closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_sequence") and not self._is_closed:
            self._model.thread.wake()  # the loop frees what it held


def named(adapters: Adaptation | None) -> tuple[tuple[bytes, float], ...]:
    """(fingerprint, scale) of each adapter."""
    applied = () if adapters is None else adapters.applied
    return tuple((item.lora.fingerprint, item.scale) for item in applied)


def hand_over(to: weakref.ref[Session], loop: EngineLoop, sequence: Sequence) -> None:
    """Gives what a request has run to its session, if that is still there; for the engine thread."""
    session = to()
    if session is None or session._is_closed:
        sequence.release()
        return
    loop.release(session._sequence)
    loop.hold(sequence, weakref.ref(session))
    session._sequence = sequence
