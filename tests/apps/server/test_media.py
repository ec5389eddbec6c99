"""Pictures and sounds of clients, in each interface's form: what `engine.chat` makes of them, or an error."""

from __future__ import annotations

import base64
import io
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.apps.server import media as module
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.workers import Pools
from oxillama.base.config import SchedulerConfig
from oxillama.models.media.decode import Picture
from oxillama.text.chat.prompt import chat_text
from tests.support.media import SHARED, picture
from tests.support.server import Answer, Client, serving, working

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

SEED = 4
OPTIONS = {"temperature": 0, "max_tokens": 6}


def png(seed: int = 0) -> bytes:
    held = io.BytesIO()
    Image.fromarray(picture(40, 30, seed)).save(held, "PNG")
    return held.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes, form: str = "image/png") -> str:
    return f"data:{form};base64,{encoded(data)}"


def image_url(address: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, **more}}


def part_of_url(data: bytes) -> dict[str, Any]:
    return image_url(url(data))


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(data)}
    return {"type": "image", "source": source}


@pytest.fixture(scope="module")
def client(seeing: Client) -> Client:
    return seeing


@pytest.fixture(scope="module")
def alone(sighted: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(sighted / "tiny.gguf", num_threads=1) as engine:
        yield engine


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def wanted(alone: InferenceEngine, *parts: Any) -> str:
    found = alone.chat(said(*parts), **OPTIONS)
    assert isinstance(found, str)
    return found


# --- what each interface calls a picture --------------------------------------------------------------


def openai(client: Client, *parts: Any, status: int | None = None, **more: Any) -> Answer:
    body = {"messages": said(*parts), **OPTIONS, **more}
    return client.ask("/v1/chat/completions", body, status=status)


def test_openai(client: Client, alone: InferenceEngine) -> None:
    data = png()
    answer = wanted(alone, text("once"), {"type": "image", "image": data}, text("upon"))
    assert answer != wanted(alone, text("once"), {"type": "image", "image": png(1)}, text("upon"))
    part = image_url(url(data), detail="auto")
    for given in (part, {**part, "image_url": url(data)}, {"type": "input_image", "image_url": url(data)}):
        found = openai(client, text("once"), given, text("upon"), status=200)
        assert found.choice["message"]["content"] == answer
    prompt = found.json["usage"]["prompt_tokens"]
    body = {"messages": said(text("once"), part, text("upon"))}
    assert client.ask("/v1/chat/completions/input_tokens", body).json["input_tokens"] == prompt


def test_a_stream(client: Client, alone: InferenceEngine) -> None:
    found = openai(client, part_of_url(png()), stream=True)
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in found.events[:-1]]
    assert "".join(pieces) == wanted(alone, {"type": "image", "image": png()})


def test_several_samples(client: Client, alone: InferenceEngine) -> None:
    found = openai(client, part_of_url(png()), n=2)
    answers = {choice["message"]["content"] for choice in found.json["choices"]}
    assert answers == {wanted(alone, {"type": "image", "image": png()})}


def test_a_receipt_names_the_picture(client: Client, alone: InferenceEngine) -> None:
    found = openai(client, part_of_url(png()), receipt=True, status=200)
    receipt = found.choice["receipt"]
    assert alone.verify(receipt, media=[png()])
    assert alone.verify(receipt, media=[png(1)]).cause == "media"


def test_responses(client: Client, alone: InferenceEngine) -> None:
    answer = wanted(alone, {"type": "image", "image": png()}, text("once"))
    content = [{"type": "input_image", "image_url": url(png()), "detail": "high"}]
    content += [{"type": "input_text", "text": "once"}]
    body = {"input": [{"role": "user", "content": content}], "temperature": 0, "max_output_tokens": 6}
    found = client.ask("/v1/responses", body, status=200)
    assert found.json["output"][0]["content"][0]["text"] == answer
    more = {"previous_response_id": found.json["id"], "input": "upon"}
    again = client.ask("/v1/responses", {**body, **more})
    messages: list[Any] = said({"type": "image", "image": png()}, text("once"))
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "upon"}]
    assert again.json["output"][0]["content"][0]["text"] == alone.chat(messages, **OPTIONS)
    counted = client.ask("/v1/responses/input_tokens", {"input": body["input"]})
    assert counted.json["input_tokens"] == found.json["usage"]["input_tokens"]


def test_anthropic(client: Client, alone: InferenceEngine) -> None:
    answer = wanted(alone, {"type": "image", "image": png()}, text("once"))
    body = {"messages": said(block(png()), text("once"))}
    found = client.ask("/v1/messages", {**body, **OPTIONS}, status=200)
    assert found.json["content"][0]["text"] == answer
    counted = client.ask("/v1/messages/count_tokens", body)
    usage = found.json["usage"]
    assert counted.json["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_pictures_in_results_of_tools(client: Client) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block(png())]}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    body = {"messages": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]}
    n = [
        client.ask("/v1/messages/count_tokens", {"messages": messages}).json["input_tokens"]
        for messages in (body["messages"], [body["messages"][0], said({**result, "content": []})[0]])
    ]
    assert n[0] >= n[1] + 16  # the tokens of the picture


def test_ollama(client: Client, alone: InferenceEngine) -> None:
    answer = wanted(alone, {"type": "image", "image": png()}, text("once"))
    options = {"temperature": 0, "num_predict": 6}
    message = {"role": "user", "content": "once", "images": [encoded(png())]}
    found = client.ask("/api/chat", {"messages": [message], "options": options, "stream": False}, status=200)
    assert found.json["message"]["content"] == answer
    body = {"prompt": "once", "images": [encoded(png())], "options": options, "stream": False}
    found = client.ask("/api/generate", body)
    assert found.json["response"] == answer
    assert "context" not in found.json  # which could not hold the picture
    raw = client.ask("/api/generate", {**body, "raw": True})
    prompt = alone.model.feature("media").prompt("<__media__>once", [png()])
    assert raw.json["response"] == alone.generate(prompt, **OPTIONS)


def test_llama_server(client: Client, alone: InferenceEngine) -> None:
    given = "once <__media__> upon"
    answer = alone.generate(alone.model.feature("media").prompt(given, [png()]), **OPTIONS)
    prompt = {"prompt_string": given, "multimodal_data": [encoded(png())]}
    found = client.ask("/completion", {"prompt": prompt, "temperature": 0, "n_predict": 6}, status=200)
    assert (found.json["content"], found.json["prompt"]) == (answer, given)
    both = client.ask("/completion", {"prompt": [prompt, "once"], "temperature": 0, "n_predict": 6})
    assert both.json[0]["content"] == answer
    marked = client.ask("/apply-template", {"messages": said({"type": "image_url", "image_url": "x"})})
    assert marked.json["prompt"].count(client.ask("/props").json["media_marker"]) == 1


def test_slots(sighted: Path, tmp_path: Path) -> None:
    """A slot goes on behind a picture, and so does its file in another process, with the same text."""
    one, two = "once <__media__> upon", "once <__media__> upon a <__media__>"
    prompts: list[dict[str, Any]] = [
        {"prompt_string": given, "multimodal_data": [encoded(png(i)) for i in pictures]}
        for given, pictures in ((one, [0]), (two, [0, 1]), (two, [0, 2]))
    ]

    def asked(client: Client, i: int, slot: int) -> tuple[str, int]:
        body = {"prompt": prompts[i], "temperature": 0, "n_predict": 6, "id_slot": slot}
        answer = client.ask("/completion", body, status=200)
        return answer.json["content"], answer.json["timings"]["prompt_n"]

    def serve() -> Any:
        scheduler = SchedulerConfig(max_sequences=2)
        engine = InferenceEngine.from_gguf(sighted / "tiny.gguf", num_threads=1, scheduler=scheduler)
        return serving(engine, slot_save_path=tmp_path)

    with serve() as client:
        wanted = [asked(client, i, -1)[0] for i in range(3)]
        assert len({*wanted}) == 3
        found = [asked(client, i, 1) for i in (0, 1, 2, 2)]
        assert [text for text, _ in found] == [*wanted, wanted[2]]
        counts = [n for _, n in found]
        assert counts[0] > 16  # the rows of a picture
        assert counts[1] < counts[0] + 16
        assert counts[2] >= 16
        assert asked(client, 1, 1)[0] == wanted[1]
        assert client.ask("/slots/1?action=save", {"filename": "a.bin"}).status == 200
    with serve() as client:
        assert client.ask("/slots/0?action=restore", {"filename": "a.bin"}).status == 200
        again = asked(client, 1, 0)
        assert again[0] == wanted[1]
        assert again[1] <= 16  # the last picture, which no text follows
        assert asked(client, 2, 0)[0] == wanted[2]


def test_embeddings(client: Client, alone: InferenceEngine) -> None:
    """A text with pictures in llama-server's form, in one request with plain texts."""
    image = {"prompt_string": "a <__media__> b", "multimodal_data": [encoded(png())]}
    part = part_of_url(png())
    parts = [{"type": "text", "text": "a "}, part, {"type": "text", "text": " b"}]
    answer = client.ask("/v1/embeddings", {"input": [image, "a b", {"content": parts}], "pooling": "mean"})
    assert answer.status == 200, answer.text
    with_picture = alone.model.feature("media").prompt("a <__media__> b", [png()])
    for i, given in enumerate((with_picture, "a b", with_picture)):
        found = np.array(answer.json["data"][i]["embedding"], np.float32)
        assert (found == alone.embed(given, pooling="mean", normalize=True)).all()
    assert answer.json["usage"]["prompt_tokens"] > len(with_picture)
    native = client.ask("/embedding", {"content": {"content": parts}, "pooling": "mean"}).json
    assert native[0]["embedding"] == [answer.json["data"][2]["embedding"]]
    for wrong in ({**part, "detail": 1}, {"type": "input_video", "input_video": {"url": "data:,"}}):
        assert client.ask("/v1/embeddings", {"input": {"content": [*parts, wrong]}}).status == 400


def test_embeddings_of_a_conversation(client: Client, alone: InferenceEngine) -> None:
    """vLLM's form: one vector of the prompt that the template makes of all messages."""
    picture_part = part_of_url(png())
    for parts, kept in (
        ((picture_part, text("once")), ({"type": "image", "image": png()}, text("once"))),
        ((text("once"),), (text("once"),)),
    ):
        answer = client.ask("/v1/embeddings", {"messages": said(*parts), "pooling": "mean"}, status=200)
        rows = [np.array(item["embedding"], np.float32) for item in answer.json["data"]]
        messages, held = alone.model.feature("media").take(said(*kept))
        rendered = chat_text(alone.tokenizer, messages, None, {"add_generation_prompt": False})
        prompt = alone.tokenizer.encode_rendered(rendered) if held is None else held.prompt(rendered)
        assert len(rows) == 1 and (rows[0] == alone.embed(prompt, pooling="mean", normalize=True)).all()
        assert answer.json["usage"]["prompt_tokens"] == len(prompt)
    opened = client.ask("/v1/embeddings", {"messages": said(text("once")), "add_generation_prompt": True})
    assert opened.json["usage"]["prompt_tokens"] > len(prompt)


def test_conversations_that_have_no_embedding(client: Client) -> None:
    video = {"type": "video_url", "video_url": {"url": url(b"")}}
    remote = image_url("https://a/b.png")
    messages = said(text("once"))
    for body, message in (
        ({"messages": messages, "input": "a"}, "messages: expected none beside input"),
        ({"messages": []}, "messages: expected"),
        ({}, "input: expected a value, got none, nor messages"),
        ({"input": "a", "add_generation_prompt": False}, "add_generation_prompt: expected messages, not in"),
        ({"input": "a", "add_special_tokens": True}, "add_special_tokens: expected messages, not input"),
        ({"input": "a", "chat_template_kwargs": {}}, "chat_template_kwargs: expected messages, not input"),
        ({"messages": messages, "truncate_prompt_tokens": 3}, "truncate_prompt_tokens: is no option"),
        ({"messages": said(video)}, "expected a part of type text, got 'video_url'"),
        ({"messages": said(remote)}, "the server fetches nothing"),
        ({"messages": messages, "continue_final_message": True}, "messages[0]: expected a text of the assi"),
        ({"messages": said(PICTURE), "model": "plain"}, "the model takes no pictures"),
        ({"messages": said(text("once " * 400))}, "messages: expected at most"),
    ):
        found = client.ask("/v1/embeddings", body, status=400)
        assert message in found.error["message"], found.text


def test_sounds_are_for_models_that_take_them(client: Client) -> None:
    part = {"type": "input_audio", "input_audio": {"data": encoded(b"RIFF"), "format": "wav"}}
    found = openai(client, part, status=400)
    assert (
        "messages[0].content[0]: the model takes no sounds: its projector file has no encoder" in found.text
    )


# --- what a model takes -------------------------------------------------------------------------------


def test_models_say_what_they_take(client: Client, sighted: Path) -> None:
    cards = {card["id"]: card for card in client.ask("/v1/models").json["data"]}
    takes = {name: card["architecture"]["input_modalities"] for name, card in cards.items()}
    assert takes == {"tiny": ["text", "image"], "plain": ["text"]}
    assert client.ask("/props").json["modalities"] == {"vision": True, "audio": False}
    assert client.ask("/props?model=plain").json["modalities"] == {"vision": False, "audio": False}
    assert "vision" in client.ask("/api/show", {"model": "tiny"}).json["capabilities"]
    assert "vision" not in client.ask("/api/show", {"model": "plain"}).json["capabilities"]
    assert Hosted("a", path=str(sighted / "tiny.gguf")).takes == ("image",)
    other = sighted / "plain" / "plain.gguf"
    assert Hosted("a", path=str(other)).takes == ()
    assert Hosted("a", path=str(other), mmproj=sighted / "mmproj-tiny.gguf").takes == ("image",)


PICTURE = part_of_url(b"x")


@pytest.mark.parametrize(
    "address", ["http://a/b.png", "https://a/b.png", "file:///etc/passwd", "/etc/passwd", "x"]
)
def test_nothing_is_fetched_or_opened(client: Client, address: str) -> None:
    fetches = "the server fetches nothing"
    for part in (image_url(address), {"type": "input_image", "image_url": address}):
        found = openai(client, part)
        assert (found.status, fetches in found.text) == (400, True), found.text
    image = {"type": "image", "source": {"type": "url", "url": address}}
    found = client.ask("/v1/messages", {"messages": said(image), "max_tokens": 3})
    assert (found.status, fetches in found.text) == (400, True), found.text
    for part in ({"type": "image", "path": address}, {"type": "image", "image": address}):
        found = openai(client, part)
        assert found.status == 400 and "expected a part of type text, image_url" in found.text
    found = client.ask("/api/generate", {"images": [address], "stream": False})
    assert found.status == 400 and ("fetches nothing" in found.text or "base64" in found.text), found.text


def test_files_of_a_folder(sighted: Path, tmp_path: Path, alone: InferenceEngine) -> None:
    """Only below the folder: neither dots nor links lead out of it, and only if the server has one."""
    shown = tmp_path / "shown"
    (shown / "a b").mkdir(parents=True)
    (shown / "a b" / "c.png").write_bytes(png())
    (tmp_path / "hidden.png").write_bytes(png())
    (shown / "link.png").symlink_to(tmp_path / "hidden.png")
    (shown / "text.png").write_bytes(b"no picture")
    engine = InferenceEngine.from_gguf(sighted / "tiny.gguf", num_threads=1)
    answer = wanted(alone, {"type": "image", "image": png()})
    with serving(engine, media_path=shown) as client:
        for name in ("a%20b/c.png", "//a%20b//c.png", "/a b/c.png"):
            found = openai(client, image_url(f"file://{name}"), status=200)
            assert found.choice["message"]["content"] == answer
        prompt = {"prompt_string": "<__media__>", "multimodal_data": ["file://a b/c.png"]}
        assert client.ask("/completion", {"prompt": prompt, "n_predict": 1}).status == 200
        hidden = ("../hidden.png", f"{tmp_path}/hidden.png", "a b/%2e%2e/%2e%2e/hidden.png", "link.png")
        for name in (*hidden, "a b", "none.png", "%00", ""):
            found = openai(client, image_url(f"file://{name}"))
            assert found.status == 400 and "below the server's --media-path" in found.text, name
        found = openai(client, image_url("file://text.png"))
        assert found.status == 400 and "cannot be" in found.text
        found = openai(client, image_url("http://a/b.png"))
        assert found.status == 400 and "fetches nothing" in found.text


BAD: list[tuple[Any, str]] = [
    (part_of_url(b"GIF89a"), "content[0].image_url.url: picture: cannot be"),
    (image_url("data:image/png;base64,!!"), "expected base64"),
    (image_url("data:image/png;base64,\u00e9"), "expected base64"),
    (image_url("data:image/png;base64,"), "picture: is empty"),
    (image_url(3), "image_url.url: expected a data URL, got 3"),
    ({"type": "image_url"}, "content[0].image_url: expected a data URL, got None"),
    (image_url(url(b""), detail="low"), "detail: expected one of auto"),
    ({"type": "input_image", "file_id": "file-1"}, "file_id: expected one of type, image_url, detail"),
    ({"type": "video_url", "video_url": {"url": url(b"")}}, "expected a part of type text, got 'video_url'"),
]


@pytest.mark.parametrize(("part", "message"), BAD, ids=range(len(BAD)))
def test_what_is_no_picture(client: Client, part: Any, message: str) -> None:
    found = openai(client, part, status=400)
    assert message in found.error["message"]


def test_media_stand_where_they_can(client: Client) -> None:
    image = {"prompt_string": "<__media__>", "multimodal_data": [encoded(png())]}
    images = {"images": [encoded(png())]}
    for path, body, message in (
        ("/completion", {"prompt": {**image, "prompt_string": "none"}}, "one for each of 0 markers"),
        ("/completion", {"prompt": {**image, "multimodal_data": [3]}}, "expected a text, token ids"),
        ("/v1/completions", {"prompt": image}, "/completion, embeddings and chats take media"),
        ("/v1/embeddings", {"input": {**image, "multimodal_data": ["x"]}}, "input.multimodal_data[0]"),
        ("/api/generate", {**images, "context": [3]}, "images: expected none beside context"),
        ("/api/generate", {**images, "suffix": "a"}, "images: expected none beside suffix"),
    ):
        found = client.ask(path, body, status=400)
        assert message in found.text
    many = openai(client, *[part_of_url(png())] * 65)
    assert many.status == 400 and "expected at most 64 media" in many.text
    most = openai(client, *[part_of_url(png())] * 64)
    assert "context_length_exceeded" in most.text


# --- processes ----------------------------------------------------------------------------------------


def crash(data: bytes, kind: str) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(data: bytes, kind: str) -> Any:
    while True:
        pass


def devour(data: bytes, kind: str) -> Any:
    with module.limited_memory():
        return (1,), bytes(1 << 40)


@pytest.fixture
def pools() -> Iterator[Pools]:
    with working(1) as made:
        yield made


def test_a_process_decodes(pools: Pools) -> None:
    found = module.decoded("a", encoded(png()), "image")
    assert isinstance(found, Picture) and (found.pixels == picture(40, 30)).all()
    assert len(pools.processes.pids) == 1 and os.getpid() not in pools.processes.pids


@pytest.mark.parametrize(
    ("job", "kind", "limit", "message"),
    [
        (crash, "image", {"SECONDS": 60.0}, "the process that decoded it has ended"),
        (hang, "image", {"SECONDS": 0.5}, "is not decoded after 0.5 s"),
        (hang, "audio", {"SOUND_SECONDS": 0.5}, "is not decoded after 0.5 s"),
    ],
)
def test_a_hostile_file_ends_its_process_alone(
    pools: Pools, job: Any, kind: str, limit: dict[str, float], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.decoded("a", encoded(png()), "image")
    monkeypatch.setattr(module, "decoded_alone", job)
    for name, seconds in limit.items():
        monkeypatch.setattr(module, name, seconds)
    with pytest.raises(ApiError, match=message) as caught:
        module.decoded("a", encoded(png()), kind)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_media", "a")
    monkeypatch.undo()
    assert isinstance(module.decoded("a", encoded(png()), "image"), Picture)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not tell its memory")
def test_memory_is_limited(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decoded_alone", devour)
    with pytest.raises(ApiError, match="needs too much memory"):
        module.decoded("a", encoded(png()), "image")
    monkeypatch.undo()
    resource = pytest.importorskip("resource")
    limits = partial(resource.getrlimit, resource.RLIMIT_DATA)
    monkeypatch.setattr(module, "decoded_bytes", lambda text, kind: limits())
    assert module.decoded_alone(b"", "image") != limits()


def test_without_processes_a_thread_decodes(sighted: Path) -> None:
    with serving(sighted / "tiny.gguf", "tiny", job_processes=0) as client:
        openai(client, part_of_url(png()), status=200)
        bad = openai(client, part_of_url(b"x" * 99))
        assert bad.status == 400 and "cannot be decoded" in bad.text


def test_only_a_process_of_its_own_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decoded_alone", None)
    with working(0):
        assert isinstance(module.decoded("a", encoded(png()), "image"), Picture)


def test_encoders_run_in_threads_of_their_own(client: Client) -> None:
    """A short prompt is tokenized while pictures keep the encoders busy."""
    names: list[str] = []
    media = client.hosted.ready().model.feature("media")
    encode = media.encode
    media.encode = lambda medium: names.append(threading.current_thread().name) or encode(medium)
    try:
        assert openai(client, part_of_url(png(77))).status == 200
    finally:
        del media.encode
    assert names == ["server encoding"]


def test_an_encoder_stops_when_its_client_leaves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(medium: Any) -> Iterator[None]:
        begun.set()
        try:
            while True:
                yield
        finally:
            ended.set()

    media = client.hosted.ready().model.feature("media")
    monkeypatch.setattr(media.encoder, "steps", endless)
    picture = part_of_url(png(78))
    body = {"messages": said(picture), **OPTIONS}
    connection = client.begin("/v1/chat/completions", body)
    assert begun.wait(60)
    connection.close()
    assert ended.wait(60)
    monkeypatch.undo()
    assert openai(client, picture).status == 200


def test_sounds_in_each_form(hears: Client) -> None:
    pytest.importorskip("soundfile")
    data = next(iter(sorted((SHARED / "sounds").glob("*.wav")))).read_bytes()
    engine = hears.hosted.ready()
    parts: list[Any] = [{"type": "audio", "audio": data}, text("a")]
    answer = engine.chat(said(*parts), **OPTIONS)
    given = "<__media__> a"
    plain = engine.generate(engine.model.feature("media").prompt(given, [data]), **OPTIONS)
    assert hears.ask("/props").json["modalities"] == {"vision": False, "audio": True}
    form = {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}
    for part in (form, {"type": "audio_url", "audio_url": {"url": url(data, "audio/wav")}}):
        found = openai(hears, part, text("a"), status=200)
        assert found.choice["message"]["content"] == answer
    prompt = {"prompt_string": given, "multimodal_data": [encoded(data)]}
    found = hears.ask("/completion", {"prompt": prompt, "temperature": 0, "n_predict": 6})
    assert found.json["content"] == plain
    wrong = openai(hears, part_of_url(png()))
    assert "the model takes no pictures: its projector file has no encoder" in wrong.text
    form = {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "exe"}}
    assert "format: expected one of wav" in openai(hears, form).text


def test_a_sound_becomes_samples(pools: Pools) -> None:
    soundfile = pytest.importorskip("soundfile")
    held, tone = io.BytesIO(), np.sin(np.arange(1600) / 9).astype(np.float32) / 2
    soundfile.write(held, tone, 16000, format="WAV", subtype="FLOAT")
    found: Any = module.decoded("a", encoded(held.getvalue()), "audio")
    assert (found.samples == tone).all()
    assert module.is_sound(encoded(held.getvalue())) and not module.is_sound(encoded(png()))
