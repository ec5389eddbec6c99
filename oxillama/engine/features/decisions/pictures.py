"""Pictures and sounds of decisions: placeholders stand for them in the state and in questions.

A request has its media by their placeholders. While its prompts are made, each placeholder is the marker of
its medium, as in a chat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from oxillama.base.config import checks
from oxillama.engine.features.decisions.prompts import mapped
from oxillama.engine.features.decisions.questions import Question
from oxillama.engine.features.media.parts import IMAGE_PARTS, SOUND_PARTS, HeldMedia, Placed
from oxillama.engine.loading import LoadedModel
from oxillama.errors import ConfigError
from oxillama.text.chat.messages import TEXT_PARTS

Media = Mapping[str, Placed]
"""The media of a request, as parts of contents, by their placeholders."""


class Placeholders:
    """Makes placeholders, which occur nowhere else in a request.

    Attributes:
        media: the parts for which they stand.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self.media: dict[str, Placed] = {}

    @cached_property
    def _beginning(self) -> str:
        texts = list(texts_of(self._request))
        found = (f"<{'_' * n}medium " for n in count())
        return next(each for each in found if not any(each in text for text in texts))

    def add(self, where: str, part: Mapping[str, Any], place: str | None = None) -> str:
        """The placeholder of one more medium; ``where`` and ``place`` are as in `Placed`."""
        name = f"{self._beginning}{len(self.media) + 1}>"
        self.media[name] = Placed(where, part, place)
        return name

    def taken(self, where: str, value: Any) -> Any:
        """A value without media: for a list of parts with media its lines; contents of messages alike.

        Raises ConfigError for a list with media that has other items than parts.
        """
        if isinstance(value, Mapping) and "messages" in value:
            return {**value, "messages": self.taken(f"{where}.messages", value["messages"])}
        if not isinstance(value, (list, tuple)):
            return value
        if any(map(is_medium, value)):
            return "\n".join(self._line(f"{where}[{i}]", part) for i, part in enumerate(value))
        found = []
        for i, item in enumerate(value):
            content = item.get("content") if isinstance(item, Mapping) else None
            if isinstance(content, (list, tuple)) and any(map(is_medium, content)):
                item = {**item, "content": self.taken(f"{where}[{i}].content", content)}
            found.append(item)
        return found

    def _line(self, where: str, part: Any) -> str:
        if is_medium(part):
            return self.add(getattr(part, "where", where), part, getattr(part, "place", None))
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if kind not in TEXT_PARTS or not isinstance(text, str):
            raise checks.refuse(where, "a part that is a text, a picture or a sound", part)
        return text


def is_medium(part: Any) -> bool:
    """Whether a value is a part of a content that is a picture or a sound."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in (*IMAGE_PARTS, *SOUND_PARTS)


def texts_of(value: Any) -> Iterator[str]:
    """The texts of JSON, keys too, and of dataclasses."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            left += [*item, *item.values()]
        elif isinstance(item, (list, tuple)):
            left += item
        elif is_dataclass(item):
            left += vars(item).values()


def taken(state: Any, questions: Sequence[Question]) -> tuple[Any, list[Question], Media]:
    """A state and questions with placeholders in the place of parts that are media, and these."""
    places = Placeholders([state, questions])
    state = places.taken("state", state)
    return state, [with_texts(each, places.taken) for each in questions], places.media


def with_texts(question: Question, make: Any) -> Question:
    """A question with what ``make`` returns for the place and the value of instructions and descriptions."""
    where, options = f"questions.{question.id}", []
    for option in question.options:
        made = make(f"{where}.options.{option.key}", option.description)
        options.append(replace(option, description=made))
    made = make(f"{where}.instructions", question.instructions)
    return replace(question, instructions=made, options=tuple(options))


class ShownMedia:
    """The media of a request while its prompts are made.

    Attributes:
        held: the media, decoded.

    Raises:
        ConfigError: the model does not take one, or its placeholder stands nowhere.
        MediaError: one cannot be decoded.
    """

    def __init__(self, model: LoadedModel, media: Media, state: Any, questions: Sequence[Question]) -> None:
        found: HeldMedia
        (message,), found = model.feature("media").take([{"role": "user", "content": [*media.values()]}])
        self.held: HeldMedia = found
        self._markers: dict[str, str] = {
            name: part["text"] for name, part in zip(media, message["content"], strict=True)
        }
        longest = sorted(map(re.escape, media), key=len, reverse=True)
        self._names = re.compile("|".join(longest))
        self._seen: set[str] = set()
        self.state: Any = self._marked("state", state)
        self.questions: list[Question] = [with_texts(each, self._marked) for each in questions]
        for name, part in media.items():
            if name not in self._seen:
                raise ConfigError(f"{part.where}: expected its placeholder in the state or in a question")

    def _marked(self, where: str, value: Any) -> Any:
        return mapped(value, self._with_markers)

    def _with_markers(self, text: Any) -> Any:
        if not isinstance(text, str):  # a key
            return text
        return self._names.sub(self._marker, text)

    def _marker(self, found: re.Match[str]) -> str:
        self._seen.add(found[0])
        return self._markers[found[0]]

    @property
    def digests(self) -> dict[str, str]:
        """The hashes of the decoded media in hexadecimal digits, by placeholders."""
        return {name: each.digest.hex() for name, each in zip(self._markers, self.held.sources)}
