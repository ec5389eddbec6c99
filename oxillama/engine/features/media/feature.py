"""Media of a loaded model: its projector file, and prompts with pictures and sounds."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from oxillama.base.config import available_cpus, checks
from oxillama.base.formats import ROUNDED
from oxillama.engine.features.media.input_embeddings import InputEmbeddings, take_media
from oxillama.engine.features.media.parts import Check, HeldMedia
from oxillama.engine.features.media.prompt import MARKER, Layout, MediaPrompt, layout, placed
from oxillama.engine.loading import LoadedModel
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.models.media.beside import found_beside, missing_reason
from oxillama.models.media.blocks import Steps
from oxillama.models.media.decode import PREPROCESSING, Picture, Sound, read_medium
from oxillama.models.media.encoder import Encoded, MediaEncoder, Planned, Rows

GIVE_UP: ContextVar[Callable[[], bool]] = ContextVar("oxillama encodes for nobody", default=lambda: False)
"""Asked between the steps of an encoder, in the thread that asked for it: whether nobody waits any more."""


class GivenUp(Exception):
    """`GIVE_UP` said that nobody waits for the embeddings any more."""


class Media:
    """The media of one model; a feature of it.

    The projector file is the one of ``EngineConfig.mmproj``, which is loaded at once, or else the only one
    beside the model, which is loaded when the first medium comes.

    Attributes:
        preprocessing: version of the way from files to pixels and samples.
    """

    preprocessing = PREPROCESSING

    def __init__(self, model: LoadedModel) -> None:
        self._reference = weakref.ref(model)  # the model keeps this object
        self._lock = threading.Lock()
        self._encoder: MediaEncoder | None = None
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()
        self._kept_bytes = 0
        self._coming: dict[bytes, threading.Lock] = {}
        self._restored: dict[bytes, tuple[list[Rows], Callable[[], bytes]]] = {}
        self.path: str | os.PathLike[str] | None = projector_path(model)
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

        Raises:
            ConfigError: no projector file.
            ModelFileError, GGUFError, LoadError: it cannot be loaded, and why.
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
        compute = "int8" if config.compute in ROUNDED else config.compute
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

    def plan(self, source: Any) -> Planned | Encoded:
        """A picture or a sound that is to be encoded, or its kept embeddings. Raises as `encode`.

        ``source`` is as for `encode`.
        """
        if isinstance(source, (Planned, Encoded)):
            return source
        medium = read_medium(source)
        return self._known(medium.digest) or self.encoder.plan(medium)

    def encode(self, source: Any) -> Encoded:
        """A picture or a sound as embeddings.

        Args:
            source: path, bytes, data URL, picture of Pillow, array of uint8 (h, w, 3), `Picture` or `Sound`;
                or what `plan` returned.

        Raises:
            MediaError: it cannot be decoded, is empty, or is over a limit.
            ConfigError: there is no encoder for it.
            GivenUp: `GIVE_UP` said so.
        """
        planned = self.plan(source)
        if isinstance(planned, Encoded):
            return planned
        encoder, key = self.encoder, planned.medium.digest
        with self._lock:
            coming = self._coming.setdefault(key, threading.Lock())
        try:
            with coming:  # who comes second finds what the first has kept
                found = self._known(key)
                if found is None:
                    rows = self._rows_of_session(planned, encoder)
                    found = (
                        Encoded(rows, planned.texts, key) if rows else self._encoded(encoder.steps(planned))
                    )
                    self._keep(key, found)
                return found
        finally:
            with self._lock:
                self._coming.pop(key, None)

    def _encoded(self, steps: Steps[Encoded]) -> Encoded:
        """Runs an encoder on the engine thread, its steps between the engine's."""
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

    def keep(self, embeddings: InputEmbeddings) -> None:
        """Has `encode` take the embeddings of a session that was restored, if they are of its projector."""
        at = {span.start: span.rows for span in embeddings.spans}
        with self._lock:
            for use in embeddings.media:
                self._restored[use.digest] = [at[start] for start in use.starts], embeddings.projector

    def _rows_of_session(self, planned: Planned, encoder: MediaEncoder) -> list[Rows] | None:
        """The embeddings that `keep` got for a medium; None without such a medium. Each is returned once."""
        with self._lock:
            rows, projector = self._restored.pop(planned.medium.digest, (None, bytes))
        is_same = rows and projector() == encoder.content
        return rows if is_same and [len(each.values) for each in rows or ()] == planned.counts else None

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

    def prompt(
        self,
        text: str,
        media: Iterable[Any],
        marker: str = MARKER,
        *,
        places: Sequence[str] | None = None,
        check: Check | None = None,
    ) -> MediaPrompt:
        """A text with media in the places of its markers, for `InferenceEngine.stream` and the like.

        Names of control tokens in the text are these tokens; the tokens around media are those that the
        projector's family has.

        Args:
            places: what errors call each medium; None: ``media[0]`` and so on.
            check: called with the number of tokens before a medium is encoded; None: as `fits`.

        Raises:
            ConfigError: there are not as many markers as media.
            PromptError: it does not fit the context.

        And errors of `encode`.
        """
        found = list(media)
        texts = checks.instance("text", text, str).split(checks.instance("marker", marker, str))
        if len(texts) != len(found) + 1:
            raise ConfigError(f"media: expected one for each of {len(texts) - 1} markers, got {len(found)}")
        encode = partial(self._model.tokenizer.encode, add_special=False, parse_special=True)
        places = [f"media[{i}]" for i in range(len(found))] if places is None else places
        return self._filled(*self._layout(texts, found, places, encode, closes=True), check)

    def _layout(
        self,
        texts: Sequence[str],
        media: Sequence[Any],
        places: Sequence[str],
        encode: Callable[[str], list[int]],
        *,
        closes: bool,
    ) -> tuple[Layout, list[Planned | Encoded]]:
        """The places of media in a prompt, which are not encoded yet."""
        plans = []
        _ = self.encoder  # errors of the projector file name no medium
        for medium, place in zip(media, places, strict=True):
            with placed(place):
                plans.append(self.plan(medium))
        return layout(self._model.tokenizer, texts, plans, places, encode, closes=closes), plans

    def _filled(self, places: Layout, plans: Sequence[Planned | Encoded], check: Check | None) -> MediaPrompt:
        """The prompt, after its length was checked. Raises PromptError, and as `encode`."""
        model, encoder = self._model, self.encoder
        if check is None:
            self._check_fits(len(places.tokens), sum(sum(plan.counts) for plan in plans))
        else:
            check(len(places.tokens))
        encoded = [self.encode(plan) for plan in plans]
        ready(model, encoder.out_width)
        return places.filled(encoded, position_axes(model), lambda: encoder.content)

    def _check_fits(self, n_tokens: int, n_rows: int) -> None:
        """Raises PromptError for more tokens, or rows of media and one token, than the context has."""
        most = self._model.context_size
        if n_tokens > most or n_rows + 1 > most:
            raise PromptError(
                f"prompt: expected at most {most} tokens for the context, got {n_tokens}, "
                f"{n_rows} of media alone"
            )

    def decode(self, source: Any) -> Picture | Sound:
        """What `encode` takes, decoded. Raises MediaError, ConfigError."""
        return read_medium(source)

    def embeddings(self, media: Sequence[Any], starts: Sequence[Sequence[int]], n: int) -> InputEmbeddings:
        """The rows of media in a prompt of ``n`` tokens.

        Args:
            starts: of each medium, the first token of each of its tiles.

        Raises:
            PromptError: there are other numbers of tiles, or no places for all rows.

        And errors of `encode`.
        """
        model, encoder, plans = self._model, self.encoder, [self.plan(medium) for medium in media]
        ends = []
        for i, (plan, places) in enumerate(zip(plans, starts, strict=True)):
            if len(plan.counts) != len(places):
                raise PromptError(f"media[{i}]: expected {len(places)} tiles, got {len(plan.counts)}")
            ends += [start + count for start, count in zip(places, plan.counts)]
        following = [*[start for places in starts for start in places][1:], n]
        if any(end > start for end, start in zip(ends, following, strict=True)):
            raise PromptError("media: expected places for all of their rows, got too few")
        encoded = [self.encode(plan) for plan in plans]
        ready(model, encoder.out_width)
        filled = Layout([], list(map(tuple, starts))).filled(
            encoded, position_axes(model), lambda: encoder.content
        )
        return filled.embeddings

    # --- conversations ----------------------------------------------------------------------------------

    def take(self, messages: Sequence[Any]) -> tuple[list[Any], HeldMedia | None]:
        """Messages with markers in place of their media, and the media; None without media.

        Raises MediaError, and ConfigError for a medium that the model does not take.
        """
        held = HeldMedia(self)
        taken = [held.taken(f"messages[{i}]", message) for i, message in enumerate(messages)]
        return taken, held if held.sources else None


# --- the model and its projector ------------------------------------------------------------------------


def projector_path(model: LoadedModel) -> str | os.PathLike[str] | None:
    """The projector file that was named, or the one next to the model; None if there is no such file."""
    if model.config.mmproj is not None:
        return model.config.mmproj
    return found_beside(model.file.paths[0]) if model.file.paths else None


def check_widths(encoder: MediaEncoder, model: LoadedModel) -> None:
    """Raises LoadError unless the embeddings are as wide as the model takes them."""
    spec = model.spec
    if spec.family.text_only:
        raise LoadError(
            f"mmproj: expected no projector file for {spec.family.name}, which takes text alone here"
        )
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
    return "rope.dimension_sections" in model.spec.family.options and not model.spec.ropes[0].sections


def interleaved_axes(pairs: np.ndarray, sections: Sequence[int]) -> np.ndarray:
    """int64 (pairs,): coordinates in turn, as long as each has pairs left."""
    time, row, column, _ = sections
    turn = pairs % 3
    axes = np.full(len(pairs), 3)
    axes[(turn == 0) & (pairs < 3 * time)] = 0
    axes[(turn == 1) & (pairs < 3 * row)] = 1
    axes[(turn == 2) & (pairs < 3 * column)] = 2
    return axes
