"""Sounds: resampled by a filter that is made once, in bounded time and memory; and what files may claim."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oxillama import ConfigError, MediaError
from oxillama.models.media import sounds
from oxillama.models.media.decode import read_sound
from oxillama.models.media.resize import sinc
from oxillama.models.media.sounds import RATE, Resampler, blocks_of, filter_of, joined, mean
from tests.support.kernels import PRESENT

soundfile = pytest.importorskip("soundfile")

RATES = (1000, 8000, 11025, 22050, 24000, 44100, 48000, 96000, 192_000, 44_101, 15_999)


def saved(samples: np.ndarray, rate: int, form: str = "WAV", **options: Any) -> bytes:
    held = io.BytesIO()
    soundfile.write(held, samples, rate, format=form, **options)
    return held.getvalue()


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    return joined(iter([samples]), rate)


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4096, 4096, n).astype(np.float32) / np.float32(1 << 15)


# --- the filter -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
def test_resampling_is_a_windowed_sinc(rate: int) -> None:
    """Each output is the sum over 16 zero crossings on each side of its place, with weights that sum to 1."""
    samples = noise(rate // 8 + 77)
    found = resampled(samples, rate)
    assert len(found) == len(samples) * RATE // rate
    stretch = max(1.0, rate / RATE)
    for i in np.unique(np.linspace(0, len(found) - 1, 60).astype(int)):
        x = (np.arange(-40_000, len(samples) + 40_000) - i * rate / RATE) / stretch
        near = np.abs(x) < 16
        weights = np.where(near, np.sinc(x) * np.sinc(x / 16), 0.0)
        wanted = (weights[40_000:-40_000] * samples).sum() / weights.sum()
        assert abs(found[i] - wanted) < 3e-8


def test_bits() -> None:
    """Hashes of the outputs, which are the same on every machine."""
    found = {rate: resampled(noise(20_000), rate).astype("<f4").tobytes() for rate in RATES}
    hashes = {rate: blake3(data).hexdigest()[:16] for rate, data in found.items()}
    assert hashes == BITS


@pytest.mark.parametrize("rate", RATES)
def test_blocks_change_no_bit(rate: int) -> None:
    samples, rng = noise(5000, 1), np.random.default_rng(2)
    whole = resampled(samples, rate)
    for most in (400, 4000):
        resampler, parts, at = Resampler(rate), [], 0
        while at < len(samples):
            step = int(rng.integers(1, most + 1))
            parts.append(resampler.feed(samples[at : at + step]))
            at += step
        assert (np.concatenate([*parts, resampler.rest()]) == whole).all()


def test_single_samples_change_no_bit() -> None:
    resampler, samples = Resampler(48000), noise(400)
    parts = [resampler.feed(samples[i : i + 1]) for i in range(len(samples))]
    assert (np.concatenate([*parts, resampler.rest()]) == resampled(samples, 48000)).all()


def test_blocks_of_a_file_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    both = np.stack([noise(7000), noise(7000, 1)], axis=1)
    data = saved(both, 44100, subtype="FLOAT")
    wanted = read_sound(data).samples
    for block in (99, 999, 1 << 20):
        with monkeypatch.context() as changed:
            changed.setattr(sounds, "BLOCK", block)
            assert (read_sound(data).samples == wanted).all()
            assert (read_sound(both, 44100).samples == wanted).all()
    assert (wanted == resampled(mean(both), 44100)).all()


@pytest.mark.parametrize(("rate", "tones"), [(44100, (9500, 12000, 20000)), (48000, (9500, 16000, 23000))])
def test_tones_above_8000_hertz_are_removed(rate: int, tones: tuple[int, ...]) -> None:
    t = np.arange(rate) / rate
    for hertz in tones:
        found = resampled(np.sin(2 * np.pi * hertz * t).astype(np.float32), rate)[500:-500]
        assert np.abs(found).max() < 2e-3  # 54 dB
    for hertz in (50, 1000, 6500):
        found = resampled(np.sin(2 * np.pi * hertz * t).astype(np.float32), rate)
        wanted = np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE)
        assert np.abs(found - wanted)[500:-500].max() < 2e-3


def test_a_filter_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(sounds, "sinc", lambda x: made.append(len(x)) or sinc(x))
    sounds.small_filter.cache_clear()
    resampled(noise(5000), 44100)
    n = len(made)
    assert n and set(made) == {160}
    read_sound(saved(noise(500_000), 44100))
    assert len(made) == n
    assert filter_of(44100) is filter_of(44100) and filter_of(44_101) is not filter_of(44_101)  # large


@pytest.mark.parametrize("target", PRESENT)
def test_no_matrix_product_is_used(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of additions of such a product depends on the machine."""
    for name in ("dot", "matmul", "einsum", "inner", "tensordot"):
        monkeypatch.setattr(np, name, None)
    assert len(read_sound(saved(noise(9000), 44100)).samples) == 3265


# --- time and memory --------------------------------------------------------------------------------------


def test_a_minute_of_music_is_decoded_soon() -> None:
    """The aim is 0.005 s a second of sound; the bar leaves room for busy machines."""
    data = saved(np.stack([noise(44100 * 60)] * 2, axis=1), 44100)
    read_sound(data)
    began = time.process_time()
    read_sound(data)
    assert time.process_time() - began < 60 * 0.015


def test_memory_is_that_of_the_samples() -> None:
    """Decoding needs a few blocks more than the file and the outputs."""
    data = saved(np.zeros((44100 * 120, 2), np.float32), 44100)
    read_sound(data[: 1 << 20])
    tracemalloc.start()
    try:
        found = read_sound(data).samples
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * found.nbytes + (16 << 20)


def test_a_spectrogram_is_made_in_blocks() -> None:
    from oxillama.models.media.spectrum import whisper_pieces

    sound = np.zeros(RATE * 240, np.float32)
    tracemalloc.start()
    try:
        pieces = whisper_pieces(sound, 80)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(pieces) == 9 and peak < 160 << 20


# --- what files claim -------------------------------------------------------------------------------------


def wav_head(rate: int, channels: int, bits: int = 16, tag: int = 1, n: int = 64) -> bytes:
    """A WAV file that claims anything, with ``n`` bytes of samples."""
    width = channels * bits // 8
    facts = struct.pack("<HHIIHH", tag, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    body = b"fmt " + struct.pack("<I", len(facts)) + facts + b"data" + struct.pack("<I", n) + bytes(n)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


CLAIMS: dict[str, tuple[Callable[[], bytes], str]] = {
    "rate 0": (lambda: wav_head(0, 1), ""),
    "rate 1": (lambda: wav_head(1, 1), "expected 1,000 to 192,000 samples per second, got 1"),
    "rate 999": (lambda: wav_head(999, 1), "samples per second"),
    "rate 192,001": (lambda: wav_head(192_001, 1), "samples per second"),
    "rate 4 billion": (lambda: wav_head(0xFFFFFFFF, 1), ""),
    "no channels": (lambda: wav_head(16000, 0), ""),
    "65 channels": (lambda: wav_head(16000, 65, n=1300), "at most 64 channels, got 65"),
    "65,535 channels": (lambda: wav_head(16000, 65535), ""),
    "no bits": (lambda: wav_head(16000, 1, 0), ""),
    "a codec that nobody knows": (lambda: wav_head(16000, 1, 16, 0x7777), ""),
    "no samples": (lambda: wav_head(16000, 1, n=0), "sound: is empty"),
    "floats that are not finite": (
        lambda: saved(np.array([0, np.inf, 0], np.float32), 16000, subtype="FLOAT"),
        "expected finite samples",
    ),
    "floats whose sum is not finite": (
        lambda: saved(np.full((9, 2), 3e38, np.float32), 16000, subtype="FLOAT"),
        "expected finite samples",
    ),
    "floats that ring over": (
        lambda: saved(np.repeat([-3.4e38, 3.4e38], 200).astype(np.float32), 44100, subtype="FLOAT"),
        "whose sums are finite",
    ),
    "a size of 4 GiB": (
        lambda: wav_head(16000, 1).replace(struct.pack("<I", 64) + bytes(64), b"\xff" * 4),
        "",
    ),
    "MP3 frames of nothing": (lambda: b"\xff\xfb\x90\x64" * 5000, ""),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name: str) -> None:
    make, message = CLAIMS[name]
    data, began = make(), time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(MediaError) as caught:
            read_sound(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = str(caught.value)
    assert message in said and said.startswith("sound: ") and " at 0x" not in said, said
    assert peak < 16 << 20 and time.process_time() - began < 5


def test_the_most_channels_at_the_lowest_rate() -> None:
    assert len(read_sound(wav_head(1000, 64, n=8 * 64 * 2)).samples) == 128


def flac(n: int, rate: int = 16000, channels: int = 1) -> bytes:
    """A FLAC file of silence, whose head says that it has ``n`` samples."""
    data = bytearray(saved(np.zeros((4096, channels), np.int16), rate, "FLAC"))
    facts = int.from_bytes(data[18:26], "big") >> 36 << 36 | n  # 36 bits of STREAMINFO
    data[18:26] = facts.to_bytes(8, "big")
    return bytes(data)


def test_a_sound_is_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_sound(flac(4096)).samples) == 4096
    tracemalloc.start()
    try:
        with suppress(MediaError):  # or what there is of it
            assert len(read_sound(flac(3599 * 48000, 48000, 2)).samples) < 4096
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(sounds, "MOST_SAMPLES", RATE)
    with pytest.raises(MediaError, match="expected at most an hour, got more than 48000 samples at 48000"):
        read_sound(saved(np.zeros(48001, np.int16), 48000))
    assert len(read_sound(saved(np.zeros(48000, np.int16), 48000)).samples) == 16000


def test_values_of_all_channels_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file of silence may have many channels at a high rate in few bytes."""
    data = saved(np.zeros((9000, 8), np.int16), 192_000, "FLAC")
    assert len(data) < 2000 and len(read_sound(data).samples) == 750
    monkeypatch.setattr(sounds, "MOST_VALUES", 50_000)
    with pytest.raises(MediaError, match="expected at most 50000 samples of all channels, got more"):
        read_sound(data)
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        monkeypatch.undo()
        assert sum(map(len, blocks_of(file))) == 9000


def test_bytes_of_a_sound(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from oxillama.models.media import decode

    data = saved(noise(800), 16000)
    (tmp_path / "a.wav").write_bytes(data)
    monkeypatch.setattr(decode, "MOST_BYTES", 100)  # limits pictures alone
    assert len(read_sound(tmp_path / "a.wav").samples) == len(read_sound(data).samples) == 800
    monkeypatch.setattr(decode, "MOST_SOUND_BYTES", len(data) - 1)
    for source in (data, tmp_path / "a.wav"):
        with pytest.raises(MediaError, match=f"sound: expected at most {len(data) - 1} bytes, got more"):
            read_sound(source)


@pytest.mark.parametrize(
    "samples", [np.zeros(9, np.int32), np.zeros((2, 2, 2), np.float32), np.zeros(9, bool)]
)
def test_arrays_that_are_no_sounds(samples: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="expected floats or int16"):
        read_sound(samples)


def test_half_and_double_precision() -> None:
    tone = np.sin(np.arange(900) / 5)
    for kind in (np.float16, np.float64):
        assert (read_sound(tone.astype(kind)).samples == tone.astype(kind).astype(np.float32)).all()


BITS = {
    1000: "d3b756a6fb80350a",
    8000: "ecbdd03514b88ca6",
    11025: "ad894c2c79e68c1d",
    22050: "6bc43c8af44f830f",
    24000: "b91d0bfa7874b663",
    44100: "bafefc184d5d1662",
    48000: "b3fffda50ba1653e",
    96000: "656e2dd570f34fe1",
    192000: "3c83a2970e94bad0",
    44101: "138e9c7bc3da4b1f",
    15999: "81eaf5e8b1fa6525",
}
"""By rate."""
