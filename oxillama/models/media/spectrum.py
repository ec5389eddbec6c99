"""Spectrograms of sounds, in doubles and in a fixed order: the same bits on every machine.

Every operation is one on single elements; sums are written as additions in order. Logarithms and sines are
series of our own, since the results of math libraries differ from machine to machine.
"""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext

import numpy as np

from oxillama.models.media.resize import sine_of_half_turns

RATE = 16000
LN2, LN10 = 0.6931471805599453, 2.302585092994046
HOP = 160

WHISPER_FRAME, WHISPER_FRAMES = 400, 3000
WHISPER_FLOOR = 5.960464e-8
"""Of a mel bin: 2^-24."""

CONFORMER_FRAME, CONFORMER_WINDOW, CONFORMER_FLOOR = 512, 320, 0.001
PIECE = 30 * RATE
BLOCK = 32
"""Rows that are transformed together: the parts of so many stay in the cache."""
LEAST_SAMPLES = 201
"""Samples of a sound that `whisper_pieces` takes; shorter ones get zeros."""


# --- functions of single elements -----------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def sines(n: int) -> np.ndarray:
    """float64 (n,), read-only: sin(2 pi k / n)."""
    found = sine_of_half_turns(np.arange(n) * 2.0 / n)
    found.flags.writeable = False
    return found


@functools.lru_cache(maxsize=64)
def cosines(n: int) -> np.ndarray:
    """float64 (n,), read-only: cos(2 pi k / n)."""
    found = sine_of_half_turns(np.arange(n) * 2.0 / n + 0.5)
    found.flags.writeable = False
    return found


def natural_log(x: np.ndarray) -> np.ndarray:
    """ln x of float64 x > 0; the error is a few units in the last place."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(z, 1.0 / 25)
    for i in range(23, 0, -2):
        series = series * z + 1.0 / i
    found: np.ndarray = (exponent - small) * LN2 + 2.0 * s * series
    return found


# --- the transform of Fourier ---------------------------------------------------------------------------


def fourier(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts, float64 (rows, n) each, of real rows float64 (rows, n)."""
    parts = [_transformed(x[i : i + BLOCK]) for i in range(0, max(1, len(x)), BLOCK)]
    return np.concatenate([real for real, _ in parts]), np.concatenate([imaginary for _, imaginary in parts])


def _transformed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The transform of a block of rows.

    Elements of even and of odd places are transformed as rows of their own (Cooley and Tukey, 1965); an odd
    rest is summed term by term.
    """
    rows, n = x.shape
    if n % 2:
        return _summed(x)
    reals, imaginaries = _transformed(np.concatenate([x[:, ::2], x[:, 1::2]]))
    cosine, sine = cosines(n)[: n // 2], sines(n)[: n // 2]
    real = reals[rows:] * cosine + imaginaries[rows:] * sine
    imaginary = imaginaries[rows:] * cosine - reals[rows:] * sine
    return (
        np.concatenate([reals[:rows] + real, reals[:rows] - real], axis=1),
        np.concatenate([imaginaries[:rows] + imaginary, imaginaries[:rows] - imaginary], axis=1),
    )


def _summed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The transform of rows, one product for each pair of elements."""
    n = x.shape[1]
    cosine, sine = cosines(n), sines(n)
    real, imaginary = np.zeros(x.shape), np.zeros(x.shape)
    for k in range(n):
        turns = np.arange(n) * k % n
        real += x[:, k : k + 1] * cosine[turns]
        imaginary -= x[:, k : k + 1] * sine[turns]
    return real, imaginary


def hann(n: int) -> np.ndarray:
    """float64 (n,): the periodic window of Hann."""
    return 0.5 - 0.5 * cosines(n)


def framed(signal: np.ndarray, size: int, n: int) -> np.ndarray:
    """float64 (n, size): overlapping frames of a signal; zeros behind its end."""
    needed = max(0, (n - 1) * HOP + size - len(signal))
    padded = np.concatenate([signal, np.zeros(needed)])
    return np.lib.stride_tricks.sliding_window_view(padded, size)[: (n - 1) * HOP + 1 : HOP]


# --- filters of mel bins --------------------------------------------------------------------------------


def slaney_hertz(mel: float) -> float:
    """Hertz of a mel value on Slaney's scale, which is linear below 1,000 Hz."""
    if mel < 15:
        return mel * 200.0 / 3
    with localcontext(prec=30):
        return float(1000 * ((Decimal(mel) - 15) * Decimal("6.4").ln() / 27).exp())


def slaney_mel(hertz: float) -> float:
    """The mel value of a frequency from 1,000 Hz on."""
    with localcontext(prec=30):
        return float(15 + (Decimal(hertz) / 1000).ln() * 27 / Decimal("6.4").ln())


def htk_hertz(mel: float) -> float:
    """Hertz of a mel value on the scale of HTK."""
    with localcontext(prec=30):
        return float(700 * (Decimal(10) ** (Decimal(mel) / 2595) - 1))


def htk_mel(hertz: float) -> float:
    """The mel value of a frequency."""
    with localcontext(prec=30):
        return float(2595 * (1 + Decimal(hertz) / 700).log10())


@functools.lru_cache(maxsize=8)
def mel_filters(n_mels: int, size: int, scale: str) -> np.ndarray:
    """float64 (n_mels, size / 2 + 1): triangles from 0 to 8,000 Hz over the bins of frames of ``size``.

    ``scale`` is "slaney", whose triangles have equal areas, or "htk", whose triangles have equal heights.
    """
    hertz, mel = (slaney_hertz, slaney_mel) if scale == "slaney" else (htk_hertz, htk_mel)
    edges = [hertz(mel(8000.0) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    bins = np.arange(size // 2 + 1) * RATE / size
    filters = np.zeros((n_mels, len(bins)))
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:])):
        rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
        area = 2.0 / (right - left) if scale == "slaney" else 1.0
        filters[i] = np.maximum(0.0, np.minimum(rising, falling)) * area
    return filters


def mel_bins(spectra: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """float64 (frames, n_mels): sums of spectra (frames, bins), in order of the bins."""
    columns = np.ascontiguousarray(spectra.T)
    found = np.zeros((len(filters), len(spectra)))
    for total, weights in zip(found, filters, strict=True):
        for k in np.flatnonzero(weights):
            total += columns[k] * weights[k]
    return np.ascontiguousarray(found.T)


# --- whole sounds -----------------------------------------------------------------------------------------


def whisper_frames(n_samples: int) -> int:
    """Frames of a spectrogram; every whole 3,000 of them are a piece."""
    return max(n_samples, LEAST_SAMPLES) // HOP + WHISPER_FRAMES + 1


def whisper_pieces(samples: np.ndarray, n_mels: int) -> list[np.ndarray]:
    """Log-mel spectrograms, float32 (3000, n_mels) each, of a sound float32 (n,) (Radford et al., 2022)."""
    n = whisper_frames(len(samples))
    if len(samples) < LEAST_SAMPLES:
        samples = np.concatenate([samples, np.zeros(LEAST_SAMPLES - len(samples), samples.dtype)])
    signal = np.concatenate([samples[200:0:-1], samples])
    n_heard = min(n, (len(signal) - 1) // HOP + 1)  # the others hold zeros alone
    filters, window = mel_filters(n_mels, WHISPER_FRAME, "slaney"), hann(WHISPER_FRAME)
    logs = np.full((n, n_mels), natural_log(np.array(WHISPER_FLOOR)) / LN10)
    for start in range(0, n_heard, WHISPER_FRAMES):
        n_now = min(WHISPER_FRAMES, n_heard - start)
        frames = framed(signal[start * HOP :][: n_now * HOP + WHISPER_FRAME], WHISPER_FRAME, n_now) * window
        real, imaginary = (part[:, : WHISPER_FRAME // 2 + 1] for part in fourier(frames))
        mel = mel_bins(real * real + imaginary * imaginary, filters)
        logs[start : start + n_now] = natural_log(np.maximum(mel, WHISPER_FLOOR)) / LN10
    values = ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
    return [values[i : i + WHISPER_FRAMES] for i in range(0, n - WHISPER_FRAMES + 1, WHISPER_FRAMES)]


def conformer_lengths(n_samples: int) -> list[int]:
    """Samples of each piece of 30 seconds of a sound; a rest of 10 ms makes no piece of its own."""
    lengths = [min(PIECE, n_samples - start) for start in range(0, max(1, n_samples), PIECE)]
    return [n for i, n in enumerate(lengths) if not i or n > CONFORMER_WINDOW // 2]


def conformer_frames(n_samples: int) -> int:
    """Frames of a piece."""
    return max(0, n_samples + CONFORMER_WINDOW // 2 - CONFORMER_WINDOW - 1) // HOP + 1


def conformer_pieces(samples: np.ndarray, n_mels: int) -> list[np.ndarray]:
    """Log-mel spectrograms, float32 (frames, n_mels) each, of the pieces of 30 seconds of a sound."""
    lengths = conformer_lengths(len(samples))
    return [_conformer_piece(samples[i * PIECE :][:n], n_mels) for i, n in enumerate(lengths)]


def _conformer_piece(samples: np.ndarray, n_mels: int) -> np.ndarray:
    signal = np.concatenate([np.zeros(CONFORMER_WINDOW // 2), samples.astype(np.float64)])
    n = conformer_frames(len(samples))
    window = np.concatenate([hann(CONFORMER_WINDOW), np.zeros(CONFORMER_FRAME - CONFORMER_WINDOW)])
    real, imaginary = fourier(framed(signal, CONFORMER_FRAME, n) * window)
    spectra = np.sqrt(real * real + imaginary * imaginary)[:, : CONFORMER_FRAME // 2 + 1]
    mel = mel_bins(spectra, mel_filters(n_mels, CONFORMER_FRAME, "htk"))
    return natural_log(np.maximum(mel, CONFORMER_FLOOR)).astype(np.float32)
