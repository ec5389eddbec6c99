"""`oxillama.compat.llama_cpp` answers as llama-cpp-python, by `tools/record_llama_cpp.py`'s records."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, GrammarError, InferenceEngine, PromptError, SnapshotIncompatible, demo
from oxillama.compat import llama_cpp
from oxillama.compat.llama_cpp import Llama, LlamaGrammar, LlamaRAMCache, LogitsProcessorList
from oxillama.compat.llama_cpp.arguments import HARMLESS, REFUSED
from tests.support import llama_cpp_calls as calls
from tests.support.llama_cpp_calls import FEW, GREEDY, PROMPT, STORY, plain

RECORDED = json.loads(calls.RECORDS.read_text("utf-8"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    made = Llama(STORY, logits_all=True, **FEW)
    yield made
    made.close()


@pytest.fixture
def llm(shared: Llama) -> Llama:
    """A model without a state."""
    shared.reset()
    shared.set_seed(1)
    return shared


# --- answers ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", calls.CALLS)
def test_an_answer_is_as_recorded(name: str, llm: Llama) -> None:
    assert json.loads(json.dumps(plain(calls.CALLS[name](llm)))) == RECORDED["answers"][name]


@pytest.mark.parametrize("name", calls.SHAPES)
def test_an_answer_has_the_recorded_shape(name: str, llm: Llama) -> None:
    assert calls.shape(plain(calls.SHAPES[name](llm))) == RECORDED["shapes"][name]


@pytest.mark.parametrize("pooling", [-1, 1])
def test_embeddings_are_as_recorded(pooling: int) -> None:
    made = Llama(STORY, embedding=True, pooling_type=pooling, **FEW)
    for name, call in calls.EMBEDDINGS.items():
        assert json.loads(json.dumps(plain(call(made)))) == RECORDED["embeddings"][str(pooling)][name], name


@pytest.mark.parametrize("name", RECORDED["signatures"])
def test_a_method_takes_the_recorded_arguments(name: str) -> None:
    """Names, order, kinds and defaults are as recorded; no argument is added."""
    assert calls.signature(getattr(Llama, name)) == RECORDED["signatures"][name]


# --- what differs by the seed ----------------------------------------------------------------------------
def test_seeds_follow_each_other(llm: Llama) -> None:
    def text(**given: Any) -> Any:
        return llm(PROMPT, max_tokens=8, temperature=1.5, **given)["choices"][0]["text"]

    state = llm.save_state()
    first, second = text(), text()
    assert first != second
    llm.load_state(state)
    assert [text(), text()] == [first, second]
    assert text(seed=7) == text(seed=7)


def test_many_callers_get_what_each_gets_alone(llm: Llama) -> None:
    prompts = [f"{PROMPT} number {i}" for i in range(12)]
    alone = [llm(prompt, max_tokens=12, **GREEDY)["choices"][0]["text"] for prompt in prompts]
    gate = threading.Barrier(len(prompts))

    def call(prompt: str) -> str:
        gate.wait()
        text: str = llm(prompt, max_tokens=12, **GREEDY)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(call, prompts)) == alone
    assert len(set(alone)) > 1


def test_streams_run_beside_each_other(llm: Llama) -> None:
    """Read in turns, none waits for another's end; a lock around the model would wait for ever."""
    streams = [llm(f"{PROMPT} {i}", max_tokens=30, stream=True, **GREEDY) for i in range(4)]
    rounds = [[next(stream)["choices"][0]["text"] for stream in streams] for _ in range(8)]
    assert all(map(any, rounds))
    for stream in streams:
        stream.close()
    assert llm.n_tokens == 0


# --- sampling --------------------------------------------------------------------------------------------
def test_processors_see_tokens_and_logits_of_the_whole_vocabulary(llm: Llama) -> None:
    seen: list[tuple[int, int]] = []

    def only(tokens: Any, scores: Any) -> Any:
        seen.append((len(tokens), len(scores)))
        scores[:] = -np.inf
        scores[333] = 0
        return scores

    answer = llm(PROMPT, max_tokens=3, logits_processor=LogitsProcessorList([only]))
    assert answer["choices"][0]["text"] == "amamam"
    assert seen == [(14, 1024), (15, 1024), (16, 1024)]


def test_processors_and_biases_apply_together(llm: Llama) -> None:
    """llama-cpp-python applies neither of them."""

    def ban(tokens: Any, scores: Any) -> Any:
        scores[333] = -np.inf
        return scores

    given: dict[str, Any] = {"max_tokens": 1, "logit_bias": {333: 1000, 74: 500}, **GREEDY}
    assert llm(PROMPT, **given)["choices"][0]["text"] == "am"
    assert llm(PROMPT, logits_processor=[ban], **given)["choices"][0]["text"] == "i"


@pytest.mark.parametrize("stream", [False, True])
def test_a_criterion_ends_the_text_before_the_next_token(llm: Llama, stream: bool) -> None:
    whole = llm(PROMPT, max_tokens=10, **GREEDY)["choices"][0]["text"]
    rows: list[int] = []

    def long_enough(tokens: Any, logits: Any) -> bool:
        rows.append(int(np.argmax(logits)))
        return len(tokens) >= 14 + 3

    given: dict[str, Any] = {"stopping_criteria": llama_cpp.StoppingCriteriaList([long_enough]), **GREEDY}
    answer = llm(PROMPT, max_tokens=10, stream=stream, **given)
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " Liam"
    assert whole.startswith(" Liam.")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert rows == [378, 74, 333, 15]
    assert llm.n_tokens == 14 + 3


def test_mirostat_and_cuts_reach_the_sampler(llm: Llama) -> None:
    def text(**given: Any) -> Any:
        return llm(PROMPT, max_tokens=12, seed=3, **{"temperature": 4.0, **given})["choices"][0]["text"]

    greedy = llm(PROMPT, max_tokens=12, **GREEDY)["choices"][0]["text"]
    plain_text = text()
    assert plain_text != greedy
    for cut in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.0, "top_k": 1}):
        assert text(**cut) == greedy, cut
    for mode in (1, 2):
        assert text(mirostat_mode=mode, mirostat_tau=0.01) != text(mirostat_mode=mode, mirostat_tau=9.0)
    assert text(temperature=-1.0) == text(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"tfs_z": 0.5}, "tfs_z"),
        ({"mirostat_mode": 3}, "mirostat_mode"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 5000}, "top_logprobs"),
    ],
)
def test_a_completion_refuses(llm: Llama, given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        llm(PROMPT, **given)
    with pytest.raises(TypeError, match="no_such_argument"):
        llm(PROMPT, no_such_argument=1)  # type: ignore[call-arg]


def test_a_prompt_that_fills_the_context_is_refused(llm: Llama) -> None:
    with pytest.raises(PromptError, match=r"Requested tokens \(256\) exceed context window of 256"):
        llm([5] * 256)
    assert llm([5] * 255, max_tokens=99, **GREEDY)["usage"]["completion_tokens"] == 1


# --- grammars --------------------------------------------------------------------------------------------
def test_grammars_rule_the_text(llm: Llama, tmp_path: Path) -> None:
    file = tmp_path / "g.gbnf"
    file.write_text('root ::= " yes" | " no"')
    schema = '{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}'
    for grammar in (LlamaGrammar.from_file(file), LlamaGrammar.from_string(file.read_text())):
        assert llm(PROMPT, max_tokens=0, grammar=grammar)["choices"][0]["text"] in (" yes", " no")
    text = llm(PROMPT, max_tokens=40, grammar=LlamaGrammar.from_json_schema(schema))["choices"][0]["text"]
    assert set(json.loads(text)) == {"n"}
    assert "root" in LlamaGrammar.from_json_schema(schema)._grammar
    with pytest.raises(GrammarError):
        llm(PROMPT, grammar=LlamaGrammar.from_string("root ::= ("))
    file.write_text("")
    with pytest.raises(ValueError, match="empty"):
        LlamaGrammar.from_file(file)


A: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
BOTH = '{"a": 1, "b": 2}'


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"properties": {"a": {"type": "null"}}, "type": "object"}, '{"a": null}', '{"b": 1}'),
        ({"type": "array", "items": A}, '[{"a": 1}]', '[{"b": 1}]'),
        ({"$defs": {"x": A}, "$ref": "#/$defs/x"}, '{"a": 1}', '{"b": 1}'),
        ({**A, "additionalProperties": True}, BOTH, None),
        ({"allOf": [A, {"type": "object", "properties": {"b": {}}}]}, BOTH, None),
        ({**A, "anyOf": [{"properties": {"b": {}}}, {"required": ["a"]}]}, BOTH, None),
    ],
)
def test_objects_are_closed_unless_they_say_or_are_of_several_schemas(
    schema: Any, allowed: str, refused: str | None
) -> None:
    grammar = LlamaGrammar.of(schema).rules
    assert not isinstance(grammar, str)
    assert grammar.matches(allowed)
    assert refused is None or not grammar.matches(refused)


# --- one sequence ----------------------------------------------------------------------------------------
def test_what_was_run_follows_completions(llm: Llama) -> None:
    answer = llm(PROMPT, max_tokens=4, **GREEDY)
    assert answer["choices"][0]["text"] == " Liam."
    assert llm.input_ids[: llm.n_tokens].tolist() == [*llm.tokenize(PROMPT.encode()), 378, 74, 333]
    assert not llm.input_ids[llm.n_tokens :].any()
    assert llm.scores[: llm.n_tokens].argmax(axis=1)[-4:].tolist() == [378, 74, 333, 15]
    assert llm.sample(temp=0.0) == 15
    llm.n_tokens = 14
    assert llm.sample(temp=0.0) == 378
    logprobs = llm.logits_to_logprobs(llm._scores)
    np.testing.assert_allclose(np.exp(logprobs).sum(axis=-1), 1, rtol=1e-5)


def test_logits_are_the_same_bits_however_tokens_were_run() -> None:
    tokens = [0, 943, 806, 294, 260, 466]
    with InferenceEngine.from_gguf(STORY, num_threads=1) as engine, engine.session() as session:
        rows = session.logits(tokens)
    whole, last = Llama(STORY, logits_all=True, **FEW), Llama(STORY, **FEW)
    for made in (whole, last):
        made.eval(tokens[:2])
        made.eval(tokens[2:])
    assert np.array_equal(whole._scores, rows)
    assert np.array_equal(last._scores[-1], rows[-1])
    assert not last._scores[:-1].any()
    whole.eval([1, 2])
    whole.generate(tokens, temp=0.0)
    assert next(whole.generate(tokens, temp=0.0)) == rows[-1].argmax()
    assert np.array_equal(whole._scores, rows)


def test_a_generator_keeps_what_a_prompt_begins_with(llm: Llama) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    llm.eval([*tokens, 5, 6])
    calls = []
    llm._evaluated.eval, run = lambda fresh: calls.append(len(fresh)) or run(fresh), llm._evaluated.eval
    try:
        found = list(itertools.islice(llm.generate(tokens, temp=0.0), 3))
    finally:
        del llm._evaluated.eval
    assert found == [378, 74, 333]
    assert calls[0] == 0
    assert llm.n_tokens == len(tokens) + 2


def test_a_generator_without_a_reset_goes_on(llm: Llama) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    llm.eval(tokens[:6])
    assert next(llm.generate(tokens[6:], temp=0.0, reset=False)) == 378
    assert llm.n_tokens == len(tokens)


def test_states_move_between_models(llm: Llama) -> None:
    llm.eval(llm.tokenize(PROMPT.encode()))
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert state.n_tokens == 14
    assert len(state.llama_state) == state.llama_state_size
    other = Llama(STORY, **FEW)
    other.load_state(state)
    assert other.sample(temp=0.0) == llm.sample(temp=0.0) == 378
    assert other.n_tokens == 14
    draft = Llama(str(demo.DRAFT), **FEW)
    with pytest.raises(SnapshotIncompatible):
        draft.load_state(state)
    draft.load_state(draft.save_state())
    assert draft.n_tokens == 0


def test_a_cache_hands_states_over(llm: Llama) -> None:
    cache = LlamaRAMCache()
    writer, reader = Llama(STORY, **FEW), Llama(STORY, **FEW)
    expected = llm(PROMPT, max_tokens=6, **GREEDY)
    writer.set_cache(cache)
    assert writer(PROMPT, max_tokens=6, **GREEDY)["choices"] == expected["choices"]
    (key,) = cache.cache_state
    assert list(key) == [*llm.tokenize(PROMPT.encode()), 378, 74, 333, 15, 378, 74]
    loaded, load = [], reader.load_state
    reader.load_state = lambda state: loaded.append(state.n_tokens) or load(state)  # type: ignore[method-assign]
    reader.set_cache(cache)
    assert reader(PROMPT, max_tokens=6, **GREEDY)["choices"] == expected["choices"]
    assert loaded == [19]
    assert reader.engine.metrics.snapshot().prefill_tokens < 14
    assert (
        reader(PROMPT + " Tom", max_tokens=6, **GREEDY)["choices"]
        == llm(PROMPT + " Tom", max_tokens=6, **GREEDY)["choices"]
    )
    cache.capacity_bytes = 0
    cache[(1, 2)] = cache[key]
    assert not cache.cache_state
    with pytest.raises(KeyError):
        cache[(1, 2)]


# --- loading ---------------------------------------------------------------------------------------------
def test_every_argument_has_its_row() -> None:
    """Honoured, harmless or refused: the page says which of each argument."""
    page = Path(__file__).parent.parent.parent / "docs/from-llama-cpp-python.md"
    if not page.exists():
        pytest.skip("only the package was unpacked")
    text = page.read_text("utf-8")
    names = [name for name, kind, _ in RECORDED["signatures"]["__init__"] if kind != "VAR_KEYWORD"]
    missing = [name for name in names[1:] if f"`{name}`" not in text]
    assert not missing
    assert {*HARMLESS, *REFUSED} <= set(names)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_argument_changes_nothing(name: str) -> None:
    values = {"tensor_split": [1.0], "n_gpu_layers": -1, "split_mode": 2, "main_gpu": 1, "n_ubatch": 8}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Llama(STORY, **FEW, **{name: values.get(name, True)})
    assert made(PROMPT, max_tokens=3, **GREEDY)["choices"][0]["text"] == " Liam"


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_argument_keeps_its_default(name: str) -> None:
    accepted = REFUSED[name][0][0]
    value = {"a": 1} if name == "kv_overrides" else "x" if name == "lora_base" else 7
    with pytest.raises(ConfigError, match=f"^{name}: "):
        Llama(STORY, **{name: value})
    assert accepted != value


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"rope_freq_base": 5e5}, "rope_freq_base: expected 0 or 10000"),
        ({"rope_freq_scale": 0.5}, "rope_freq_scale: expected 0 or 1"),
        ({"type_k": 16}, "type_k"),
        ({"draft_model": object()}, "draft_model"),
        ({"n_batch": 0}, "prefill_chunk_size"),
    ],
)
def test_a_value_that_cannot_be_honoured_is_refused(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Llama(STORY, **given)


def test_a_name_that_is_no_argument_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no_such_argument is no argument"):
        Llama(STORY, no_such_argument=1, **FEW)
    with pytest.raises(ValueError, match="Model path does not exist"):
        Llama("no-such-file.gguf")


def test_honoured_arguments_reach_the_engine() -> None:
    made = Llama(
        STORY, n_ctx=0, n_batch=32, n_threads=1, type_k=8, type_v=2, lora_path=str(demo.PIRATE),
        lora_scale=0.5, draft_model=llama_cpp.llama_speculative.LlamaPromptLookupDecoding(num_pred_tokens=5),
        rope_freq_base=10000.0, rope_freq_scale=1.0,
    )  # fmt: skip
    config = made.engine.config
    assert (config.context_size, config.prefill_chunk_size, config.num_threads) == (512, 32, 1)
    assert (config.kv_type, config.speculate, config.draft_max) == ("q8_0:q4_0", "lookup", 5)
    assert [spec[1] for spec in config.adapters] == [0.5]
    assert made.n_ctx() == made.context_params.n_ctx == 512


def test_penalties_look_back_as_far_as_they_are_told() -> None:
    given: dict[str, Any] = {"max_tokens": 30, "frequency_penalty": 9.0, **GREEDY}
    texts = {
        n: Llama(STORY, last_n_tokens_size=n, **FEW)(PROMPT, **given)["choices"][0]["text"]
        for n in (0, 6, 64)
    }
    assert texts[0] == Llama(STORY, **FEW)(PROMPT, max_tokens=30, **GREEDY)["choices"][0]["text"]
    assert len(set(texts.values())) == 3


def test_a_vocabulary_alone_encodes_and_runs_nothing() -> None:
    made = Llama(STORY, vocab_only=True)
    assert made.tokenize(b"Once") == [0, 943]
    assert made.n_vocab() == 1024
    assert made.ctx is not None
    with pytest.raises(ConfigError, match="vocab_only"):
        made("Once")


def test_pickling_loads_the_model_again(llm: Llama) -> None:
    copy = pickle.loads(pickle.dumps(llm))
    assert copy(PROMPT, max_tokens=6, **GREEDY)["choices"] == llm(PROMPT, max_tokens=6, **GREEDY)["choices"]
    assert (copy.n_ctx(), copy._logits_all) == (256, True)


def test_embeddings_need_their_argument_and_warn_of_cuts(llm: Llama) -> None:
    with pytest.raises(RuntimeError, match="embedding=True"):
        llm.embed("hi")
    made = Llama(STORY, embedding=True, pooling_type=1, n_batch=4, **FEW)
    with pytest.warns(UserWarning, match=r"\(\d+\) exceed batch size of 4"):
        cut = made.embed("hi there you")
    assert cut == made.engine.embed(made.tokenize(b"hi there you")[:4], pooling="mean").tolist()
    with pytest.raises(ValueError, match="exceed batch size"):
        made.embed("hi there you", truncate=False)
    assert np.linalg.norm(made.embed("hi", normalize=True)) == pytest.approx(1)
    with pytest.raises(ConfigError, match="pooling_type"):
        Llama(STORY, embedding=True, pooling_type=9, **FEW).embed("hi")


def test_installed_it_answers_the_import() -> None:
    code = """
import oxillama.compat.llama_cpp as ours
assert ours.install() is ours.install() is ours
import llama_cpp, llama_cpp.llama_chat_format, llama_cpp.llama_types as types
from llama_cpp import *
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_cpp.llama import Llama as same, LlamaState
from llama_cpp import GGML_TYPE_Q8_0, LLAMA_POOLING_TYPE_MEAN, ChatCompletionRequestUserMessage
assert same is Llama is llama_cpp.Llama and GGML_TYPE_Q8_0 == 8 and LLAMA_POOLING_TYPE_MEAN == 1
assert types.ChatCompletionRequestUserMessage(role="user", content="a") == {"role": "user", "content": "a"}
try:
    llama_cpp.llama_decode
except AttributeError as error:
    assert "C interface" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    late = """
import sys, types, pytest
sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
import oxillama.compat.llama_cpp as ours
from oxillama import ConfigError
try:
    ours.install()
except ConfigError:
    sys.exit(3)
"""
    assert subprocess.run([sys.executable, "-c", late], check=False).returncode == 3


def test_pieces_of_tokens_fill_a_buffer() -> None:
    import ctypes

    vocabulary = llama_cpp.llama_model_get_vocab(Llama(STORY, vocab_only=True).model)
    buffer = (ctypes.c_char * 8)()
    assert llama_cpp.llama_token_to_piece(vocabulary, 943, buffer, 8, 0, True) == 4
    assert buffer.value == b"Once"
    assert llama_cpp.llama_token_to_piece(vocabulary, 943, buffer, 2, 0, True) == -4
    assert llama_cpp.llama_token_to_piece(vocabulary, 0, buffer, 8, 0, False) == 0
