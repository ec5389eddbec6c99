"""Decisions: the scores of the reference, the same bits however they are run, answers and refusals."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from oxillama import AsyncEngine, Choice, ConfigError, EngineConfig, Predicate, PromptError, Score
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.decisions import answers
from oxillama.engine.features.decisions.deciding import Deciding, DecisionOptions, decide, places_of
from oxillama.engine.features.decisions.prompts import flat, key_sorted
from oxillama.engine.features.decisions.rules import bucket
from oxillama.errors import ChatTemplateError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.decoder import ReferenceModel
from tests.support.decision_models import CHAT, TEMPLATES, TRUNKS, chat_file, decision_file, made_file
from tests.support.kernels import PRESENT
from tests.support.waiting import in_asyncio

STATE = "The parcel was due on Monday and came on Thursday, torn. I was billed twice."
QUESTIONS = {
    "late": Predicate("Is it late?", true="after the day", false=None),
    "what": Choice("What is wrong?", {"delay": None, "damage": "it is torn", "bill": {"of": ["money", 2]}}),
    "how": Score("How bad?", ["fine", {"level": "bad"}, "awful", "lost"]),
}
OTHER = {"one": Choice("Only?", ["one"]), "two": Predicate("So?")}
KINDS = sorted(TEMPLATES)


def engine_of(kind: str, data: bytes | None = None, **config: Any) -> InferenceEngine:
    engine = InferenceEngine(EngineConfig(**{"num_threads": 1, "kv_type": "f32", **config}))
    engine.load_model_from_bytes(data or decision_file(kind))
    return engine


def started(engine: InferenceEngine, state: Any, questions: Any, **options: Any) -> Deciding:
    return decide(engine.model, [(state, questions)], DecisionOptions(**options))[0]


def raw(decision: answers.Decision) -> list[Any]:
    """Raw scores and label masses."""
    return [(answer.scores, answer.label_mass) for answer in decision.answers]


# --- scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_reference(kind: str) -> None:
    engine = engine_of(kind)
    reference = ReferenceModel(ModelFile.open(decision_file(kind)), kv_type="f32")
    found = started(engine, STATE, QUESTIONS)
    for task, reading in zip(found.tasks, found.readings, strict=True):
        scores = reference.decision_scores(np.array(task.tokens), places_of(found, task))
        assert reading.result()[: len(scores)].tolist() == scores.tolist()
        assert len(set(scores.tolist())) == len(scores)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_however_it_is_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(kind)
    whole = engine.decide(STATE, QUESTIONS)
    assert raw(engine.decide(STATE, QUESTIONS)) == raw(whole)  # from the prefix cache
    for target in PRESENT:
        monkeypatch.setenv("OXILLAMA_TARGET", target)
        other = engine_of(kind, num_threads=2, prefill_chunk_size=7, prefix_cache_bytes=0)
        requests = [("x " * i, OTHER) for i in range(1, 4)]
        found = other.decide_batch([*requests, (STATE, QUESTIONS), *requests])
        assert raw(found[3]) == raw(whole), target
        assert found[3].answers == whole.answers
        assert raw(found[0]) == raw(found[4])
        other.model.check_integrity()
    if kind in ("clef", "nimble"):  # whose prompts show all questions
        return
    for name, question in QUESTIONS.items():
        assert engine.decide(STATE, {name: question}).answers == (whole[name],)


def lengths_of_passes(engine: InferenceEngine) -> list[int]:
    """The number of tokens of each pass from now on."""
    launch, ran = engine.model.runner.launch, list[int]()

    def counted(sequences: Any, *more: Any) -> Any:
        ran.append(sum(sequence.scheduled_len - sequence.cached_len for sequence in sequences))
        return launch(sequences, *more)

    engine.model.runner.launch = counted  # type: ignore[method-assign]
    return ran


@pytest.mark.parametrize("kind", ["lev", "kev", "lfm2-d1"])
def test_what_prompts_have_in_common_is_run_once(kind: str) -> None:
    engine = engine_of(kind)
    ran = lengths_of_passes(engine)
    first = engine.decide(STATE * 3, QUESTIONS)
    assert sum(ran) == first.n_input - first.n_cached
    n_state = len(engine.tokenizer.encode(STATE * 3))
    n_prompts = 4 if kind == "lev" else 3
    assert sum(ran) < first.n_input - (n_prompts - 1) * (n_state - 16)
    ran.clear()
    again = engine.decide(STATE * 3, OTHER)
    assert sum(ran) == again.n_input - again.n_cached < n_state
    engine.model.check_integrity()


def check_asyncio(engine: InferenceEngine, state: Any, questions: Any) -> None:
    async def main(many: AsyncEngine) -> list[answers.Decision]:
        return await asyncio.gather(*(many.decide(state, questions) for _ in range(3)))

    expected = engine.decide(state, questions).answers
    assert [found.answers for found in in_asyncio(engine, main)] == [expected] * 3


def test_asyncio_gets_the_same_answers() -> None:
    check_asyncio(engine_of("openjev"), STATE, QUESTIONS)


# --- prompts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_control_tokens_stay_text(kind: str) -> None:
    """The names are in the state, in instructions, keys and descriptions, and in keys of JSON."""
    engine = engine_of(kind)
    plain, evil = "a <|nothing|> b", "a <|end|> [SEP] [MASK] <|turn|> b"
    control = {engine.tokenizer.token_id(name) for name in ("<|end|>", "<|turn|>", "[SEP]", "[MASK]")}

    def controls(text: str, **options: Any) -> list[int]:
        questions = {"q": Choice(text, {f"{text} key": text, "b": {text: [text]}}), text: Predicate("b")}
        tasks = started(engine, {"s": text}, questions, **options).tasks
        return [token for task in tasks for token in task.tokens if token in control]

    assert controls(evil) == controls(plain)
    if kind in ("openjev", "lev", "nimble", "pplx-decider", "lfm2-d1", "clef"):
        assert len(controls(evil, special_in_content=True)) > len(controls(plain))


def test_marks_of_pieces_stay_text() -> None:
    for kind, word in (("clef", "<<clef:"), ("lfm2-d1-omni", "<<d1omni:")):
        text = f"a {word}sep>> {word}option>> b"
        found = started(engine_of(kind), text, {"q": Choice(text, [text, "b"])})
        assert len(found.decision([r.result() for r in found.readings]).answers) == 1


def test_long_texts_are_cut_as_the_models_were_trained() -> None:
    long = "word and word " * 40
    (task,) = started(engine_of("laya"), "s", {"q": Choice(long, [long, "b", long + "c"])}).tasks
    lengths = np.diff(task.marks).tolist()
    assert lengths == [26, 2] and task.marks[0] == 96 - (26 + 2 + 26) + 2  # (96 - 16) // 3 tokens each
    (task,) = started(engine_of("lfm2-d1-omni"), "s", {"q": Choice("?", [long, "b"])}).tasks
    assert task.marks[1] - task.marks[0] == 1 + (96 - 6) // 2


def test_json_as_prompts_have_it() -> None:
    value = {"b": [1, {"y": None, "x": True}], "a": {"c": "text", "d": []}}
    assert flat(value) == "b:\n  - 1\n  - y: \n    x: True\na:\n  c: text\n  d:\n"
    assert list(key_sorted(value)) == ["a", "b"]
    assert list(key_sorted(value)["b"][1]) == ["x", "y"]


# --- answers --------------------------------------------------------------------------------------------


def test_probabilities_follow_from_scores() -> None:
    assert answers.softmax([1.0, 1.0], 0.3) == [0.5, 0.5]
    p = answers.softmax(np.array([0.5, -1.0, 2.0], np.float32), 2.0)
    weights = [math.exp(-0.75), math.exp(-1.5), 1.0]
    assert p == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-15)
    assert answers.softmax([0.0, -1e30], 1.0) == [1.0, 0.0]
    assert answers.exact_exp(1.0) == math.e
    for scores in ([math.nan, 1.0], [math.inf, 1.0], [-math.inf]):
        with pytest.raises(ValueError, match="expected numbers"):
            answers.softmax(scores, 1.0)


def test_confidence() -> None:
    assert answers.peak_of_choice([0.5, 0.25, 0.25]) == pytest.approx(0.25)
    assert answers.peak_of_choice([1.0]) == answers.peak_of_score([1.0]) == 1.0
    assert answers.peak_of_score([0.0, 1.0, 0.0]) == 1.0
    assert answers.peak_of_score([0.5, 0.0, 0.5]) == 0.0
    assert answers.entropy_confidence([0.0125, 0.9781, 0.0093]) == pytest.approx(0.8906, abs=1e-3)
    found = engine_of("laya").decide(STATE, QUESTIONS, confidence="entropy")["what"]
    assert found.confidence == answers.entropy_confidence([p for _, p in found.probabilities])


def test_buckets() -> None:
    assert [bucket(n) for n in (1, 2, 3, 5, 6, 10, 11, 255)] == [
        "2",
        "2",
        "3_5",
        "3_5",
        "6_10",
        "6_10",
        "11",
        "11",
    ]
    assert [bucket(n, "lev") for n in (1, 8, 9, 26, 27)] == ["small", "small", "mid", "mid", "large"]


def test_temperatures_of_the_file_and_others() -> None:
    engine = engine_of("openjev")
    found = engine.decide(STATE, QUESTIONS)
    assert [answer.temperature for answer in found.answers] == [1.0, 1.25, 0.75]
    given = engine.decide(STATE, QUESTIONS, temperatures={"choice": 3.0, "noul.2": 2.0})
    assert [answer.temperature for answer in given.answers] == [2.0, 3.0, 1.0]
    assert raw(given) == raw(found)
    p = answers.softmax(found["what"].scores[0], 3.0)
    assert [share for _, share in given["what"].probabilities] == p


def test_orders_of_options() -> None:
    """A predicate's first probability is that of yes, whatever the model is shown first; Lev asks twice."""
    for kind in ("openjev", "pplx-decider"):
        answer = engine_of(kind).decide(STATE, {"q": Predicate("Is it?")})["q"]
        p = answers.softmax(answer.scores[0], answer.temperature)
        assert answer.probability == p[0 if kind == "openjev" else 1]
    engine = engine_of("lev")
    found = engine.decide(STATE, QUESTIONS)
    p, reverse = (answers.softmax(scores, 1.0) for scores in found["what"].scores)  # no bucket of Lev's
    assert [share for _, share in found["what"].probabilities] == [
        a / 2 + b / 2 for a, b in zip(p, reverse[::-1])
    ]
    p = answers.softmax(found["late"].scores[0], 1.0)
    assert found["late"].probability == pytest.approx(sum(i * share for i, share in enumerate(p)) / 8)
    turned = Choice("What is wrong?", dict(reversed(QUESTIONS["what"].options.items())))  # type: ignore[union-attr]
    again = engine.decide(STATE, {"what": turned})["what"]
    assert dict(again.probabilities) == dict(found["what"].probabilities)


def test_values_may_be_truths_beside_their_names() -> None:
    question = Choice("Which?", [(True, None), ("true", "the text"), False])
    for kind in ("openjev", "clef"):
        found = engine_of(kind).decide(STATE, [question])[0]
        assert [value for value, _ in found.probabilities] == [True, "true", False]
        assert sum(p for _, p in found.probabilities) == pytest.approx(1)
    with pytest.raises(ConfigError, match="expected different values"):
        engine_of("openjev").decide(STATE, [Choice("Which?", ["a", "b", "a"])])


# --- chat models ------------------------------------------------------------------------------------------


def chat(template: str = CHAT, **config: Any) -> InferenceEngine:
    return engine_of("", chat_file(template), **config)


def prompt_of(engine: InferenceEngine, *lines: str) -> list[int]:
    text = f"<|turn|>user\n{chr(10).join(lines)}<|end|>\n<|turn|>assistant\n"
    return engine.tokenizer.encode(text, False, parse_special=True)


def logits_after(engine: InferenceEngine, tokens: list[int]) -> np.ndarray:
    """The logits behind a prompt, by the reference."""
    reference = ReferenceModel(ModelFile.open(chat_file()), kv_type="f32")
    return reference.logits(np.array(tokens))


@pytest.mark.filterwarnings("ignore:questions")
def test_chat_models_are_read_at_labels() -> None:
    engine = chat()
    found = started(engine, {"a": 1}, QUESTIONS, readout="labels")
    decision = found.decision([reading.result() for reading in found.readings])
    closing = "Answer Yes or No and nothing else."
    assert found.tasks[0].tokens == prompt_of(
        engine, '{"a": 1}', "", "Is it late?", "Yes: after the day", closing
    )
    closing = "Answer with the letter of one option and nothing else."
    lines = ['A: bill - {"of": ["money", 2]}', "B: damage - it is torn", "C: delay", closing]
    assert found.tasks[2].tokens == prompt_of(engine, '{"a": 1}', "", "What is wrong?", *lines)
    closing = "Answer with the number of one level and nothing else."
    lines = ["0: fine", '1: {"level": "bad"}', "2: awful", "3: lost", closing]
    assert found.tasks[3].tokens == prompt_of(engine, '{"a": 1}', "", "How bad?", *lines)
    assert decision.kind == "chat" and len(found.tasks) == 4
    ids = [engine.tokenizer.token_id(name) for name in "ABC"]
    logits = logits_after(engine, found.tasks[2].tokens)[-1]
    assert list(decision["what"].scores[1]) == [float(logits[id]) for id in ids]
    p, reverse = (answers.softmax(scores, 1.0) for scores in decision["what"].scores)
    shares = [a / 2 + b / 2 for a, b in zip(p, reverse[::-1])]
    assert [share for _, share in decision["what"].probabilities] == shares
    words = [max(logits_after(engine, found.tasks[0].tokens)[-1][engine.tokenizer.token_id(w)] for w in pair)
             for pair in (("Yes", "yes"), ("No", "no"))]  # fmt: skip
    assert list(decision["late"].scores[0]) == [float(word) for word in words]
    whole = np.exp(logits.astype(np.float64) - logits.max())
    other = np.exp(logits_after(engine, found.tasks[1].tokens)[-1].astype(np.float64))
    masses = [sum(each[id] for id in ids) / each.sum() for each in (whole, other)]
    assert decision["what"].label_mass == pytest.approx(sum(masses) / 2, rel=1e-5)


@pytest.mark.filterwarnings("ignore:questions")
def test_names_are_read_whole() -> None:
    engine = chat()
    question = Choice("Which?", {"yes": None, "yesterday": "then", "no": None})
    found = started(engine, STATE, {"q": question}, readout="names", orders=1)
    answer = found.decision([reading.result() for reading in found.readings])["q"]
    lines = [
        "- yes",
        "- yesterday - then",
        "- no",
        "Answer with one of the options, word for word, and nothing else.",
    ]
    prompt = prompt_of(engine, STATE, "", "Which?", *lines)
    for name, score in zip(("yes", "yesterday", "no"), answer.scores[0]):
        ids = engine.tokenizer.encode(name, add_special=False)
        rows = logits_after(engine, [*prompt, *ids]).astype(np.float64)[-len(ids) - 1 : -1]
        logprobs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        assert score == pytest.approx(sum(row[id] for row, id in zip(logprobs, ids)), rel=1e-5)
    other = chat(num_threads=2, prefill_chunk_size=7, prefix_cache_bytes=0)
    assert other.decide(STATE, {"q": question}, readout="names", orders=1)["q"] == answer
    both = engine.decide(STATE, {"q": question}, readout="names")["q"]
    turned = Choice("Which?", dict(reversed(question.options.items())))  # type: ignore[union-attr]
    assert dict(engine.decide(STATE, {"q": turned})["q"].probabilities) == dict(both.probabilities)


@pytest.mark.filterwarnings("ignore:questions")
def test_texts_behind_one_prompt_run_it_once() -> None:
    engine = chat(prefix_cache_bytes=0)
    questions = [
        Choice("Which of these words?" * 4, ["yes", "yesterday", "yellow"]),
        Score("How much?", ["low", "lower"]),
    ]
    alone = [engine.decide(STATE, [question]) for question in questions]
    ran = lengths_of_passes(engine)
    found = started(engine, STATE, questions)
    assert found.result().answers == tuple(decision.answers[0] for decision in alone)
    prompts = {(*task.group, *task.tokens[: task.least_own]) for task in found.tasks}
    once = sum(len(prompt) - 2 for prompt in prompts) - (len(prompts) - 1) * len(
        engine.tokenizer.encode(STATE)
    )
    assert len(prompts) == 3 and len(found.tasks) == 8
    assert sum(ran) <= once + sum(len(task.tokens) - task.least_own for task in found.tasks)


@pytest.mark.filterwarnings("ignore:questions")
def test_names_of_one_token_are_read_in_one_prompt() -> None:
    engine = chat()
    found = started(engine, STATE, [Choice("Which?", list("pqr"))], orders=1)
    answer = found.decision([reading.result() for reading in found.readings])[0]
    (task,) = found.tasks
    logits = logits_after(engine, task.tokens)[-1]
    assert list(answer.scores[0]) == [float(logits[engine.tokenizer.token_id(name)]) for name in "pqr"]
    again = started(engine, STATE, [Choice("Which?", ["p", "q", "pp"])], orders=1)  # "pp" begins like "p"
    assert len(again.tasks) == 3
    again.result()


@pytest.mark.filterwarnings("ignore:questions")
def test_orders_of_a_choice() -> None:
    engine = chat()
    question = Choice("Which?", list("pqrs"))
    once = engine.decide(STATE, [question], orders=1)[0]
    assert len(once.scores) == 1
    assert [p for _, p in once.probabilities] == answers.softmax(once.scores[0], 1.0)
    four = engine.decide(STATE, [question], orders=4)[0]
    turned = engine.decide(STATE, [Choice("Which?", list("rspq"))], orders=4)[0]
    assert len(four.scores) == 4 and dict(four.probabilities) == dict(turned.probabilities)
    many = [f"option {i}" for i in range(30)]  # labels of two letters are no tokens: their texts are read
    found = started(engine, STATE, [Choice("Which?", many)], orders=1, readout="labels")
    assert [len(task.forced) for task in found.tasks][25:] == [1, 2, 1, 2, 2]
    assert found.decision([reading.result() for reading in found.readings])[0].confidence < 1


@pytest.mark.filterwarnings("ignore:questions")
def test_reasoning_that_a_template_opens_is_closed_or_refused() -> None:
    opened = CHAT.replace("assistant\n", "assistant\n<think>\n")
    closes = opened + "{% if false %}</think>{% endif %}"
    engine = chat(closes)
    tokens = started(engine, STATE, {"q": Predicate("So?")}).tasks[0].tokens
    assert engine.tokenizer.decode(tokens).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(ConfigError, match="leaves reasoning open"):
        chat(opened.replace("think>", "thinking aloud>")).decide(STATE, {"q": Predicate("So?")})


def test_labels_that_nobody_would_say_are_warned_of() -> None:
    engine = chat()
    with pytest.warns(UserWarning, match=r"questions\.q: the labels have less than 0\.1") as seen:
        for state in (STATE, "Another state."):
            engine.decide(state, {"q": Predicate("So?")})
    assert len({str(each.message) for each in seen}) == 1  # so that Python shows the warning once


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "questions: expected 1 to 4096"),
        ("text", "questions: expected questions"),
        ({"q": "text"}, "questions.q: expected a question"),
        ({"q": {"type": "box"}}, "questions.q.type: expected one of"),
        ({"q": {"type": "noul"}}, "questions.q.instructions: must be given"),
        ({"q": {"type": "choice", "instructions": "?"}}, "questions.q.options: must be given"),
        (
            {"q": {"type": "score", "instructions": "?", "levels": ["a"]}},
            "questions.q.levels: expected 2 to 10",
        ),
        ({"q": {"type": "noul", "instructions": "?", "more": 1}}, "questions.q: expected fields among"),
        ({"q": Choice("?", [])}, "questions.q.options: expected 1 to 255"),
        ({"q": Choice("?", [1])}, "questions.q.options: expected values that are text"),
        ({"q": Predicate("?", true=math.nan)}, "questions.q: expected text or JSON"),
        ({"q": Choice("?", [str(i) for i in range(60)])}, "questions.q: expected at most 52 options"),
    ],
)
def test_questions_that_are_refused(questions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of("openjev").decide(STATE, questions)


def test_what_else_is_refused() -> None:
    engine = engine_of("openjev")
    with pytest.raises(ConfigError, match="state: must be given"):
        engine.decide(None, QUESTIONS)
    with pytest.raises(ConfigError, match="state: expected text or JSON"):
        engine.decide(object(), QUESTIONS)
    with pytest.raises(PromptError, match="expected at most"):
        engine.decide("word " * 3000, QUESTIONS)
    with pytest.raises(ConfigError, match="expected JSON of at most"):
        engine.decide(eval("[" * 70 + "]" * 70), QUESTIONS)
    with pytest.raises(ConfigError, match="confidence: expected one of peak, entropy"):
        engine.decide(STATE, QUESTIONS, confidence="high")
    with pytest.raises(ConfigError, match="expected instructions and options that are not empty"):
        engine_of("clef").decide(STATE, {"q": Choice("", ["a"])})
    assert engine_of("lfm2-d1").decide(None, OTHER).answers


def test_files_that_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match="expected one of the file's"):
        engine_of("lev", chat_file("")).decide(STATE, QUESTIONS)
    with pytest.raises(ConfigError, match="orders: expected none for a model of lev"):
        engine_of("lev").decide(STATE, QUESTIONS, orders=1)
    with pytest.raises(LoadError, match=r"temperature\.noul: expected a number from"):
        engine_of("lev", made_file("lev", **{"decision.temperature.noul": 0.0}))
    with pytest.raises(ConfigError, match="expected a decision model of openjev"):
        engine_of("lev", made_file("lev", **{"decision.type": "newest"})).decide(STATE, QUESTIONS)
    with pytest.raises(ConfigError, match="expected 2 marks of options"):
        engine_of("kev", made_file("kev", "{{ state }}<|box_end|>")).decide(STATE, OTHER)
    with pytest.raises(ConfigError, match="to mark each question and each option once"):
        engine_of("clef", made_file("clef", "{{ state }}")).decide(STATE, OTHER)
    with pytest.raises(ChatTemplateError, match="refuses these values: no"):
        engine_of("lev", made_file("lev", "{{ raise_exception('no') }}")).decide(STATE, OTHER)
    with pytest.raises(LoadError, match=r"shortconv\.l_cache: expected an odd number"):
        engine_of("lfm2-d1-omni", made_file("lfm2-d1-omni", **{"shortconv.l_cache": 4}))
    assert TRUNKS["clef"].architecture == "clef"
