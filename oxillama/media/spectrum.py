"""Spectrograms of sounds, in doubles and in a fixed order: the same bits on every machine.

Every operation is one on single elements; sums are written as additions in order. Logarithms and sines are
series of our own, since those of a math library differ from machine to machine.
"""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext

import numpy as np

from oxillama.media.resize import sine_of_half_turns

RATE = 16000
LN2, LN10 = 0.6931471805599453, 2.302585092994046
HOP = 160

WHISPER_FRAME, WHISPER_FRAMES = 400, 3000
WHISPER_FLOOR = 5.960464e-8
"""Of a mel bin: 2^-24."""

CONFORMER_FRAME, CONFORMER_WINDOW, CONFORMER_FLOOR = 512, 320, 0.001
PIECE = 30 * RATE


# --- functions of single elements -----------------------------------------------------------------------


def sines(n: int) -> np.ndarray:
    """float64 (n,): sin(2 pi k / n)."""
    return sine_of_half_turns(np.arange(n) * 2.0 / n)


def cosines(n: int) -> np.ndarray:
    """float64 (n,): cos(2 pi k / n)."""
    return sine_of_half_turns(np.arange(n) * 2.0 / n + 0.5)


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
    """Real and imaginary parts, float64 (rows, n) each, of real rows float64 (rows, n).

    Halves are transformed apart (Cooley and Tukey, 1965); an odd rest is summed term by term.
    """
    n = x.shape[1]
    if n % 2:
        return _summed(x)
    even, odd = fourier(x[:, ::2]), fourier(x[:, 1::2])
    cosine, sine = cosines(n)[: n // 2], sines(n)[: n // 2]
    real = odd[0] * cosine + odd[1] * sine
    imaginary = odd[1] * cosine - odd[0] * sine
    return (
        np.concatenate([even[0] + real, even[0] - real], axis=1),
        np.concatenate([even[1] + imaginary, even[1] - imaginary], axis=1),
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
    with localcontext() as c:
        c.prec = 30
        return float(1000 * ((Decimal(mel) - 15) * Decimal("6.4").ln() / 27).exp())


def slaney_mel(hertz: float) -> float:
    """The mel value of a frequency from 1,000 Hz on."""
    with localcontext() as c:
        c.prec = 30
        return float(15 + (Decimal(hertz) / 1000).ln() * 27 / Decimal("6.4").ln())


def htk_hertz(mel: float) -> float:
    """Hertz of a mel value on the scale of HTK."""
    with localcontext() as c:
        c.prec = 30
        return float(700 * (Decimal(10) ** (Decimal(mel) / 2595) - 1))


def htk_mel(hertz: float) -> float:
    """The mel value of a frequency."""
    with localcontext() as c:
        c.prec = 30
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


def whisper_pieces(samples: np.ndarray, n_mels: int) -> list[np.ndarray]:
    """Log-mel spectrograms, float32 (3000, n_mels) each, of a sound float32 (n,) (Radford et al., 2022)."""
    if len(samples) < 201:
        samples = np.concatenate([samples, np.zeros(201 - len(samples), samples.dtype)])
    n = len(samples) // HOP + WHISPER_FRAMES + 1
    signal = np.concatenate([samples[200:0:-1], samples]).astype(np.float64)
    n_heard = min(n, (len(signal) - 1) // HOP + 1)  # the others hold zeros alone
    frames = framed(signal, WHISPER_FRAME, n_heard) * hann(WHISPER_FRAME)
    real, imaginary = (part[:, : WHISPER_FRAME // 2 + 1] for part in fourier(frames))
    filters = mel_filters(n_mels, WHISPER_FRAME, "slaney")
    mel = np.full((n, n_mels), WHISPER_FLOOR)
    mel[:n_heard] = np.maximum(mel_bins(real * real + imaginary * imaginary, filters), WHISPER_FLOOR)
    logs = natural_log(mel) / LN10
    values = ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
    return [values[i : i + WHISPER_FRAMES] for i in range(0, n - WHISPER_FRAMES + 1, WHISPER_FRAMES)]


def conformer_pieces(samples: np.ndarray, n_mels: int) -> list[np.ndarray]:
    """Log-mel spectrograms, float32 (frames, n_mels) each, of the pieces of 30 seconds of a sound."""
    starts = range(0, max(1, len(samples)), PIECE)
    parts = [samples[start : start + PIECE] for start in starts]
    kept = [part for i, part in enumerate(parts) if not i or len(part) > CONFORMER_WINDOW // 2]
    return [_conformer_piece(part, n_mels) for part in kept]


def _conformer_piece(samples: np.ndarray, n_mels: int) -> np.ndarray:
    half = CONFORMER_WINDOW // 2
    signal = np.concatenate([np.zeros(half), samples.astype(np.float64)])
    n = max(0, len(signal) - CONFORMER_WINDOW - 1) // HOP + 1
    window = np.concatenate([hann(CONFORMER_WINDOW), np.zeros(CONFORMER_FRAME - CONFORMER_WINDOW)])
    real, imaginary = fourier(framed(signal, CONFORMER_FRAME, n) * window)
    spectra = np.sqrt(real * real + imaginary * imaginary)[:, : CONFORMER_FRAME // 2 + 1]
    mel = mel_bins(spectra, mel_filters(n_mels, CONFORMER_FRAME, "htk"))
    return natural_log(np.maximum(mel, CONFORMER_FLOOR)).astype(np.float32)
