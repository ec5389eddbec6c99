"""Pictures, sounds and projector files.

A medium is the number of a valid file and changes of its bytes; the checksums of a PNG are made right again
for most, for a wrong one hides what is behind it. A projector file is one of the tiny ones, with other
metadata, other shapes and changes of its bytes.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from random import Random
from typing import Any

import numpy as np

from oxillama._kernels import best
from oxillama.models.media.decode import MOST_PIXELS, Picture, read_medium, read_picture
from oxillama.models.media.encoder import MediaEncoder
from oxillama.models.media.sounds import MOST_SAMPLES
from tests.fuzz.harness import Target
from tests.fuzz.mutate import FLOATS, INTEGERS, NONSENSE, SkipInput, built, edited, edits, skipping
from tests.fuzz.targets.containers import KINDS, fitting
from tests.support.media import KEYS, picture, projector_file, tensors

PROJECTORS = ("mlp", "gemma3", "qwen2vl_merger")
SIDES = (0, 1, 2, 7, 28, 50, 300)
PNG_HEAD = 8


@functools.cache
def media() -> tuple[bytes, ...]:
    """Small valid files of all formats, several of those that have kinds."""
    from PIL import Image

    colours = picture(24, 17)
    grey = Image.fromarray(colours[..., 0])
    alpha = Image.fromarray(np.dstack([colours, colours[..., :1]]))
    image, smooth = Image.fromarray(colours), Image.fromarray(colours).resize((40, 30))
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    wide = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    animated: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
    made = [
        saved(image, "PNG"), saved(grey, "PNG"), saved(alpha, "PNG"), saved(image.convert("P"), "PNG"),
        saved(wide, "PNG"), saved(frames[0], "PNG", **animated), saved(grey.convert("1"), "PNG"),
        saved(smooth, "JPEG"), saved(smooth, "JPEG", progressive=True), saved(grey, "JPEG"),
        saved(smooth.convert("CMYK"), "JPEG"), saved(smooth, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
        saved(smooth, "WEBP"), saved(alpha, "WEBP", lossless=True), saved(frames[0], "WEBP", **animated),
        saved(image.convert("P"), "GIF"), saved(frames[0], "GIF", **animated), saved(image, "BMP"),
        saved(image, "TIFF"), saved(image, "TIFF", compression="tiff_lzw"), saved(image, "PPM"),
    ]  # fmt: skip
    return (*made, *sounds())


def sounds() -> list[bytes]:
    """Small valid sounds."""
    import soundfile

    tone = np.sin(np.arange(3000) * 0.1).astype(np.float32) * 0.5
    both = np.stack([tone, -tone], axis=1)
    kinds: list[tuple[str, str | None, np.ndarray, int]] = [
        ("WAV", "PCM_16", tone, 16000), ("WAV", "PCM_U8", both, 8000), ("WAV", "FLOAT", both, 44100),
        ("WAV", "ULAW", tone, 8000), ("WAV", "IMA_ADPCM", tone, 8000), ("FLAC", "PCM_16", both, 16000),
        ("FLAC", "PCM_24", tone, 48000), ("MP3", None, tone, 16000), ("MP3", None, both, 44100),
        ("OGG", "VORBIS", tone, 16000), ("AIFF", "PCM_16", both, 22050),
    ]  # fmt: skip
    found = []
    for form, subtype, samples, rate in kinds:
        held = io.BytesIO()
        soundfile.write(held, samples, rate, subtype=subtype, format=form)
        found.append(held.getvalue())
    return found


def saved(image: Any, form: str, **options: Any) -> bytes:
    """A picture as a file."""
    held = io.BytesIO()
    image.save(held, form, **options)
    return held.getvalue()


def with_checksums(data: bytes) -> bytes:
    """A PNG whose chunks have the checksums of their bytes, as far as they can be told apart."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    found, at = bytearray(data), PNG_HEAD
    while at + 12 <= len(found):
        (n,) = struct.unpack_from(">I", found, at)
        end = at + 8 + n
        if end + 4 > len(found):
            break
        struct.pack_into(">I", found, end, zlib.crc32(found[at + 4 : end]))
        at = end + 4
    return bytes(found)


class MediumTarget(Target):
    name = "medium"
    per_run = 300

    def seeds(self) -> list[Any]:
        return [{"file": i, "edits": [], "checksums": True} for i in range(len(media()))]

    def mutate(self, value: Any, rng: Random) -> Any:
        return {**value, "edits": [*value["edits"], *edits(rng)], "checksums": rng.random() < 0.8}

    def run(self, value: Any) -> None:
        with skipping():
            data = edited(media()[int(value["file"])], value["edits"])
        found = read_medium(with_checksums(data) if value["checksums"] else data)
        if isinstance(found, Picture):
            assert found.pixels.dtype == np.uint8 and found.pixels.shape[2:] == (3,)
            assert 0 < found.pixels.size <= 3 * MOST_PIXELS
        else:
            assert found.samples.dtype == np.float32 and found.samples.ndim == 1
            assert 0 < len(found.samples) <= MOST_SAMPLES and np.isfinite(found.samples).all()


class ProjectorTarget(Target):
    name = "projector"
    per_run = 150

    def seeds(self) -> list[Any]:
        plain = {"keys": [], "shapes": [], "edits": [], "size": [28, 28]}
        return [{**plain, "projector": name} for name in PROJECTORS]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = {**value, "size": [rng.choice(SIDES), rng.choice(SIDES)] if rng.random() < 0.3 else [40, 30]}
        how = rng.random()
        for _ in range(rng.choice([1, 1, 2, 3])):
            if how < 0.4:
                new["keys"] = [*new["keys"], self._key(rng)]
            elif how < 0.6:
                new["shapes"] = [*new["shapes"], self._shape(value["projector"], rng)]
            else:
                new["edits"] = [*new["edits"], *edits(rng)]
        return new

    def _key(self, rng: Random) -> list[Any]:
        key = rng.choice(list(KEYS))
        kind, old = KEYS[key]
        if rng.random() < 0.1:
            return [key, None, None]
        if rng.random() < 0.1:
            kind = rng.choice(KINDS)
        if kind == "str":
            return [
                key,
                kind,
                rng.choice(["", "clip", *PROJECTORS, "pixtral", "resampler", "llama4", "lfm2"]),
            ]
        numbers = [*INTEGERS, 12, 14, 28, 48] if "u32" in kind else FLOATS
        new = [rng.choice(numbers) for _ in range(rng.choice([0, 1, 3, 3, 4]))]
        return [key, kind, new if kind.startswith("[") else rng.choice([old, *numbers])]

    def _shape(self, projector: str, rng: Random) -> list[Any]:
        name = rng.choice(list(tensors(projector)))
        shape = list(tensors(projector)[name])
        at = rng.randrange(len(shape))
        shape[at] = rng.choice([1, 2, shape[at] + 1, shape[at] * 2, max(1, shape[at] // 2)])
        return [name, rng.choice([shape, shape, shape[::-1], [1, *shape], shape[1:] or [1], None])]

    def run(self, value: Any) -> None:
        try:
            keys = {
                key: None if kind is None else (kind, fitting(kind, built(new)))
                for key, kind, new in value["keys"]
            }
            shapes = {name: shape and tuple(map(int, shape)) for name, shape in value["shapes"]}
            data = edited(projector_file(value["projector"], keys=keys, shapes=shapes), value["edits"])
            pixels = picture(*map(int, value["size"]))
        except (*NONSENSE, AssertionError) as error:
            raise SkipInput(str(error)) from None
        encoder = MediaEncoder(data, best(), 1)
        try:
            found = encoder.encode(read_picture(pixels))
        finally:
            encoder.file.close()
        for rows in found.rows:
            assert np.isfinite(rows.values).all() and rows.values.shape[1] == encoder.out_width
