"""Pictures as viewers show them: turned as EXIF says, laid on white; and what files may claim, in bounds."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oxillama import MediaError
from oxillama.models.media import decode
from oxillama.models.media.decode import ORIENTATION, on_white, read_medium, read_picture, read_sound
from oxillama.models.media.kinds import is_sound, kind_of
from tests.support.media import picture

image = pytest.importorskip("PIL.Image")
operations = pytest.importorskip("PIL.ImageOps")


def saved(source: Any, form: str, **options: Any) -> bytes:
    held = io.BytesIO()
    made = source if isinstance(source, image.Image) else image.fromarray(source)
    made.save(held, form, **options)
    return held.getvalue()


def exif(turn: Any) -> Any:
    found = image.Exif()
    found[ORIENTATION] = turn
    return found


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunk(data: bytes, kind: bytes, body: bytes) -> bytes:
    """A PNG with another chunk behind its head."""
    return data[:33] + chunk(kind, body) + data[33:]


# --- the right way up -----------------------------------------------------------------------------------

TURNED: list[tuple[str, dict[str, Any]]] = [
    ("JPEG", {"quality": 95}),
    ("MPO", {"quality": 95}),
    ("PNG", {}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"quality": 80}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
]


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize(("form", "options"), TURNED)
def test_orientations(form: str, options: dict[str, Any], turn: int) -> None:
    """As `PIL.ImageOps.exif_transpose`, which `transformers.image_utils.load_image` calls."""
    data = saved(picture(9, 6), form, exif=exif(turn), **options)
    wanted = np.asarray(operations.exif_transpose(image.open(io.BytesIO(data))).convert("RGB"))
    assert wanted.shape == ((9, 6, 3) if turn > 4 else (6, 9, 3))
    assert (read_picture(data).pixels == wanted).all()
    assert (read_picture(image.open(io.BytesIO(data))).pixels == wanted).all()


def test_orientations_elsewhere_in_a_png() -> None:
    """EXIF may follow the pixels, or be in a text chunk, or in XMP."""
    plain = saved(picture(9, 6), "PNG")
    wanted = np.rot90(picture(9, 6), -1)
    body = exif(6).tobytes().removeprefix(b"Exif\0\0")
    late = plain[:-12] + chunk(b"eXIf", body) + plain[-12:]
    lines = f"\nexif\n{len(body):8}\n{body.hex()}\n".encode()
    text = with_chunk(plain, b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(lines))
    xmp = with_chunk(plain, b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>')
    for data in (late, text, xmp):
        assert (read_picture(data).pixels == wanted).all()
        assert (np.asarray(operations.exif_transpose(image.open(io.BytesIO(data)))) == wanted).all()


@pytest.mark.parametrize("turn", [0, 9, 255, 65535])
def test_orientations_that_are_none(turn: Any) -> None:
    data = saved(picture(9, 6), "PNG", exif=exif(turn))
    assert (read_picture(data).pixels == picture(9, 6)).all()


def test_damaged_exif_turns_nothing() -> None:
    whole = exif(6).tobytes()
    for body in (
        b"",
        b"Exif\0\0",
        b"no TIFF head",
        whole[:9],
        whole[:20],
        b"II*\0\xff\xff\xff\xff",
        bytes(64),
    ):
        found = read_picture(with_chunk(saved(picture(9, 6), "PNG"), b"eXIf", body)).pixels
        assert (
            found.shape in ((6, 9, 3), (9, 6, 3))
            and np.sort(found.ravel()).tolist() == np.sort(picture(9, 6).ravel()).tolist()
        )


# --- transparency ---------------------------------------------------------------------------------------


def pasted(source: Any) -> np.ndarray:
    """A picture on white, as Pillow pastes it."""
    with_alpha = source.convert("RGBA")
    ground = image.new("RGB", source.size, (255, 255, 255))
    ground.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return np.asarray(ground)


def test_every_colour_and_alpha() -> None:
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    pixels = np.stack([colour, colour[::-1], colour, alpha], axis=2).astype(np.uint8)
    wanted = pasted(image.fromarray(pixels))
    assert (on_white(pixels) == wanted).all() and (read_picture(pixels).pixels == wanted).all()
    assert wanted[0].min() == 255 and (wanted[255, :, 0] == np.arange(256)).all()


def test_strips_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (31, 17, 4)).astype(np.uint8)
    wanted = on_white(pixels)
    monkeypatch.setattr(decode, "STRIP", 50)
    assert (on_white(pixels) == wanted).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
@pytest.mark.parametrize("form", [None, "PNG", "WEBP", "TIFF"])
def test_modes_with_alpha(mode: str, form: str | None) -> None:
    if mode == "PA" and form is not None:
        return  # no format stores it
    pixels = np.random.default_rng(1).integers(0, 256, (12, 10, 4)).astype(np.uint8)
    source = image.fromarray(pixels)
    source = source.convert("P").convert("PA") if mode == "PA" else source.convert(mode)
    if mode == "PA":
        source.putalpha(image.fromarray(pixels[..., 3]))
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    given = source if form is None else saved(source, form, **options)
    assert (read_picture(given).pixels == pasted(source)).all()


@pytest.mark.parametrize("mode", ["RGBa", "La"])
def test_premultiplied_alpha(mode: str) -> None:
    """Colours are divided by alpha first: the picture of the plain mode, but for rounding."""
    pixels = np.random.default_rng(2).integers(0, 256, (12, 10, 4)).astype(np.uint8)
    source = image.fromarray(pixels).convert(mode.upper())
    found = read_picture(source.convert(mode)).pixels.astype(int)
    assert np.abs(found - pasted(source)).max() <= 2


@pytest.mark.parametrize(
    ("mode", "colour", "clear"),
    [
        ("P", 3, 3),
        ("P", 3, bytes([255, 255, 255, 0])),
        ("L", 7, 7),
        ("1", 0, 0),
        ("RGB", (1, 2, 3), (1, 2, 3)),
    ],
)
def test_one_colour_is_clear(mode: str, colour: Any, clear: Any) -> None:
    source = image.new(mode, (6, 4), colour)
    if mode == "P":
        source.putpalette([0] * 48)
    data = saved(source, "PNG", transparency=clear)
    assert (read_picture(data).pixels == 255).all()
    assert (read_picture(saved(source, "PNG")).pixels < 255).any()


def test_half_of_a_palette_is_clear() -> None:
    source = image.fromarray(picture(20, 20)).quantize(8)
    data = saved(source, "PNG", transparency=bytes(range(0, 256, 32)))
    assert (read_picture(data).pixels == pasted(image.open(io.BytesIO(data)))).all()
    given = saved(source, "GIF", transparency=2)
    assert (read_picture(given).pixels == pasted(image.open(io.BytesIO(given)))).all()
    own = image.fromarray(np.dstack([picture(20, 20), picture(20, 20)[..., :1]]))
    palette = own.quantize(8, method=image.Quantize.FASTOCTREE)  # its palette is RGBA
    assert palette.palette.mode == "RGBA" and (read_picture(palette).pixels == pasted(palette)).all()


def test_grey_of_sixteen_bits_with_a_clear_value() -> None:
    head = struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" + struct.pack(">HH", 0x1234, 0x1235))
    parts = (b"IHDR", head), (b"tRNS", struct.pack(">H", 0x1234)), (b"IDAT", rows), (b"IEND", b"")
    data = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    assert read_picture(data).pixels[0, :, 0].tolist() == [255, 0x12]


def test_digests() -> None:
    pixels, samples = picture(9, 6), np.linspace(-1, 1, 7, dtype="<f4")
    assert decode.Picture(pixels).digest == blake3(b"picture 2 9 6\n" + pixels.tobytes()).digest()
    assert decode.Sound(samples).digest == blake3(b"sound 2 16000\n" + samples.tobytes()).digest()


# --- formats that are not read ----------------------------------------------------------------------------

FORMATS: list[tuple[bytes, str]] = [
    (b"\0\0\0\x18ftypheic" + bytes(64), "HEIC is not read; convert it to PNG, JPEG, WebP"),
    (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(64), "HEIC is not read"),
    (b"\0\0\0\x18ftypavif" + bytes(64), "AVIF is not read"),
    (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif" + bytes(64), "AVIF is not read"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG is not read"),
    (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- a --><svg width='1'>", "SVG is not read"),
    (b"\xff\x0a" + bytes(30), "JPEG XL is not read"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000 is not read"),
    (b"\0\0\1\0\1\0" + bytes(30), "ICO is not read"),
    (b"8BPS\0\1" + bytes(30), "PSD is not read"),
    (b"%PDF-1.7\n", "PDF is not read"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PostScript is not read"),
    (b"\0\0\0\x18ftypisom" + bytes(64), "MP4 or M4A is not read"),
    (b"GIF89a", "cannot be decoded as GIF: the file is damaged or cut short"),
    (b"no picture", "expected a picture (PNG, JPEG, WebP, BMP, GIF, TIFF or PPM), got another format"),
    (b"fLaC" + bytes(40), "expected a picture (PNG, JPEG, WebP, BMP, GIF, TIFF or PPM), got FLAC, a sound"),
]
SOUNDS: list[tuple[bytes, str]] = [
    (b"\0\0\0\x18ftypM4A " + bytes(64), "M4A is not read; convert it to WAV, MP3, FLAC, Ogg or AIFF"),
    (b"\0\0\0\x18ftypmp42" + bytes(64), "MP4 or M4A is not read"),
    (b"\xff\xf1\x50\x80" + bytes(64), "AAC is not read"),
    (b"#!AMR\n" + bytes(64), "AMR is not read"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + bytes(64), "WMA is not read"),
    (b"\x1a\x45\xdf\xa3" + bytes(64), "WebM or Matroska is not read"),
    (b"RIFF" + bytes(60), "cannot be decoded as WAV: "),
    (b"OggS" + bytes(60), "cannot be decoded as Ogg: "),
    (b"no sound", "expected a sound (WAV, MP3, FLAC, Ogg or AIFF), got another format"),
    (b"\x89PNG\r\n\x1a\n", "got PNG, a picture"),
]


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [(read_picture, *each) for each in FORMATS] + [(read_sound, *each) for each in SOUNDS],
)
def test_errors_name_the_format(read: Callable[[bytes], Any], data: bytes, message: str) -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(MediaError) as caught:
        read(data)
    said = str(caught.value)
    assert message in said and " at 0x" not in said and "object" not in said, said
    with pytest.raises(MediaError) as caught:
        read_medium(data)
    assert " at 0x" not in str(caught.value)


def test_kinds_of_files() -> None:
    for form in decode.FORMATS:
        kind, name = kind_of(saved(picture(), form))
        assert kind == "image" and name.upper() == form
    for first in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2):
        assert is_sound(bytes([0xFF, first, 0x90, 0x64]))
    assert kind_of(b"") == ("", "") and not is_sound(b"\xff\xd8\xff\xe0")


# --- what files claim -------------------------------------------------------------------------------------


def wide_exif() -> bytes:
    """EXIF with as many tags as fit, each of which claims all bytes of 60,000."""
    n = 4000
    tags = b"".join(struct.pack("<HHII", 1000 + i, 7, 60_000, 8) for i in range(n))
    body = b"II*\0" + struct.pack("<IH", 8, n) + tags + bytes(4)
    return b"Exif\0\0" + body.ljust(60_000, b"\0")


def tiff_of(tags: list[tuple[int, int, int, int]]) -> bytes:
    """A TIFF file with a directory of tags (number, type, count, value), and a megabyte behind it."""
    body = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + bytes(4) + bytes(1 << 20)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "EXIF whose tags claim everything": lambda: saved(picture(), "JPEG", exif=wide_exif()),
    "EXIF of megabytes": lambda: with_chunk(
        saved(picture(), "PNG"), b"eXIf", b"II*\0\x08\0\0\0\xff\xff" + bytes(4 << 20)
    ),
    "EXIF whose directory is itself": lambda: with_chunk(
        saved(picture(), "PNG"), b"eXIf", b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHIII", 0x8769, 4, 1, 8, 8)
    ),
    "an ICC profile that is a bomb": lambda: with_chunk(
        saved(picture(), "PNG"), b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 28))
    ),
    "a text that is a bomb": lambda: with_chunk(
        saved(picture(), "PNG"), b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(bytes(1 << 28))
    ),
    "a thousand frames": lambda: saved(
        image.new("RGB", (64, 64)),
        "GIF",
        save_all=True,
        append_images=[image.new("RGB", (64, 64), colour) for colour in ("red", "blue")] * 500,
    ),
    "a TIFF whose tags claim everything": lambda: tiff_of(
        [(256, 4, 1, 8), (257, 4, 1, 8), *((n, 7, 1 << 20, 8) for n in range(1000, 5000))]
    ),
    "a TIFF of four billion samples a pixel": lambda: tiff_of(
        [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 0xFFFFFFFF, 8), (277, 4, 1, 0xFFFFFFFF)]
    ),
    "a TIFF of four billion rows": lambda: tiff_of([(256, 4, 1, 0xFFFFFFFF), (257, 4, 1, 0xFFFFFFFF)]),
    "a PPM with a number of a megabyte": lambda: b"P5 " + b"1" * (1 << 20) + b" 1 255\n",
    "a text PPM with long tokens": lambda: b"P2 30000 2000 255\n" + b"1" * (1 << 20),
    "a BMP of negative height": lambda: (
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 9, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0)
    ),
    "a JPEG of hundreds of segments of EXIF": lambda: jpeg_of_exif(900),
    "a chain of a hundred thousand directories": lambda: (
        b"II*\0" + struct.pack("<I", 8) + b"".join(struct.pack("<HI", 0, 14 + 6 * i) for i in range(100_000))
    ),
    "a PNG of a hundred thousand texts": lambda: (
        (plain := saved(picture(), "PNG"))[:33] + chunk(b"tEXt", b"a\0b") * 100_000 + plain[33:]
    ),
    "a JPEG of thousands of scans": lambda: jpeg_of_scans(3000),
}


def jpeg_of_exif(n: int) -> bytes:
    """A JPEG with ``n`` segments of EXIF of 64 KiB."""
    data = saved(picture(), "JPEG")
    return data[:2] + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65527)) * n + data[2:]


def jpeg_of_scans(n: int) -> bytes:
    """A progressive JPEG of one colour whose last scan, of a few bytes, comes ``n`` times more."""
    data = saved(image.new("RGB", (8192, 8192)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * n + data[-2:]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_soon_in_little_memory(name: str) -> None:
    resource = pytest.importorskip("resource")
    data = HOSTILE[name]()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        found = read_picture(data).pixels
        assert found.dtype == np.uint8 and found.size <= 3 * decode.MOST_PIXELS
    except MediaError as error:
        assert " at 0x" not in str(error)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    print(f"{name}: {len(data)} bytes, {time.process_time() - began:.2f} s, {grown >> 10} MiB")
    assert time.process_time() - began < 10 and grown < 500 << 10
