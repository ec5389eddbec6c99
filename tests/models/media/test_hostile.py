"""Damaged and hostile media and projector files end in errors of the library, soon and in little memory."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, MediaError, OxiLlamaError
from oxillama._kernels import best
from oxillama.models.media import decode
from oxillama.models.media.decode import (
    MOST_PIXELS,
    MOST_SIDE,
    Picture,
    read_medium,
    read_picture,
    read_sound,
)
from oxillama.models.media.encoder import MediaEncoder
from tests.support.media import KEYS, picture, projector_file, tensors

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A picture that says its size and holds ``data``."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def saved(array: Any, kind: str = "PNG", **options: Any) -> bytes:
    held = io.BytesIO()
    array.save(held, kind, **options)
    return held.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", png(0, 5), png(5, 0), png(40000, 40000), png(1, 1 << 30),
        png(100, 100, b"short"), saved(image.new("RGB", (30, 30)))[:-40],
        b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"data:image/png;base64,AAAA",
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_picture(data: bytes) -> None:
    with pytest.raises(MediaError):
        read_picture(data)


def test_pictures_of_all_kinds() -> None:
    grey = image.fromarray(picture(9, 7)[..., 0])
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LA", "I", "I;16"):
        found = read_picture(
            grey.convert("L").convert(mode) if mode != "I;16" else grey.convert("I").convert("I;16")
        )
        assert found.pixels.shape == (7, 9, 3) and found.pixels.dtype == np.uint8
    with pytest.raises(MediaError, match="floating-point"):
        read_picture(grey.convert("F"))


def test_sixteen_bits_keep_the_upper_eight() -> None:
    values = np.array([[0, 255, 256, 65535]], np.uint16)
    assert read_picture(saved(image.fromarray(values))).pixels[0, :, 0].tolist() == [0, 0, 1, 255]


def test_the_first_picture_of_an_animation() -> None:
    frames = [image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    held = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_picture(held).pixels[0, 0].tolist() == [255, 0, 0]


def test_sides_are_limited() -> None:
    assert read_picture(np.zeros((1, MOST_SIDE, 3), np.uint8)).pixels.shape == (1, MOST_SIDE, 3)
    with pytest.raises(MediaError, match="along a side"):
        read_picture(np.zeros((1, MOST_SIDE + 1, 3), np.uint8))
    with pytest.raises(MediaError, match=f"at most {MOST_PIXELS} pixels"):
        read_picture(png(MOST_SIDE, MOST_PIXELS // MOST_SIDE + 1))


def test_bytes_of_a_picture_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(image.new("RGB", (30, 30)))
    monkeypatch.setattr(decode, "MOST_BYTES", len(data) - 1)
    with pytest.raises(MediaError, match=f"picture: expected at most {len(data) - 1} bytes, got more"):
        read_picture(data)


@pytest.mark.parametrize(
    "source",
    [None, 3, 1.5, np.zeros((2, 2), np.float32), np.zeros((2, 2, 7), np.uint8), "ftp://a/b", object()],
)
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(ConfigError):
        read_picture(source)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", "a\0b", "/dev/zero"):
        with pytest.raises(MediaError):
            read_medium(path)


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        (np.zeros(0, np.float32), 16000),
        (np.full(9, np.nan, np.float32), 16000),
        (np.zeros((0, 2), np.float32), 16000),
        (np.zeros(9, np.float32), 0),
        (np.zeros(9, np.float32), 10**9),
        (np.zeros(9, np.float32), True),
    ],
)
def test_what_is_no_sound(samples: np.ndarray, rate: int) -> None:
    with pytest.raises(MediaError):
        read_sound(samples, rate)


def test_sounds_of_other_rates_and_channels() -> None:
    t = np.arange(48000) / 48000
    tone = np.sin(2 * np.pi * 440 * t).astype(np.float32)
    found = read_sound(np.stack([tone, tone], axis=1), 48000).samples
    wanted = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert found.shape == (16000,) and np.abs(found - wanted)[100:-100].max() < 2e-3
    assert (read_sound(np.array([0, 16384], np.int16)).samples == [0, 0.5]).all()
    assert (read_sound(np.array([[0, 16384], [8192, 24576]], np.int16)).samples == [0.25, 0.5]).all()


# --- projector files ---------------------------------------------------------------------------------


def refused(**changes: Any) -> None:
    with pytest.raises(OxiLlamaError) as caught:
        MediaEncoder(projector_file(**changes), best(), 1).encode(Picture(picture()))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("key", KEYS)
def test_files_without_a_key(key: str) -> None:
    refused(keys={key: None})


@pytest.mark.parametrize(
    "name", [name for name in tensors("mlp") if "ln" not in name and ".blk.1." not in name]
)
@pytest.mark.parametrize("change", ["missing", "other shape"])
def test_files_without_a_tensor(name: str, change: str) -> None:
    if change == "missing" and name == "v.position_embd.weight":
        return  # a file may have no table
    shape = tensors("mlp")[name]
    refused(shapes={name: None if change == "missing" else (*shape[:-1], shape[-1] + 1)})


@pytest.mark.parametrize("value", [0, 1, 3, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize(
    "key", [key for key, (kind, _) in KEYS.items() if kind == "u32" and "projection" not in key]
)
def test_absurd_sizes(key: str, value: int) -> None:
    if value < 4 and key.endswith(("block_count", "head_count")) and (value or key.endswith("block_count")):
        return  # fewer blocks or other heads, or blocks that are not run
    refused(keys={key: ("u32", value)})


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("clip.vision.image_std", "[f32]", [0.0, 1.0, 1.0]),
        ("clip.vision.image_mean", "[f32]", [float("nan"), 1.0, 1.0]),
        ("clip.vision.image_mean", "[f32]", [1.0]),
        ("clip.vision.attention.layer_norm_epsilon", "f32", float("inf")),
        ("clip.projector_type", "str", "no such projector"),
        ("clip.projector_type", "u32", 1),
        ("clip.vision.feature_layer", "[i32]", [1, 2]),
        ("clip.vision.image_grid_pinpoints", "[i32]", [28]),
        ("clip.vision.image_grid_pinpoints", "[i32]", [28, -28]),
        ("clip.vision.attention.head_count_kv", "u32", 5),
        ("clip.vision.attention.head_dim", "u32", 1 << 30),
    ],
)
def test_absurd_values(key: str, kind: str, value: Any) -> None:
    refused(keys={key: (kind, value)})


def test_two_activations() -> None:
    refused(keys={"clip.use_gelu": ("bool", True), "clip.use_silu": ("bool", True)})


def test_truncated_projector_files() -> None:
    data = projector_file()
    for n in range(0, len(data), 4999):
        with pytest.raises(OxiLlamaError):
            MediaEncoder(data[:n], best(), 1).encode(Picture(picture()))


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3, 2)])
def test_odd_sizes(kind: str, size: tuple[int, int]) -> None:
    encoded = MediaEncoder(projector_file(kind), best(), 1).encode(Picture(picture(*size)))
    assert all(np.isfinite(rows.values).all() and len(rows.values) for rows in encoded.rows)


def test_too_many_patches() -> None:
    encoder = MediaEncoder(projector_file("qwen2vl_merger"), best(), 1)
    assert encoder.vision is not None
    with pytest.raises(ConfigError, match="expected 1 to 65536 patches"):
        encoder.vision.grid_of(14 * 1000, 14 * 1000)
