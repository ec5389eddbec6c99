"""A projector file (mmproj) that is loaded: from pictures and sounds to embeddings of its text model."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from oxillama._kernels import Kernels
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.audio import AudioEncoder
from oxillama.models.media.blocks import Steps, Tools, finished
from oxillama.models.media.decode import Picture, Sound
from oxillama.models.media.facts import AudioFacts, VisionFacts, projector_name
from oxillama.models.media.positions import Grid
from oxillama.models.media.tiles import Tiles, prepare
from oxillama.models.media.vision import VisionEncoder
from oxillama.models.weights.loader import Weights


@dataclass(frozen=True)
class Rows:
    """The embeddings of one tile of a picture, or of one piece of a sound.

    Attributes:
        values: float32 (tokens, width).
        grid: columns and rows of the tokens, for models with positions from the grid; None for others.
        both_ways: text layers in which the rows see each other: "", "all" or "windowed".
    """

    values: np.ndarray
    grid: Grid | None
    both_ways: str

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: a hash of all that decides the keys and values of the rows."""
        facts = f"{self.values.shape} {self.grid} {self.both_ways} ".encode()
        return hashlib.blake2b(facts + self.values.tobytes(), digest_size=32).digest()


@dataclass(frozen=True)
class Planned:
    """A picture or a sound that is to be encoded, and its place in a prompt.

    Attributes:
        medium: decoded.
        texts: as in `Encoded`.
        counts: embeddings of each tile or piece.
        tiles: uint8 (h, w, 3) of each tile; [] for a sound.
    """

    medium: Picture | Sound
    texts: list[list[str]]
    counts: list[int]
    tiles: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Encoded:
    """A picture or a sound as a prompt takes it.

    Attributes:
        rows: in order.
        texts: what stands before each of them, and behind the last (see `Tiles`).
        digest: of the decoded picture or sound.
    """

    rows: list[Rows]
    texts: list[list[str]]
    digest: bytes

    @property
    def counts(self) -> list[int]:
        """Embeddings of each tile or piece."""
        return [len(rows.values) for rows in self.rows]

    @property
    def n_tokens(self) -> int:
        """Embeddings in all."""
        return sum(self.counts)

    @property
    def n_bytes(self) -> int:
        """Bytes of the embeddings."""
        return sum(rows.values.nbytes for rows in self.rows)


class MediaEncoder:
    """The encoders of a projector file. May be used by any thread.

    Args:
        source: path of the file, or its bytes.
        n_threads: to use.
        compute: as in `EngineConfig`.

    Attributes:
        vision, audio: the encoders of pictures and of sounds; None where the file has no such encoder.
        unused: tensors of the file that neither of them uses.

    Raises:
        ModelFileError, GGUFError, LoadError: the file cannot be loaded, and why.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes, kernels: Kernels, n_threads: int, compute: str = "int8"
    ) -> None:
        self.file: ModelFile = ModelFile.open(source)
        file = self.file
        try:
            weights = Weights(file, kernels, n_threads, compute=compute)
            tools = Tools(weights, n_threads)
            self.vision: VisionEncoder | None = in_openmp_thread(partial(load_vision, tools))
            self.audio: AudioEncoder | None = in_openmp_thread(partial(load_audio, tools))
            if self.vision is None and self.audio is None:
                raise LoadError(
                    "clip.has_vision_encoder: expected an encoder of pictures or of sounds, got none"
                )
            self.unused: list[str] = weights.unused()
        except BaseException:
            file.close()
            raise

    @cached_property
    def content(self) -> bytes:
        """Hash of the file (`ModelFingerprint.content`). Raises ModelFileError if it cannot be read."""
        return ModelFingerprint.compute(self.file).content

    @property
    def out_width(self) -> int:
        """The width of the embeddings."""
        return (self.vision or self.audio).out_width  # type: ignore[union-attr]

    def check_width(self, width: int) -> None:
        """Raises LoadError unless the embeddings are of this width."""
        for encoder in (self.vision, self.audio):
            if encoder is not None and encoder.out_width != width:
                raise LoadError(
                    f"mmproj: expected embeddings of width {width}, as the model takes them, "
                    f"got {encoder.out_width}"
                )

    def check_finite(self, values: np.ndarray) -> np.ndarray:
        """The embeddings, checked. Raises LoadError for values that are not finite."""
        if not np.isfinite(values).all():
            raise LoadError("mmproj: gives embeddings that are not finite: its tensors are damaged")
        return values

    def tiles(self, picture: Picture) -> Tiles:
        """The 8-bit tiles of a picture and the text around them. Raises ConfigError without an encoder."""
        if self.vision is None:
            raise ConfigError("picture: the projector file has no encoder of pictures")
        return prepare(self.vision.facts, picture.pixels)

    def plan(self, medium: Picture | Sound) -> Planned:
        """A picture cut into tiles, or a sound, with the number of embeddings of each tile or piece.

        Raises ConfigError or MediaError: the file has no encoder for it, or it does not fit the encoder.
        """
        if isinstance(medium, Picture):
            tiles, vision = self.tiles(medium), self.vision
            assert vision is not None
            counts = [vision.n_tokens(tile.shape[1], tile.shape[0]) for tile in tiles.pixels]
            return Planned(medium, tiles.texts, counts, tiles.pixels)
        if self.audio is None:
            raise ConfigError("sound: the projector file has no encoder of sounds")
        counts = self.audio.tokens_of(len(medium.samples))
        return Planned(medium, self._texts_of_pieces(len(counts)), counts)

    def encode(self, medium: Picture | Sound) -> Encoded:
        """A picture or a sound as embeddings.

        Raises:
            ConfigError, MediaError: as `plan`.
            LoadError: the tensors of the file give no finite numbers.
            ModelFileError: it has changed.
        """
        return in_openmp_thread(partial(finished, self.steps(self.plan(medium))))

    def steps(self, planned: Planned) -> Steps[Encoded]:
        """The embeddings, in steps for a thread that may enter OpenMP. Spectrograms are made at once.

        A step is no longer than half a transformer block of a tile.
        """
        medium, encoder = planned.medium, self.vision if isinstance(planned.medium, Picture) else self.audio
        assert encoder is not None
        pieces = planned.tiles if isinstance(medium, Picture) else encoder.pieces(medium.samples)  # type: ignore[union-attr]

        def run() -> Steps[Encoded]:
            rows = []
            for piece in pieces:
                values = self.check_finite((yield from encoder.steps(piece)))
                rows.append(self._tile_rows(piece, values) if planned.tiles else Rows(values, None, ""))
            return Encoded(rows, planned.texts, medium.digest)

        return run()

    def _tile_rows(self, pixels: np.ndarray, values: np.ndarray) -> Rows:
        vision = self.vision
        assert vision is not None
        projector = vision.facts.projector
        grid = vision.tokens_of(pixels.shape[1], pixels.shape[0]) if projector.grid else None
        is_causal = vision.out_width in projector.causal_widths
        both_ways = "" if is_causal else projector.both_ways
        return Rows(values, grid, both_ways)

    def _texts_of_pieces(self, n: int) -> list[list[str]]:
        """The text around each of ``n`` pieces of a sound."""
        assert self.audio is not None
        projector = self.audio.facts.projector
        texts: list[list[str]] = [[] for _ in range(n + 1)]
        for i in range(n):
            texts[i] += [projector.begin] if projector.begin else []
            texts[i + 1] += [projector.end] if projector.end else []
        return texts


def load_vision(tools: Tools) -> VisionEncoder | None:
    """The encoder of pictures, None where the file has none. Raises LoadError, GGUFError."""
    name = projector_name(tools.weights.file, "vision")
    return None if name is None else VisionEncoder(tools, VisionFacts(tools.weights.file, name))


def load_audio(tools: Tools) -> AudioEncoder | None:
    """The encoder of sounds, None where the file has none. Raises LoadError, GGUFError."""
    name = projector_name(tools.weights.file, "audio")
    return None if name is None else AudioEncoder(tools, AudioFacts(tools.weights.file, name))
