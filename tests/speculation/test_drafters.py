"""Kinds of drafters: other vocabularies, fewer bits of the model, a corpus, hidden states; their choice."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, InferenceEngine, ModelFileError, SamplerConfig, demo
from oxillama._kernels import load
from oxillama.engine.building import new_pool
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.weights.loader import Weights
from oxillama.speculation import loading as draft_models
from oxillama.speculation.drafters import Drafter, HiddenStateDrafter, LookupDrafter, ModelDrafter
from oxillama.speculation.loading import Drafters, find_draft_model, matrix_bytes
from oxillama.speculation.mapped import MappedDrafter
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.state import SPECULATION, Speculation
from oxillama.speculation.token_map import TokenMap
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support import zoo
from tests.support.kernels import PRESENT, same_bits
from tests.support.serving import (
    CONTEXT,
    ENDS,
    AsManyAsMayBe,
    Guesses,
    Letters,
    Recorded,
    Serving,
    check_as_alone,
    decoder,
    drafter_of,
    n_vocab_of,
    use_drafter,
)
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import tokens_of
from tests.support.vocabularies import NORMAL, metadata

PROMPT = demo.PROMPTS[0]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
SEEDED = SamplerConfig(temperature=0.9, seed=5)
PENALTIES = SamplerConfig(temperature=0.7, seed=6, repetition_penalty=1.6, presence_penalty=0.5)

LETTERS = [chr(97 + i) for i in range(20)]
PAIRS = [a + b for a in "abcde" for b in "fghijk"][: zoo.VOCAB - 20]
OTHERS = [a + b for a in "lmnopq" for b in "qrstl"][: len(PAIRS)]


def runner_of(model: Decoder) -> Runner:
    return Runner(model, new_pool(model, EngineConfig(num_threads=1)), 1)


def vocabulary(tokens: Listed[str]) -> TokenizerBridge:
    types = [NORMAL] * len(tokens)
    return TokenizerBridge.from_metadata(metadata("gpt2", list(tokens), types, pre="gpt-2", merges=[]))


TARGET = vocabulary([*LETTERS, *PAIRS])


@functools.cache
def permuted(name: str, order: tuple[int, ...]) -> Decoder:
    """The model with token ``order[i]`` as number i."""
    model = (zoo.MODELS | zoo.VARIANTS)[name]
    at = list(order)
    replaced = {n: t[at] for n, t in model.tensors().items() if n.startswith(("token_embd.", "output."))}
    file = ModelFile.open(model.file(**replaced))
    return Decoder(read_spec(file), Weights(file, load(PRESENT[0]), 1))


def order_of(seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).permutation(zoo.VOCAB).tolist())


def run(serving: Serving, drafter: Drafter, sampler: SamplerConfig | None = None, **options: Any) -> Recorded:
    """A request of 24 tokens that drafts with ``drafter``, checked against the same one alone."""
    prompt = tokens_of(20, n_vocab_of(serving.name), seed=1)
    request = serving.request(prompt, max_tokens=24, sampler=sampler, drafts=4, **options)
    request.parts[SPECULATION] = Speculation(drafter, 4)
    serving.loop.add(request)
    serving.run(request)
    check_as_alone(serving, request)
    return request


# --- other vocabularies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [None, SEEDED, PENALTIES], ids=["greedy", "seeded", "penalties"])
@pytest.mark.parametrize("name", ["gemma3", "qwen3moe", "mpt", "jamba"])
def test_a_model_drafts_the_same_by_any_ids(name: str, sampler: SamplerConfig | None) -> None:
    """The target itself with other ids: its logits are the target's, so every draft is right."""
    order = order_of(len(name))
    tokens = TokenMap("draft", vocabulary([TARGET.token_text(i) for i in order]), TARGET)
    runner = runner_of(permuted(name, order))
    serving = Serving(name)
    request = run(serving, MappedDrafter("draft", runner, tokens, [ENDS], CONTEXT), sampler)
    assert request.speculation is not None
    stats = request.speculation.stats
    assert stats.drafted > 0
    # a recurrent row may be run again after a rejection, but has the same bits
    assert stats.accepted == stats.drafted
    assert runner.pool.n_used == 0
    serving.check_empty()


FAMILIES = (
    "gemma2", "gemma3", "cohere2", "deepseek2", "bloom", "mpt", "qwen3moe", "phi3", "chatglm",
    "llama-windows", "mamba", "mamba2", "jamba", "granitehybrid", "lfm2", "rwkv6", "qwen35",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_any_model_may_draft_for_any_other(seed: int) -> None:
    """Ids in any order; some of the target's pairs are no tokens of the draft, which spells them."""
    random = np.random.default_rng(seed)
    target, draft = random.choice(FAMILIES, 2).tolist()
    n_shared = int(random.integers(4, len(PAIRS) + 1))
    texts = [*LETTERS, *random.permutation(PAIRS)[:n_shared].tolist(), *OTHERS[n_shared:]]
    order = tuple(random.permutation(zoo.VOCAB).tolist())
    tokens = TokenMap("draft", vocabulary([texts[i] for i in order]), TARGET)
    runner = runner_of(permuted(draft, order))
    serving = Serving(target)
    sampler = (None, SEEDED, PENALTIES)[seed % 3]
    request = run(serving, MappedDrafter("draft", runner, tokens, [ENDS], CONTEXT), sampler)
    assert request.speculation is not None
    assert request.speculation.stats.drafted > 0
    assert runner.pool.n_used == 0
    serving.check_empty()


def test_the_draft_reads_the_text_in_its_own_tokens() -> None:
    texts = [*PAIRS[:14], *OTHERS[14:], *LETTERS]
    tokens = TokenMap("draft", vocabulary(texts), TARGET)
    drafter = MappedDrafter("draft", runner_of(decoder("mpt")), tokens, [ENDS], CONTEXT)
    sequence = Sequence(drafter._pool, [0, 19, 20, 47])
    for text in ([0, 19, 20, 47], [0, 19, 47, 47, 1], [0, 19], [0, 19, 1]):
        sequence.tokens[:] = text
        spelled = drafter._translated(sequence).tokens
        assert "".join(texts[id] for id in spelled) == "".join(map(TARGET.token_text, text))


def test_an_engine_takes_a_model_with_another_vocabulary(tmp_path: Path, caplog: Any) -> None:
    other = write_tiny_model(tmp_path / "other.gguf")
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate=other, draft_max=3) as engine:
        use_drafter(engine.model, AsManyAsMayBe())
        assert isinstance(drafter_of(engine), MappedDrafter)
        for options in (
            GREEDY,
            {"temperature": 0.9, "seed": 3, "max_tokens": 60},
            {**GREEDY, "regex": "[a-z ]+"},
        ):
            done = engine.stream(PROMPT, **options).result()
            assert done.speculation is not None
            assert done.speculation.drafted > 0
            assert done.text == engine.generate(PROMPT, speculate="off", **options)
        rejecting = engine.stream(
            PROMPT, draft_acceptance="rejection", temperature=0.9, seed=1, max_tokens=60
        )
        assert len(rejecting.result().tokens) == 60
    with InferenceEngine.from_gguf(other, num_threads=1, speculate=demo.DRAFT) as engine:
        text = engine.generate("Once upon a time", **GREEDY)
        assert text == engine.generate("Once upon a time", speculate="off", **GREEDY)


# --- fewer bits of the model ---------------------------------------------------------------------------


def drafters(name: str, **config: Any) -> Drafters:
    """What drafts for a small random model without a tokenizer."""
    target = Serving(name).runner
    file = ModelFile.open((zoo.MODELS | zoo.VARIANTS)[name].file())
    return Drafters(file, target, Letters(), EngineConfig(num_threads=1, **config), CONTEXT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["gemma3", "qwen3moe", "deepseek2", "glm-dsa", "mpt", "mamba2", "jamba", "rwkv7", "qwen35"]
)
def test_a_model_drafts_for_itself(name: str) -> None:
    known = drafters(name)
    made = known.load("self")
    assert isinstance(made, ModelDrafter)
    assert made is known.load("self")
    assert matrix_bytes(made._runner.model) <= matrix_bytes(decoder(name)) / 2
    serving = Serving(name)
    for sampler in (None, SEEDED):
        request = run(serving, made, sampler)
        assert request.speculation is not None
        assert request.speculation.stats.drafted > 0
    assert made._runner.pool.n_used == 0
    serving.check_empty()


def test_fewer_bits_agree_with_a_trained_model(caplog: pytest.LogCaptureFixture) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate="self", draft_max=4) as engine:
        use_drafter(engine.model, AsManyAsMayBe())
        done = engine.stream(PROMPT, **GREEDY).result()
        assert done.speculation is not None
        assert done.speculation.acceptance_rate > 0.6
        assert done.text == engine.generate(PROMPT, speculate="off", **GREEDY)


def test_a_model_of_few_bits_does_not_draft_for_itself(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "small.gguf", format="Q4_0", n_embd=256, n_ff=256)
    with pytest.raises(
        ConfigError, match="speculate: self expects matrices that Q2_K shrinks to 50%, got 58%"
    ):
        InferenceEngine.from_gguf(path, num_threads=1, speculate="self")


# --- a corpus -----------------------------------------------------------------------------------------------


def test_a_corpus_is_looked_up(tmp_path: Path) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        text = engine.generate(PROMPT, **GREEDY)
    (tmp_path / "known.txt").write_text(PROMPT + text)
    for corpus in (tmp_path / "known.txt", [str(tmp_path / "known.txt")], (PROMPT + text).encode()):
        with InferenceEngine.from_gguf(demo.STORY, num_threads=1, draft_corpus=corpus) as engine:
            use_drafter(engine.model, AsManyAsMayBe())
            done = engine.stream(PROMPT, speculate="lookup", **GREEDY).result()
            assert done.text == text
            assert done.speculation is not None
            assert done.speculation.passes <= 1 + len(done.tokens) // 8
            assert drafter_of(engine, "lookup") is drafter_of(engine, "lookup")


class Fixed:
    """A corpus with one answer."""

    def __init__(self, length: int) -> None:
        self.length = length

    def draft(self, tokens: list[int], n: int, least: int) -> list[int]:
        return [99] * n if self.length >= least else []


@pytest.mark.parametrize(("length", "drafted"), [(1, [5]), (2, [5]), (3, [99])])
def test_the_longest_ending_wins_and_the_text_before_the_corpus(length: int, drafted: list[int]) -> None:
    drafter = LookupDrafter(Fixed(length))  # type: ignore[arg-type]
    serving = Serving()
    sampler = serving.request([1]).sampler
    sequence = Sequence(serving.pool, [3, 4, 5, 3, 4])
    assert drafter.propose([sequence], [DraftSampler(sampler)], [1]) == [drafted]
    alone = Sequence(serving.pool, [3, 4, 5])
    assert drafter.propose([alone], [DraftSampler(sampler)], [1]) == [[99] if length > 1 else []]


def test_a_corpus_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for corpus, reason in (
        (tmp_path / "missing", "draft_corpus: .*missing.*No such file"),
        (tmp_path / "latin", "draft_corpus: expected a text in UTF-8, got .*latin"),
        (b"\xff", "draft_corpus: expected a text in UTF-8, got a text"),
    ):
        with pytest.raises(ConfigError, match=reason):
            InferenceEngine.from_gguf(demo.STORY, num_threads=1, draft_corpus=corpus)
    with pytest.raises(ConfigError, match="draft_corpus: expected paths of text files"):
        EngineConfig(draft_corpus=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draft_corpus: speculate self looks nothing up"):
        EngineConfig(draft_corpus=b"x", speculate="self")


# --- hidden states ------------------------------------------------------------------------------------------


class Reader(Guesses):
    """Guesses, and keeps the hidden states it is shown; fails at ``fails_at``, if that comes."""

    needs_hidden = True

    def __init__(self, *args: Any, fails_at: int = -1) -> None:
        super().__init__(*args)
        self.states: list[np.ndarray] = []
        self.starts: list[int] = []
        self.fails_at = fails_at

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        if len(self.starts) == self.fails_at:
            raise RuntimeError("cannot read")
        self.starts.append(start)
        at = start - self.starts[0]
        assert 0 <= at <= len(self.states)
        self.states[at:] = list(hidden)

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        assert len(self.states) == sequences[0].cached_len - (self.starts[0] if self.starts else 0)
        return super().propose(sequences, samplers, counts)


def reading(serving: Serving, prompt: list[int], right: float = 0.6, **reader: Any) -> Recorded:
    request = serving.request(prompt, max_tokens=24, drafts=4, right=right)
    assert request.speculation is not None
    made = request.speculation.drafter
    assert isinstance(made, Guesses)
    request.speculation.drafter = Reader(prompt, made._tokens, right, made._n_vocab, **reader)
    serving.loop.add(request)
    return request


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba2", "jamba"])
def test_a_drafter_reads_the_hidden_states_of_all_tokens(name: str) -> None:
    serving = Serving(name, chunk=16)
    prompt = tokens_of(40, n_vocab_of(name))
    request = reading(serving, prompt)
    reader = request.speculation.drafter  # type: ignore[union-attr]
    assert isinstance(reader, HiddenStateDrafter)
    assert isinstance(reader, Reader)
    beside = serving.submit(tokens_of(30, n_vocab_of(name), seed=2), max_tokens=24, key=b"other")
    serving.run(request, beside)
    check_as_alone(serving, request, beside)
    serving.check_empty()
    whole = Sequence(serving.pool, [*prompt, *request.tokens])
    expected = serving.runner.forward([(whole, whole.pending)], all_logits=True, states=True)
    assert len(reader.states) >= len(prompt) + 8
    assert all(map(same_bits, reader.states, expected))
    whole.release()


def test_tokens_out_of_the_prefix_cache_are_not_shown() -> None:
    serving = Serving()
    prompt = tokens_of(40, n_vocab_of("llama"))
    first = reading(serving, prompt)
    serving.run(first)
    second = reading(serving, prompt)
    serving.run(second)
    assert first.speculation.drafter.starts[0] == 0  # type: ignore[union-attr]
    assert second.speculation.drafter.starts[0] == len(prompt) - 1  # type: ignore[union-attr]
    check_as_alone(serving, second)


@pytest.mark.parametrize("fails_at", [0, 3])
def test_a_reader_that_fails_costs_no_text(fails_at: int, caplog: pytest.LogCaptureFixture) -> None:
    serving = Serving()
    request = reading(serving, tokens_of(20, n_vocab_of("llama")), fails_at=fails_at)
    reader = request.speculation.drafter  # type: ignore[union-attr]
    with caplog.at_level(logging.ERROR, "oxillama"):
        serving.run(request)
    assert request.speculation is None
    assert f"{reader.name}: cannot draft" in caplog.text
    assert isinstance(reader, Reader)
    assert reader.n_forgotten == 1
    check_as_alone(serving, request)
    serving.check_empty()


# --- the choice ---------------------------------------------------------------------------------------------


def test_the_demo_has_a_draft() -> None:
    target = TokenizerBridge.from_gguf(demo.STORY)
    assert find_draft_model(demo.STORY, target) == demo.DRAFT  # not the adapter, which is smaller
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate="auto") as engine:
        assert isinstance(drafter_of(engine), ModelDrafter)


def test_auto_takes_the_best_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "story.gguf"
    target.write_bytes(demo.STORY.read_bytes())
    tokenizer = TokenizerBridge.from_gguf(target)

    def best() -> Drafter | None:
        with InferenceEngine.from_gguf(target, num_threads=1, speculate="auto") as engine:
            assert engine.generate(PROMPT, **GREEDY) == engine.generate(PROMPT, speculate="off", **GREEDY)
            return drafter_of(engine)

    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert isinstance(best(), LookupDrafter)
    monkeypatch.setattr(draft_models, "AUTO_SELF_BYTES", 0)
    assert isinstance(best(), LookupDrafter)  # 8.5 bits
    monkeypatch.setattr(draft_models, "AUTO_SELF_BITS", 8)
    made = best()
    assert isinstance(made, ModelDrafter)
    assert made.name == "self"
    other = write_tiny_model(tmp_path / "a smaller vocabulary.gguf")
    assert find_draft_model(target, tokenizer) == other
    assert isinstance(best(), MappedDrafter)
    same = tmp_path / "the same vocabulary.gguf"
    same.write_bytes(demo.DRAFT.read_bytes())
    with caplog.at_level(logging.INFO, "oxillama"):
        assert find_draft_model(target, tokenizer) == same  # though larger
    assert f"{tmp_path / 'broken.gguf'}: cannot draft: " in caplog.text
    monkeypatch.setattr(draft_models, "OFFERED", [lambda *of_model: None, lambda *of_model: LookupDrafter()])
    assert isinstance(best(), LookupDrafter)


def test_auto_says_why_a_file_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = write_tiny_model(tmp_path / "target.gguf", n_layers=4)
    large = write_tiny_model(tmp_path / "large.gguf", n_layers=3)
    encoder = tmp_path / "encoder.gguf"
    encoder.write_bytes(zoo.MODELS["bert"].file())
    with caplog.at_level(logging.INFO, "oxillama"):
        assert find_draft_model(target, TokenizerBridge.from_gguf(target)) is None
    most, size = target.stat().st_size // 2, large.stat().st_size
    assert f"{large}: cannot draft: expected at most {most} bytes, got {size}" in caplog.text
    assert f"{encoder}: cannot draft: " in caplog.text


def test_an_encoder_does_not_speculate() -> None:
    with pytest.raises(ConfigError, match="bert is an encoder"):
        drafters("bert").load("self")


def test_a_draft_that_cannot_be_had_is_an_error_of_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        InferenceEngine.from_gguf(demo.STORY, num_threads=1, speculate=tmp_path / "missing.gguf")
