"""Each field of each interface that takes a picture or a sound: errors name it, lengths are checked first."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

from oxillama.apps.server import media as module
from oxillama.models.media import vision
from tests.apps.server.test_media import block, encoded, part_of_url, png, url
from tests.support.server import Client

CONTEXT = 256


@pytest.fixture(scope="module")
def client(seeing: Client) -> Client:
    return seeing


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CONTENT = "messages[0].content[{1}]"


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "a"}, *content]}]


def said(part: Callable[[bytes], Any], media: Iterable[bytes], **options: Any) -> dict[str, Any]:
    return {"messages": user(*map(part, media)), **options}


def tool_result(*blocks: Any) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def multimodal(*pictures: bytes) -> dict[str, Any]:
    text = "a" + "<__media__>" * len(pictures)
    return {"prompt_string": text, "multimodal_data": list(map(encoded, pictures))}


def input_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(data)}


def given(*parts: Any, **options: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(parts)}], **options}


def output(*pictures: bytes) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    parts = list(map(input_part, pictures))
    return [call, {"type": "function_call_output", "call_id": "c", "output": parts}]


def ollama(*media: bytes) -> dict[str, Any]:
    asked = {"role": "user", "content": "a", "images": list(map(encoded, media))}
    options = {"options": {"num_predict": 1}, "stream": False}
    return {"messages": [{"role": "system", "content": "a"}, asked], **options}


def ollama_prompt(*media: bytes, **options: Any) -> dict[str, Any]:
    return {"prompt": "a", "images": list(map(encoded, media)), "stream": False, **options}


def embedded(*pictures: bytes) -> dict[str, Any]:
    return {"content": list(map(part_of_url, pictures))}


FORMS: dict[str, tuple[str, Callable[..., dict[str, Any]], str]] = {
    "chat": (CHAT, lambda *p: said(part_of_url, p, max_tokens=1), f"{CONTENT}.image_url.url"),
    "chat, plain": (CHAT, lambda *p: said(input_part, p, max_tokens=1), f"{CONTENT}.image_url"),
    "tokens of a chat": (f"{CHAT}/input_tokens", lambda *p: said(part_of_url, p), f"{CONTENT}.image_url.url"),
    "responses": (
        RESPONSES,
        lambda *p: given(*map(input_part, p), max_output_tokens=1),
        "input[0].content[{0}].image_url",
    ),
    "responses, a tool": (
        RESPONSES,
        lambda *p: {"input": output(*p), "max_output_tokens": 1},
        "input[1].output[{0}].image_url",
    ),
    "anthropic": ("/v1/messages", lambda *p: said(block, p, max_tokens=1), f"{CONTENT}.source.data"),
    "anthropic, several messages of a role": (
        "/v1/messages",
        lambda *p: {"messages": [*user(), *user(*map(block, p))], "max_tokens": 1},
        "messages[1].content[{1}].source.data",
    ),
    "anthropic, a tool": (
        "/v1/messages",
        lambda *p: {"messages": tool_result(*map(block, p)), "max_tokens": 1},
        "messages[1].content[0].content[{0}].source.data",
    ),
    "tokens of anthropic": (
        "/v1/messages/count_tokens",
        lambda *p: said(block, p),
        f"{CONTENT}.source.data",
    ),
    "ollama": ("/api/chat", ollama, "messages[1].images[{0}]"),
    "ollama, a prompt": ("/api/generate", ollama_prompt, "images[{0}]"),
    "ollama, a raw prompt": ("/api/generate", partial(ollama_prompt, raw=True), "images[{0}]"),
    "llama-server": (
        "/completion",
        lambda *p: {"prompt": multimodal(*p), "n_predict": 1},
        "prompt.multimodal_data[{0}]",
    ),
    "llama-server, a list": (
        "/completion",
        lambda *p: {"prompt": ["a", multimodal(*p)], "n_predict": 1},
        "prompt[1].multimodal_data[{0}]",
    ),
    "embeddings": (
        "/v1/embeddings",
        lambda *p: {"input": [embedded(*p)], "pooling": "mean"},
        "input[0].content[{0}].image_url.url",
    ),
    "embeddings of a conversation": (
        "/v1/embeddings",
        lambda *p: said(part_of_url, p, pooling="mean"),
        f"{CONTENT}.image_url.url",
    ),
    "llama-server's embeddings": (
        "/embedding",
        lambda *p: {"content": embedded(*p), "pooling": "mean"},
        "content.content[{0}].image_url.url",
    ),
}

BAD: dict[str, tuple[bytes, str]] = {
    "cut short": (png()[:200], "picture: cannot be decoded"),
    "SVG": (
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "picture: cannot be decoded: SVG is not read; convert it",
    ),
    "HEIC": (
        b"\0\0\0\x18ftypheic" + bytes(64),
        "picture: cannot be decoded: HEIC is not read; convert it to PNG",
    ),
    "nothing": (b"", "picture: is empty"),
}


@pytest.mark.parametrize("form", FORMS)
def test_errors_name_the_field(client: Client, form: str) -> None:
    path, make, place = FORMS[form]
    where = place.format(1, 2)
    for name, (data, message) in BAD.items():
        found = client.ask(path, make(png(), data), status=400)
        assert f"{where}: {message}" in found.text, (name, found.text)
        assert " at 0x" not in found.text
    assert client.ask(path, make(png(), png(1))).status == 200


@pytest.mark.parametrize("form", FORMS)
def test_errors_of_sizes_name_the_field(client: Client, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, make, place = FORMS[form]
    monkeypatch.setattr(vision, "MOST_PATCHES", 3)
    found = client.ask(path, make(png(4000 + list(FORMS).index(form))), status=400)
    assert f"{place.format(0, 1)}: picture: expected 1 to 3 patches, got 16" in found.text
    if "error" in found.json and isinstance(found.json["error"], dict) and "param" in found.json["error"]:
        assert found.json["error"]["param"] == place.format(0, 1)


@pytest.mark.parametrize("form", FORMS)
def test_lengths_are_checked_first(client: Client, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, make, _ = FORMS[form]
    media = client.hosted.ready().model.feature("media")
    monkeypatch.setattr(media.encoder, "steps", lambda planned: pytest.fail("a medium was encoded"))
    found = client.ask(path, make(*(png(2000 + i) for i in range(CONTEXT // 16 + 1))))
    if "count" in path or "input_tokens" in path:
        assert found.status == 200 and found.json["input_tokens"] > CONTEXT
    else:
        assert found.status == 400, found.text
        assert "expected at most 25" in found.text and "context_length_exceeded" in found.text, found.text


@pytest.mark.parametrize("form", ["ollama", "ollama, a prompt", "ollama, a raw prompt"])
def test_num_ctx_is_checked_first(client: Client, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, make, _ = FORMS[form]
    media = client.hosted.ready().model.feature("media")
    monkeypatch.setattr(media.encoder, "steps", lambda planned: pytest.fail("a medium was encoded"))
    found = client.ask(path, {**make(png(3000)), "options": {"num_ctx": 12}})
    assert found.status == 400 and "expected at most 11 tokens for the context of 12" in found.text, (
        found.text
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_model_without_a_projector(client: Client, form: str) -> None:
    path, make, place = FORMS[form]
    found = client.ask(path, {**make(png()), "model": "plain"}, status=400)
    where = re.search(r"([\w.\[\]]+): the model takes no pictures: it has no projector file", found.text)
    assert where is not None and "(mmproj)" in found.text, found.text
    medium, end, field = place.format(0, 1).rpartition("]")  # not all messages, but the field may be left out
    assert where[1] in (medium + end, medium + end + field)


def test_pixels_of_a_request_are_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small files may have many pixels."""
    monkeypatch.setattr(module, "MOST_DECODED", 2 * 40 * 30 * 3)
    for path, make, place in FORMS.values():
        found = client.ask(path, make(png(), png(1), png(2)), status=400)
        wanted = "expected at most 7200 bytes of pixels and samples in a request, got more"
        assert f"{place.format(2, 3)}: {wanted}" in found.text


# --- sounds -----------------------------------------------------------------------------------------------


def sound(form: str = "WAV") -> bytes:
    soundfile = pytest.importorskip("soundfile")
    held = io.BytesIO()
    soundfile.write(held, (np.sin(np.arange(4000) / 7) * 0.3).astype(np.float32), 16000, format=form)
    return held.getvalue()


OLLAMA: dict[str, tuple[str, Callable[[str], dict[str, Any]], str]] = {
    "chat": (
        "/api/chat",
        lambda data: {"messages": [{"role": "user", "content": "a", "images": [data]}]},
        "messages[0].images[0]",
    ),
    "generate": ("/api/generate", lambda data: {"prompt": "a", "images": [data]}, "images[0]"),
    "raw": ("/api/generate", lambda data: {"prompt": "a", "images": [data], "raw": True}, "images[0]"),
}


@pytest.mark.parametrize("form", ["WAV", "MP3", "FLAC", "OGG", "AIFF"])
@pytest.mark.parametrize("name", OLLAMA)
def test_sounds_in_ollamas_images(hears: Client, name: str, form: str) -> None:
    path, make, _ = OLLAMA[name]
    options = {"stream": False, "options": {"num_predict": 2, "temperature": 0}}
    given = encoded(sound(form))
    for data in (given, f"data:audio/any;base64,{given}"):
        found = hears.ask(path, {**make(data), **options}, status=200)
    engine = hears.hosted.ready()
    if name == "chat":
        content = [{"type": "audio", "audio": sound(form)}, {"type": "text", "text": "a"}]
        wanted = engine.chat([{"role": "user", "content": content}], temperature=0, max_tokens=2)
        assert found.json["message"]["content"] == wanted


@pytest.mark.parametrize("name", OLLAMA)
def test_errors_of_sounds_in_ollamas_images(hears: Client, client: Client, name: str) -> None:
    path, make, place = OLLAMA[name]
    found = hears.ask(path, make(encoded(b"RIFF" + bytes(60))))
    assert found.status == 400 and f"{place}: sound: cannot be decoded as WAV" in found.text, found.text
    found = hears.ask(path, make(encoded(b"\0\0\0\x18ftypM4A " + bytes(60))))
    assert f"{place}: sound: cannot be decoded: M4A is not read; convert it to WAV, MP3" in found.text
    found = hears.ask(path, make(encoded(png())))
    assert f"{place}: the model takes no pictures" in found.text, found.text
    found = client.ask(path, make(encoded(sound())))
    assert f"{place}: the model takes no sounds" in found.text, found.text


def heard(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(data), **more}}


def audio_url(data: bytes) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": url(data)}}


AUDIO: dict[str, tuple[str, Callable[[bytes], dict[str, Any]], str]] = {
    "chat": (
        CHAT,
        lambda data: {"messages": user(heard(data, format="wav"))},
        "messages[0].content[1].input_audio.data",
    ),
    "audio_url": (
        CHAT,
        lambda data: {"messages": user(audio_url(data))},
        "messages[0].content[1].audio_url.url",
    ),
    "responses": (RESPONSES, lambda data: given(heard(data)), "input[0].content[0].input_audio.data"),
    "llama-server": (
        "/completion",
        lambda data: {"prompt": {"content": [heard(data)]}},
        "prompt.content[0].input_audio.data",
    ),
}


@pytest.mark.parametrize("name", AUDIO)
def test_errors_of_sounds_name_the_field(hears: Client, name: str) -> None:
    path, make, place = AUDIO[name]
    found = hears.ask(path, make(b"RIFF" + bytes(60)), status=400)
    assert f"{place}: sound: cannot be decoded as WAV: " in found.text and " at 0x" not in found.text
    short = {"n_predict": 1} if path == "/completion" else {}
    assert hears.ask(path, {**make(sound()), **short}).status == 200


def test_a_long_sound_is_refused_before_it_is_encoded(hears: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    media = hears.hosted.ready().model.feature("media")
    soundfile = pytest.importorskip("soundfile")
    held = io.BytesIO()
    soundfile.write(held, np.zeros(16000 * 3000, np.int16), 16000, format="FLAC")
    monkeypatch.setattr(media.encoder, "steps", lambda planned: pytest.fail("a medium was encoded"))
    path, make, _ = AUDIO["chat"]
    found = hears.ask(path, make(held.getvalue()))
    assert found.status == 400 and "context_length_exceeded" in found.text, found.text
