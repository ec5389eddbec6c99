"""What both formats share: faults with their place, and checks of fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.engine.features.decisions.chat_prompts import as_text
from oxillama.engine.features.decisions.pictures import Media, Placeholders
from oxillama.errors import ConfigError

Place = tuple[str | int, ...]
"""Names of fields, and numbers of items, from the body inwards."""


class WireError(ConfigError):
    """A field of a request is wrong.

    Attributes:
        place: of the field.
        kind: "missing", "value_error" or "unsupported".
    """

    def __init__(self, place: Place, message: str, kind: str = "value_error") -> None:
        self.place: Place = place
        self.kind: str = kind
        super().__init__(f"{shown(place)}: {message}")


@dataclass(frozen=True)
class Asked:
    """A request: the model that is asked, the state, questions as `decide_batch` takes them, and media by
    their placeholders in both."""

    model: str | None
    state: Any
    questions: Any
    media: Media = field(default_factory=dict)

    @property
    def request(self) -> tuple[Any, Any, Media]:
        """As `decide` takes it."""
        return self.state, self.questions, self.media

    def shown_first(self, media: Iterable[tuple[str, Mapping[str, Any]]]) -> Asked:
        """The request with more media before its state: their places, and parts."""
        listed = list(media)
        if not listed:
            return self
        places = Placeholders([self.state, self.questions, self.media])
        places.media.update(self.media)
        lines = [places.add(where, part, where) for where, part in listed]
        lines += [] if self.state is None else [as_text(self.state)]
        return replace(self, state="\n".join(lines), media=places.media)


def shown(place: Place) -> str:
    """A place as text: questions.route.criteria, input[0].content."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.lstrip(".")


def need(value: Mapping[str, Any], name: str, place: Place = ()) -> Any:
    """A field that must be there. Raises WireError."""
    if name not in value:
        raise WireError((*place, name), "must be provided", "missing")
    return value[name]


def object_of(value: Any, place: Place) -> Mapping[str, Any]:
    """``value`` if it is an object. Raises WireError."""
    if not isinstance(value, Mapping):
        raise WireError(place, f"must be an object, got {value!r:.100}")
    return value


def text_of(value: Any, place: Place) -> str:
    """``value`` if it is text. Raises WireError."""
    if not isinstance(value, str):
        raise WireError(place, f"must be a string, got {value!r:.100}")
    return value


def optional_text(value: Mapping[str, Any], name: str, place: Place = ()) -> str | None:
    """A field that is text if it is there, and not null. Raises WireError."""
    found = value.get(name)
    return None if found is None else text_of(found, (*place, name))


def check_names(value: Mapping[str, Any], known: Collection[str], place: Place = ()) -> None:
    """Raises WireError for a field that is not ``known``."""
    for name in value:
        if name not in known:
            raise WireError((*place, str(name)), "is no field; known are " + ", ".join(known))


def list_of(value: Any, place: Place, least: int, most: int) -> list[Any]:
    """``value`` if it is a list of ``least`` to ``most`` items. Raises WireError."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise WireError(place, f"must be an array of {least} to {most} items")
    return value
