"""Pictures and sounds on the page, in a real browser: attached, pasted, dropped, recorded, shown, kept."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine
from oxillama.apps.server.models import Hosted
from oxillama.models.media.decode import read_picture
from tests.support.browser import Page
from tests.support.media import WIDTH, picture, projector_file
from tests.support.server import Client, serving
from tests.support.tiny_file import write_tiny_model

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

GIVE = """const [name, type, data, how] = arguments;
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const files = new DataTransfer();
    files.items.add(new File([bytes], name, { type }));
    if (how === "paste") {
        const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true });
        Object.defineProperty(event, "clipboardData", { value: files }); // Firefox takes none of a script
        document.getElementById("prompt").dispatchEvent(event);
    } else if (how === "drop") {
        const event = new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
        document.getElementById("composer").dispatchEvent(event);
    } else {
        const input = document.getElementById(how);
        input.files = files.files;
        input.dispatchEvent(new Event("change"));
    }"""


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    write_tiny_model(found / "tiny.gguf", n_embd=WIDTH, ends=False)
    (found / "mmproj.gguf").write_bytes(projector_file())
    return found


@pytest.fixture(scope="module")
def sees(folder: Path, browser: Page) -> Iterator[Client]:
    engine = InferenceEngine.from_gguf(folder / "tiny.gguf", num_threads=1, mmproj=folder / "mmproj.gguf")
    with serving(engine, "sees") as client:
        yield client


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory, browser: Page) -> Iterator[Client]:
    path = write_tiny_model(tmp_path_factory.mktemp("blind") / "tiny.gguf", ends=False)
    with serving(path, "blind") as client:
        yield client


def saved(size: tuple[int, int] = (40, 30), kind: str = "PNG", **options: Any) -> bytes:
    held = io.BytesIO()
    Image.fromarray(picture(*size)).save(held, kind, **options)
    return held.getvalue()


def give(page: Page, how: str, data: bytes, name: str = "cat.png", type: str = "image/png") -> None:
    n = len(page.texts("#files .chip"))
    page.run(GIVE, name, type, base64.b64encode(data).decode(), how)
    page.until(lambda: len(page.texts("#files .chip")) == n + 1, name)


def begin(page: Page, client: Client) -> None:
    page.ready(client.server.url)
    page.set(temperature=0, max_tokens=4)
    page.record()


def content(page: Page) -> Any:
    return page.sent[-1]["messages"][-1]["content"]


@pytest.mark.slow
def test_pictures_are_attached_sent_shown_and_kept(page: Page, sees: Client) -> None:
    begin(page, sees)
    assert page.all("#photo") and not page.all("#record")
    data = saved()
    for how in ("attach-file", "photo-file", "paste", "drop"):
        give(page, how, data)
    page.until(lambda: len(page.all("#files canvas")) == 4)
    page.all("#files .chip")[0].click()  # which takes it away
    page.until(lambda: len(page.all("#files canvas")) == 3)
    page.send("what is this?")
    page.ended()
    assert page.texts("#files .chip") == [] and page.texts(".fault-box")[-1] == ""
    *pictures, text = content(page)
    assert text == {"type": "text", "text": "what is this?"}
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    assert pictures == [{"type": "image_url", "image_url": {"url": url}}] * 3
    shown = [(e.get_attribute("width"), e.get_attribute("height")) for e in page.all(".message.user canvas")]
    assert shown == [("40", "30")] * 3
    page.reload()
    page.until(lambda: len(page.all(".message.user .medium canvas")) == 3)
    page.record()
    page.set(temperature=0, max_tokens=4)
    page.ask("and now?")
    assert len(page.sent[-1]["messages"][0]["content"]) == 4  # the picture is deleted with the conversation


def test_a_picture_alone_is_a_message(page: Page, sees: Client) -> None:
    begin(page, sees)
    give(page, "paste", saved())
    page.press("Send")
    page.ended()
    assert [part["type"] for part in content(page)] == ["image_url"]
    assert page.driver.title.startswith("cat.png")


@pytest.mark.slow
def test_pictures_of_a_decision(page: Page, sees: Client) -> None:
    page.ready(sees.server.url)
    page.press("Typed decisions")
    page.one("#decide-state").send_keys("A cat.")
    page.one("#decide-question-0").send_keys("Is the cat black?")
    for size in ((40, 30), (30, 40)):
        data = base64.b64encode(saved(size)).decode()
        page.run(GIVE, f"{size[0]}.png", "image/png", data, "decide-pictures")
    page.until(lambda: len(page.all(".chips .medium")) == 2)
    page.press("Remove 30.png", "dialog")
    page.press("Decide", "dialog")
    page.until(lambda: len(page.all(".decided meter")) == 2)
    url = "data:image/png;base64," + base64.b64encode(saved()).decode()
    content = [{"type": "input_text", "text": "A cat."}, {"type": "input_image", "image_url": url}]
    question = {"type": "predicate", "instructions": "Is the cat black?"}
    body = {"model": "sees", "input": [{"role": "user", "content": content}], "questions": [question]}
    wanted = sees.ask("/v1/decisions", body).json["answers"][0]["probability"]
    assert page.run("return document.querySelector('.decided meter').value") == pytest.approx(wanted)
    plain = sees.ask("/v1/decisions", {**body, "input": "A cat."}).json["answers"][0]["probability"]
    assert plain != pytest.approx(wanted)


@pytest.mark.slow
def test_photos_are_made_smaller_and_turned(page: Page, sees: Client) -> None:
    begin(page, sees)
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    give(page, "photo-file", saved((60, 40), "JPEG", exif=turned), "photo.jpg", "image/jpeg")
    give(page, "photo-file", saved((2200, 1100)), "large.png")
    page.send("these")
    page.ended()
    sizes = [read_picture(part["image_url"]["url"]).pixels.shape for part in content(page)[:2]]
    assert sizes == [(60, 40, 3), (1024, 2048, 3)]


def test_what_cannot_be_attached_is_told(page: Page, sees: Client, blind: Client) -> None:
    begin(page, sees)
    page.run(GIVE, "bad.png", "image/png", base64.b64encode(b"no picture").decode(), "drop")
    page.until(lambda: "bad.png cannot be read" in "".join(page.texts("#toasts")))
    page.run(GIVE, "a.wav", "audio/wav", base64.b64encode(b"RIFF").decode(), "drop")
    page.until(lambda: "the model takes no sounds" in "".join(page.texts("#toasts")))
    begin(page, blind)
    assert not page.all("#photo") and not page.all("#record")
    page.run(GIVE, "cat.png", "image/png", base64.b64encode(saved()).decode(), "paste")
    page.until(lambda: "the model takes no pictures" in "".join(page.texts("#toasts")))
    assert page.texts("#files .chip") == []


@pytest.mark.slow
def test_the_microphone_is_recorded(page: Page, sees: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hosted, "takes", ("image", "audio"))  # the model of this server has no encoder
    begin(page, sees)
    page.one("#record").click()
    page.until(lambda: page.one("#record").get_attribute("aria-pressed") == "true")
    page.driver.execute_async_script("setTimeout(arguments[0], 500)")
    page.one("#record").click()
    page.until(lambda: page.all("#files .sound"))
    assert page.one("#record").get_attribute("aria-pressed") == "false"
    page.send("listen")
    page.until(lambda: "the model takes no sounds" in "".join(page.texts(".fault-box")))
    (sound, _) = content(page)
    assert sound["type"] == "input_audio"
    with wave.open(io.BytesIO(base64.b64decode(sound["input_audio"]["data"]))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        assert file.getnframes() > 1600


def test_a_file_with_pictures_is_checked(page: Page, sees: Client) -> None:
    begin(page, sees)
    script = """const main = document.querySelector("script[type=module]").src;
        const other = (name) => import(new URL(name, main));
        const { newConversation, add } = await other("./tree.js");
        const made = newConversation((await other("./settings.js")).usual());
        add(made, null, { role: "user", content: "a", media: args[0] });
        const text = m.asJson([made]);
        try { return m.fromJson(text)[0].messages[0].media; } catch (error) { return error.message; }"""
    good = [{"kind": "image", "name": "a", "url": "data:image/png;base64,AAAA"}]
    assert page.call("./transfer.js", script, good) == good
    for bad in ({"kind": "video"}, {"url": "https://a/b.png"}, {"url": "data:text/html,<b>"}, {"name": 5}):
        found = page.call("./transfer.js", script, [{**good[0], **bad}])
        assert "expected pictures and sounds" in found
