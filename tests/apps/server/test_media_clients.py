"""Pictures through the published clients of OpenAI, Anthropic and Ollama, as their manuals send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.apps.server.test_media import block, encoded, image_url, png, said, text, url, wanted
from tests.support.server import Client


@pytest.fixture(scope="module")
def model(sighted: Path) -> Path:
    return sighted / "tiny.gguf"


@pytest.fixture(scope="module")
def answer(server: Client) -> str:
    """What the engine itself answers."""
    return wanted(server.hosted.ready(), {"type": "image", "image": png()}, text("once"))


def test_openai(server: Client, answer: str) -> None:
    messages: Any = said(image_url(url(png()), detail="high"), text("once"))
    items: Any = said(
        {"type": "input_image", "image_url": url(png()), "detail": "auto"},
        {"type": "input_text", "text": "once"},
    )
    remote: Any = said(image_url("https://a.b/c.png"))
    with openai.OpenAI(base_url=f"{server.server.url}/v1", api_key="-", max_retries=0) as client:
        create = client.chat.completions.create
        chat = create(model="tiny", messages=messages, temperature=0, max_tokens=6)
        assert chat.choices[0].message.content == answer
        response = client.responses.create(model="tiny", input=items, temperature=0, max_output_tokens=6)
        assert response.output_text == answer
        with pytest.raises(openai.BadRequestError, match="the server fetches nothing"):
            create(model="tiny", messages=remote)


def test_anthropic(server: Client, answer: str) -> None:
    messages: Any = said(block(png()), text("once"))
    with anthropic.Anthropic(base_url=server.server.url, api_key="-", max_retries=0) as client:
        message = client.messages.create(
            model="tiny", max_tokens=6, messages=messages, extra_body={"temperature": 0}
        )
    assert [each.text for each in message.content if each.type == "text"] == [answer]


def test_ollama(server: Client, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png())
    options = {"temperature": 0, "num_predict": 6}
    with ollama.Client(server.server.url) as client:
        for image in (png(), str(path), encoded(png())):
            messages = [{"role": "user", "content": "once", "images": [image]}]
            assert client.chat("tiny", messages=messages, options=options).message.content == answer
        assert client.generate("tiny", "once", images=[png()], options=options).response == answer
        assert "vision" in (client.show("tiny").capabilities or [])
