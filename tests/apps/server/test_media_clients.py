"""Pictures through the published clients of OpenAI, Anthropic and Ollama, as their manuals send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.apps.server.test_media import OPTIONS, encoded, png, url
from tests.support.server import Client


@pytest.fixture(scope="module")
def model(sighted: Path) -> Path:
    return sighted / "tiny.gguf"


@pytest.fixture(scope="module")
def answer(server: Client) -> str:
    """What the engine itself answers."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": png()}, {"type": "text", "text": "once"}]
    found = server.hosted.ready().chat([{"role": "user", "content": parts}], **OPTIONS)
    assert isinstance(found, str)
    return found


def test_openai(server: Client, answer: str) -> None:
    with openai.OpenAI(base_url=f"{server.server.url}/v1", api_key="-", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="tiny",
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": url(png()), "detail": "high"}},
                        {"type": "text", "text": "once"},
                    ],
                }
            ],
            temperature=0,
            max_tokens=6,
        )
        assert chat.choices[0].message.content == answer
        response = client.responses.create(
            model="tiny",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": url(png()), "detail": "auto"},
                        {"type": "input_text", "text": "once"},
                    ],
                }
            ],
            temperature=0,
            max_output_tokens=6,
        )
        assert response.output_text == answer
        with pytest.raises(openai.BadRequestError, match="the server fetches nothing"):
            client.chat.completions.create(
                model="tiny",
                messages=[
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}],
                    }
                ],
            )


def test_anthropic(server: Client, answer: str) -> None:
    with anthropic.Anthropic(base_url=server.server.url, api_key="-", max_retries=0) as client:
        message = client.messages.create(
            model="tiny",
            max_tokens=6,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": encoded(png())},
                        },
                        {"type": "text", "text": "once"},
                    ],
                }
            ],
            extra_body={"temperature": 0},
        )
    assert [block.text for block in message.content if block.type == "text"] == [answer]


def test_ollama(server: Client, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png())
    options = {"temperature": 0, "num_predict": 6}
    with ollama.Client(server.server.url) as client:
        for image in (png(), str(path), encoded(png())):
            said = [{"role": "user", "content": "once", "images": [image]}]
            assert client.chat("tiny", messages=said, options=options).message.content == answer
        assert client.generate("tiny", "once", images=[png()], options=options).response == answer
        assert "vision" in (client.show("tiny").capabilities or [])
