"""What the tests of serving share: tiny models behind an engine core, and what a request gives alone."""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence as Listed
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.base.config import EngineConfig, GenerationOptions, SchedulerConfig
from oxillama.base.config.sampler import SamplerConfig
from oxillama.compat.engine import InferenceEngine as CompatEngine
from oxillama.engine import loading
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.beam_search import (
    UNCHANGED,
    BeamHypothesis,
    BeamSearchConfig,
    EngineBeams,
    search,
)
from oxillama.engine.features.observability.metrics import EngineMetrics
from oxillama.engine.features.pipeline.links import LocalLink, StageLink
from oxillama.engine.features.pipeline.pool import CommandLog, spread_pool
from oxillama.engine.features.pipeline.runner import PipelinedRunner
from oxillama.engine.features.pipeline.stage import Stage
from oxillama.engine.features.sample_seeds import seeded
from oxillama.engine.features.shared_prompts import SharedPrompts, share_prompt
from oxillama.engine.loading import LoadedModel
from oxillama.engine.loop import EngineLoop
from oxillama.engine.protocols import Drafter
from oxillama.engine.request import End, Event, Piece, TextRequest
from oxillama.engine.runner import Runner
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Sequence
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.adapters.bind import bind
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied
from oxillama.models.page_groups import page_groups
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.low_rank import Adapter
from oxillama.speculation.jump_forward import JumpForward, next_tokens
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.speculator import Speculator, room
from oxillama.speculation.state import SPECULATION, Speculation
from oxillama.text.grammar import GrammarState
from oxillama.text.grammar.vocabulary import Vocabulary
from tests.support import zoo
from tests.support.adapters import adapter_of
from tests.support.kernels import PRESENT, same_bits
from tests.support.tiny_models import Tiny

TINY = Tiny(n_layers=2, n_embd=32, n_ff=64, n_vocab=40, n_heads=4, n_kv_heads=2, key_dim=16, value_dim=16)
MODELS: dict[str, Tiny] = {
    "llama": TINY,
    "narrow values, tied, Q8_0": TINY.but(key_dim=24, value_dim=8, tied=True, formats=("Q8_0", "Q4_0")),
    "qwen2": TINY.but(architecture="qwen2", biases=True, seed=3),
    "llama4": TINY.but(architecture="llama4", n_experts=4),
}
OF_THE_ZOO = (
    "gemma2", "gemma3", "cohere2", "gpt-oss", "deepseek2", "minicpm3", "bloom", "mpt", "qwen3moe", "phi3",
    "gpt2", "chatglm", "olmo2", "llama-arrays", "llama-windows",
    "mamba", "mamba2", "jamba", "granitehybrid", "lfm2", "rwkv6", "rwkv7",
    "qwen3next", "qwen35", "kimi-linear",
    "gemma4", "gemma4-experts", "gemma3n", "smallthinker", "afmoe", "mimo2-layers", "step35",
)  # fmt: skip
"""Windows, soft caps, sinks, latent attention, ALiBi, experts, learnt positions, unlike layers."""

NAMES = (*MODELS, *OF_THE_ZOO)
CONTEXT = 200
ENDS = 3
"""The token that ends a text."""


class Letters:
    """A tokenizer whose tokens are characters of the alphabet and beyond."""

    eog_ids = frozenset({ENDS})
    n_vocab = 10**6  # the models here have no rows beyond their vocabulary
    undecoded = b""

    def __init__(self, n_letters: int = 0) -> None:
        self.n_letters = n_letters

    def vocab_bytes(self) -> list[bytes]:
        return [b"" if id == ENDS else chr(97 + id).encode() for id in range(self.n_letters)]

    def encode(self, text: str, add_special: bool) -> list[int]:
        return [ord(char) - 97 for char in text]

    def stream_decoder(self, continuing: bool, shown: object = ()) -> Letters:
        return self

    def hidden_ids(self, texts: object) -> dict[int, str]:
        return {}

    def restore(self, undecoded: bytes) -> None:
        assert not undecoded

    def push(self, id: int) -> str:
        return chr(97 + id)

    def flush(self) -> str:
        return ""


def model_file(name: str) -> ModelFile:
    return ModelFile.open((MODELS.get(name) or (zoo.MODELS | zoo.VARIANTS)[name]).file())


@functools.cache
def decoder(name: str) -> Decoder:
    file = model_file(name)
    return Decoder(read_spec(file), Weights(file, load(PRESENT[0]), 1))


@functools.cache
def part_of(name: str, part: tuple[int, int]) -> Decoder:
    """Some layers of a model."""
    file = model_file(name)
    return Decoder(replace(read_spec(file), part=part), Weights(file, load(PRESENT[0]), 1))


@functools.cache
def vocabulary(n_vocab: int) -> Vocabulary:
    """The letters, for grammars."""
    return Vocabulary(Letters(n_vocab).vocab_bytes(), {ENDS})


def jump_of(name: str, sampler: Sampler) -> JumpForward | None:
    """What appends the tokens that a grammar leaves no choice about."""
    letters: Any = Letters(n_vocab_of(name))
    return JumpForward(letters) if sampler.constraint is not None else None


def sampler_of(name: str, config: SamplerConfig) -> Sampler:
    """A sampler for a model, with the grammar of its config."""
    grammar = config.grammar and GrammarState(config.grammar, vocabulary(n_vocab_of(name)))
    return Sampler(config, decoder(name).kernels, 0, constraint=grammar)


@functools.cache
def loras(name: str) -> list[tuple[LoadedLora, Adapter]]:
    """Two random adapters of a model, also as it has them."""
    file, model = model_file(name), decoder(name)
    found = [
        LoadedLora.load(adapter_of(file, model, rank, seed), everywhere=True)
        for seed, rank in enumerate((2, 5))
    ]
    return [(lora, bind(lora, model)) for lora in found]


STACKS: dict[str, tuple[tuple[int, float], ...]] = {
    "": (),
    "a": ((0, 1.0),),
    "a, weaker": ((0, 0.5),),
    "b": ((1, 1.0),),
    "a b": ((0, 1.0), (1, -0.5)),
}
"""Stacks of these: (which, scale)."""


def adaptation(name: str, stack: str, start: int) -> Adaptation | None:
    """The adapters of a sequence, of which the last applies from the token ``start`` on."""
    items = [(*loras(name)[which], scale) for which, scale in STACKS[stack]]
    starts = [0] * (len(items) - 1) + [start]
    applied = [Applied(*item, first) for item, first in zip(items, starts)]
    return Adaptation(applied) if applied else None


def n_vocab_of(name: str) -> int:
    return decoder(name).spec.n_vocab


class Recorded(TextRequest):
    """A request that notes its events, and whose consumer may leave pieces unread.

    Attributes:
        pieces: texts that were not read yet.
        tokens, logits: of all pieces.
        adapters: name of its stack, and where the last of the stack begins.
    """

    adapters: tuple[str, int] = ("", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.pieces: deque[str] = deque()
        self.tokens: list[int] = []
        self.logits: list[np.ndarray] = []
        self.error: BaseException | None = None
        super().__init__(*args, **kwargs)

    @property
    def speculation(self) -> Speculation | None:
        return self.parts.get(SPECULATION)

    @property
    def n_events(self) -> int:
        return len(self.pieces)

    @n_events.setter
    def n_events(self, n: int) -> None:
        """Pieces count themselves."""

    def emit(self, event: Event) -> None:
        if isinstance(event, Piece):
            self.pieces += [event.text] if event.text else []
            self.tokens += event.tokens
            self.logits += event.logits
        elif isinstance(event, End):
            self.error = event.error


class Clock:
    """Goes on by a hundredth of a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


class Guesses:
    """A drafter that knows what one request will generate, and says something else now and then.

    Args:
        prompt, tokens: of the request, and what follows.
        right: the share of right tokens.
    """

    def __init__(self, prompt: Listed[int], tokens: Listed[int], right: float, n_vocab: int) -> None:
        self.name = f"guesses for {id(self)}"
        self._n_prompt, self._tokens, self._right, self._n_vocab = len(prompt), tokens, right, n_vocab
        self._random = np.random.default_rng(len(prompt))
        self.n_forgotten = 0

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        ((sequence,), (sampler,), (n,)) = sequences, samplers, counts
        at = sequence.total_len - self._n_prompt
        right = self._random.random(n) < self._right
        guesses = self._random.integers(0, self._n_vocab, n)
        follows = [*self._tokens[at : at + n], *guesses[len(self._tokens[at : at + n]) :]]
        return [
            sampler.copied([int(t if good else guess) for t, good, guess in zip(follows, right, guesses)])
        ]

    def forget(self, sequence: Sequence) -> None:
        self.n_forgotten += 1


class AsManyAsMayBe(Speculator):
    """Drafts without regard to time, which differs from run to run."""

    def _lengths(self, n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> list[int]:
        return [room(request, speculation.most) for request, speculation in asking]


def zoo_engine(
    monkeypatch: pytest.MonkeyPatch, name: str, letters: Letters | None = None, **config: Any
) -> CompatEngine:
    """An engine over a model of the zoo, whose tokens are letters."""
    letters = letters or Letters()
    letters.n_vocab = zoo.VOCAB
    monkeypatch.setattr(loading, "load_tokenizer", lambda file, config: letters)
    engine = CompatEngine(EngineConfig(**config))
    engine.load_model_from_bytes((zoo.MODELS | zoo.VARIANTS)[name].file())
    return engine


def use_drafter(model: LoadedModel, drafter: Drafter) -> None:
    """Has a drafter propose the tokens of a loaded model, in the place of its own."""
    model._features["speculator"] = drafter
    model.loop.use_drafter(drafter)


def drafter_of(engine: InferenceEngine, name: object = None) -> Any:
    """The drafter of an engine's requests that ask for ``name``; None for what its options say."""
    asked = engine.config.speculate if name is None else name
    drafters = engine.model.feature("drafters")
    return engine.model.call(lambda: drafters.load(os.fspath(asked)))


class Serving:
    """An engine core over a tiny model, stepped by hand.

    ``states`` and ``cached_states`` are what there is room for beside ``max_pages`` and ``cached_pages``,
    where the model has such.
    """

    def __init__(
        self,
        name: str = "llama",
        *,
        page_size: int = 16,
        threads: int = 1,
        chunk: int = 64,
        kv_type: str = "f16",
        max_pages: int | None = None,
        states: int = 1000,
        cached_pages: int = 1000,
        cached_states: int = 1000,
        spacing: int = 16,
        borders: Listed[int] = (),
        link: Callable[[Stage], StageLink] = LocalLink,
        **config: Any,
    ) -> None:
        model = decoder(name)
        stride = cache_pool(model, kv_type, page_size).page_stride
        slot = -(-4 * model.state_floats // stride)  # in pages
        limit = None if max_pages is None else (max_pages + states * slot) * stride
        self.name, self.kv_type, self.kernels = name, kv_type, model.kernels
        self.clock = Clock()
        self.pool = cache_pool(model, kv_type, page_size, limit)
        if borders:
            parts = list(zip([0, *borders], [*borders, model.spec.n_layers]))
            models = [part_of(name, part) for part in parts]
            self.stages = [Stage(each, kv_type, page_size, threads) for each in models[:-1]]
            log = CommandLog([link(stage) for stage in self.stages])
            self.pool = spread_pool(
                models[-1],
                page_groups(model.spec),
                [each.page_groups for each in models],
                EngineConfig(kv_type=kv_type, page_size=page_size, kv_memory_limit=limit),
                log,
                [stage.facts() for stage in self.stages],
            )
        self.prefix = PrefixKvCache(self.pool, (cached_pages + cached_states * slot) * stride, spacing)
        self.slot_pages = slot
        self.scheduler = Scheduler(SchedulerConfig(**config), self.pool, self.prefix, chunk, self.clock)
        self.runner: Runner
        if borders:
            self.runner = PipelinedRunner(models[-1], self.pool, threads, log, lambda: None, True)
        else:
            self.runner = Runner(model, self.pool, threads)
        self.metrics = EngineMetrics(dict)
        self.loop = EngineLoop(self.runner, self.scheduler, self.metrics)
        self.loop.use_drafter(AsManyAsMayBe())

    def request(
        self,
        prompt: Listed[int],
        *,
        max_tokens: int = 8,
        sampler: SamplerConfig | None = None,
        window: float = math.inf,
        key: bytes = b"",
        drafts: int = 0,
        right: float = 0.7,
        adapters: str = "",
        start: int = 0,
        **options: Any,
    ) -> Recorded:
        """A request that is not submitted yet; it drafts so many tokens, of which a share is ``right``."""
        config = sampler or SamplerConfig.greedy()
        applied = adaptation(self.name, adapters, start)
        made = Recorded(
            Sequence(self.pool, prompt, checkpoints=0, adapters=applied),
            GenerationOptions(sampler=config, max_tokens=max_tokens, keep_logits=True, **options),
            sampler_of(self.name, config),
            Letters(),  # type: ignore[arg-type]
            CONTEXT,
            key=key,
        )
        made.window, made.adapters = window, (adapters, start)
        jump = jump_of(self.name, made.sampler)
        made.forced_tokens = None if jump is None else partial(next_tokens, jump, made.sampler)
        if drafts:
            known = alone(self.name, self.kv_type, tuple(prompt), max_tokens, config, adapters, start).tokens
            made.parts[SPECULATION] = Speculation(
                Guesses(prompt, known, right, n_vocab_of(self.name)), drafts
            )
        return made

    def submit(self, prompt: Listed[int], **options: Any) -> Recorded:
        request = self.request(prompt, **options)
        self.loop.add(request)
        return request

    def submit_samples(
        self, prompt: Listed[int], n: int, sampler: SamplerConfig, **options: Any
    ) -> list[Recorded]:
        """Samples of one prompt, with the seeds after the sampler's."""
        samplers = [each.sampler for each in seeded(GenerationOptions(sampler=sampler), n, 0)]
        requests = [self.request(prompt, sampler=each, **options) for each in samplers]
        if not isinstance(self.scheduler.queues.prefixes, SharedPrompts):
            self.scheduler.queues.prefixes = SharedPrompts(self.scheduler.queues.prefixes)
        share_prompt(requests)
        for request in requests:
            self.loop.add(request)
        return requests

    def cancel(self, request: Recorded) -> None:
        """Cancels a request between two steps; it ends with the next."""
        self.loop.cancel(request)
        self.scheduler.reap()

    def step(self) -> bool:
        """One step, after which every page and state must be accounted for."""
        did = self.loop.step()
        self.loop.check_integrity()
        return did

    def beams(self, prompt: list[int], config: BeamSearchConfig, adapters: str = "") -> list[BeamHypothesis]:
        """A beam search, with a step for the requests between any two of its own."""
        model: Any = SimpleNamespace(
            tokenizer=Letters(),
            call=self.landed,
            config=SimpleNamespace(prefill_chunk_size=self.scheduler.chunk),
            runner=self.runner,
            loop=self.loop,
            pool=self.pool,
        )
        beams = EngineBeams(model, prompt, adaptation(self.name, adapters, 0))
        beams.n_vocab = n_vocab_of(self.name)
        sampler = sampler_of(self.name, UNCHANGED)
        try:
            return search(beams, config, sampler, config.max_new_tokens, self.step)
        finally:
            beams.release()

    def landed(self, job: Callable[[], Any]) -> Any:
        """The result of a job that runs while no pass is in flight."""
        self.loop.complete_all()
        return job()

    def run(self, *requests: Recorded, most: int = 2000) -> int:
        """Steps until the requests have ended; how many it took."""
        for n in range(most):
            if all(request.finish_reason for request in requests):
                return n
            assert self.step(), "nothing to do, but not all have ended"
        raise AssertionError(f"not done after {most} steps")

    def check_empty(self) -> None:
        """Asserts that only the prefix cache holds pages and states; clears the cache."""
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        self.prefix.clear()
        self.pool.check_integrity([])
        assert self.pool.n_used == 0
        assert self.pool.recurrent_states is None or self.pool.recurrent_states.n_used == 0


@dataclass(frozen=True)
class Alone:
    """What a request gives when it runs alone, token by token, with nothing but the runner."""

    tokens: list[int]
    chosen: list[bool]  # whether a token was sampled: only those have logits
    logits: np.ndarray
    text: str


@functools.cache
def alone(
    name: str,
    kv_type: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    sampler: SamplerConfig,
    adapters: str = "",
    start: int = 0,
) -> Alone:
    """The prompt in one piece, pages of 16 tokens, one thread, no scheduler, no cache."""
    model = decoder(name)
    pool = Serving(name, kv_type=kv_type).pool
    runner, chooser = Runner(model, pool, 1), sampler_of(name, sampler)
    sequence, rows = Sequence(pool, prompt, adapters=adaptation(name, adapters, start)), []
    jump, chosen, most = jump_of(name, chooser), [], min(max_tokens, CONTEXT - len(prompt))
    while len(chosen) < most:
        rows.append(runner.forward([(sequence, sequence.pending)])[0])
        sequence.tokens.append(chooser.sample(rows[-1], sequence.tokens))
        chosen.append(True)
        for token in [] if jump is None else next_tokens(jump, chooser)[: most - len(chosen)]:
            chooser.accept(token)
            sequence.tokens.append(token)
            chosen.append(False)
        if sequence.tokens[-1] == ENDS:
            break
    tokens = sequence.tokens[len(prompt) :]
    text = "".join(chr(97 + t) for t in tokens if t != ENDS)
    return Alone(tokens, chosen, np.array(rows), text)


def check_as_alone(serving: Serving, *requests: Recorded) -> None:
    """The tokens and logits of requests, as far as they go, are those they give alone, bit for bit."""
    for request in requests:
        prompt, config, most = tuple(request.prompt), request.sampler.config, request.options.max_tokens
        assert most is not None
        expected = alone(serving.name, serving.kv_type, prompt, most, config, *request.adapters)
        n = len(request.tokens)
        assert request.tokens == expected.tokens[:n]
        assert len(request.logits) == sum(expected.chosen[:n])
        for mine, other in zip(request.logits, expected.logits):
            assert same_bits(mine, other)
        if request.finish_reason in ("stop", "length"):
            assert n == len(expected.tokens)
            assert "".join(request.pieces) == expected.text
