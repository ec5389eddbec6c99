"""The pytest plugin: tests of tests, run by pytest in processes of their own."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from oxillama import InferenceEngine, Receipt, demo
from oxillama.apps.testing.answers import Answer, AnswerCache
from tests.support.kernels import PRESENT
from tests.support.paths import ROOT

STORY = """
PROMPT = "Once upon a time"

def test_story(llm, assert_golden):
    answer = llm.generate(PROMPT, max_tokens=6)
    assert_golden(answer, "story")
    assert answer.finish_reason == "length" and len(answer.tokens) == 6
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def run(folder: Path, *args: str, text: str | None = None, code: int = 0, **environment: str) -> str:
    """What pytest prints about a module of tests."""
    if text is not None:
        (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "oxillama.apps.testing.plugin", "-rs", "-q", *args]
    given = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }
    done = subprocess.run(
        command, cwd=folder, env={**given, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def story() -> str:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        return engine.generate("Once upon a time", temperature=0, max_tokens=6)


@pytest.mark.slow
def test_tests_of_models_are_skipped_without_the_flag(folder: Path) -> None:
    marked = "import pytest\n@pytest.mark.llm_slow\ndef test_long(): pass\ndef test_plain(): pass\n"
    out = run(folder, text=STORY + marked)
    assert "1 passed, 2 skipped" in out and "needs --llm\n" in out and "needs --llm-slow" in out
    assert "1 skipped" in run(folder, "--llm", "--llm-update")
    assert "skipped" not in run(folder, "--llm-slow")


def test_golden_texts_are_written_and_compared(folder: Path, story: str) -> None:
    assert "there is no golden text yet; --llm-update writes it" in run(folder, "--llm", text=STORY, code=1)
    run(folder, "--llm", "--llm-update")
    golden = folder / "goldens" / "test_it" / "story.txt"
    assert golden.read_text() == story
    run(folder, "--llm")
    receipt = Receipt.load(golden.with_name("story.receipt.json"))
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        verdict = engine.verify(receipt)
        assert verdict and verdict.text == story
    golden.write_text(f"{story} ")
    assert "the answer differs" in run(folder, "--llm", code=1)
    golden.write_text(story.replace(story.split()[0], "never"))
    out = run(folder, "--llm", code=1)
    assert "the answer differs" in out and "-never" in out.replace("- ", "-")


@pytest.mark.slow
def test_golden_texts_are_the_same_on_other_machines(folder: Path) -> None:
    run(folder, "--llm", "--llm-update", "--llm-no-cache", text=STORY)
    for target in PRESENT:
        run(folder, "--llm", "--llm-no-cache", OXILLAMA_TARGET=target)


@pytest.mark.slow
def test_a_text_that_follows_from_something_else_is_told(folder: Path) -> None:
    run(folder, "--llm", "--llm-update", text=STORY)
    proof = folder / "goldens" / "test_it" / "story.receipt.json"
    proof.write_text(proof.read_text().replace('"kv_type": "f16"', '"kv_type": "f32"'))
    out = run(folder, "--llm", code=1)
    assert "the text is the same, but what it follows from is not: kv_type" in out
    proof.unlink()
    assert "the answer has a receipt, the golden text has none" in run(folder, "--llm", code=1)


def test_names_of_golden_texts(folder: Path) -> None:
    text = """
import pytest

@pytest.mark.parametrize("word", ["a/b", "c"])
def test_name(assert_golden, word):
    assert_golden(word)

def test_twice(assert_golden):
    assert_golden("x", "same")
    with pytest.raises(AssertionError, match="another text of that name"):
        assert_golden("y", "same")
    with pytest.raises(ValueError, match="name: expected letters"):
        assert_golden("z", "../z")
"""
    run(folder, "--llm-update", text=text)
    assert sorted(path.name for path in (folder / "goldens" / "test_it").iterdir()) == [
        *("same.txt", "test_name-a-b.txt", "test_name-c.txt"),
    ]
    run(folder, "-k", "name")  # texts of no model need no flag


def test_answers_come_from_the_cache(folder: Path) -> None:
    text = """
def test_cached(llm):
    first = llm.generate("Once upon a time", max_tokens=4)
    assert llm.generate("Once upon a time", max_tokens=4) == first
    assert llm.is_loaded is {}
    assert first.receipt.tokens == first.tokens
    assert llm.chat("A Goat", max_tokens=2).message["role"] == "assistant"
"""
    ini = "[pytest]\nfilterwarnings = error\nllm_cache = answers\n"
    (folder / "pytest.ini").write_text(ini)
    assert "2 answers generated, 1 from the cache" in run(folder, "--llm", text=text.format(True))
    out = run(folder, "--llm", text=text.format(False))  # no model is loaded for what is known
    assert "0 answers generated, 3 from the cache" in out
    out = run(folder, "--llm", "--llm-no-cache", text=text.format(True))
    assert "3 answers generated, 0 from the cache" in out
    for path in (folder / "answers").iterdir():
        path.write_text("{")
    assert "2 answers generated, 1 from the cache" in run(folder, "--llm", text=text.format(True))


@pytest.mark.slow
def test_another_model_has_other_answers(folder: Path) -> None:
    text = """
import pytest

def test_default(llm, llm_of):
    assert llm.generate("Once", max_tokens=3).receipt.kv_type == "f16"
    assert llm_of("demo") is llm
    assert llm_of("demo", kv_type="q8_0") is not llm

@pytest.mark.llm("demo", kv_type="q8_0", num_threads=1)
def test_marked(llm):
    assert llm.generate("Once", max_tokens=3).receipt.kv_type == "q8_0"
    assert llm.engine.model.runner.n_threads == 1

@pytest.mark.llm("draft.gguf")
def test_path(llm):
    assert llm.path.name == "draft.gguf"
    assert llm.generate("Once", max_tokens=3, temperature=1, seed=5).receipt.seed == 5
"""
    (folder / "draft.gguf").write_bytes(demo.DRAFT.read_bytes())
    assert "3 passed" in run(folder, "--llm", text=text)
    assert "no-such.gguf: no such file" in run(
        folder, "--llm", "--llm-model", "no-such.gguf", "-k", "default", code=1
    )


def test_answers_with_files_that_may_change_are_not_kept(folder: Path) -> None:
    text = """
def test_adapted(llm_of):
    path = {path!r}
    llm = llm_of("demo", adapters=path)
    plain = llm_of("demo")
    assert llm.generate("Once", max_tokens=3) and plain.generate("Once", max_tokens=3, adapters=[path])
    assert llm.cache.hits == 0 and not list(llm.cache.folder.iterdir())
"""
    assert "1 passed" in run(folder, "--llm-slow", text=text.format(path=str(demo.PIRATE)))


def test_pytest_finds_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    module = importlib.import_module(declared["oxillama"])
    assert {"llm", "assert_golden", "pytest_addoption"} <= set(vars(module))


@pytest.mark.slow
def test_the_tests_of_the_page_pass(folder: Path) -> None:
    path = ROOT / "docs" / "testing.md"
    if not path.is_file():
        pytest.skip("only the package was unpacked")
    page = path.read_text()
    tests = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    assert tests.count("def test_") >= 6
    out = run(folder, "--llm-slow", "--llm-update", text=tests)
    assert f"{tests.count('def test_')} passed" in out
    assert f"{tests.count('def test_')} passed" in run(folder, "--llm-slow")


def test_an_answer_survives_json() -> None:
    from oxillama.base.events import ToolCall

    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        answer = Answer.of(engine.stream("Once", max_tokens=2, receipt=True).result())
    answer.tool_calls = [ToolCall("paint", {"colour": "red"}, "7")]
    again = Answer.from_json(answer.to_json())
    assert again == answer and vars(again) == vars(answer)
    assert json.loads(answer.to_json())["text"] == str(answer)


def test_an_answer_that_a_timeout_has_cut_is_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers")
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        completion = engine.stream("Once", max_tokens=2, temperature=0).result()
    for reason, is_kept in (("timeout", False), ("length", True)):
        answer = Answer.of(replace(completion, finish_reason=reason))
        cache.keep(reason, answer)
        assert cache.find(reason) == (answer if is_kept else None)
    assert (cache.hits, cache.misses) == (1, 1)
