"""A projector file (mmproj) that is loaded: from pictures and sounds to embeddings of its text model."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from oxillama._kernels import Kernels
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.media.audio import AudioEncoder
from oxillama.media.blocks import Tools
from oxillama.media.decode import Picture, Sound
from oxillama.media.facts import AudioFacts, VisionFacts, projector_name
from oxillama.media.positions import Grid
from oxillama.media.tiles import Tiles, prepare
from oxillama.media.vision import VisionEncoder
from oxillama.weights.loader import Weights


@dataclass(frozen=True)
class Rows:
    """The embeddings of one tile of a picture, or of one piece of a sound.

    Attributes
    ----------
    values : float32 (tokens, width).
    grid : columns and rows of the tokens, for models whose positions are those of the grid; None for others.
    both_ways : text layers in which the rows see each other: "", "all" or "windowed".
    digest : 16 bytes, of what the rows were computed from.
    """

    values: np.ndarray
    grid: Grid | None
    both_ways: str
    digest: bytes


@dataclass(frozen=True)
class Encoded:
    """A picture or a sound as a prompt takes it.

    Attributes
    ----------
    rows : in order. texts : what stands before each of them, and behind the last (see `Tiles`).
    """

    rows: list[Rows]
    texts: list[list[str]]

    @property
    def n_tokens(self) -> int:
        """Embeddings in all."""
        return sum(len(rows.values) for rows in self.rows)


class MediaEncoder:
    """The encoders of a projector file. May be used by any thread; one medium is encoded at a time.

    Parameters
    ----------
    source : path of the file, or its bytes.
    n_threads : to use. compute : as in `EngineConfig`.

    Attributes
    ----------
    vision, audio : the encoder of pictures and that of sounds; None where the file has none.

    Raises
    ------
    ModelFileError, GGUFError, LoadError : the file cannot be loaded, and why.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes, kernels: Kernels, n_threads: int, compute: str = "int8"
    ) -> None:
        self.file = file = ModelFile.open(source)
        try:
            weights = Weights(file, kernels, n_threads, compute=compute)
            tools = Tools(weights, n_threads)
            self._lock = threading.Lock()
            self.vision = in_openmp_thread(partial(load_vision, tools))
            self.audio = in_openmp_thread(partial(load_audio, tools))
            if self.vision is None and self.audio is None:
                raise LoadError("clip.has_vision_encoder: expected an encoder of pictures or of sounds, got none")
            self._identity = identity_of(file, compute)
        except BaseException:
            file.close()
            raise

    def check_width(self, width: int) -> None:
        """Raises LoadError unless the embeddings are those of a text model of this width."""
        for encoder in (self.vision, self.audio):
            if encoder is not None and encoder.out_width % width:
                raise LoadError(
                    f"mmproj: expected embeddings of width {width}, as the model has, got {encoder.out_width}"
                )

    def check_finite(self, values: np.ndarray) -> np.ndarray:
        """The same embeddings. Raises LoadError for values that are not finite."""
        if not np.isfinite(values).all():
            raise LoadError("mmproj: gives embeddings that are not finite: its tensors are damaged")
        return values

    def tiles(self, picture: Picture) -> Tiles:
        """The 8-bit tiles of a picture and the text around them. Raises ConfigError without such an encoder."""
        if self.vision is None:
            raise ConfigError("picture: the projector file has no encoder of pictures")
        return prepare(self.vision.facts, picture.pixels)

    def encode(self, medium: Picture | Sound) -> Encoded:
        """A picture or a sound as embeddings.

        Raises
        ------
        ConfigError : the file has no encoder for it, or it does not fit the encoder.
        LoadError : the tensors of the file give no finite numbers. ModelFileError : it has changed.
        """
        with self._lock:
            run = self._encode_picture if isinstance(medium, Picture) else self._encode_sound
            return in_openmp_thread(partial(run, medium))  # type: ignore[arg-type]

    def _encode_picture(self, picture: Picture) -> Encoded:
        tiles = self.tiles(picture)
        assert self.vision is not None
        for pixels in tiles.pixels:
            self.vision.grid_of(pixels.shape[1], pixels.shape[0])  # refuses what is too large before all work
        return Encoded([self._tile(pixels) for pixels in tiles.pixels], tiles.texts)

    def _tile(self, pixels: np.ndarray) -> Rows:
        vision = self.vision
        assert vision is not None
        projector = vision.facts.projector
        values = self.check_finite(vision.run(pixels))
        grid = vision.tokens_of(pixels.shape[1], pixels.shape[0]) if projector.grid else None
        is_causal = vision.out_width in projector.causal_widths
        both_ways = "" if is_causal else projector.both_ways
        shape = np.array(pixels.shape, np.int64).tobytes()
        return Rows(values, grid, both_ways, self._digest(shape, pixels))

    def _encode_sound(self, sound: Sound) -> Encoded:
        audio = self.audio
        if audio is None:
            raise ConfigError("sound: the projector file has no encoder of sounds")
        projector, rows, texts = audio.facts.projector, [], [[]]
        for mel in audio.pieces(sound.samples):
            values = self.check_finite(audio.run(mel))
            rows.append(Rows(values, None, "", self._digest(np.array(mel.shape).tobytes(), mel)))
            texts[-1] += [projector.begin] if projector.begin else []
            texts.append([projector.end] if projector.end else [])
        return Encoded(rows, texts)

    def _digest(self, shape: bytes, values: np.ndarray) -> bytes:
        digest = hashlib.blake2b(self._identity, digest_size=16)
        digest.update(shape)
        digest.update(np.ascontiguousarray(values))
        return digest.digest()


def identity_of(file: ModelFile, compute: str) -> bytes:
    """16 bytes that tell apart what gives other embeddings: the header of the file, and how it is computed."""
    digest = hashlib.blake2b(compute.encode(), digest_size=16)
    for key, raw in sorted(file.raw_metadata().items()):
        digest.update(key.encode("utf-8", "surrogateescape") + raw.tobytes())
    for name, info in file.tensors.items():
        digest.update(f"{name}{info.shape}{info.format.name}".encode("utf-8", "surrogateescape"))
    return digest.digest()


def load_vision(tools: Tools) -> VisionEncoder | None:
    """The encoder of pictures, None where the file has none. Raises LoadError, GGUFError."""
    name = projector_name(tools.weights.file, "vision")
    return None if name is None else VisionEncoder(tools, VisionFacts(tools.weights.file, name))


def load_audio(tools: Tools) -> AudioEncoder | None:
    """The encoder of sounds, None where the file has none. Raises LoadError, GGUFError."""
    name = projector_name(tools.weights.file, "audio")
    return None if name is None else AudioEncoder(tools, AudioFacts(tools.weights.file, name))


def encode_all(encoder: MediaEncoder, media: Sequence[Picture | Sound]) -> list[Encoded]:
    """Each medium as `MediaEncoder.encode` gives it."""
    return [encoder.encode(medium) for medium in media]
