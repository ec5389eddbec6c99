"""Decisions about pictures: the same bits however they are run, what prompts share, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import (
    Choice,
    ConfigError,
    InferenceEngine,
    MediaError,
    Predicate,
    PromptError,
    Score,
)
from oxillama.engine.features.decisions.deciding import Deciding, DecisionOptions, decide
from oxillama.engine.features.decisions.pictures import Placeholders
from oxillama.engine.features.media.feature import Media
from oxillama.engine.features.media.parts import Placed
from tests.engine.features.test_decisions import check_asyncio, lengths_of_passes, raw
from tests.support.decision_models import CHAT, chat_file, decision_file
from tests.support.kernels import PRESENT
from tests.support.media import PAIRS, PROJECTORS, SHARED, WIDTH, picture, projector_file

pytestmark = pytest.mark.filterwarnings("ignore:questions")

QUESTIONS = {
    "torn": Predicate("Is the parcel torn?"),
    "what": Choice("What is on it?", {"yes": None, "yesterday": "then", "no": None}),
    "how": Score("How bad?", ["fine", "bad", "awful"]),
}
MODELS = {kind: ("llama", kind) for kind in PROJECTORS}
BOTH = "recurrent, both ways"
MODELS |= {"recurrent": ("qwen35", "mlp"), BOTH: ("qwen35", "gemma3")}


def image(seed: int = 0, width: int = 56) -> dict[str, Any]:
    return {"type": "image", "image": picture(width, 28, seed)}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


STATE = [image(), text("It came on Monday.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pictures")
    for name, (architecture, projector) in MODELS.items():
        (found / name).mkdir()
        (found / name / "m.gguf").write_bytes(chat_file(architecture=architecture, n_embd=WIDTH))
        (found / name / "mmproj.gguf").write_bytes(projector_file(projector))
    return found


def opened(folder: Path, name: str = "mlp", **config: Any) -> InferenceEngine:
    given = {"num_threads": 1, "kv_type": "f32", **config}
    return InferenceEngine.from_gguf(folder / name / "m.gguf", **given)


def started(engine: InferenceEngine, state: Any, questions: Any, *media: Any, **options: Any) -> Deciding:
    return decide(engine.model, [(state, questions, *media)], DecisionOptions(**options))[0]


def filled(engine: InferenceEngine, template: str, pictures: list[Any]) -> tuple[list[int], np.ndarray]:
    """The tokens of a chat's prompt with markers, and its last logits, without decisions."""
    prompt = engine.model.feature("media").prompt(template, pictures)
    generation = engine.stream(prompt, keep_logits=True, temperature=0, max_tokens=1)
    generation.result()
    assert generation.logits is not None
    return prompt.tokens, generation.logits[0]


# --- prompts and scores -----------------------------------------------------------------------------------


def test_scores_are_those_of_the_chat_with_the_picture(folder: Path) -> None:
    engine = opened(folder)
    found = started(engine, STATE, {"q": Predicate("Torn?")}, readout="labels")
    answer = found.result()["q"]
    lines = "<__media__>\nIt came on Monday.\n\nTorn?\nAnswer Yes or No and nothing else."
    tokens, logits = filled(engine, f"<|turn|>user\n{lines}<|end|>\n<|turn|>assistant\n", [STATE[0]["image"]])
    assert found.tasks[0].tokens == tokens and tokens.count(0) > 1
    words = [[engine.tokenizer.token_id(word) for word in pair] for pair in (("Yes", "yes"), ("No", "no"))]
    assert answer.scores == (tuple(float(max(logits[id] for id in pair)) for pair in words),)
    other = engine.decide([image(1), STATE[1]], {"q": Predicate("Torn?")})["q"]
    assert other.scores != answer.scores


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_same_bits_however_it_is_run(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(folder, name)
    whole = engine.decide(STATE, QUESTIONS)
    assert raw(engine.decide(STATE, QUESTIONS)) == raw(whole)  # from the prefix cache
    for question in QUESTIONS:
        assert engine.decide(STATE, {question: QUESTIONS[question]}).answers == (whole[question],)
    for target in PRESENT:
        monkeypatch.setenv("OXILLAMA_TARGET", target)
        config = {"prefix_cache_bytes": 0, "media_cache_bytes": 0}
        with opened(folder, name, num_threads=2, prefill_chunk_size=7, **config) as other:
            requests = [([image(i), text("x" * i)], {"q": Predicate("So?")}) for i in range(1, 4)]
            found = other.decide_batch([*requests, (STATE, QUESTIONS), ("no picture", QUESTIONS), *requests])
            assert raw(found[3]) == raw(whole), target
            assert raw(found[4]) != raw(whole) and raw(found[0]) == raw(found[5]) != raw(found[1])
            other.model.check_integrity()
    engine.close()


@pytest.mark.parametrize("name", sorted({*MODELS} - {BOTH}))  # whose prompts are each one pass
def test_a_picture_is_run_and_encoded_once(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, encoded = opened(folder, name, media_cache_bytes=0), list[Any]()
    keep = Media._encoded

    def counted(media: Media, steps: Any) -> Any:
        encoded.append(1)
        return keep(media, steps)

    monkeypatch.setattr(Media, "_encoded", counted)
    ran, state = lengths_of_passes(engine), [image(5, 112), text("word " * 30)]  # type: ignore[arg-type]
    first = engine.decide(state, QUESTIONS)
    assert sum(ran) == first.n_input - first.n_cached and len(encoded) == 1
    n_state = len(started(engine, state, {"q": Predicate("a")}).tasks[0].tokens) - 30
    assert sum(ran) < first.n_input - 3 * n_state
    ran.clear()
    again = engine.decide(state, {"new": Predicate("Something else?")})
    assert sum(ran) == again.n_input - again.n_cached < n_state / 2
    ran.clear()
    other = engine.decide([image(6, 112), state[1]], {"new": Predicate("Something else?")})
    assert sum(ran) > again.n_input - 40 and raw(other) != raw(again)
    engine.model.check_integrity()
    engine.close()


def test_pictures_stand_where_they_were_put(folder: Path) -> None:
    """Pictures are in messages, instructions and descriptions, between two texts each."""
    engine = opened(folder)
    messages = [{"role": "user", "content": [text("a"), image(1), text("b")]}, {"role": "x", "content": "c"}]
    questions = [
        Choice([text("Like this?"), image(2)], {"p": None, "q": [image(3)]}),
        Predicate("And?", true=[text("as"), image(4)]),
    ]
    found = started(engine, {"messages": messages, "n": 1}, questions, orders=1)
    markers = ["<__media__>"] * 9
    state = '{"messages": [{"role": "user", "content": "a\\n%s\\nb"}, {"role": "x", "content": "c"}], "n": 1}'
    closing = "Answer with one of the options, word for word, and nothing else."
    lines = [f"{state % markers[0]}\n", "Like this?", markers[1], "- p", f"- q - {markers[2]}", closing]
    shown = [picture(56, 28, seed) for seed in (1, 2, 3, 4)]
    tokens, logits = filled(
        engine, "<|turn|>user\n" + "\n".join(lines) + "<|end|>\n<|turn|>assistant\n", shown[:3]
    )
    assert found.tasks[0].tokens == tokens
    assert found.result()[0].scores[0] == tuple(float(logits[engine.tokenizer.token_id(x)]) for x in "pq")
    lines = [
        f"{state % markers[0]}\n",
        "And?",
        f"Yes: as\n{markers[1]}",
        "Answer Yes or No and nothing else.",
    ]
    tokens, _ = filled(
        engine,
        "<|turn|>user\n" + "\n".join(lines) + "<|end|>\n<|turn|>assistant\n",
        [shown[0], shown[3]],
    )
    assert found.tasks[1].tokens == tokens
    alone = engine.decide({"messages": messages, "n": 1}, [questions[1]])
    assert alone[0] == found.result()[1]


def test_questions_that_differ_in_a_picture_alone(folder: Path) -> None:
    engine = opened(folder)
    questions = [Predicate([text("Like this?"), image(seed)]) for seed in (1, 2, 1)]
    first, second, third = engine.decide(STATE, questions).answers
    assert first.scores == third.scores != second.scores
    with opened(folder, prefix_cache_bytes=0) as other:
        assert (first, second) == tuple(other.decide(STATE, [each])[0] for each in questions[:2])


def test_levels_with_pictures_are_read_at_their_numbers(folder: Path) -> None:
    engine = opened(folder)
    (task,) = started(engine, "s", [Score("Which?", [[image(1)], [image(2)]])]).tasks
    assert len(task.labels) == 2 and engine.tokenizer.decode(task.tokens).count("0: ") == 1
    assert len(started(engine, STATE, [Score("Which?", ["a a", "b b"])]).tasks) == 2


def test_placeholders(folder: Path) -> None:
    """The longest name counts, a medium may be shown twice, and the legend has what was given."""
    engine = opened(folder)
    media = {name: Placed(name, image(seed), name) for name, seed in (("<a>", 1), ("<a>b", 2), ("n", 3))}
    asked = [Predicate("<a>b <a>?"), Score("?", ["n", "more"])]
    found = started(engine, ["<a>", "x"], asked, media)
    parts = '["<__media__>", "x"]\n\n<__media__> <__media__>?\nAnswer Yes or No and nothing else.'
    shown = [picture(56, 28, seed) for seed in (1, 2, 1)]
    tokens, _ = filled(engine, f"<|turn|>user\n{parts}<|end|>\n<|turn|>assistant\n", shown)
    assert found.tasks[0].tokens == tokens
    assert [use.digest for use in found.tasks[0].embeddings.media] == [
        engine.model.feature("media").decode(each).digest for each in shown
    ]
    assert getattr(found.result()[1], "legend", None) == ("n", "more")
    with pytest.raises(ConfigError, match=r"^n: expected its placeholder in the state or in a question"):
        started(engine, "<a>b", [Predicate("<a>")], media)


def test_texts_never_become_pictures(folder: Path) -> None:
    engine = opened(folder)
    words = "x <medium 1> <_medium 1> <__media__>"
    state: list[Any] = [words, *STATE]
    with pytest.raises(ConfigError, match=r"^state\[0\]: expected a part"):
        engine.decide(state, QUESTIONS)
    state[0] = text(words)
    found = started(engine, state, {"<__medium 1>": Predicate("So?")})
    (placeholder,) = found.media.digests  # type: ignore[union-attr]
    assert placeholder == "<___medium 1>" and len(found.tasks[0].embeddings.media) == 1
    assert "<medium 1> <_medium 1> <__media__>" in engine.tokenizer.decode(found.tasks[0].tokens)
    assert Placeholders({"a": ("<medium", 1)}).add("w", {}) == "<medium 1>"


def test_data_about_pictures_stays_data(folder: Path) -> None:
    """Only lists of parts and contents of messages are looked at."""
    data = {"files": [{"type": "image", "name": "a.png"}], "messages": [{"content": {"type": "image"}}]}
    assert raw(opened(folder).decide(data, QUESTIONS))


@pytest.mark.parametrize("name", PAIRS)
def test_every_family(name: str) -> None:
    text_file, mmproj = SHARED / name / "text.gguf", SHARED / name / "mmproj.gguf"
    config: dict[str, Any] = {"mmproj": mmproj, "chat_template": "chatml", "num_threads": 1}
    with InferenceEngine.from_gguf(text_file, context_size=4096, **config) as engine:
        encoder = engine.model.feature("media").encoder
        for kind, folder, is_taken in (
            ("image", "images", encoder.vision),
            ("audio", "sounds", encoder.audio),
        ):
            files = sorted((SHARED / folder).iterdir()) if is_taken is not None else []
            for path in files[:1]:
                state = [{"type": kind, "path": path}, text("It came late.")]
                whole = engine.decide(state, QUESTIONS)
                again = engine.decide(state, {"new": Predicate("So?")})
                assert again.n_input - again.n_cached < again.n_input / 2
                with InferenceEngine.from_gguf(
                    text_file, context_size=4096, prefill_chunk_size=7, prefix_cache_bytes=0, **config
                ) as other:
                    found = other.decide_batch([("none", QUESTIONS), (state, QUESTIONS)])
                    assert raw(found[1]) == raw(whole) != raw(found[0])
        engine.model.check_integrity()


def test_asyncio_and_batches(folder: Path) -> None:
    engine = opened(folder)
    check_asyncio(engine, STATE, QUESTIONS)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ({"type": "image", "path": "none.png"}, MediaError, r"^state\[0\]\.path: picture: expected a file"),
        ({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}, ConfigError, "nothing is fetched"),
        ({"type": "image"}, ConfigError, r"^state\[0\]: expected a medium under 'image', got none"),
        ({"type": "audio", "audio": np.zeros(400, np.float32)}, ConfigError, r"^state\[0\]: .* no sounds"),
    ],
)
def test_parts_that_are_refused(folder: Path, part: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        opened(folder).decide([part], QUESTIONS)


def test_models_that_take_no_pictures(folder: Path, tmp_path: Path) -> None:
    for name, data in (("chat", chat_file()), ("openjev", decision_file("openjev"))):
        (tmp_path / f"{name}.gguf").write_bytes(data)
    with pytest.raises(ConfigError, match=r"^state\[0\]: the model takes no pictures: it has no projector"):
        InferenceEngine.from_gguf(tmp_path / "chat.gguf", num_threads=1).decide(STATE, QUESTIONS)
    with pytest.raises(ConfigError, match=r"^state\[0\]: models of openjev take no pictures and sounds"):
        InferenceEngine.from_gguf(tmp_path / "openjev.gguf", num_threads=1).decide(STATE, QUESTIONS)


def test_a_prompt_that_is_too_long_encodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Media, "_encoded", lambda *_: pytest.fail("encoded"))
    with pytest.raises(PromptError, match="expected at most"):
        opened(folder).decide([image(), text("word " * 3000)], QUESTIONS)


@pytest.mark.filterwarnings("ignore:messages")
@pytest.mark.parametrize(
    "change", [("{{ m.content }}", "{{ m.content }}{{ m.content }}"), ("m.content", "m.content[50:]")]
)
def test_templates_that_hide_or_repeat_pictures(tmp_path: Path, change: tuple[str, str]) -> None:
    (tmp_path / "m.gguf").write_bytes(chat_file(CHAT.replace(*change), n_embd=WIDTH))
    (tmp_path / "mmproj.gguf").write_bytes(projector_file())
    engine = InferenceEngine.from_gguf(tmp_path / "m.gguf", num_threads=1)
    with pytest.raises(ConfigError, match="hides or repeats pictures"):
        engine.decide(STATE, QUESTIONS)
