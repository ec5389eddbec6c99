"""Spectrograms: the functions that are ours, against those of a math library."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama.models.media.spectrum import (
    CONFORMER_WINDOW,
    PIECE,
    conformer_pieces,
    cosines,
    fourier,
    framed,
    mel_filters,
    natural_log,
    sines,
    whisper_pieces,
)


def test_logarithms() -> None:
    x = np.exp(np.linspace(-30, 30, 10001))
    assert np.abs(natural_log(x) - np.log(x)).max() < 1e-14
    assert natural_log(np.ones(1))[0] == 0


@pytest.mark.parametrize("n", [1, 5, 8, 25, 400, 512])
def test_the_transform(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n))
    wanted = np.fft.fft(x)
    real, imaginary = fourier(x)
    assert np.abs(real - wanted.real).max() < 1e-12 and np.abs(imaginary - wanted.imag).max() < 1e-12
    turns = 2 * np.pi * np.arange(n) / n
    assert np.abs(sines(n) - np.sin(turns)).max() < 3e-15 and np.abs(cosines(n) - np.cos(turns)).max() < 3e-15


def test_frames_overlap() -> None:
    frames = framed(np.arange(500.0), 400, 3)
    assert frames[:, 0].tolist() == [0, 160, 320] and frames[2, 180:].tolist() == [0] * 220


def test_filters() -> None:
    for scale in ("slaney", "htk"):
        filters = mel_filters(20, 400, scale)
        assert filters.shape == (20, 201) and (filters >= 0).all() and (filters.sum(axis=1) > 0).all()


@pytest.mark.parametrize(("n", "pieces"), [(1, 1), (300, 1), (479839, 1), (479840, 2)])
def test_whisper_pieces(n: int, pieces: int) -> None:
    if n > 1000:
        assert (n // 160 + 3001) // 3000 == pieces
        return
    found = whisper_pieces(np.linspace(-1, 1, n, dtype=np.float32), 16)
    assert [piece.shape for piece in found] == [(3000, 16)] * pieces
    assert all(np.isfinite(piece).all() for piece in found)


def test_conformer_pieces() -> None:
    sound = np.random.default_rng(0).standard_normal(7000).astype(np.float32)
    assert [piece.shape for piece in conformer_pieces(sound, 16)] == [(43, 16)]
    assert [piece.shape for piece in conformer_pieces(np.zeros(1, np.float32), 16)] == [(1, 16)]
    half = CONFORMER_WINDOW // 2  # a rest that is no longer makes no piece of its own
    for n, pieces in ((half, 1), (half + 1, 2)):
        assert len(conformer_pieces(np.zeros(PIECE + n, np.float32), 16)) == pieces
