"""Parts of messages that are media, which are taken out of a conversation while its template is rendered."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from oxillama.engine.features.media.prompt import Layout, MediaPrompt, cut_at, placed
from oxillama.errors import ConfigError
from oxillama.models.media.decode import Picture, Sound, read_picture, read_sound
from oxillama.models.media.encoder import Encoded, Planned

IMAGE_PARTS = ("image", "image_url", "input_image")
SOUND_PARTS = ("audio", "input_audio", "audio_url")

Check = Callable[[int], None]
"""Raises an error for a number of tokens that a prompt may not have."""


Laid = tuple[Layout, list[int]]
"""The tokens of a prompt, and the numbers of its media in their order."""


class HeldMedia:
    """The media of a conversation, while its template is rendered; ``media`` is the `Media` of the model."""

    def __init__(self, media: Any) -> None:
        self._media = media
        self._secret = secrets.token_hex(12)  # so that no text of a message is a marker
        self.sources: list[Picture | Sound] = []
        self._places: list[str] = []
        self._plans: list[Planned | Encoded] = []

    def taken(self, where: str, message: Any) -> Any:
        """A message whose parts are texts."""
        return with_parts(where, message, self._part)

    def _part(self, where: str, part: Any) -> Any:
        where = getattr(part, "where", where)
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (*IMAGE_PARTS, *SOUND_PARTS):
            return part
        self._media.check_takes(where, "image" if kind in IMAGE_PARTS else "audio")
        source, place = source_of(where, part, kind)
        with placed(place):
            self.sources.append((read_picture if kind in IMAGE_PARTS else read_sound)(source))
        self._places.append(place)
        return {"type": "text", "text": self._marker(len(self.sources))}

    def _marker(self, i: int | str) -> str:
        return f"<__media {self._secret} {i}__>"

    def prompt(self, text: str, closes: bool = False, check: Check | None = None) -> MediaPrompt:
        """The prompt of a rendered conversation with escapes, as `Tokenizer.encode` takes it.

        ``closes`` adds the tokens that the vocabulary puts after every text; ``check`` is as in
        `Media.prompt`. Raises ConfigError if the template hides a medium.
        """
        found: MediaPrompt = self._media._filled(*self._layout(text, closes), check)
        return found

    def n_tokens(self, text: str) -> int:
        """The number of tokens of `prompt`, of which no medium is encoded. Raises as `prompt`."""
        return len(self._layout(text, False)[0].tokens)

    # --- prompts that show any of the media, any number of times ---------------------------------------

    def shown(self, text: str) -> list[int]:
        """The numbers of the media that a text shows, in its order."""
        return [int(number) - 1 for number in self._pieces(text)[1::2]]

    def behind(self, text: str) -> str:
        """The text behind the last medium."""
        return self._pieces(text)[-1]

    def _pieces(self, text: str) -> list[str]:
        return re.split(self._marker(r"(\d+)"), text)

    def laid(self, text: str) -> Laid:
        """The tokens of a rendered text with escapes, and the numbers of its media, of which none is encoded.

        Raises MediaError, ConfigError: a medium cannot be read, or has no encoder.
        """
        for source, place in zip(self.sources[len(self._plans) :], self._places[len(self._plans) :]):
            with placed(place):
                self._plans.append(self._media.plan(source))
        pieces = self._pieces(text)
        numbers = self.shown(text)
        plans, places = [self._plans[i] for i in numbers], [self._places[i] for i in numbers]
        found, _ = self._media._layout(pieces[::2], plans, places, self._encode, closes=False)
        return found, numbers

    def filled(self, found: Layout, numbers: Sequence[int]) -> MediaPrompt:
        """The prompt of what `laid` returned; each medium is encoded once. Raises as `Media.encode`."""
        for i in numbers:
            self._plans[i] = self._media.encode(self._plans[i])
        prompt: MediaPrompt = self._media._filled(found, [self._plans[i] for i in numbers], lambda n: None)
        return prompt

    @property
    def _encode(self) -> Callable[[str], list[int]]:
        encode = self._media._model.tokenizer.encode
        return partial(encode, add_special=False, parse_special=True, escaped=True)

    def _layout(self, text: str, closes: bool) -> tuple[Layout, list[Planned | Encoded]]:
        markers = [self._marker(i + 1) for i in range(len(self.sources))]
        given = cut_at(text, markers), self.sources, self._places, self._encode
        found: tuple[Layout, list[Planned | Encoded]] = self._media._layout(*given, closes=closes)
        return found


class Placed(dict[str, Any]):
    """A part of a message.

    Attributes:
        where: what errors call the part.
        place: what they call its medium; None: the part and the field.
    """

    def __init__(self, where: str, part: Mapping[str, Any], place: str | None = None) -> None:
        super().__init__(part)
        self.where = where
        self.place = place


def with_parts(where: str, message: Any, make: Callable[[str, Any], Any]) -> Any:
    """A message with what ``make`` returns for each part and its place; one without parts is as it was."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    return {**message, "content": [make(f"{where}.content[{j}]", part) for j, part in enumerate(content)]}


def source_of(where: str, part: Mapping[str, Any], kind: str) -> tuple[Any, str]:
    """What a part of a message names: its file, bytes, data URL, array; and its place. Raises ConfigError."""
    names = [kind, "image", "image_url", "audio", "audio_url", "path", "url", "data"]
    found, place = first_of(part, names, where)
    if isinstance(found, Mapping):
        found, place = first_of(found, ["url", "path", "data"], place)
        if kind == "input_audio" and isinstance(found, str) and not found.startswith("data:"):
            found = f"data:audio/any;base64,{found}"
    if found is None:
        raise ConfigError(f"{where}: expected a medium under {kind!r}, got none")
    return found, getattr(part, "place", None) or place


def first_of(values: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[Any, str]:
    """The first of the named values that is not None, and its place; None if there is no such value."""
    name = next((name for name in names if values.get(name) is not None), None)
    return (None, where) if name is None else (values[name], f"{where}.{name}")
