"""Prompts are laid out before media are encoded: lengths, names of tiles and places of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine, MediaError, PromptError
from oxillama._kernels import best
from oxillama.engine.features.media import prompt as module
from oxillama.engine.features.media.prompt import check_names, layout, tokens_of
from oxillama.models.media import decode, vision
from oxillama.models.media.decode import Picture, Sound, read_medium
from oxillama.models.media.encoder import MediaEncoder, Planned
from oxillama.models.media.tiles import Name
from tests.support.media import PAIRS, SHARED, picture, reference


@pytest.mark.parametrize("pair", PAIRS)
def test_counts_are_those_of_encoders(pair: str) -> None:
    """The media are all reference files, and some of other sizes and lengths."""
    encoder = MediaEncoder(SHARED / pair / "mmproj.gguf", best(), 2)
    names = {each["file"] for case in reference(pair)["cases"].values() for each in case["media"]}
    media = [read_medium(SHARED / name) for name in sorted(names)]
    if encoder.vision is not None:
        media += [Picture(picture(*size)) for size in ((28, 28), (57, 123))]
    if encoder.audio is not None:
        media += [Sound(np.zeros(n, np.float32)) for n in (1, 161, 480_000, 480_161)]
    for medium in media:
        planned = encoder.plan(medium)
        found = encoder.encode(medium)
        assert planned.counts == found.counts and planned.texts == found.texts


@pytest.fixture
def encodes_nothing(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    media = engine.model.feature("media")
    monkeypatch.setattr(media.encoder, "steps", lambda planned: pytest.fail("a medium was encoded"))
    return engine


def test_a_prompt_that_is_too_long(encodes_nothing: InferenceEngine) -> None:
    engine = encodes_nothing
    media, n = engine.model.feature("media"), engine.context_size
    each = sum(media.plan(picture(28, 28, 900)).counts)
    many = n // each + 1
    with pytest.raises(PromptError, match=rf"at most {n} tokens .*, got \d+, {many * each} of media alone"):
        media.prompt("<__media__>" * many, [picture(28, 28, 900 + i) for i in range(many)])
    with pytest.raises(PromptError, match=rf"at most {n} tokens"):
        media.prompt("<__media__>" + "once upon a time " * n, [picture(28, 28, 900)])
    parts: list[Any] = [{"type": "image", "image": picture(28, 28, 900 + i)} for i in range(many)]
    with pytest.raises(PromptError, match=rf"at most {n} tokens"):
        engine.chat([{"role": "user", "content": parts}])


def test_checks_of_the_caller(encodes_nothing: InferenceEngine) -> None:
    media, seen = encodes_nothing.model.feature("media"), []

    def check(n: int) -> None:
        seen.append(n)
        raise PromptError("no room")

    with pytest.raises(PromptError, match="no room"):
        media.prompt("a <__media__>", [picture(28, 28, 901)], check=check)
    planned = media.plan(picture(28, 28, 901))
    assert isinstance(planned, Planned) and seen[0] > sum(planned.counts)


def test_embeddings_of_a_receipt_are_checked_first(encodes_nothing: InferenceEngine) -> None:
    media = encodes_nothing.model.feature("media")
    with pytest.raises(PromptError, match=r"media\[0\]: expected 2 tiles, got 1"):
        media.embeddings([picture(28, 28, 902)], [(1, 2)], 99)
    with pytest.raises(PromptError, match="expected places for all of their rows"):
        media.embeddings([picture(28, 28, 902)], [(3,)], 5)


# --- places -----------------------------------------------------------------------------------------------


def test_errors_name_the_medium(
    engine: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media = engine.model.feature("media")
    bad = b"<svg></svg>"
    (tmp_path / "a.svg").write_bytes(bad)
    with pytest.raises(MediaError, match=r"^media\[1\]: picture: cannot be decoded: SVG is not read"):
        media.prompt("<__media__><__media__>", [picture(), bad])
    with pytest.raises(MediaError, match=r"^the second: picture: "):
        media.prompt("<__media__><__media__>", [picture(), bad], places=["the first", "the second"])
    for part, place in (
        ({"type": "image", "path": tmp_path / "a.svg"}, "path"),
        ({"type": "image", "image": bad}, "image"),
        ({"type": "image_url", "image_url": {"url": "data:;base64,PHN2Zz48L3N2Zz4="}}, "image_url.url"),
        ({"type": "input_image", "image_url": "data:;base64,PHN2Zz48L3N2Zz4="}, "image_url"),
    ):
        content = [{"type": "text", "text": "a"}, part]
        with pytest.raises(MediaError) as caught:
            engine.chat([{"role": "system", "content": "a"}, {"role": "user", "content": content}])
        assert str(caught.value).startswith(
            f"messages[1].content[1].{place}: picture: cannot be decoded: SVG"
        )
    monkeypatch.setattr(vision, "MOST_PATCHES", 1)
    with pytest.raises(
        ConfigError, match=r"^messages\[0\].content\[0\].image: picture: expected 1 to 1 patches"
    ):
        engine.chat([{"role": "user", "content": [{"type": "image", "image": picture(77, 77, 9)}]}])


def test_errors_have_no_addresses(engine: InferenceEngine) -> None:
    media = engine.model.feature("media")
    for source in (object(), b"RIFF", b"OggS" + bytes(99), b"", lambda: None, "data:x", np.zeros(3, object)):
        for call in (media.encode, media.decode, lambda each: media.prompt("<__media__>", [each])):
            with pytest.raises((MediaError, ConfigError)) as caught:
                call(source)
            assert " at 0x" not in str(caught.value)
    for given in ({"text": object()}, {"marker": object()}):
        with pytest.raises(ConfigError, match="expected a str, got object") as caught:
            media.prompt(**{"text": "a", "media": [], **given})
    for part in (
        {"type": object()},
        {"type": "image", "image": [object()]},
        {"type": "image_url", "url": {}},
    ):
        with pytest.raises(ConfigError) as caught:
            engine.chat([{"role": "user", "content": [part]}])
        assert " at 0x" not in str(caught.value)


# --- names of tiles -----------------------------------------------------------------------------------------


class Words:
    """A tokenizer of a vocabulary with names; other texts are their characters."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def token_id(self, name: str) -> int | None:
        return 1000 + self.names.index(name) if name in self.names else None

    def vocab_bytes(self) -> list[bytes]:
        return [name.encode() for name in self.names]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(map(ord, text))

    def encode_rendered(self, text: str) -> list[int]:
        return []


def grid(pattern: str, rows: int, columns: int) -> list[str]:
    return [pattern.format(y, x) for y in range(1, rows + 1) for x in range(1, columns + 1)]


@pytest.mark.parametrize(
    "name", ["<global-img>", "<fake_token_around_image>", "<|img_thumbnail|>", "<slice>", "\n\n"]
)
def test_names_that_are_no_tokens_are_texts(name: str) -> None:
    assert tokens_of(Words(name), Name(name)) == [1000]  # type: ignore[arg-type]
    assert tokens_of(Words(), Name(name)) == list(map(ord, name))  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["<row_{}_col_{}>", "<|img_row_{}_col_{}|>"])
def test_more_tiles_than_names(pattern: str) -> None:
    words: Any = Words(*grid(pattern, 3, 4))
    texts = [[Name("<x>"), Name(name)] for name in grid(pattern, 3, 4)]
    check_names(words, texts)
    for rows, columns in ((4, 1), (1, 5), (10, 10)):
        texts = [[Name("<x>"), Name(name)] for name in grid(pattern, rows, columns)]
        most = f"{min(3, rows)} x {min(4, columns)} tiles"
        with pytest.raises(MediaError, match=rf"at most {most} .* names, got {rows} x {columns}"):
            check_names(words, texts)
        check_names(Words(), texts)  # type: ignore[arg-type]
        planned = Planned(Picture(picture()), [*texts, []], [1] * len(texts))
        with pytest.raises(MediaError, match=r"^here: picture: expected at most"):
            layout(words, ["a", "b"], [planned], ["here"], words.encode, closes=False)


@pytest.mark.skipif("idefics3" not in PAIRS, reason="the reference files are not there")
def test_a_vocabulary_without_names(tmp_path: Path) -> None:
    folder = SHARED / "idefics3"
    data = (folder / "text.gguf").read_bytes()
    (tmp_path / "text.gguf").write_bytes(data.replace(b"<global-img>", b"<another-one"))
    engines = [
        InferenceEngine.from_gguf(path, mmproj=folder / "mmproj.gguf", num_threads=1)
        for path in (folder / "text.gguf", tmp_path / "text.gguf")
    ]
    found = [engine.model.feature("media").prompt("<__media__> a", [picture()]).tokens for engine in engines]
    name = engines[1].tokenizer.encode("<global-img>", add_special=False, parse_special=True)
    at = found[0].index(engines[0].tokenizer.token_id("<global-img>"))
    assert len(name) > 1 and found[1] == [*found[0][:at], *name, *found[0][at + 1 :]]
    for engine in engines:
        engine.close()


# --- the version of the preprocessing -----------------------------------------------------------------------


def test_another_version_is_encoded_again(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings of a session are not used for the same picture under another version."""
    media, source = engine.model.feature("media"), picture(28, 28, 950)
    with engine.session() as session:
        session.prefill(media.prompt("a <__media__>", [source]))
        kept = session.snapshot()
    monkeypatch.setattr(decode, "PREPROCESSING", 77)
    ran = []
    steps = media.encoder.steps
    monkeypatch.setattr(media.encoder, "steps", lambda planned: ran.append(planned) or steps(planned))
    with engine.restore(kept) as session:
        assert session.tokens
        media.prompt("a <__media__>", [source])
    assert len(ran) == 1


def test_receipts_of_another_version(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    given = engine.model.feature("media").prompt("a <__media__>", [picture(28, 28, 951)])
    generation = engine.stream(given, temperature=0, max_tokens=3, receipt=True)
    receipt = generation.result().receipt
    assert receipt.preprocessing == decode.PREPROCESSING == 2 and '"preprocessing": 2' in receipt.to_json()
    assert engine.verify(receipt, media=[picture(28, 28, 951)])
    old = receipt.to_json().replace('  "preprocessing": 2', '  "preprocessing": 1')
    verdict = engine.verify(old, media=[picture(28, 28, 951)])
    assert verdict.cause == "media"
    assert "another preprocessing of pictures and sounds: expected version 1, got 2" in verdict.message
    plain = engine.stream("a", temperature=0, max_tokens=3, receipt=True).result().receipt
    assert "preprocessing" not in plain.to_json()
    assert module.PREPROCESSING == 2
