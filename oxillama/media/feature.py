"""Media of a loaded model: its projector file, and prompts with pictures and sounds."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from oxillama.config import available_cpus, checks
from oxillama.engine.loading import LoadedModel
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.media.beside import found_beside, missing_reason
from oxillama.media.blocks import Steps
from oxillama.media.decode import Picture, Sound, read_medium, read_picture, read_sound
from oxillama.media.encoder import Encoded, MediaEncoder, Rows
from oxillama.media.given import Given, Span, Use, take_media
from oxillama.media.prompt import MARKER, MediaPrompt, build, cut_at
from oxillama.models.rope import Rope

IMAGE_PARTS = ("image", "image_url", "input_image")
SOUND_PARTS = ("audio", "input_audio", "audio_url")


GIVE_UP: ContextVar[Callable[[], bool]] = ContextVar("oxillama encodes for nobody", default=lambda: False)
"""Asked between the steps of an encoder, in the thread that asked for it: whether nobody waits any more."""


class GivenUp(Exception):
    """`GIVE_UP` said that nobody waits for the embeddings any more."""


class Media:
    """The media of one model; a feature of it.

    The projector file is the one of ``EngineConfig.mmproj``, which is loaded at once, or else the only one
    beside the model, which is loaded when the first medium comes.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._reference = weakref.ref(model)  # which keeps this object
        self._lock = threading.Lock()
        self._encoder: MediaEncoder | None = None
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()
        self._kept_bytes = 0
        self._coming: dict[bytes, threading.Lock] = {}
        self._restored: dict[bytes, tuple[list[Rows], Callable[[], bytes]]] = {}
        self.path = projector_path(model)
        if model.config.mmproj is not None:
            _ = self.encoder

    @property
    def _model(self) -> LoadedModel:
        model = self._reference()
        assert model is not None, "its engine runs the call"
        return model

    @property
    def encoder(self) -> MediaEncoder:
        """The encoders of the projector file.

        Raises
        ------
        ConfigError : there is none. ModelFileError, GGUFError, LoadError : it cannot be loaded, and why.
        """
        with self._lock:
            if self._encoder is None:
                self._encoder = self._load()
            return self._encoder

    def _load(self) -> MediaEncoder:
        model, config = self._model, self._model.config
        if self.path is None:
            reason = missing_reason(model.file.paths)
            raise ConfigError(f"mmproj: the model takes no pictures and sounds: {reason}")
        n_threads = config.num_threads or available_cpus()
        compute = "int8" if config.compute == "w8a8" else config.compute
        encoder = MediaEncoder(self.path, model.kernels, n_threads, compute)
        try:
            check_widths(encoder, model)
        except BaseException:
            encoder.file.close()
            raise
        if encoder.unused:
            warnings.warn(f"tensors that the encoders do not use: {', '.join(encoder.unused)}", stacklevel=4)
        return encoder

    def check_takes(self, where: str, kind: str) -> None:
        """Raises ConfigError unless the model takes "image" or "audio", and the errors of `encoder`."""
        what, encoder = ("pictures", "vision") if kind == "image" else ("sounds", "audio")
        if self.path is None:
            raise ConfigError(f"{where}: the model takes no {what}: {missing_reason(self._model.file.paths)}")
        if getattr(self.encoder, encoder) is None:
            reason = f"its projector file has no encoder of {what}"
            raise ConfigError(f"{where}: the model takes no {what}: {reason}")

    # --- embeddings ---------------------------------------------------------------------------------

    def encode(self, source: Any) -> Encoded:
        """A picture or a sound as embeddings.

        Parameters
        ----------
        source : path, bytes, data URL, picture of Pillow, array of uint8 (h, w, 3), `Picture` or `Sound`.

        Raises
        ------
        MediaError : it cannot be decoded, is empty, or is over a limit.
        ConfigError : there is no encoder for it.
        GivenUp : `GIVE_UP` said so.
        """
        medium = read_medium(source)
        encoder, key = self.encoder, medium.digest
        with self._lock:
            coming = self._coming.setdefault(key, threading.Lock())
        try:
            with coming:  # who comes second finds what the first has kept
                found = self._known(key)
                if found is None:
                    rows = self._rows_of_session(key, encoder)
                    found = encoder.with_rows(medium, rows) if rows else self._encoded(encoder.steps(medium))
                    self._keep(key, found)
                return found
        finally:
            with self._lock:
                self._coming.pop(key, None)

    def _encoded(self, steps: Steps[Encoded]) -> Encoded:
        """Runs an encoder step by step between those of the engine, whose thread does both."""
        model, found = self._model, []

        def step() -> bool:
            try:
                next(steps)
            except StopIteration as end:
                found.append(end.value)
            return not found

        is_over = GIVE_UP.get()
        while model.call(step):
            if is_over():
                steps.close()
                raise GivenUp
        encoded: Encoded = found[0]
        return encoded

    def keep(self, given: Given) -> None:
        """Has `encode` take the embeddings of a session that was restored, if they are of its projector."""
        at = {span.start: span.rows for span in given.spans}
        with self._lock:
            for use in given.media:
                self._restored[use.digest] = [at[start] for start in use.starts], given.projector

    def _rows_of_session(self, key: bytes, encoder: MediaEncoder) -> list[Rows] | None:
        """The embeddings that `keep` was told of, for a medium; None for none. They are asked for once."""
        with self._lock:
            rows, projector = self._restored.pop(key, (None, bytes))
        return rows if rows and projector() == encoder.content else None

    def _known(self, key: bytes) -> Encoded | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: bytes, encoded: Encoded) -> None:
        """Keeps embeddings, and forgets those used longest ago beyond a number of bytes."""
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = encoded
            self._kept_bytes += encoded.n_bytes
            while self._kept_bytes > self._model.config.media_cache_bytes:
                self._kept_bytes -= self._kept.popitem(last=False)[1].n_bytes

    # --- prompts --------------------------------------------------------------------------------------

    def prompt(self, text: str, media: Iterable[Any], marker: str = MARKER) -> MediaPrompt:
        """A text with media in the places of its markers, for `InferenceEngine.stream` and the like.

        Names of control tokens in the text are these tokens; the tokens around media are those that the
        projector's family has.

        Raises
        ------
        ConfigError : there are not as many markers as media. PromptError : it does not fit the context.

        And errors of `encode`.
        """
        found = list(media)
        texts = checks.instance("text", text, str).split(checks.instance("marker", marker, str))
        if len(texts) != len(found) + 1:
            raise ConfigError(f"media: expected one for each of {len(texts) - 1} markers, got {len(found)}")
        return self._built(texts, found, closes=True)

    def _built(self, texts: Sequence[str], media: Sequence[Any], *, closes: bool) -> MediaPrompt:
        model, encoder = self._model, self.encoder
        encoded = [self.encode(medium) for medium in media]
        ready(model, encoder.out_width)
        axes, most = position_axes(model), model.context_size - 1
        return build(model.tokenizer, texts, encoded, axes, lambda: encoder.content, most, closes=closes)

    def decode(self, source: Any) -> Picture | Sound:
        """What `encode` takes, decoded. Raises MediaError, ConfigError."""
        return read_medium(source)

    def given(self, media: Sequence[Any], starts: Sequence[Sequence[int]], n: int) -> Given:
        """The rows of media in a prompt of ``n`` tokens.

        Parameters
        ----------
        starts : of each medium, the first token of each of its tiles.

        Raises
        ------
        PromptError : there are other numbers of tiles, or no places for all rows.

        And errors of `encode`.
        """
        model, encoder, spans, uses = self._model, self.encoder, [], []
        for i, (medium, places) in enumerate(zip(media, starts, strict=True)):
            encoded = self.encode(medium)
            if len(encoded.rows) != len(places):
                raise PromptError(f"media[{i}]: expected {len(places)} tiles, got {len(encoded.rows)}")
            spans += [Span(start, rows) for start, rows in zip(places, encoded.rows, strict=True)]
            uses.append(Use(encoded.digest, tuple(places)))
        following = [*(span.start for span in spans[1:]), n]
        if any(span.end > start for span, start in zip(spans, following, strict=True)):
            raise PromptError("media: expected places for all of their rows, got too few")
        ready(model, encoder.out_width)
        return Given(spans, position_axes(model), tuple(uses), lambda: encoder.content)

    # --- conversations ----------------------------------------------------------------------------------

    def take(self, messages: Sequence[Any]) -> tuple[list[Any], HeldMedia | None]:
        """Messages with markers in the places of their media, and the media; None for none.

        Raises MediaError, and ConfigError for a medium that the model does not take.
        """
        held = HeldMedia(self)
        taken = [held.taken(f"messages[{i}]", message) for i, message in enumerate(messages)]
        return taken, held if held.sources else None


class HeldMedia:
    """The media of a conversation, while its template is rendered."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._secret = secrets.token_hex(12)  # so that no text of a message is a marker
        self.sources: list[Picture | Sound] = []

    def taken(self, where: str, message: Any) -> Any:
        """A message whose parts are texts."""
        return with_parts(where, message, self._part)

    def _part(self, where: str, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (*IMAGE_PARTS, *SOUND_PARTS):
            return part
        self._media.check_takes(where, "image" if kind in IMAGE_PARTS else "audio")
        source = source_of(where, part, kind)
        self.sources.append((read_picture if kind in IMAGE_PARTS else read_sound)(source))
        return {"type": "text", "text": self._marker(len(self.sources))}

    def _marker(self, i: int) -> str:
        return f"<__media {self._secret} {i}__>"

    def prompt(self, text: str, closes: bool = False) -> MediaPrompt:
        """The prompt of a rendered conversation. Raises ConfigError if the template hides a medium.

        ``closes`` adds the tokens that the vocabulary puts behind every text.
        """
        markers = [self._marker(i + 1) for i in range(len(self.sources))]
        return self._media._built(cut_at(text, markers), self.sources, closes=closes)


def with_parts(where: str, message: Any, make: Callable[[str, Any], Any]) -> Any:
    """A message with what ``make`` returns for each part and its place; one without parts is as it was."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    return {**message, "content": [make(f"{where}.content[{j}]", part) for j, part in enumerate(content)]}


def source_of(where: str, part: Mapping[str, Any], kind: str) -> Any:
    """What a part of a message names: its file, bytes, data URL, array. Raises ConfigError."""
    names = [kind, "image", "image_url", "audio", "audio_url", "path", "url", "data"]
    found = next((part[name] for name in names if part.get(name) is not None), None)
    if isinstance(found, Mapping):
        found = next((found[name] for name in ("url", "path", "data") if found.get(name) is not None), None)
        if kind == "input_audio" and isinstance(found, str) and not found.startswith("data:"):
            found = f"data:audio/any;base64,{found}"
    if found is None:
        raise ConfigError(f"{where}: expected a medium under {kind!r}, got none")
    return found


# --- the model and its projector ------------------------------------------------------------------------


def projector_path(model: LoadedModel) -> str | os.PathLike[str] | None:
    """The projector file that was named, or the one beside the model; None for none."""
    if model.config.mmproj is not None:
        return model.config.mmproj
    return found_beside(model.file.paths[0]) if model.file.paths else None


def check_widths(encoder: MediaEncoder, model: LoadedModel) -> None:
    """Raises LoadError unless the embeddings are as wide as the model takes them."""
    spec = model.spec
    n = model.file.get(f"{spec.family.name}.n_deepstack_layers", int, 0)
    if not 0 <= n <= spec.n_layers:
        raise LoadError(f"{spec.family.name}.n_deepstack_layers: expected 0 to {spec.n_layers}, got {n}")
    encoder.check_width(spec.n_embd * (1 + n))


def ready(model: LoadedModel, width: int) -> None:
    """Has a model take embeddings of a width. Raises LoadError for one that it does not have."""
    n_embd, n_layers = model.spec.n_embd, model.spec.n_layers
    if width % n_embd or not 1 <= width // n_embd <= 1 + n_layers:
        raise LoadError(f"media: expected embeddings of width {n_embd}, as the model takes them, got {width}")
    model.call(partial(take_media, model.runner.model, width // n_embd - 1))


def position_axes(model: LoadedModel) -> np.ndarray | None:
    """int64 (pairs,): which coordinate of a token turns each pair of dimensions: time, row, column, or none.

    None for a model whose positions are numbers of tokens.
    """
    key = f"{model.spec.family.name}.rope.dimension_sections"
    sections = [int(n) for n in model.file.get(key, list[int], [])][:4]
    sections += [0] * (4 - len(sections))
    ropes = model.spec.ropes
    if not ropes or not any(sections) or not (ropes[0].sections or ropes[0].still or _is_interleaved(model)):
        return None
    pairs = np.arange(ropes[0].n_rot // 2) % sum(sections)
    if ropes[0].sections:
        return np.searchsorted(np.cumsum(sections), pairs, side="right")
    return interleaved_axes(pairs, sections)


def _is_interleaved(model: LoadedModel) -> bool:
    """Whether the family's sections come to nothing for text alone, which says that they are interleaved."""
    return "rope.dimension_sections" in model.spec.family.options and not plain_sections(model.spec.ropes[0])


def plain_sections(rope: Rope) -> bool:
    """Whether neighbouring pairs turn by one coordinate."""
    return bool(rope.sections)


def interleaved_axes(pairs: np.ndarray, sections: Sequence[int]) -> np.ndarray:
    """int64 (pairs,): coordinates in turn, as long as each has pairs left."""
    time, row, column, _ = sections
    turn = pairs % 3
    axes = np.full(len(pairs), 3)
    axes[(turn == 0) & (pairs < 3 * time)] = 0
    axes[(turn == 1) & (pairs < 3 * row)] = 1
    axes[(turn == 2) & (pairs < 3 * column)] = 2
    return axes
