"""The shipped demo models: small, of the stated shape, and made by the tool that claims to make them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ChatTemplateError, InferenceEngine, TokenizerBridge, demo
from tests.support.fitted import chat_tokens
from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "train_demo"
gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def corpus() -> Iterator[Any]:
    """The corpus module of the training tool; absent where only the package was unpacked."""
    if not TOOL.is_dir():
        pytest.skip("the training tool is not here")
    sys.path.insert(0, str(TOOL))
    try:
        import corpus as module

        yield module
    finally:
        sys.path.remove(str(TOOL))


def fields(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file."""
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def test_files_fit_in_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in demo.STORY.parent.iterdir() if path.is_file()) < 6_000_000


def test_story_and_draft_have_one_vocabulary() -> None:
    story, draft = fields(demo.STORY), fields(demo.DRAFT)
    keys = [key for key in story if key.startswith("tokenizer.")]
    assert len(story["tokenizer.ggml.tokens"]) == 1024
    assert {key: story[key] for key in keys} == {key: draft[key] for key in keys}


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        ("Help for a Goat", "Help for a Goat\n\n"), (" Two Riddles\n", "Two Riddles\n\n"),
        ("tell me a story", "Tell Me A Story\n\n"), ("Mia", "Mia\n\n"),
        ("Where is the Kite?", "Where is the Kite?\n\n"), ("Once upon a time", "Once upon a time"),
        ("Tom was a fox.", "Tom was a fox."), ("Mia and\nTom", "Mia and\nTom"), ("", ""),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*the chat template leaves out")
def test_a_message_is_a_title_or_a_beginning(asked: str, prompt: str) -> None:
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    earlier = [{"role": role, "content": "Other"} for role in ("system", "user", "assistant")]
    for before in ([], earlier):
        ids = chat_tokens(tokenizer, [*before, {"role": "user", "content": asked}])
        assert ids == [tokenizer.bos_id, *tokenizer.encode(prompt, add_special=False)]


def test_a_chat_without_a_message_of_the_user() -> None:
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    with pytest.raises(ChatTemplateError, match="expected a message of the user: a title, or the beginning"):
        chat_tokens(tokenizer, [{"role": "assistant", "content": "Mia"}])
    assert chat_tokens(tokenizer, [{"role": "system", "content": "Mia"}]) == chat_tokens(
        tokenizer, [{"role": "user", "content": "Mia"}]
    )


@pytest.mark.skipif(not TOOL.is_dir(), reason="the training tool is not here")
def test_the_shipped_template_is_that_of_the_tool() -> None:
    template = (TOOL / "story.jinja").read_text(encoding="utf-8")
    assert fields(demo.STORY)["tokenizer.chat_template"] == template


def test_the_shipped_model_chats() -> None:
    with InferenceEngine(demo.STORY) as engine:
        said = engine.chat([{"role": "user", "content": "Help for a Goat"}], temperature=0, max_tokens=20)
        assert said == engine.generate("Help for a Goat\n\n", temperature=0, max_tokens=20)


@pytest.mark.parametrize("path", [demo.STORY, demo.DRAFT], ids=lambda path: path.stem)
def test_every_matrix_row_is_whole_blocks_of_256(path: Path) -> None:
    matrices = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert matrices
    assert {tensor.tensor_type.name for tensor in matrices} == {"Q8_0"}
    assert all(tensor.shape[0] % 256 == 0 and tensor.shape[1] % 16 == 0 for tensor in matrices)


def test_adapter_fits_the_story_model() -> None:
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in gguf.GGUFReader(demo.STORY).tensors}
    pairs = {tensor.name: tuple(map(int, tensor.shape)) for tensor in gguf.GGUFReader(demo.PIRATE).tensors}
    bases = {name.rsplit(".lora_", 1)[0] for name in pairs}
    assert bases == {name for name in shapes if name.startswith("blk.") and "norm" not in name}
    for base in bases:  # GGUF writes the shape fastest axis first
        n_in, n_out = shapes[base]
        assert pairs[f"{base}.lora_a"] == (n_in, 8)
        assert pairs[f"{base}.lora_b"] == (8, n_out)


def test_recorded_perplexities_tell_the_models_apart() -> None:
    recorded = json.loads(demo.PERPLEXITY.read_text(encoding="utf-8"))
    assert recorded["separator"] == demo.SEPARATOR
    values = {(r["model"], r["adapter"], r["text"]): r["perplexity"] for r in recorded["results"]}
    story, draft, unadapted, adapted = values.values()
    assert 1.2 < story < draft < 4
    assert adapted < 3 < unadapted


@pytest.mark.parametrize(("path", "style"), [(demo.HELDOUT, "plain"), (demo.HELDOUT_PIRATE, "pirate")])
def test_heldout_text_is_what_the_grammar_draws(corpus: Any, path: Path, style: str) -> None:
    documents = path.read_text(encoding="utf-8").split(demo.SEPARATOR)
    assert documents == list(corpus.stories(corpus.HELDOUT_SEED, len(documents), style))


def test_heldout_stories_are_not_in_the_training_text(corpus: Any) -> None:
    seen = set(corpus.stories(corpus.TRAIN_SEED, 5000))
    assert seen.isdisjoint(demo.HELDOUT.read_text(encoding="utf-8").split(demo.SEPARATOR))
    assert len(seen) > 4990


@pytest.mark.parametrize(
    "fault",
    [r"\ba [aeiou]", r"\ban [^aeiou\W]", r"[.!?] [a-z]", r"\b(\w+) \1\b", r"[()<>|^]", r"  ", r" [,.!?]"],
)
def test_stories_are_good_english(corpus: Any, fault: str) -> None:
    for text in corpus.stories(3, 1500):
        found = re.search(fault, text)
        assert found is None, text[max(0, found.start() - 40) : found.end() + 40]


def test_records_agree_with_the_story(corpus: Any) -> None:
    n_records = 0
    for text in corpus.stories(4, 500):
        *story, last = text.split("\n\n")
        if last.startswith("{"):
            record = json.loads(last)
            assert list(record) == ["name", "kind", "age", "friend", "wish"]
            assert all(str(record[key]) in "".join(story) for key in ("name", "kind", "friend", "wish"))
            n_records += 1
    assert n_records > 50
