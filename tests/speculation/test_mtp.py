"""Drafts of blocks for next-token prediction: their logits, and the texts that they draft for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence as Listed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import SamplerConfig
from oxillama._kernels import load
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Output, Sequence
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.next_token import block_layer, load_next_token_head
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import STREAMS
from oxillama.reference import connections, gated_streams
from oxillama.reference.decoder import ReferenceModel
from oxillama.reference.products import float_products
from oxillama.reference.rows import norm
from oxillama.speculation.mtp import EAGER, RECENT, offer_next_token
from tests.support.kernels import PRESENT, same_bits
from tests.support.noted_drafts import Noted, check_drafts, drafted, greedy_draft, submit
from tests.support.paths import SHARED
from tests.support.serving import Letters, Serving, check_as_alone, n_vocab_of
from tests.support.spread import each
from tests.support.tiny_models import Running, divergence, tokens_of
from tests.support.zoo import MODELS, VOCAB

RECORDED = sorted(
    [
        *(SHARED / "parity-2026").glob("*-mtp.npz"),
        *(SHARED / "parity-2026c").glob("*-draft.npz"),
    ]
)
NEW = ("qwen4exp", "deepseek4", "glm5-next", "bailingmoe3")
NAMES = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "hy_v3", *NEW)
COPIED = {"deepseek4": 1, "bailingmoe3": 1}
"""The layer of which the block is a copy, where it is not the last one."""
GREEDY = SamplerConfig.greedy()
ENDS_OF = ("norm", "down", "up")


def drafting(name: str, **more: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    """A file of the zoo's model with a block behind its layers, and its tensors: a layer once more.

    ``more`` are further keys.
    """
    model, rng = MODELS[name], np.random.default_rng(7)
    tensors, end, d = model.tensors(), model.n_layers, model.n_embd
    copied = f"blk.{COPIED.get(name, end - 1)}."
    last = {n: values for n, values in tensors.items() if n.startswith(copied)}
    if name == "glm5-next":  # its block has no streams
        last = {n: values for n, values in last.items() if ".hc_" not in n}
    tensors |= {f"blk.{end}.{n.split('.', 2)[2]}": values for n, values in last.items()}
    norms = {"nextn.enorm": d, "nextn.hnorm": d, "nextn.shared_head_norm": d}
    if name == "bailingmoe3":
        norms = {"nextn.enorm": d, "nextn.hnorm": d, "layer_output_norm": d}
    if name == "qwen4exp":
        wide = len(tensors["output_hc_norm.weight"])
        norms = {"nextn.enorm": d, "nextn.hnorm": wide, "nextn.hc_head_norm": wide}
        for part in ("down", "up"):
            values = tensors[f"output_hc_{part}.weight"]
            tensors[f"blk.{end}.nextn.hc_head_{part}.weight"] = values[::-1, ::-1].copy()
    for part, width in norms.items():
        tensors[f"blk.{end}.{part}.weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
    projection = rng.standard_normal((d, 2 * d)) * (2 * d) ** -0.5
    tensors[f"blk.{end}.nextn.eh_proj.weight"] = projection.astype(np.float32)
    keys: dict[str, Any] = {"block_count": ("u32", end + 1), "nextn_predict_layers": ("u32", 1)} | more
    return replace(model, keys=model.keys | keys).file_of(tensors), tensors


def observed(runner: Runner, sequence: Sequence, n: int) -> np.ndarray:
    """What a drafter sees of the next tokens, float32 (n, width): their states, or what the runner taps."""
    seen: list[np.ndarray] = []

    def hook(start: int, hidden: np.ndarray, inputs: Mapping[int, np.ndarray]) -> None:
        seen.append(inputs.get(STREAMS, hidden))

    sequence.schedule(n)
    runner.run([sequence], [Output.LAST_HIDDEN], None, [hook])
    sequence.commit()
    return seen[0]


class Head:
    """The block of a file, run on its own; ``states`` are those of the model that it reads."""

    def __init__(self, data: bytes, tokens: list[int], target: str = PRESENT[0], n_threads: int = 1) -> None:
        running = Running(data, target, n_threads)
        weights = Weights(running.weights.file, running.model.kernels, n_threads)
        found = load_next_token_head(running.model.spec, weights, running.model)
        assert found is not None
        self.model, running.runner.tapped = found, found.tapped
        self.states = observed(running.runner, Sequence(running.pool, tokens), len(tokens))
        pool = cache_pool(found, "f32", 16)
        self.runner, self.sequence = Runner(found, pool, n_threads), Sequence(pool)

    def run(self, tokens: list[int], given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Normed states and logits after each of the next tokens."""
        self.sequence.tokens += tokens
        self.model.inputs.hidden = given
        states = self.runner.forward([(self.sequence, len(tokens))], all_logits=True, states=True)
        return states, self.runner.logits(states)

    def run_all(self, tokens: list[int], chunk: int = 1000) -> tuple[np.ndarray, np.ndarray]:
        """The same for a text, each token with the model's state of the one before."""
        given = np.concatenate([np.zeros((1, self.states.shape[1]), np.float32), self.states[:-1]])
        parts = [slice(at, at + chunk) for at in range(0, len(tokens), chunk)]
        states, logits = zip(*(self.run(tokens[part], given[part]) for part in parts))
        return np.concatenate(states), np.concatenate(logits)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RECORDED])
def test_logits_are_those_of_llama_cpp(path: Path) -> None:
    with np.load(path) as recorded:
        tokens, wanted = recorded["tokens"].tolist(), recorded["draft_logits"]
        following, second = int(recorded["draft_next"]), recorded["draft2_logits"]
    head = Head(path.with_suffix(".gguf").read_bytes(), tokens)
    states, logits = head.run_all(tokens)
    assert divergence(wanted, logits) < 1e-4
    assert logits[-1].argmax() == following
    _, further = head.run([following], states[-1:].copy())
    assert np.abs(further[0] - second).max() < 1e-4 * np.abs(second).max()


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_reference(name: str) -> None:
    data, tensors = drafting(name)
    tokens, end = tokens_of(20, VOCAB, seed=3), MODELS[name].n_layers
    own = {f"output_hc_{part}.weight": f"blk.{end}.nextn.hc_head_{part}.weight" for part in ENDS_OF}
    ends = {old: tensors[new] for old, new in own.items() if new in tensors}  # the block's, not the model's
    stated = MODELS[name].file_of(MODELS[name].tensors() | ends)
    reference = ReferenceModel(ModelFile.open(stated), kv_type="f32")
    source, copied = reference.source, COPIED.get(name, end - 1)

    def normed(part: str, x: np.ndarray) -> np.ndarray:
        return norm(x, reference.eps, tensors[f"blk.{end}.{part}.weight"].reshape(-1, x.shape[-1]).squeeze())

    states, is_streamed = reference.hidden_states(np.array(tokens)), name in ("qwen4exp", "deepseek4")
    if is_streamed:
        states = connections.begin(source, source.embeddings("token_embd.weight", np.array(tokens)))
        for i in range(end):
            states = reference.whole_layer(i, states)
    given = normed("nextn.hnorm", np.concatenate([np.zeros_like(states[:1]), states[:-1]]))
    embedded = normed("nextn.enorm", source.embeddings("token_embd.weight", np.array(tokens)))
    embedded = np.repeat(embedded[:, None], given.shape[1], axis=1) if is_streamed else embedded
    both = np.concatenate([embedded, given], axis=-1)
    y = float_products(tensors[f"blk.{end}.nextn.eh_proj.weight"], both.reshape(-1, both.shape[-1]))
    if is_streamed:
        y = reference.whole_layer(copied, y.reshape(given.shape))
        ended = gated_streams.read(source, "output_hc", y, reference.eps)[0] if ends else None
        y = connections.end(source, y, reference.eps) if ended is None else ended
    else:
        y = reference.layer(copied, y)
    last = {"qwen4exp": "", "bailingmoe3": "layer_output_norm"}.get(name, "nextn.shared_head_norm")
    wanted = source.linear("output", normed(last, y) if last else y)
    head = Head(data, tokens)
    states, logits = head.run_all(tokens)
    assert same_bits(logits, wanted)
    for chunk, target, n_threads in ((7, PRESENT[0], 2), *((30, other, 1) for other in PRESENT[1:])):
        again = Head(data, tokens, target, n_threads)
        assert same_bits(again.states, head.states)
        assert same_bits(again.run_all(tokens, chunk)[0], states)
    assert same_bits(Running(data).logits(tokens), Running(MODELS[name].file()).logits(tokens))


NARROW = {"attention.compress_ratios": ("[u32]", [0, 0, 0, 3, 3])}
FULL = {"attention.compress_ratios": ("[u32]", [0, 0, 0, 3, 0])}
LIMITS = {"swiglu_clamp_exp": ("[f32]", [0.5, 0.5, 0.5, 0.25])}
BOTH = LIMITS | {"swiglu_clamp_shexp": ("[f32]", [0.5, 0.5, 0.5, 0.75])}


@pytest.mark.parametrize(
    ("name", "keys", "wanted"),
    [
        ("qwen4exp", NARROW, {"mixer": "blocked", "selected_by": 4}),
        ("qwen4exp", FULL, {"mixer": "attention", "selected_by": None}),
        ("deepseek4", LIMITS, {"expert_limit": 0.25, "limit": 0.25, "window": 6, "block_size": 0}),
        ("bailingmoe3", BOTH, {"expert_limit": 0.25, "limit": 0.75, "window": 0}),
        ("bailingmoe3", {}, {"expert_limit": 0.5, "limit": 0.75}),
        ("glm5-next", {}, {"mixer": "pooled", "selected_by": 4}),
    ],
)
def test_files_have_numbers_for_the_block(name: str, keys: Any, wanted: dict[str, Any]) -> None:
    file = ModelFile.open(drafting(name, **keys)[0])
    spec = read_spec(file)
    layer = block_layer(spec, Weights(file, load(PRESENT[0]), 1))
    assert {each: getattr(layer, each) for each in wanted} == wanted
    assert max(spec.attending) < spec.n_layers  # the block is no layer of the model


def serve(name: str, **options: Any) -> tuple[Serving, Noted]:
    """An engine core over a model of the zoo, and what drafts for it."""
    serving = Serving(name, **options)
    made = offer_next_token(ModelFile.open(drafting(name)[0]), serving.runner, Letters())  # type: ignore[arg-type]
    assert made is not None
    return serving, Noted(made)


@pytest.mark.parametrize("name", each(NAMES, 3))
def test_drafts_follow_from_the_text_alone(name: str) -> None:
    check_drafts(*serve(name, chunk=16), 2 * EAGER)


def test_a_text_behind_known_pages_drafts_too() -> None:
    serving, drafter = serve("qwen35")
    prompt = tokens_of(40, n_vocab_of("qwen35"))
    first = submit(serving, drafter, prompt)
    serving.run(first)
    drafter.notes.clear()
    second = submit(serving, drafter, prompt)
    serving.run(second)
    check_as_alone(serving, second)
    assert any(found for _, found in drafter.notes)


def test_a_text_that_runs_again_from_the_start_is_followed() -> None:
    serving, drafter = serve("qwen35")
    text = Sequence(serving.pool, tokens_of(30, n_vocab_of("qwen35")))
    states = serving.runner.forward([(text, 29)], all_logits=True, states=True)
    expected = drafted(serving, drafter, text.tokens, 3)
    for pieces in ([29], [10, 19], [10, 19, -5, 5], [29, -29, 29], [29, -29, 7, 22]):
        at, drafter.drafter._known = 0, {}
        for n in pieces:
            if n > 0:
                drafter.observe(text, at, states[at : at + n])
            at += n
        for _ in range(2):
            assert greedy_draft("qwen35", drafter, text, 3) == expected
        drafter.forget(text)
    assert greedy_draft("qwen35", drafter, text, 3) == []
    text.release()


def test_rows_of_drafts_that_were_right_run_again_with_states_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving, drafter = serve("qwen35")
    seen: list[np.ndarray] = []
    logits = drafter.drafter._runner.logits

    def noted(states: np.ndarray) -> np.ndarray:
        seen.append(states)
        return logits(states)

    monkeypatch.setattr(drafter.drafter._runner, "logits", noted)
    text = Sequence(serving.pool, tokens_of(30, n_vocab_of("qwen35")))

    def propose() -> list[int]:
        return greedy_draft("qwen35", drafter, text, 3)

    drafter.observe(text, 0, serving.runner.forward([(text, 29)], all_logits=True, states=True))
    right = propose()
    text.tokens += [*right[:2], 7]
    start = text.cached_len
    drafter.observe(text, start, serving.runner.forward([(text, 3)], all_logits=True, states=True))
    seen.clear()
    assert propose() == drafted(serving, drafter, text.tokens, 3)
    assert all(map(same_bits, seen[:3], seen[3:]))
    drafter.forget(text)
    text.release()


def test_the_block_rests_while_no_draft_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs nothing, keeps a bounded number of states, and drafts again when asked."""
    serving, drafter = serve("qwen35")
    text = Sequence(serving.pool, tokens_of(30 + 4 * EAGER, n_vocab_of("qwen35")))
    states = serving.runner.forward([(text, text.total_len - 1)], all_logits=True, states=True)
    runs: list[int] = []
    forward = drafter.drafter._runner.forward

    def noted(parts: Listed[tuple[Sequence, int]], **options: Any) -> np.ndarray:
        runs.append(sum(n for _, n in parts))
        return forward(parts, **options)

    monkeypatch.setattr(drafter.drafter._runner, "forward", noted)
    drafter.observe(text, 0, states[:30])
    for i in range(30, len(states)):
        drafter.observe(text, i, states[i : i + 1])
    assert sum(runs) <= 30 + EAGER
    assert len(drafter.drafter._known[text].states) <= EAGER
    assert greedy_draft("qwen35", drafter, text, 3)
    ran = drafter.drafter._known[text].rows
    assert RECENT <= ran.total_len <= EAGER + 3
    assert drafter.drafter._known[text].idle == 0
    drafter.forget(text)
    text.release()
    drafter.drafter._runner.pool.check_integrity([])


def test_other_files_offer_none() -> None:
    serving = Serving("qwen35")
    for data in (MODELS["qwen35"].file(), MODELS["llama"].file()):
        assert offer_next_token(ModelFile.open(data), serving.runner, Letters()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RECORDED])
def test_auto_takes_the_block_of_the_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = path.with_suffix(".gguf")
    with caplog.at_level(logging.INFO, "oxillama"):
        plain, drafting = InferenceEngine.from_gguf(file), InferenceEngine.from_gguf(file, speculate="auto")
    assert "speculate: auto takes next-token" in caplog.text
    with plain, drafting:
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            wanted = plain.stream("hello there", max_tokens=40, **options).result()
            found = drafting.stream("hello there", max_tokens=40, **options).result()
            assert found.tokens == wanted.tokens
            assert found.speculation is not None
