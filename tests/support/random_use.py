"""Random use of the public API, right and wrong, and what must hold after every call.

A `World` holds engines of a few models, and streams, sessions and pinned prefixes of them. `World.act` makes
one random call. The world knows what each text must be: what a fresh engine gives for the prompt and options.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np

from oxillama import (
    AsyncEngine,
    EngineConfig,
    Generation,
    GenerationOptions,
    GenerationTimeout,
    OxiLlamaError,
    SamplerConfig,
    SchedulerConfig,
    Session,
    demo,
)
from oxillama.base.config.generation import OPTION_NAMES
from oxillama.compat.engine import InferenceEngine
from oxillama.engine import loading
from oxillama.engine.cache.prefix import PinnedPrefix
from tests.support.kernels import same_bits
from tests.support.serving import Letters
from tests.support.zoo import MODELS


class UsersError(Exception):
    """What callbacks and stages raise."""


class OddText(str):
    """A subclass of str."""


ALLOWED = (OxiLlamaError, TypeError, UsersError)
"""What a call may raise."""

GARBAGE: tuple[Any, ...] = (
    None, True, b"x", "", "\ud800", OddText("abc"), -1, 0, 3, 10**400, -(10**5000), float("nan"),
    float("inf"), -0.5, 1e300, 1j, Fraction(1, 3), Decimal("0.5"), np.float32(2), np.float64("nan"),
    np.int64(1), np.bool_(True),
    np.array([1, 2]), np.array(3), np.zeros((2, 0)), (), [], {}, [None], ["\ud800"], (10**400,), [[1], [2]],
    {1: None}, {None: 1}, {"a": np.array([1, 2])}, {1, 2}, range(10**12), range(10**30), object(), object,
    UsersError, len,
    memoryview(b"ab"), iter([1]), "x" * 5000,
)  # fmt: skip
"""Values that few parameters take."""


class Few(Letters):
    """Tokens for models without a vocabulary."""

    n_vocab = 48
    chat_template_names = ()

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) % 48 for letter in text]

    def vocab_bytes(self) -> list[bytes]:
        return [chr(97 + i).encode() for i in range(48)]


@functools.cache
def model_bytes(kind: str) -> bytes:
    return demo.DRAFT.read_bytes() if kind == "draft" else MODELS[kind].file()


def new_engine(kind: str, **config: Any) -> InferenceEngine:
    """An engine for one of the models of the world."""
    engine = InferenceEngine(EngineConfig(**config))
    load(engine, kind)
    return engine


def load(engine: InferenceEngine, kind: str) -> None:
    if kind == "draft":
        engine.load_model_from_bytes(model_bytes(kind))
    else:
        with _patching, patch.object(loading, "load_tokenizer", lambda file, config: Few()):
            engine.load_model_from_bytes(model_bytes(kind))


_patching = threading.Lock()
KINDS = ("draft", "draft", "jamba", "mamba2")

SAMPLERS = (
    SamplerConfig.greedy(),
    SamplerConfig(temperature=1.2, top_k=0, seed=1),
    SamplerConfig(
        temperature=0.9, seed=2, repetition_penalty=1.3, dry_multiplier=0.5, dry_sequence_breakers=((1,),)
    ),
    SamplerConfig(temperature=1.0, seed=3, mirostat=2, top_k=0, top_p=1.0, min_p=0.0),
    SamplerConfig(temperature=1.0, seed=4, logit_bias={5: 3.0}, banned_tokens=(7,), xtc_probability=0.4),
)
CONSTRAINED = (
    SamplerConfig(seed=5, grammar='root ::= ("a" | "bc" | " the")+'),
    SamplerConfig(seed=6, regex="[a-z ]{3,9}"),
    SamplerConfig(seed=7, choices=("yes", "no", "perhaps")),
    SamplerConfig(seed=8, json_schema={"type": "object", "properties": {"a": {"type": "integer"}}}),
)


@dataclass
class Alone:
    """What a prompt gives alone."""

    tokens: list[int]
    text: str
    reason: str


class References:
    """What prompts give alone, each computed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, InferenceEngine] = {}
        self._texts: dict[Any, Alone] = {}

    def engine(self, kind: str) -> InferenceEngine:
        if kind not in self._engines:
            self._engines[kind] = new_engine(kind, num_threads=1, prefix_cache_bytes=0)
        return self._engines[kind]

    def text(self, kind: str, prompt: Sequence[int], options: GenerationOptions) -> Alone:
        key = (kind, tuple(prompt), repr(options.sampler), options.max_tokens, options.stop)
        with self._lock:
            if key not in self._texts:
                plain = GenerationOptions(
                    sampler=options.sampler, max_tokens=options.max_tokens, stop=options.stop
                )
                found = self.engine(kind).stream(list(prompt), plain).result()
                self._texts[key] = Alone(found.tokens, found.text, found.finish_reason)
            return self._texts[key]

    def logits(self, kind: str, tokens: Sequence[int]) -> np.ndarray:
        with self._lock:
            return self.engine(kind).logits(list(tokens))

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


@dataclass(eq=False)
class Stream:
    """A generation and what it must give."""

    generation: Generation
    kind: str
    prompt: list[int]
    options: GenerationOptions


@dataclass(eq=False)
class Hand:
    """A session."""

    session: Session
    kind: str


@dataclass(eq=False)
class Served:
    """An engine with what depends on it."""

    engine: InferenceEngine
    kind: str
    is_closed: bool = False


@dataclass
class World:
    """All that the calls have made so far."""

    draw: random.Random
    references: References
    engines: list[Served] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    hands: list[Hand] = field(default_factory=list)
    pins: list[Any] = field(default_factory=list)
    can_close: bool = True  # engines are closed and dropped, too
    n_calls: int = 0
    n_refused: int = 0
    n_texts: int = 0  # whole texts that were compared

    # --- one call -----------------------------------------------------------------------------------

    def act(self) -> str:
        """Makes one random call; returns its name."""
        names = [name for name in dir(self) if name.startswith("do_")]
        if not self.can_close:
            names = [name for name in names if name not in ("do_open", "do_close", "do_drop", "do_reload")]
        return self.call(self.draw.choice([*names, *["do_garbage"] * 4]))  # garbage has many kinds

    def call(self, name: str) -> str:
        """The call of that name, which may be refused in the ways that are allowed."""
        if not self.engines:
            self.do_open()
        self.n_calls += 1
        try:
            getattr(self, name)()
        except ALLOWED:
            self.n_refused += 1
        return name

    def served(self) -> Served:
        return self.draw.choice(self.engines)

    def worded(self) -> InferenceEngine:
        """An engine whose model has a real vocabulary."""
        found = [served.engine for served in self.engines if served.kind == "draft"]
        return self.draw.choice(found) if found else self.references.engine("draft")

    def prompt(self, kind: str) -> Any:
        """Ids, in one of the forms that are taken; often with a common beginning."""
        most = 1000 if kind == "draft" else 48
        same = random.Random(self.draw.randrange(3))
        n = self.draw.choice([1, 3, 8, 17, 40])
        tokens = [same.randrange(4, most) for _ in range(n)]
        if self.draw.random() < 0.3:
            tokens += [self.draw.randrange(4, most)]
        return self.draw.choice([list, tuple, np.array])(tokens)

    def options(self, kind: str) -> GenerationOptions:
        draw = self.draw
        samplers = SAMPLERS + (CONSTRAINED if kind == "draft" else ())
        fields: dict[str, Any] = {}
        if draw.random() < 0.2:
            fields["timeout"] = draw.choice([1e-6, 0.003, 5, 1e30, 10**38])
        if draw.random() < 0.2:
            fields["stop"] = draw.choice(["e", ["xx", "a"], "\ud800"])
        if draw.random() < 0.2:
            fields["logprobs"], fields["top_logprobs"] = True, draw.choice([None, 0, 3])
        return GenerationOptions(
            sampler=draw.choice(samplers),
            max_tokens=draw.choice([0, 1, 5, 12, 30]),
            priority=draw.choice([0, 0, 0, 1, -3, 2**31 - 1]),
            salt=draw.choice(["", "", "b"]),
            window=draw.choice([1, 2, 16, None]),
            keep_logits=draw.random() < 0.1,
            **fields,
        )

    # --- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        """What holds of every engine at any time: pages are accounted for, and no request is lost."""
        for served in self.engines:
            engine = served.engine
            try:
                engine.model.check_integrity()
                arrived, counted = engine.model.call(functools.partial(requests_of, engine))
                assert arrived == counted, "a request is counted twice, or not at all"
                engine.metrics_snapshot()
            except OxiLlamaError:
                assert not engine.model.thread.is_open

    def check_text(self, stream: Stream, whole: bool) -> None:
        """What was read of a text is the beginning of what its prompt gives alone, or all of it."""
        generation = stream.generation
        expected = self.references.text(stream.kind, stream.prompt, stream.options)
        assert generation.tokens == expected.tokens[: len(generation.tokens)]
        assert expected.text.startswith(generation.text), (expected.text, generation.text)
        if whole and generation.finish_reason in ("stop", "length"):
            assert generation.text == expected.text
            assert generation.tokens == expected.tokens
            assert generation.finish_reason == expected.reason
            self.n_texts += 1
            if generation.logits is not None:
                assert len(generation.logits) == len(generation.tokens)

    def check_plain(self) -> None:
        """Every open engine serves a plain request as if nothing had happened."""
        for served in self.engines:
            if served.engine.model.thread.is_open:
                options = GenerationOptions(sampler=SAMPLERS[0], max_tokens=5)
                expected = self.references.text(served.kind, [5, 6, 7], options)
                try:
                    assert served.engine.generate([5, 6, 7], options) == expected.text
                except OxiLlamaError as error:  # others wait for their readers, or it was closed meanwhile
                    assert type(error).__name__ in ("QueueFull", "KvCacheFullError", "EngineClosed"), error

    def finish(self) -> None:
        """Closes everything. Pages and states are then free, and no request is left."""
        for stream in self.streams:
            stream.generation.close()
        for hand in self.hands:
            hand.session.close()
        for pin in self.pins:
            pin.release()
        self.streams, self.hands, self.pins = [], [], []
        for served in self.engines:
            model = served.engine.model
            served.engine._default_session = None
            if not model.thread.is_open:
                continue

            def check(model: Any = model) -> None:
                loop = model.loop
                loop._clean_up()
                loop.scheduler.reap()
                assert not loop.scheduler.running
                assert not loop.scheduler.waiting
                assert not loop.held
                model.prefix_cache.clear()
                assert model.pool.n_used == 0, model.pool.n_used
                states = model.pool.recurrent_states
                assert states is None or states.n_used == 0

            model.call(check)
            served.engine.close()
        self.engines = []

    # --- engines ------------------------------------------------------------------------------------

    def do_open(self) -> None:
        if len(self.engines) >= 3:
            self.engines.pop(self.draw.randrange(3))
        kind, draw = self.draw.choice(KINDS), self.draw
        pages = draw.choice([None, None, 3, 6, 12])
        limit = None if pages is None else (pages * 4096 if kind == "draft" else pages * 20_000)
        config = SchedulerConfig(
            max_sequences=draw.choice([1, 2, 64]),
            max_waiting=draw.choice([1, 3, 1024]),
            promote_seconds=draw.choice([5.0, 1e-9]),
        )
        engine = new_engine(
            kind,
            num_threads=draw.choice([1, 1, 2]),
            kv_memory_limit=limit,
            prefix_cache_bytes=draw.choice([0, 5 * 4096, 1 << 24]),
            prefill_chunk_size=draw.choice([3, 16, 512]),
            page_size=draw.choice([4, 16]),
            scheduler=config,
        )
        self.engines.append(Served(engine, kind))

    def do_close(self) -> None:
        served = self.served()
        if self.draw.random() < 0.5:  # the others live on
            served.engine.close(finish=self.draw.random() < 0.3)
            served.engine.close()
            if self.draw.random() < 0.7:
                self.engines.remove(served)

    def do_drop(self) -> None:
        self.engines.remove(self.served())

    def do_reload(self) -> None:
        served = self.served()
        kind = self.draw.choice(KINDS)
        load(served.engine, kind)
        served.kind = kind

    def do_metrics(self) -> None:
        engine = self.served().engine
        assert engine.metrics_snapshot().running >= 0
        engine.metrics.prometheus({"a": "b"})

    # --- texts --------------------------------------------------------------------------------------

    def start(self, **more: Any) -> Stream:
        served = self.served()
        prompt, options = self.prompt(served.kind), self.options(served.kind)
        generation = served.engine.stream(prompt, options, **more)
        return Stream(generation, served.kind, [int(t) for t in prompt], options)

    def do_stream(self) -> None:
        self.streams.append(self.start())
        if len(self.streams) > 12:
            self.streams.pop(0)

    def do_generate(self) -> None:
        served = self.served()
        prompt, options = self.prompt(served.kind), self.options(served.kind)
        expected = self.references.text(served.kind, [int(t) for t in prompt], options)
        try:
            text = served.engine.generate(prompt, options)
        except GenerationTimeout as error:
            assert expected.text.startswith(error.text)
            raise
        assert text == expected.text
        self.n_texts += 1

    def do_generate_batch(self) -> None:
        served = self.served()
        prompts, options = [self.prompt(served.kind) for _ in range(3)], self.options(served.kind)
        found = served.engine.generate_batch(prompts, options, return_exceptions=self.draw.random() < 0.5)
        for prompt, text in zip(prompts, found, strict=True):
            if isinstance(text, BaseException):
                assert isinstance(text, ALLOWED), text
                continue
            assert text == self.references.text(served.kind, [int(t) for t in prompt], options).text
            self.n_texts += 1

    def do_stream_batch(self) -> None:
        served = self.served()
        prompts, options = [self.prompt(served.kind) for _ in range(3)], self.options(served.kind)
        for prompt, generation in zip(prompts, served.engine.stream_batch(prompts, options), strict=True):
            self.streams.append(Stream(generation, served.kind, [int(t) for t in prompt], options))

    def do_samples(self) -> None:
        served = self.served()
        prompt, options = self.prompt(served.kind), self.options(served.kind)
        for sample in served.engine.stream_n(prompt, options, n=self.draw.choice([1, 2, 4])):
            assert options.sampler is not None
            own = replace(options, sampler=replace(options.sampler, seed=sample.seed))
            self.streams.append(Stream(sample, served.kind, [int(t) for t in prompt], own))

    def a_stream(self) -> Stream:
        if not self.streams:
            self.do_stream()
        return self.draw.choice(self.streams)

    def do_read(self) -> None:
        stream = self.a_stream()
        try:
            for _, _ in zip(range(self.draw.randrange(1, 5)), stream.generation):
                pass
        finally:
            self.check_text(stream, whole=False)

    def do_result(self) -> None:
        stream = self.a_stream()
        self.streams.remove(stream)
        try:
            stream.generation.result()
        finally:
            self.check_text(stream, whole=True)

    def do_cancel(self) -> None:
        stream = self.a_stream()
        stream.generation.cancel()
        if self.draw.random() < 0.5:
            list(stream.generation)
            self.check_text(stream, whole=False)

    def do_leave(self) -> None:
        stream = self.a_stream()
        if self.draw.random() < 0.5:
            stream.generation.close()
        self.streams.remove(stream)

    def do_two_readers(self) -> None:
        """Two threads take the whole of one text."""
        stream = self.a_stream()
        self.streams.remove(stream)
        raised: list[BaseException] = []

        def read() -> None:
            try:
                stream.generation.result()
            except BaseException as error:
                raised.append(error)

        other = threading.Thread(target=read)
        other.start()
        read()
        other.join(60)
        assert not other.is_alive(), "a reader waits for ever"
        assert all(isinstance(error, ALLOWED) for error in raised), raised
        self.check_text(stream, whole=True)

    def do_callback(self) -> None:
        """A text whose callback does as it likes."""
        draw, served = self.draw, self.served()
        prompt, options = self.prompt(served.kind), self.options(served.kind)
        made: list[Generation] = []

        def false(text: str) -> object:
            return False

        def raises(text: str) -> None:
            raise draw.choice([UsersError, StopIteration, StopAsyncIteration, GeneratorExit])

        def closes(text: str) -> None:
            (served.engine if self.can_close else made[0]).close()

        def starts(text: str) -> None:
            served.engine.generate([5, 6, 7], max_tokens=2)

        def cancels(text: str) -> None:
            made[0].cancel()

        def reads(text: str) -> None:
            next(made[0], None)

        callback = draw.choice([false, raises, closes, starts, cancels, reads])
        generation = served.engine.stream(prompt, options, callback=callback)
        made.append(generation)
        stream = Stream(generation, served.kind, [int(t) for t in prompt], options)
        try:
            generation.result()
        finally:
            if callback is not reads:  # whose order is its own
                self.check_text(stream, whole=True)
            else:
                generation.close()
            made.clear()

    def do_stage(self) -> None:
        """A text with a stage in Python that does as it likes."""
        draw, engine = self.draw, self.served().engine

        def stage(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> Any:
            what = draw.randrange(8)
            if what == 0:
                raise draw.choice([UsersError, StopIteration, GeneratorExit])
            if what == 1:
                engine.generate([5], max_tokens=1)
            if what == 2:
                return np.full(len(ids), np.nan, np.float32)
            if what == 3:
                return draw.choice([None, logits[:1], "x", 5, [1.0]])
            if what == 4:
                logits[:] = -np.inf
            if what == 5:
                history[:] = -1
            return None

        try:
            engine.generate([5, 6, 7], max_tokens=6, order=[stage])
        except ValueError as error:  # NumPy's, of an array that is none
            assert isinstance(error, OxiLlamaError) or "could not convert" in str(error)

    # --- vectors, prefixes, text tools --------------------------------------------------------------

    def do_embed(self) -> None:
        served = self.served()
        prompts = [self.prompt(served.kind) for _ in range(2)]
        pooling, normalize = self.draw.choice([None, "mean", "last", "max"]), self.draw.random() < 0.5
        found = served.engine.embed_batch(prompts, pooling=pooling, normalize=normalize)
        one = served.engine.embed(prompts[0], pooling=pooling, normalize=normalize)
        assert same_bits(found[0], one)
        assert len(served.engine.hidden_states(prompts[1])) == len(prompts[1])

    def do_rerank(self) -> None:
        self.served().engine.rerank("a", ["b"])

    def do_chat(self) -> None:
        self.worded().chat([{"role": "user", "content": "a"}], max_tokens=2)

    def do_pin(self) -> None:
        served = self.served()
        self.pins.append(served.engine.prime_with_prefix(self.prompt(served.kind)))

    def do_release(self) -> None:
        if self.pins:
            pin = self.pins.pop(self.draw.randrange(len(self.pins)))
            pin.release()
            pin.release()

    def do_garbage(self) -> None:
        """A call of which one argument is nonsense."""
        draw, engine = self.draw, self.worded()
        bad = draw.choice(GARBAGE)
        name = draw.choice(OPTION_NAMES)
        session = engine.session()
        calls: list[Callable[[], object]] = [
            lambda: engine.generate([5, 6], **{"max_tokens": 2, name: bad}),
            lambda: engine.generate([5, 6], **{"max_tokens": 2, name: bad}),
            lambda: engine.stream(bad, max_tokens=2), lambda: engine.stream([5], bad),
            lambda: engine.generate([5], max_tokens=3, callback=bad),
            lambda: engine.generate_batch([bad], max_tokens=2), lambda: engine.embed(bad),
            lambda: engine.embed([5], pooling=bad), lambda: engine.embed([5], normalize=bad),
            lambda: engine.hidden_states(bad), lambda: engine.rerank(bad, bad),
            lambda: engine.chat(bad, max_tokens=2), lambda: engine.chat([bad], max_tokens=2),
            lambda: engine.prime_with_prefix(bad), lambda: engine.prime_with_prefix([5], salt=bad),
            lambda: engine.logits(bad), lambda: engine.detokenize(bad),
            lambda: engine.metrics.prometheus({bad: "x"}), lambda: engine.metrics.prometheus({"x": bad}),
            lambda: session.prefill(bad), lambda: session.forward(bad), lambda: session.rewind(bad),
            lambda: session.kv_restore(bad), lambda: session.generate(bad),
            lambda: EngineConfig(**{draw.choice(CONFIG_NAMES): bad}),
            lambda: SchedulerConfig(**{draw.choice(SCHEDULER_NAMES): bad}), lambda: AsyncEngine(bad),
            lambda: InferenceEngine(bad),
        ]  # fmt: skip
        try:
            made = draw.choice(calls)()
            if isinstance(made, PinnedPrefix):
                made.release()
        finally:
            session.close()

    # --- by hand ------------------------------------------------------------------------------------

    def a_hand(self) -> Hand:
        if not self.hands or self.draw.random() < 0.2:
            served = self.served()
            self.hands.append(Hand(served.engine.session(), served.kind))
            if len(self.hands) > 4:
                self.hands.pop(0)
        return self.draw.choice(self.hands)

    def do_prefill(self) -> None:
        hand = self.a_hand()
        before, fresh = hand.session.tokens, self.prompt(hand.kind)
        if len(before) > 150:
            hand.session.rewind(0)
            before = []
        if self.can_close:  # no other thread has it
            try:
                logits = hand.session.prefill(fresh)
            except OxiLlamaError:
                assert hand.session.tokens == before or not hand.session._model.thread.is_open
                raise
            assert hand.session.tokens == before + [int(t) for t in fresh]
            assert same_bits(logits, self.references.logits(hand.kind, hand.session.tokens)[-1])

    def do_rewind(self) -> None:
        hand = self.a_hand()
        n = self.draw.randrange(len(hand.session) + 1)
        hand.session.rewind(n)

    def do_fork(self) -> None:
        hand = self.a_hand()
        self.hands.append(Hand(hand.session.fork(), hand.kind))

    def do_continue(self) -> None:
        """A text that goes on from a session, whole or left half-way."""
        hand = self.a_hand()
        tokens, options = hand.session.tokens, self.options(hand.kind)
        if self.draw.random() < 0.5:
            generation = hand.session.stream(options)
            stream = Stream(generation, hand.kind, tokens, options)
            for _, _ in zip(range(self.draw.randrange(4)), generation):
                pass
            if self.draw.random() < 0.5:
                generation.close()
            self.check_text(stream, whole=False)
            return
        try:
            text = hand.session.generate(options)
        except GenerationTimeout:
            return
        expected = self.references.text(hand.kind, tokens, options)
        assert text == expected.text
        assert hand.session.tokens == tokens + expected.tokens

    def do_snapshot(self) -> None:
        hand = self.a_hand()
        tokens, snapshot = hand.session.tokens, hand.session.kv_snapshot()
        hand.session.rewind(0)
        hand.session.kv_restore(snapshot)
        assert hand.session.tokens == tokens

    def do_end_hand(self) -> None:
        if self.hands:
            hand = self.hands.pop(self.draw.randrange(len(self.hands)))
            if self.draw.random() < 0.5:
                hand.session.close()
                hand.session.close()

    # --- asyncio ------------------------------------------------------------------------------------

    def do_asyncio(self) -> None:
        """Some tasks, of which one is cancelled or left, and an engine that may be closed under them."""
        draw, served = self.draw, self.served()
        made: list[Stream] = []

        async def read(many: AsyncEngine) -> None:
            prompt, options = self.prompt(served.kind), self.options(served.kind)
            generation = many.stream(prompt, options)
            stream = Stream(generation, served.kind, [int(t) for t in prompt], options)
            made.append(stream)
            if draw.random() < 0.5:
                await generation
                return
            n = 0
            async for _ in generation:
                n += 1
                if n == 3 and draw.random() < 0.3:
                    break
                if n == 4 and draw.random() < 0.3:
                    await generation.aclose()

        async def main() -> None:
            many = AsyncEngine(served.engine)
            tasks = [asyncio.ensure_future(read(many)) for _ in range(4)]
            tasks.append(asyncio.ensure_future(many.embed([5, 6])))  # type: ignore[arg-type]
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            if draw.random() < 0.6:
                draw.choice(tasks).cancel()
            if draw.random() < 0.3:
                await many.aclose(finish=draw.random() < 0.5)
            if len(made) > 1 and draw.random() < 0.3:  # two tasks read one text
                tasks.append(asyncio.ensure_future(made[0].generation._result()))  # type: ignore[arg-type]
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(found, BaseException):
                    assert isinstance(found, (*ALLOWED, asyncio.CancelledError)), found

        asyncio.run(main())
        for stream in made:
            self.check_text(stream, whole=True)
            stream.generation.close()

    def do_hand_over(self) -> None:
        """A stream is begun here and read by another thread, then here again."""
        stream = self.a_stream()

        def read() -> None:
            with suppress(*ALLOWED):
                next(stream.generation, None)

        thread = threading.Thread(target=read)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        next(stream.generation, None)
        self.check_text(stream, whole=False)


def requests_of(engine: InferenceEngine) -> tuple[int, int]:
    """Requests that have arrived, and those that have ended, run and wait. For the engine thread."""
    scheduler, finished = engine.model.scheduler, sum(engine.metrics.finished.values())
    ended = finished + len(scheduler.queues.finished)
    return scheduler._arrivals, ended + len(scheduler.running) + len(scheduler.waiting)


CONFIG_NAMES = list(EngineConfig.__dataclass_fields__)
SCHEDULER_NAMES = list(SchedulerConfig.__dataclass_fields__)
