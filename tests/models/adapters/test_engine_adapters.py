"""Adapters of requests: each has its own, and pages, sessions and beams know whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oxillama import BeamSearchConfig, LoadedLora, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.sessions.session import KvSnapshot
from tests.support.adapters import adapter_file, random_pair

GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PROMPT = demo.PROMPTS[0] + " Tom, who lived by the sea"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another adapter of the story model, and one that "<sea>" activates."""
    rng = np.random.default_rng(5)
    with ModelFile.open(demo.STORY) as file:
        names = [name for name in file.tensors if name.endswith(("attn_v.weight", "ffn_down.weight"))]
        pairs = {
            name: random_pair(name, rng.normal(0, 0.02, file.tensors[name].shape[::-1]), 4, rng)
            for name in names
        }
    path = tmp_path_factory.mktemp("adapters") / "other.gguf"
    path.write_bytes(adapter_file("llama", pairs, alpha=4.0))
    return path


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        yield engine


def texts_alone(adapters: list[object], **options: object) -> list[str]:
    found = []
    for stack in adapters:
        with InferenceEngine.from_gguf(demo.STORY, prefix_cache_bytes=0) as engine:
            found.append(engine.generate(PROMPT, max_tokens=40, adapters=stack, **GREEDY, **options))  # type: ignore[call-overload]
    return found


def test_one_batch_with_different_adapters(engine: InferenceEngine, other: Path) -> None:
    stacks: list[object] = [
        [],
        demo.PIRATE,
        (demo.PIRATE, 0.5),
        other,
        [(demo.PIRATE, 1.0), (other, -0.5)],
        {str(other): 3.0, str(demo.PIRATE): 1.0},
    ]
    started = [engine.stream(PROMPT, max_tokens=40, adapters=stack, **GREEDY) for stack in stacks * 2]
    texts = [generation.result().text for generation in started]
    assert texts == texts_alone(stacks) * 2
    assert len(set(texts)) == len(stacks)
    engine.model.check_integrity()


def test_a_scale_that_is_an_integer_is_a_number(engine: InferenceEngine) -> None:
    text = engine.generate(PROMPT, max_tokens=10, adapters=(demo.PIRATE, 2.0), **GREEDY)
    assert engine.generate(PROMPT, max_tokens=10, adapters=(demo.PIRATE, 2), **GREEDY) == text
    engine.adapters.stack.push(engine.load_adapter(demo.PIRATE), 2)
    assert engine.generate(PROMPT, max_tokens=10, **GREEDY) == text


def test_pages_of_one_adapter_never_answer_another(engine: InferenceEngine, other: Path) -> None:
    def cached(adapters: object) -> int:
        generation = engine.stream(PROMPT, max_tokens=2, adapters=adapters, **GREEDY)
        generation.result()
        return generation.usage.cached_tokens

    stacks: list[object] = [
        [], demo.PIRATE, (demo.PIRATE, 0.5), other, [demo.PIRATE, other], [other, demo.PIRATE],
    ]  # fmt: skip
    assert [cached(stack) for stack in stacks] == [0] * len(stacks)
    assert all(cached(stack) > 16 for stack in stacks)
    assert cached((demo.PIRATE, 0.0)) > 16  # an adapter of scale 0 is none


def test_adapters_are_swapped_while_texts_run(engine: InferenceEngine) -> None:
    plain, pirate = texts_alone([[], demo.PIRATE])
    first = engine.stream(PROMPT, max_tokens=40, window=1, **GREEDY)
    next(first)
    engine.push_lora(demo.PIRATE)
    assert engine.adapters.stack.scales == [1.0]
    assert engine.generate(PROMPT, max_tokens=40, **GREEDY) == pirate
    assert engine.generate(PROMPT, max_tokens=40, adapters=[], **GREEDY) == plain
    assert first.result().text == plain
    lora = engine.pop_lora()
    assert lora is not None
    assert engine.generate(PROMPT, max_tokens=40, **GREEDY) == plain
    engine.unload_adapter(lora)
    assert engine.generate(PROMPT, max_tokens=40, adapters=lora, **GREEDY) == pirate
    assert engine.pop_lora() is None


def test_the_engines_own_adapters() -> None:
    with InferenceEngine.from_gguf(demo.STORY, adapters=(demo.PIRATE, 0.5)) as engine:
        assert engine.generate(PROMPT, max_tokens=40, **GREEDY) == texts_alone([(demo.PIRATE, 0.5)])[0]
        assert engine.adapters.stack.scales == [0.5]
        engine.clear_loras()
        assert engine.generate(PROMPT, max_tokens=40, **GREEDY) == texts_alone([[]])[0]


def test_a_changed_file_is_loaded_again(engine: InferenceEngine, tmp_path: Path, other: Path) -> None:
    path = tmp_path / "adapter.gguf"
    path.write_bytes(demo.PIRATE.read_bytes())
    first = engine.load_adapter(path)
    assert engine.load_adapter(path) is engine.adapters.load(path) is engine.adapters.load(str(path)) is first
    replaced = tmp_path / "new"
    replaced.write_bytes(other.read_bytes())
    replaced.replace(path)
    assert engine.load_adapter(path).fingerprint == LoadedLora.load(other).fingerprint != first.fingerprint
    assert engine.generate(PROMPT, max_tokens=40, adapters=path, **GREEDY) == texts_alone([other])[0]


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (3, "adapters: expected paths or adapters"),
        ("", "adapters: expected the path"),
        ([("a.gguf", "1")], "adapters: expected paths or adapters"),
        ([("a.gguf", float("nan"))], "adapters: expected"),
        ({"a.gguf": True}, "adapters: expected"),
    ],
)
def test_options_that_are_no_adapters(engine: InferenceEngine, adapters: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.generate(PROMPT, adapters=adapters)


def test_an_adapter_that_does_not_fit_leaves_the_engine_as_it_is(engine: InferenceEngine) -> None:
    rng = np.random.default_rng(0)
    wrong = LoadedLora.load(
        adapter_file("llama", {"blk.0.attn_q.weight": random_pair("x", np.ones((8, 8)), 2, rng)})
    )
    with pytest.raises(
        LoadError, match=r"blk\.0\.attn_q\.weight\.lora_a: expected shape \(256, 2\), got \(8, 2\)"
    ):
        engine.push_lora(wrong)
    assert len(engine.adapters.stack) == 0
    assert engine.generate(PROMPT, max_tokens=40, **GREEDY) == texts_alone([[]])[0]


def test_sessions_keep_their_adapters(engine: InferenceEngine, other: Path) -> None:
    with engine.session(adapters=demo.PIRATE) as session:
        session.prefill(PROMPT)
        fork = session.fork()
        text = session.generate(max_tokens=40, **GREEDY)
        assert text == fork.generate(max_tokens=40, adapters=demo.PIRATE, **GREEDY)
        assert text == texts_alone([demo.PIRATE])[0]
        with pytest.raises(ConfigError, match="adapters: expected those of the session"):
            session.generate(adapters=other)
        taken: KvSnapshot = session.kv_snapshot()
        with engine.session() as plain, pytest.raises(ConfigError, match="adapters of the session"):
            plain.kv_restore(taken)
        with engine.session(adapters=demo.PIRATE) as again:
            again.kv_restore(taken)
            assert again.generate(max_tokens=10, **GREEDY) == session.generate(max_tokens=10, **GREEDY)
        fork.close()
    before = engine.prefill(engine.tokenize(PROMPT))
    engine.push_lora(demo.PIRATE)
    assert engine.kv_cache_seq_len
    after = engine.prefill(engine.tokenize(PROMPT))
    assert not np.array_equal(before, after)
    assert engine.kv_cache_seq_len == len(engine.tokenize(PROMPT))


def test_beams_embeddings_and_prefixes_take_adapters(engine: InferenceEngine) -> None:
    config = BeamSearchConfig(beam_width=1, max_new_tokens=12)
    (best,) = engine.beam_search(PROMPT, config, adapters=demo.PIRATE)
    started = engine.stream(PROMPT, max_tokens=12, adapters=demo.PIRATE, **GREEDY)
    assert list(best.tokens) == started.result().tokens
    assert not np.array_equal(engine.embed(PROMPT), engine.embed(PROMPT, adapters=demo.PIRATE))
    states = engine.hidden_states(PROMPT, adapters=demo.PIRATE)
    assert np.array_equal(states[-1], engine.embed(PROMPT, adapters=demo.PIRATE, pooling="last"))
    pinned = engine.prime_with_prefix(PROMPT, adapters=demo.PIRATE)
    assert pinned.n_tokens == len(engine.tokenize(PROMPT))
    pinned.release()


class TestActivatedAdapters:
    """An adapter that applies from the last of its invocations on."""

    INVOCATION = " by the sea"

    @pytest.fixture
    def activated(self, engine: InferenceEngine, other: Path, tmp_path: Path) -> Path:
        tokens = engine.tokenize(self.INVOCATION, add_special=False)
        lora = LoadedLora.load(other)
        pairs = {name: (lora.values(pair.a), lora.values(pair.b)) for name, pair in lora.pairs.items()}
        path = tmp_path / "activated.gguf"
        path.write_bytes(adapter_file("llama", pairs, alpha=4.0, invocation_tokens=tokens))
        return path

    def test_the_pages_before_it_are_those_of_the_model(
        self, engine: InferenceEngine, activated: Path
    ) -> None:
        beginning = engine.tokenize("Once upon a time, there was a little fox named Tom. " * 4)
        prompt = beginning + engine.tokenize(self.INVOCATION + " and the red kite", add_special=False)
        plain = engine.stream(beginning, max_tokens=1, **GREEDY)
        plain.result()
        adapted = engine.stream(prompt, max_tokens=30, adapters=activated, **GREEDY)
        text = adapted.result().text
        assert adapted.usage.cached_tokens >= len(beginning) - 1
        with InferenceEngine.from_gguf(demo.STORY, prefix_cache_bytes=0) as fresh:
            assert fresh.generate(prompt, max_tokens=30, adapters=activated, **GREEDY) == text
            assert fresh.generate(prompt, max_tokens=30, **GREEDY) != text
        again = engine.stream(prompt, max_tokens=30, adapters=activated, **GREEDY)
        assert again.result().text == text
        assert again.usage.cached_tokens == len(prompt) - 1
        engine.model.check_integrity()

    def test_without_its_invocation_it_does_not_apply(
        self, engine: InferenceEngine, activated: Path, other: Path
    ) -> None:
        prompt = demo.PROMPTS[4]
        plain = engine.generate(prompt, max_tokens=30, **GREEDY)
        assert engine.generate(prompt, max_tokens=30, adapters=activated, **GREEDY) == plain
        assert engine.generate(prompt, max_tokens=30, adapters=other, **GREEDY) != plain

    def test_it_applies_to_every_token_from_there_on(
        self, engine: InferenceEngine, activated: Path, other: Path
    ) -> None:
        """An invocation at the start of the prompt makes it an ordinary adapter."""
        prompt = engine.tokenize(self.INVOCATION + " lived a fox", add_special=False)
        logits = []
        for lora in (activated, other):
            generation = engine.stream(prompt, max_tokens=1, adapters=lora, keep_logits=True, **GREEDY)
            generation.result()
            logits.append(generation.logits)
        assert np.array_equal(*logits)

    def test_a_session_has_no_prompt_that_activates(self, engine: InferenceEngine, activated: Path) -> None:
        with pytest.raises(ConfigError, match=r"adapters: .* is activated by a prompt, a session has none"):
            engine.session(adapters=activated)
