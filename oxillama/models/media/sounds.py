"""Sounds: decoded block by block, mixed down to one channel, and resampled to 16,000 samples per second.

Every operation is one on single elements, and sums are written as additions in order: the samples are the
same bits on every machine, and however a sound is cut into blocks.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from oxillama._kernels.media.polyphase import polyphase
from oxillama.base.distribution import install
from oxillama.errors import ConfigError, MediaError
from oxillama.models.media.kinds import why_not
from oxillama.models.media.resize import sinc

RATE = 16000
"""Samples per second that the encoders of sounds take."""

MOST_SAMPLES = RATE * 3600
"""Of a sound."""

LEAST_RATE, MOST_RATE = 1000, 192_000
"""Samples per second of a file, or of an array."""

MOST_CHANNELS = 64

MOST_VALUES = 2 * MOST_RATE * 3600
"""Samples of all channels of a file: an hour of two channels at the highest rate."""

BLOCK = 1 << 18
"""Values that are decoded at a time."""

CROSSINGS = 16
"""Zero crossings of the filter on each side of its middle."""

KEPT_FILTERS = 8


def decoded_sound(data: bytes) -> np.ndarray:
    """float32 (n,) at 16,000 per second: the mean of the channels of a file.

    Blocks are decoded until the file ends: what its head says of its length allocates nothing.

    Raises:
        MediaError: it cannot be decoded, is empty, or is over a limit.
        ConfigError: soundfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ConfigError(f"sound: needs soundfile, which is not installed: {install('media')}") from error
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            check_rate(rate)
            if file.channels > MOST_CHANNELS:
                raise MediaError(f"sound: expected at most {MOST_CHANNELS} channels, got {file.channels}")
            return joined(blocks_of(file), rate)
    except soundfile.LibsndfileError as error:
        raise MediaError(f"sound: {why_not(data, 'audio', error.error_string)}") from error


def blocks_of(file: Any) -> Iterator[np.ndarray]:
    """float32 (n,): the mean of the channels, block by block. Raises MediaError for too many values."""
    n_values = 0
    while len(block := file.read(BLOCK // file.channels, dtype="float32", always_2d=True)):
        n_values += block.size
        if n_values > MOST_VALUES:
            raise MediaError(f"sound: expected at most {MOST_VALUES} samples of all channels, got more")
        yield mean(block)


def check_rate(rate: Any) -> None:
    """Raises MediaError for a number of samples per second that is over a limit, or no integer."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not LEAST_RATE <= rate <= MOST_RATE:
        raise MediaError(
            f"sound: expected {LEAST_RATE:,} to {MOST_RATE:,} samples per second, got {rate!s:.20}"
        )


def mean(samples: np.ndarray) -> np.ndarray:
    """float32 (n,) of samples (n, channels): the channels are added in order."""
    total = np.zeros(len(samples), np.float32)
    with np.errstate(over="ignore"):  # `joined` refuses what is not finite
        for channel in samples.T:
            total += channel
    return total / np.float32(samples.shape[1])


def mono(samples: np.ndarray, rate: int) -> np.ndarray:
    """float32 (n,) at 16,000 per second of floats or int16 (n,) or (n, channels) at ``rate``.

    Raises:
        MediaError: there are no samples, or they are over a limit.
        ConfigError: they are of another kind.
    """
    if (samples.dtype.kind != "f" and samples.dtype != np.int16) or samples.ndim not in (1, 2):
        raise ConfigError(
            f"sound: expected floats or int16 (n,) or (n, channels), got {samples.dtype} {samples.shape}"
        )
    check_rate(rate)
    if not samples.size:
        raise MediaError("sound: is empty")
    step = max(1, BLOCK // max(1, samples.size // len(samples)))
    blocks = (samples[i : i + step] for i in range(0, len(samples), step))
    return joined((as_floats(block) for block in blocks), rate)


def as_floats(samples: np.ndarray) -> np.ndarray:
    """float32 (n,): the mean of the channels of floats or int16 (n,) or (n, channels)."""
    with np.errstate(over="ignore"):  # `joined` refuses what is not finite
        found = samples.astype(np.float32, copy=False)
    if samples.dtype == np.int16:
        found = found / np.float32(32768)
    return mean(found) if found.ndim == 2 else found


def joined(blocks: Iterator[np.ndarray], rate: int) -> np.ndarray:
    """float32 (n,) at 16,000 per second of the blocks of a sound, float32 (n,) each.

    Raises MediaError for a sound that is empty, longer than an hour, or not of finite samples.
    """
    most, resampler, parts = MOST_SAMPLES // RATE * rate, Resampler(rate), []
    for block in blocks:
        if resampler.n_in + len(block) > most:
            raise MediaError(f"sound: expected at most an hour, got more than {most} samples at {rate}")
        if not np.isfinite(block).all():
            raise MediaError("sound: expected finite samples")
        parts.append(resampler.feed(block))
    if not resampler.n_in:
        raise MediaError("sound: is empty")
    return np.concatenate([*parts, resampler.rest()])


# --- resampling -----------------------------------------------------------------------------------------


class Filter:
    """A windowed sinc over 16 zero crossings, for each place between two samples that outputs have.

    Outputs come in turns of ``n_out`` for ``n_in`` samples: 160 for 441 from 44,100 to 16,000 per second.

    Attributes:
        reach: samples before the first output that it needs.
        width: samples that a turn needs.
        first: int32 (n_out,), the first sample of each output of a turn.
        weights: float64 (n_out, taps), which sum to 1 for each output.
    """

    def __init__(self, rate: int) -> None:
        shared = math.gcd(rate, RATE)
        self.n_out: int = RATE // shared
        self.n_in: int = rate // shared
        stretch = max(1.0, rate / RATE)
        self.reach: int = int(CROSSINGS * stretch) + 1
        places = np.arange(self.n_out) * self.n_in
        self.first: np.ndarray = (places // self.n_out).astype(np.int32)
        n_taps = 2 * self.reach + 2
        self.width: int = int(self.first[-1]) + n_taps
        weights = np.empty((n_taps, self.n_out))
        total = np.zeros(self.n_out)
        for k, row in enumerate(weights):
            x = (k - self.reach - places % self.n_out / self.n_out) / stretch
            row[:] = np.where(np.abs(x) < CROSSINGS, sinc(x) * sinc(x / CROSSINGS), 0.0)
            total += row
        self.weights: np.ndarray = np.ascontiguousarray((weights / total).T)

    def run(self, samples: np.ndarray, turns: int) -> np.ndarray:
        """float32 (turns * n_out,) of samples float32 (at least (turns - 1) * n_in + width,)."""
        found = np.empty((turns, self.n_out), np.float32)
        polyphase(np.ascontiguousarray(samples), self.first, self.weights, self.n_in, found)
        return found.reshape(-1)


@lru_cache(KEPT_FILTERS)
def small_filter(rate: int) -> Filter:
    """The filter of a rate that shares a factor with 16,000, which is made once."""
    return Filter(rate)


def filter_of(rate: int) -> Filter:
    """The filter of a rate. Filters of up to 16,000 places are as large as 50 MB, and are not kept."""
    return small_filter(rate) if math.gcd(rate, RATE) >= 10 else Filter(rate)


class Resampler:
    """Samples at 16,000 per second of a sound that comes in blocks. Silence is before and behind the sound.

    Attributes:
        n_in: samples that have come.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.n_in: int = 0
        self._filter = None if rate == RATE else filter_of(rate)
        self._held = np.zeros(0 if self._filter is None else self._filter.reach, np.float32)
        self._n_out = 0

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 (n,): the outputs that float32 (n,) more samples decide."""
        self.n_in += len(samples)
        kept = self._filter
        if kept is None:
            return samples
        self._held = np.concatenate([self._held, samples])
        turns = max(0, (len(self._held) - kept.width) // kept.n_in + 1)
        return self._run(turns)

    def rest(self) -> np.ndarray:
        """float32 (n,): the outputs up to the end of the sound."""
        kept = self._filter
        if kept is None:
            return np.zeros(0, np.float32)
        left = max(1, self.n_in * RATE // self.rate) - self._n_out
        turns = max(0, -(-left // kept.n_out))
        missing = (turns - 1) * kept.n_in + kept.width - len(self._held)
        self._held = np.concatenate([self._held, np.zeros(max(0, missing), np.float32)])
        return self._run(turns)[: max(0, left)]

    def _run(self, turns: int) -> np.ndarray:
        assert self._filter is not None
        with np.errstate(over="ignore"):
            found = self._filter.run(self._held, turns)
        if not np.isfinite(found).all():
            raise MediaError("sound: expected samples whose sums are finite, got larger ones")
        self._held = self._held[turns * self._filter.n_in :]
        self._n_out += len(found)
        return found
