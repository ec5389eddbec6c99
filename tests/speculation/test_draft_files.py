"""Drafters with files of their own: what they compute, and the texts that they draft for."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, LoadError, OxiLlamaError, SamplerConfig
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Output, Sequence
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.drafts.assistant import Assistant
from oxillama.models.drafts.dflash import DFlash
from oxillama.models.drafts.eagle3 import Eagle3
from oxillama.models.weights.loader import Weights
from oxillama.speculation.assistant import AssistantRunner
from oxillama.speculation.block_drafter import BlockRunner
from oxillama.speculation.draft_files import load_draft_file
from oxillama.speculation.mtp import EAGER
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.speculator import features_of
from tests.support.draft_pairs import Drafter, Stated
from tests.support.kernels import same_bits
from tests.support.noted_drafts import Noted, check_drafts, greedy_draft, submit
from tests.support.paths import SHARED
from tests.support.serving import (
    ENDS,
    AsManyAsMayBe,
    Letters,
    Serving,
    check_as_alone,
    n_vocab_of,
    sampler_of,
    use_drafter,
)
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import Running, divergence, tokens_of
from tests.support.zoo import MODELS, VOCAB

RECORDED = sorted((SHARED / "parity-2026d" / "drafters").glob("*.npz"))
GREEDY = SamplerConfig.greedy()
SEEDED = SamplerConfig(temperature=0.9, seed=5)

TWO_WINDOWS = {"attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False]}
NARROW = {"attention.sliding_window": 3, "attention.sliding_window_pattern": [False, True]}
SCALES = {"attention.scale": 0.6, "attention.value_scale": 0.7, "embedding_scale": 2.5}
TARGET, GEMMA = MODELS["qwen3"], MODELS["gemma4"]
eagle = functools.partial(Drafter, "eagle3", TARGET)
dflash = functools.partial(Drafter, "dflash", TARGET, n_layers=2)
assistant = functools.partial(Drafter, "gemma4-assistant", GEMMA, n_layers=2)
DRAFTERS: dict[str, Drafter] = {
    "eagle3": eagle("d2t", taps=(0, 1, 2)),
    "eagle3-norms": eagle("freqs", {"norm_before_fc": True, "norm_before_residual": True}),
    "eagle3-own": eagle(
        "table output", {"attention.key_length": 16, "attention.value_length": 16}, n_embd=24
    ),
    "dflash": dflash(),
    "dflash-gelu": dflash("posts scale sinks", {"hidden_activation": "gelu_pytorch_tanh"} | SCALES),
    "dflash-keys": dflash("no_v freqs table output", {"hidden_activation": "gelu", "logit_scale": 3.0}),
    "dflash-windows": dflash("d2t", TWO_WINDOWS, taps=(1, 0, 2)),
    "dflash-narrow": dflash("sinks", NARROW),
    "dflash-causal": dflash("", NARROW | {"attention.causal": True, "rope.dimension_sections": [4, 0, 0, 0]}),
    "dspark": dflash("markov confidence d2t"),
    "dspark-bonus": dflash("markov", {"sample_from_anchor": False}),
    "dflash2": dflash("selector", {"logit_scale": 0.8, "final_logit_softcapping": 3.0}),
    "dflash2-short": dflash("selector d2t posts", {"conv_kernel_size": 6, "conv_group_size": 4}, block=4),
    "assistant": assistant(n_layers=3, n_embd=24),
    "assistant-narrow": assistant("", {"attention.sliding_window": 3}, n_embd=16),
}
KINDS: dict[str, Any] = {"eagle3": Eagle3, "dflash": DFlash, "gemma4-assistant": Assistant}


def made(drafter: Drafter, target: Decoder, data: bytes | None = None) -> Any:
    """The model of a drafter."""
    file = ModelFile.open(drafter.file() if data is None else data)
    weights = Weights(file, target.kernels, 1)
    model = KINDS[drafter.kind](read_spec(file, target.spec), weights, target)
    assert not weights.unused()
    return model


def near(found: np.ndarray, wanted: np.ndarray) -> bool:
    """The same infinities, and numbers as near as float32 allows."""
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(found), finite):
        return False
    return bool(np.abs(found[finite] - wanted[finite]).max() < 1e-4 * np.abs(wanted[finite]).max())


class Seen:
    """A target and a text that it runs; ``features`` are the rows' inputs of layers."""

    def __init__(self, target: Decoder, tokens: list[int], model: Any) -> None:
        self.pool = cache_pool(target, "f32", 16)
        self.runner = Runner(target, self.pool, 1)
        self.sequence = Sequence(self.pool, tokens)
        self.runner.tapped = tuple(i for i in model.tapped if i < target.spec.n_layers)
        self.model = model

    def run(self, n: int) -> np.ndarray:
        """Runs ``n`` tokens; float32 (n, features)."""
        seen: list[np.ndarray] = []

        def hook(start: int, hidden: np.ndarray, inputs: dict[int, np.ndarray]) -> None:
            seen.append(features_of(self.model, hidden, inputs))

        self.sequence.schedule(n)
        self.runner.run([self.sequence], [Output.LAST_LOGITS], None, [hook])
        self.sequence.commit()
        return seen[0]


def followed(model: Any, kind: type[Runner] = Runner) -> tuple[Any, Sequence]:
    pool = cache_pool(model, "f32", 16)
    return kind(model, pool, 1), Sequence(pool)


def run_rows(
    runner: Any, sequence: Sequence, tokens: list[int], given: np.ndarray | None, observed: bool
) -> np.ndarray:
    """States of rows with these tokens, float32 (n, n_embd)."""
    sequence.tokens += tokens
    runner.model.inputs.observed = observed
    if given is not None:
        runner.model.inputs.hidden = np.ascontiguousarray(given)
    found: np.ndarray = runner.forward([(sequence, len(tokens))], all_logits=True, states=True)
    return found


# --- what they compute -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name.startswith("eagle3")])
def test_eagle3_is_as_stated(name: str) -> None:
    drafter, tokens = DRAFTERS[name], tokens_of(20, VOCAB, seed=3)
    target = Running(TARGET.file()).model
    model, stated = made(drafter, target), Stated(drafter, TARGET.tensors())
    features = Seen(target, tokens[:19], model).run(19)
    runner, rows = followed(model)
    states = run_rows(runner, rows, tokens[1:], features, observed=True)
    fused = stated.fused(features.astype(np.float64))
    wanted, logits = stated.eagle(tokens[1:], fused)
    assert near(states, wanted)
    assert near(runner.logits(states), logits)
    again = run_rows(runner, rows, [7], states[-1:].copy(), observed=False)
    wanted, logits = stated.eagle([*tokens[1:], 7], np.concatenate([fused, wanted[-1:]]))
    assert near(again, wanted[-1:])
    assert near(runner.logits(again), logits[-1:])


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name.startswith("d")])
def test_dflash_is_as_stated(name: str) -> None:
    drafter, tokens = DRAFTERS[name], tokens_of(20, VOCAB, seed=4)
    target = Running(TARGET.file()).model
    model, stated = made(drafter, target), Stated(drafter, TARGET.tensors())
    seen, (runner, rows) = Seen(target, tokens, model), followed(model, BlockRunner)
    features = np.zeros((0, 0), np.float32)
    for n in (13, 6):
        part = seen.run(n)
        features = np.concatenate([features, part]) if len(features) else part
        run_rows(runner, rows, tokens[len(features) - n : len(features)], part, observed=True)
        anchor = tokens[len(features)]
        block = [anchor, *[model.mask] * (model.block_size - 1)]
        states = run_rows(runner, rows, block, None, observed=False)
        rows.truncate(len(features))
        wanted, logits = stated.block(features.astype(np.float64), anchor)
        assert near(states, wanted)
        assert near(runner.logits(states), logits)
        found, first = runner.logits(states), model.choice.first
        for i, (row, chance) in enumerate(stated.chosen(wanted, logits, anchor), first):
            chosen, chances = runner.chosen(found[i : i + 1], states[i : i + 1], [anchor])
            assert near(chosen[0], row)
            assert (chances is None) == np.isnan(chance)
            assert chances is None or abs(chances[0] - chance) < 1e-5
            anchor = int(row.argmax())
        assert i == model.block_size - 1


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name.startswith("assistant")])
def test_an_assistant_is_as_stated(name: str) -> None:
    drafter, tokens = DRAFTERS[name], tokens_of(20, VOCAB, seed=4)
    target = Running(GEMMA.file()).model
    model, stated, at = made(drafter, target), Stated(drafter, GEMMA.tensors()), target.spec.n_layers
    pool = cache_pool(target, "f32", 16)
    runner, text = Runner(target, pool, 1), Sequence(pool, tokens[:19])
    h = runner.forward([(text, 19)], states=True)
    kv = {}
    for windowed in (False, True):
        layer = at - 1 - windowed
        source = target.spec.layers[layer].kv_from
        layer = layer if source is None else source
        kv[windowed] = [np.array(list(read(layer, 19))) for read in (text.kv.keys, text.kv.values)]
    beside, token, wanted = AssistantRunner(model, pool, 1), tokens[19], h[0].astype(np.float64)
    for _ in range(3):
        normed = beside.step([text], [token], h)
        logits, h = beside.logits(normed), beside.next_states(normed)
        embeddings = GEMMA.tensors()["token_embd.weight"].astype(np.float64)
        of_logits, wanted = stated.assistant(token, wanted, kv, embeddings, 1e4)
        assert near(logits[0], of_logits)
        assert near(h[0], wanted)
        token = int(of_logits.argmax())


def test_taps_change_no_bit_and_are_the_inputs_of_layers() -> None:
    target, tokens = Running(TARGET.file()), tokens_of(20, VOCAB, seed=4)
    model = made(DRAFTERS["dflash-windows"], target.model)
    plain = Runner(target.model, target.pool, 1)
    text = Sequence(target.pool, tokens)
    wanted = plain.forward([(text, 20)], all_logits=True, states=True)
    seen = Seen(target.model, tokens, model)
    features = np.concatenate([seen.run(n) for n in (7, 12, 1)])
    d = TARGET.n_embd
    assert same_bits(features[:, 2 * d :], wanted)  # behind the last norm
    assert same_bits(features[:, d : 2 * d], TARGET.tensors()["token_embd.weight"][tokens])
    once = Decoder(replace(target.model.spec, layers=target.model.spec.layers[:1]), target.weights)
    once.output_norm = None
    pool = cache_pool(once, "f32", 16)
    first = Runner(once, pool, 1).forward([(Sequence(pool, tokens), 20)], all_logits=True, states=True)
    assert same_bits(features[:, :d], first)


# --- the numbers of llama.cpp ------------------------------------------------------------------------------


def check_logits(wanted: np.ndarray, found: np.ndarray) -> None:
    """Mean KL below 1e-4 and the same best token everywhere."""
    assert np.array_equal(np.isfinite(wanted), np.isfinite(found))
    known = np.isfinite(wanted[0])
    assert divergence(wanted[:, known], found[:, known]) < 1e-4
    assert np.array_equal(wanted.argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RECORDED])
def test_logits_are_those_of_llama_cpp(path: Path) -> None:
    recorded, target = np.load(path), Running((path.parent / f"{path.stem}-target.gguf").read_bytes())
    file, tokens = ModelFile.open(path.with_suffix(".gguf")), recorded["tokens"].tolist()
    spec = read_spec(file, target.model.spec)
    kind = spec.family.name
    model = KINDS[kind](spec, Weights(file, target.model.kernels, 1), target.model)
    assert divergence(recorded["target_logits"], target.logits(tokens)) < 1e-4
    seen = Seen(target.model, tokens, model)
    if kind == "eagle3":
        features = seen.run(24)
        assert near(features, recorded["features"])
        runner, rows = followed(model)
        states = run_rows(runner, rows, tokens[1:25], features, observed=True)
        check_logits(recorded["draft_logits"], runner.logits(states))
        chain = [int(runner.logits(states)[-1].argmax())]
        for wanted in recorded["chain_logits"]:
            states = run_rows(runner, rows, chain[-1:], states[-1:], observed=False)
            check_logits(wanted[None], runner.logits(states))
            chain.append(int(wanted.argmax()))
        assert chain == recorded["chain_tokens"][:, 0].tolist()
        return
    done = 0
    for n, part in ((24, "draft"), (4, "draft2")):
        first = int(recorded[f"{part}_first"].item())
        if kind == "gemma4-assistant":
            seen.run(n)
            beside, h = AssistantRunner(model, seen.pool, 1), recorded[f"{part}_state"]
            for wanted, token in zip(recorded[f"{part}_logits"], recorded[f"{part}_tokens"][:, 0]):
                normed = beside.step([seen.sequence], [first], h)
                check_logits(wanted[None], beside.logits(normed))
                h, first = beside.next_states(normed), int(token)
            continue
        features = seen.run(n)
        assert near(features, recorded["features" if done == 0 else "features2"])
        if done == 0:
            runner, rows = followed(model, BlockRunner)
        run_rows(runner, rows, tokens[done : done + n], features, observed=True)
        done += n
        block = [first, *[model.mask] * (model.block_size - 1)]
        states = run_rows(runner, rows, block, None, observed=False)
        rows.truncate(done)
        logits, found = runner.logits(states), []
        for i in range(model.choice.first, model.block_size):
            row, chances = runner.chosen(logits[i : i + 1], states[i : i + 1], [first])
            found.append(row[0])
            first = int(row.argmax())
            if chances is not None:
                assert abs(chances[0] - recorded[f"{part}_confidence"][i, 0]) < 1e-5
        if f"{part}_tokens" in recorded:
            assert [int(row.argmax()) for row in found] == recorded[f"{part}_tokens"][:, 0].tolist()
            continue
        check_logits(recorded[f"{part}_logits"][model.choice.first :], np.array(found))


# --- texts -------------------------------------------------------------------------------------------------

SERVED = (
    "eagle3",
    "eagle3-own",
    "dflash",
    "dflash-windows",
    "dspark",
    "dspark-bonus",
    "dflash2",
    "assistant",
)


class Tokenizer(Letters):
    """Letters, as many as the target has tokens."""

    n_vocab = VOCAB


def serve(name: str, **options: Any) -> tuple[Serving, Noted]:
    """An engine core over a model of the zoo, and a drafter for it."""
    drafter = DRAFTERS[name]
    serving = Serving(drafter.target.architecture, **options)
    serving.runner.tapped = ()
    file = ModelFile.open(drafter.file())
    config = EngineConfig(kv_type=serving.kv_type, num_threads=1)
    letters: Any = Tokenizer()
    return serving, Noted(load_draft_file(name, file, serving.runner, letters, config))


@pytest.mark.parametrize("name", SERVED)
def test_drafts_follow_from_the_text_alone(name: str) -> None:
    check_drafts(*serve(name, chunk=16), EAGER + 20)


@pytest.mark.parametrize("name", ["eagle3", "dspark", "dflash2", "assistant"])
def test_sampled_texts_and_other_rules(name: str) -> None:
    """Sampled, behind known pages, and while pages are short: the texts are the plain ones."""
    serving, drafter = serve(name, max_pages=24, cached_pages=8, states=0)
    n_vocab = n_vocab_of(serving.name)
    for seed in (1, 1, 2):
        prompts = [tokens_of(36, n_vocab, seed=seed), tokens_of(50, n_vocab, seed=seed + 5), [seed, 5, 6]]
        requests = [submit(serving, drafter, prompt, sampler=SEEDED) for prompt in prompts]
        serving.run(*requests)
        check_as_alone(serving, *requests)
    assert any(found for _, found in drafter.notes)
    serving.check_empty()


@pytest.mark.parametrize("name", ["eagle3-norms", "dflash", "dspark-bonus", "dflash2"])
def test_drafts_are_as_stated(name: str) -> None:
    """All rows of a text count, the first one, too; a second draft is the same."""
    drafter, (serving, noted) = DRAFTERS[name], serve(name, kv_type="f32")
    tokens = tokens_of(6, VOCAB, seed=3)
    width = len(drafter.taps) * TARGET.n_embd
    features = np.random.default_rng(1).standard_normal((5, width)).astype(np.float32)
    stated, wanted = Stated(drafter, TARGET.tensors()), []
    if drafter.kind == "dflash":
        states, logits = stated.block(features.astype(np.float64), tokens[-1])
        wanted = [int(row.argmax()) for row, _ in stated.chosen(states, logits, tokens[-1])]
    else:
        states = stated.fused(features.astype(np.float64))
        for _ in range(4):
            found, logits = stated.eagle([*tokens[1:], *wanted], states)
            states = np.concatenate([states, found[-1:]])
            wanted.append(int(logits[-1].argmax()))
    wanted = wanted[: wanted.index(ENDS) + 1] if ENDS in wanted else wanted
    assert len(wanted) > 1
    text = Sequence(serving.pool, tokens)
    noted.observe(text, 0, features[:2])
    noted.observe(text, 2, features[2:])
    for _ in range(2):
        assert greedy_draft(serving.name, noted, text, 4) == wanted[:4]
    noted.forget(text)


def test_estimates_of_the_file_decide_whether_a_further_token_pays() -> None:
    serving, noted = serve("dspark")
    text = Sequence(serving.pool, tokens_of(12, VOCAB, seed=3))
    seen: list[float] = []

    def pays(chance: float) -> bool:
        seen.append(chance)
        return len(seen) < 3

    features = np.zeros((11, 2 * TARGET.n_embd), np.float32) + np.arange(11, dtype=np.float32)[:, None] / 9
    noted.observe(text, 0, features)
    sampler = DraftSampler(sampler_of(serving.name, GREEDY), None, pays)
    assert len(noted.propose([text], [sampler], [4])[0]) == 3
    stated = Stated(DRAFTERS["dspark"], TARGET.tensors())
    states, logits = stated.block(features.astype(np.float64), text.tokens[-1])
    wanted = [chance for _, chance in stated.chosen(states, logits, text.tokens[-1])]
    assert np.allclose(seen, wanted[:3], atol=1e-3)  # keys and values are halves
    noted.forget(text)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RECORDED])
def test_texts_of_shared_pairs_are_the_plain_ones(path: Path) -> None:
    target = path.parent / f"{path.stem}-target.gguf"
    plain, drafting = (
        InferenceEngine.from_gguf(target),
        InferenceEngine.from_gguf(target, speculate=path.with_suffix(".gguf")),
    )
    with plain, drafting:
        use_drafter(drafting.model, AsManyAsMayBe())
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            wanted = plain.stream("hello there", max_tokens=30, **options).result()
            found = drafting.stream("hello there", max_tokens=30, **options).result()
            assert found.tokens == wanted.tokens
            assert found.speculation is not None
            assert found.speculation.drafted > 0


@pytest.mark.parametrize("drafter", [eagle(taps=(2, 0, 1)), dflash()], ids=["eagle3", "dflash"])
def test_sessions_snapshots_and_batches_draft(drafter: Drafter, tmp_path: Path) -> None:
    """Their texts are those of an engine without drafts."""
    model, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    write_tiny_model(model, n_embd=32)
    draft.write_bytes(drafter.file())
    plain = InferenceEngine.from_gguf(model, num_threads=1)
    one, other = (InferenceEngine.from_gguf(model, num_threads=1, speculate=draft) for _ in range(2))
    for engine in (one, other):
        use_drafter(engine.model, AsManyAsMayBe())
    prompts = ["once upon a time there was a little fox. " * 3, "hello world", "the fox said"] * 2
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.8, "seed": 7}
    texts = [plain.generate(prompt, **options) for prompt in prompts]
    streams = [one.stream(prompt, **options) for prompt in prompts]
    assert [stream.result().text for stream in streams] == texts
    assert all(stream.speculation.drafted for stream in streams)
    spoken = []
    for engine in (plain, one):
        with engine.session() as session:
            session.append(prompts[0])
            first = session.generate(**options)
            session.rewind(40)
            session.append("the fox")
            fork = session.fork()
            spoken.append([first, session.generate(**options), fork.generate(**options)])
            fork.close()
    assert spoken[0] == spoken[1]
    going = one.stream(prompts[0], window=1, **options)
    for _ in range(6):
        next(going)
    resumed = other.resume_generation(going.snapshot())
    assert resumed.result().text == texts[0]
    assert resumed.speculation is not None and resumed.speculation.drafted > 0
    for engine in (plain, one, other):
        engine.model.call(engine.model.loop.check_integrity)
        engine.close()


# --- files that do not fit ---------------------------------------------------------------------------------

WRONG: dict[str, tuple[Drafter, str]] = {
    "taps": (eagle(taps=(0, 3)), "eagle3.target_layers"),
    "width": (eagle("", {"target_hidden_size": 48}), "eagle3.target_hidden_size"),
    "layers": (eagle("", {"block_count": 2}), "eagle3.block_count"),
    "embedding": (eagle("output", n_embd=24), "eagle3.embedding_length"),
    "output": (eagle("table", n_embd=24), "eagle3.embedding_length"),
    "narrow": (dflash("table output", n_embd=24), "dflash.embedding_length"),
    "block": (dflash("", {"block_size": 1}), "dflash.block_size"),
    "activation": (dflash("", {"hidden_activation": "relu"}), "dflash.hidden_activation"),
    "stages": (dflash("", {"hyper_connection.count": 4}), "dflash.hyper_connection.count"),
    "sections": (dflash("", {"rope.dimension_sections": [2, 2, 0, 0]}), "dflash.rope.dimension_sections"),
    "pattern": (dflash("", {"attention.sliding_window": 4}), "dflash.attention.sliding_window_pattern"),
    "groups": (dflash("selector", {"conv_group_size": 5}), "dflash.conv_group_size"),
    "top": (dflash("selector", {"selector_top_k": 99}), "dflash.selector_top_k"),
    "assistant-width": (assistant("", {"embedding_length_out": 48}), "embedding_length_out"),
    "assistant-heads": (assistant("", {"attention.head_count_kv": 1}), "attention.head_count_kv"),
    "assistant-window": (assistant("", {"attention.sliding_window": 99}), "attention.sliding_window"),
    "assistant-target": (replace(assistant(), target=GEMMA), "general.architecture"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_does_not_fit_names_the_field(name: str) -> None:
    drafter, field = WRONG[name]
    target = Running(MODELS["gemma3"].file() if name == "assistant-target" else drafter.target.file()).model
    with pytest.raises(LoadError, match=field):
        made(drafter, target)


def test_tensors_that_do_not_fit_are_named() -> None:
    drafter, target = DRAFTERS["eagle3"], Running(TARGET.file()).model
    tensors = drafter.tensors()
    for name, values in {
        "d2t": tensors["d2t"] + VOCAB,
        "output.weight": tensors["output.weight"][:-1],
        "token_embd.weight": np.zeros((VOCAB - 1, 32), np.float32),
        "fc.weight": tensors["fc.weight"][:, 1:],
    }.items():
        with pytest.raises(LoadError, match=name):
            made(drafter, target, drafter.file(tensors | {name: values}))
    del tensors["output.weight"]
    with pytest.raises(LoadError, match="d2t"):
        made(drafter, target, drafter.file(tensors))


def test_a_drafter_is_no_model_and_no_pipeline_has_one(tmp_path: Path) -> None:
    data = DRAFTERS["dflash"].file()
    with pytest.raises(LoadError, match="drafts for a model"):
        read_spec(ModelFile.open(data))
    serving, letters = Serving("qwen3", borders=(1,)), Tokenizer()
    with pytest.raises(ConfigError, match="pipeline"):
        load_draft_file("x", ModelFile.open(data), serving.runner, letters, EngineConfig())  # type: ignore[arg-type]
    write_tiny_model(tmp_path / "target.gguf")
    (tmp_path / "draft.gguf").write_bytes(data)
    with pytest.raises(OxiLlamaError, match="embedding_length"):
        InferenceEngine.from_gguf(tmp_path / "target.gguf", speculate=tmp_path / "draft.gguf")
