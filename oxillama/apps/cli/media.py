"""``--image`` and ``--audio``: pictures and sounds of a prompt, or of a message."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama import InferenceEngine

ContentPart = dict[str, Any]
"""A part of a message: ``{"type": "image", "path": ...}``."""

KINDS = ("image", "audio")


def add_media_options(parser: argparse.ArgumentParser, where: str) -> None:
    """Adds the options; ``where`` says where in the prompt the media are."""
    group = parser.add_argument_group("pictures and sounds")
    for kind, word in zip(KINDS, ("picture", "sound"), strict=True):
        group.add_argument(
            f"--{kind}",
            action="append",
            type=partial(part_of, kind),
            dest="media",
            metavar="FILE",
            help=f"a {word} {where} (repeatable), for a model with a projector file (--mmproj)",
        )


def part_of(kind: str, path: str) -> ContentPart:
    return {"type": kind, "path": path}


def read_part(part: ContentPart) -> Any:
    """The pixels or samples of a part. Raises MediaError, ConfigError."""
    from oxillama.engine.features.media.prompt import placed
    from oxillama.models.media.decode import read_picture, read_sound

    with placed(part["path"]):
        return (read_picture if part["type"] == "image" else read_sound)(part["path"])


def kept_part(part: ContentPart) -> ContentPart:
    """A part for a session file: with its whole path, and a hash of its pixels or samples."""
    return {**part, "path": os.path.abspath(part["path"]), "digest": read_part(part).digest.hex()}


def check_unchanged(content: str | Sequence[ContentPart]) -> None:
    """Raises ConfigError for a file that has changed since the session began, and as `read_part`."""
    for part in () if isinstance(content, str) else content:
        if "digest" in part and read_part(part).digest.hex() != part["digest"]:
            wanted = "expected what the session was shown, got another file, or another version of decoding"
            raise ConfigError(f"--session: {part['path']}: {wanted}")


def content_of(text: str, parts: Sequence[ContentPart]) -> str | list[ContentPart]:
    """The content of a message: media first, then the texts of files and the text."""
    whole = "\n\n".join([text, *(part["text"] for part in parts if part["type"] == "text")])
    media = [part for part in parts if part["type"] != "text"]
    if not media:
        return whole
    from oxillama.engine.features.media.parts import Placed

    named = [Placed(f"--{part['type']} {part['path']}", part, part["path"]) for part in media]
    return [*named, {"type": "text", "text": whole}]


def shown_content(content: str | Sequence[ContentPart]) -> str:
    """A content as one text, with the names of files in brackets."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else f"[{part['path']}]" for part in content)


def media_of(engine: InferenceEngine) -> Callable[[], Any]:
    """The function that returns the media of a model, for `chat_prompt`."""
    return partial(engine.model.feature, "media")


def media_prompt(engine: InferenceEngine, text: str, parts: Sequence[ContentPart], opens: bool = True) -> Any:
    """The prompt of a text with media, in the places of its markers, or before it if it has none.

    ``opens`` is False for a prompt that continues another: without the tokens that are put before every text.

    Raises ConfigError unless there are as many markers as media, or none.
    """
    from oxillama.engine.features.media.prompt import MARKER

    media = engine.model.feature("media")
    if MARKER not in text:
        text = MARKER * len(parts) + text
    if text.count(MARKER) != len(parts):
        n = text.count(MARKER)
        raise ConfigError(f"prompt: expected {MARKER} once for each medium, or not at all, got it {n} times")
    places = [part["path"] for part in parts]
    prompt = media.prompt(text, [read_part(part) for part in parts], places=places)
    return prompt if opens else prompt.without(engine.tokenizer.encode_rendered(""))
