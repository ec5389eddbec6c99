"""The windows of the page, in a real browser: models of the hub, and typed decisions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.models import Hosted
from tests.apps.server.test_decisions import engine_of
from tests.support.browser import Page
from tests.support.hub import Hub, used
from tests.support.server import serving, serving_models
from tests.support.tiny_file import write_tiny_model


def made(name: str, path: str) -> Hosted:
    return Hosted(name, path=path, load=lambda: InferenceEngine.from_gguf(path, num_threads=1))


@pytest.mark.slow
def test_a_model_is_found_and_downloaded(
    page: Page, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
    data = write_tiny_model(folder / "found.gguf").read_bytes()
    story = Hosted("story", InferenceEngine.from_gguf(demo.STORY, num_threads=1))
    hub = Hub({"ann/tiny": {"tiny-Q8_0.gguf": data, "tiny-F16.gguf": data * 9}}, gate=threading.Event())
    with (
        used(hub, tmp_path, monkeypatch),
        serving_models(story, make=made, allow_pull=True) as client,
    ):
        page.ready(client.server.url)
        page.press("Find a model")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        page.one("#hub-words").send_keys("tiny", "\ue007")
        assert page.one(".found .fault").text == "The hub cannot be reached: HF_HUB_OFFLINE is set"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        page.press("Search", "dialog")
        assert "1,234 downloads" in page.one(".found li").text
        page.one(".found li button").click()
        page.one(".found [aria-label='Download Q8_0']").click()
        value = "return document.querySelector('.download progress')?.value ?? 0"
        page.until(lambda: page.run(value) > 0)
        assert page.run("return document.querySelector('.download progress').max") == len(data)
        assert page.one(".found [aria-label='Download F16']").get_property("disabled")
        assert hub.gate is not None
        hub.gate.set()
        page.until(lambda: "ann/tiny:Q8_0 is downloaded." in "".join(page.texts(".toast")))
        page.press("Use Q8_0", "dialog")
        page.until(lambda: page.one("#model-select").get_property("value") == "ann/tiny:Q8_0")
        page.one(".status.ready")
        assert not page.all("dialog")
    with serving(demo.DRAFT) as client:
        page.ready(client.server.url)
        assert not page.all("#find-model")


def test_typed_decisions(page: Page) -> None:
    questions: list[dict[str, Any]] = [
        {"type": "predicate", "instructions": "Late?"},
        {
            "type": "choice",
            "instructions": "Which?",
            "choices": [{"value": "red"}, {"value": "blue", "description": "like the sky"}],
        },
        {"type": "score", "instructions": "How bad?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    with serving(engine_of(), "m") as client:
        body = {"model": "m", "input": "It came on Thursday.", "questions": questions}
        late, which, bad = client.ask("/v1/decisions", body).json["answers"]
        page.ready(client.server.url)
        assert "What shall be decided?" in page.one(".welcome").text
        page.press("Typed decisions")
        page.one("#decide-state").send_keys("It came on Thursday.")
        for i, (question, options) in enumerate(
            zip(questions, ("", "red\nblue: like the sky", "low\nhigh"), strict=True)
        ):
            if i:
                page.press("Another question", "dialog")
                label = "One of several" if question["type"] == "choice" else "A level"
                page.one(f"#decide-type-{i}").send_keys(label)
                page.one(f"#decide-options-{i}").send_keys(options)
            page.one(f"#decide-question-{i}").send_keys(question["instructions"])
        page.press("Decide", "dialog")
        page.until(lambda: len(page.all(".decided section")) == 3)
        assert page.texts(".decided h3") == ["Late?", "Which?", "How bad?"]
        assert page.texts(".decided th") == ["Yes", "No", "red", "blue", "low", "high"]
        shown = page.run("return [...document.querySelectorAll('.decided meter')].map(e => e.value)")
        p = late["probability"]
        others = [each["probability"] for answer in (which, bad) for each in answer["probabilities"]]
        assert shown == pytest.approx([p, 1 - p, *others])
        page.press("Close", "dialog")
        page.press("Typed decisions")
        assert page.one("#decide-state").get_property("value") == "It came on Thursday."
        assert len(page.all(".questions fieldset")) == 3
