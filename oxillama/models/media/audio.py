"""The encoders of sounds: from spectrograms to the embeddings that a text model takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.layers.norm import Norm
from oxillama.models.media.blocks import Block, Matrix, Memory, Shape, Steps, Tools, normed
from oxillama.models.media.conformer import Conformer
from oxillama.models.media.facts import AudioFacts
from oxillama.models.media.projectors import Mlp
from oxillama.models.media.spectrum import WHISPER_FRAMES, whisper_frames, whisper_pieces

EPS = 1e-6
"""Of Ultravox's norms."""

ACTIVATION = "gelu_erf"

MOST_ROWS = 2048
"""Rows that a merger runs in one step."""


class Encoder(Protocol):
    """What gives rows of ``width`` for a spectrogram."""

    width: int

    def pieces(self, samples: np.ndarray) -> list[np.ndarray]:
        """Spectrograms, float32 (frames, n_mels), of a sound float32 (n,) at 16,000 samples per second."""

    def rows_of(self, n_samples: int) -> list[int]:
        """Rows of each of these spectrograms."""

    def steps(self, mel: np.ndarray) -> Steps[np.ndarray]:
        """float32 (rows, width) of float32 (frames, n_mels)."""


class AudioEncoder:
    """An encoder of sounds.

    Args:
        tools: its tensors.
        facts: of the file.

    Raises:
        LoadError: a tensor is missing or has another shape.
    """

    def __init__(self, tools: Tools, facts: AudioFacts) -> None:
        self.facts = facts
        self.encoder: Encoder = ENCODERS[facts.projector.encoder](tools, facts)
        self.merger: AudioMerger = MERGERS[facts.projector.merger](tools, facts, self.encoder.width)
        self.out_width: int = self.merger.rows

    def pieces(self, samples: np.ndarray) -> list[np.ndarray]:
        """As `Encoder.pieces`."""
        return self.encoder.pieces(samples)

    def tokens_of(self, n_samples: int) -> list[int]:
        """Tokens of each piece of a sound."""
        return self.encoder.rows_of(n_samples)

    def steps(self, mel: np.ndarray) -> Steps[np.ndarray]:
        """float32 (tokens, out_width) of a piece."""
        x, parts = (yield from self.encoder.steps(mel)), []
        for start in range(0, len(x), MOST_ROWS):
            yield
            parts.append(self.merger(x[start : start + MOST_ROWS]))
        return np.concatenate(parts)


class Whisper:
    """Two convolutions over time, positions, and transformer blocks (Radford et al., 2022)."""

    def __init__(self, tools: Tools, facts: AudioFacts) -> None:
        self.tools: Tools = tools
        self.facts: AudioFacts = facts
        self.width: int = facts.width
        width = facts.width
        shape = Shape("a", facts, norm="layer", activation=ACTIVATION, scale=1 / math.sqrt(facts.head_dim))
        self.convolutions: list[tuple[Matrix, np.ndarray, int]] = [
            (
                tools.unrolled(f"a.conv1d.{i}.weight", (3, channels, width)),
                tools.weights.array(f"a.conv1d.{i}.bias", (1, width))[:, 0],
                stride,
            )
            for i, channels, stride in ((1, facts.n_mels, 1), (2, width, 2))
        ]
        name, n = "a.position_embd.weight", WHISPER_FRAMES // 2
        rows = (*tools.weights.shape(name), 0, 0)[1]
        if rows < n:
            raise LoadError(f"{name}: expected at least {n} rows, got {rows}")
        self.positions: np.ndarray = tools.weights.matrix(name, rows, width)
        self.blocks: list[Block] = [Block(tools, shape, i) for i in range(facts.n_blocks)]
        self.post_norm: Norm | None = tools.optional_norm("a.post_ln", width, "layer", facts.eps)

    def pieces(self, samples: np.ndarray) -> list[np.ndarray]:
        """As `Encoder.pieces`."""
        return whisper_pieces(samples, self.facts.n_mels)

    def rows_of(self, n_samples: int) -> list[int]:
        """As `Encoder.rows_of`."""
        rows = WHISPER_FRAMES // (4 if self.facts.pools else 2)
        return [-(-rows // self.facts.stack)] * (whisper_frames(n_samples) // WHISPER_FRAMES)

    def steps(self, mel: np.ndarray) -> Steps[np.ndarray]:
        """float32 (rows, width) of float32 (frames, n_mels)."""
        x = mel
        for kernel, bias, stride in self.convolutions:
            x = self.tools.activate(kernel(unrolled(x, stride)) + bias, ACTIVATION)
        x, memory = x + self.positions[: len(x)], Memory()
        for block in self.blocks:
            yield
            yield from block.steps(x, None, [(0, len(x))], memory)
        if self.facts.pools:
            x = (x[0::2] + x[1::2]) * np.float32(0.5)
        return stacked(normed(self.post_norm, x, self.tools.n_threads), self.facts.stack)


def unrolled(x: np.ndarray, stride: int) -> np.ndarray:
    """float32 (n, channels * 3): each row of x (rows, channels) between its neighbours, by channel."""
    padded = np.zeros((len(x) + 2, x.shape[1]), np.float32)
    padded[1:-1] = x
    windows = np.stack([padded[k : k + len(x) : stride] for k in range(3)], axis=2)
    return windows.reshape(len(windows), -1)


def stacked(x: np.ndarray, n: int) -> np.ndarray:
    """float32 (rows / n, n * width): neighbouring rows joined; zeros behind the last."""
    missing = -len(x) % n
    return np.concatenate([x, np.zeros((missing, x.shape[1]), np.float32)]).reshape(-1, n * x.shape[1])


class Frames:
    """No encoder: frames of samples, as many as the projection's rows are wide (Gemma 4 Unified)."""

    def __init__(self, tools: Tools, facts: AudioFacts) -> None:
        self.width: int = facts.width

    def pieces(self, samples: np.ndarray) -> list[np.ndarray]:
        """The frames of a sound, float32 (frames, width), with zeros behind the last sample."""
        n = -(-len(samples) // self.width)
        frames = np.zeros((n, self.width), np.float32)
        frames.reshape(-1)[: len(samples)] = samples
        return [frames]

    def rows_of(self, n_samples: int) -> list[int]:
        """As `Encoder.rows_of`."""
        return [-(-n_samples // self.width)]

    def steps(self, mel: np.ndarray) -> Steps[np.ndarray]:
        """The frames as they are."""
        yield from ()
        return mel


ENCODERS: dict[str, Callable[[Tools, AudioFacts], Encoder]] = {
    "whisper": Whisper,
    "conformer": Conformer,
    "frames": Frames,
}
"""By `AudioProjector.encoder`."""


# --- mergers --------------------------------------------------------------------------------------------

TWO = "mm.a.mlp.1", "mm.a.mlp.2"
"""Matrices of mergers that have two."""


class Projected:
    """A norm without weight, then a matrix."""

    def __init__(self, tools: Tools, facts: AudioFacts, cols: int) -> None:
        self.n_threads: int = tools.n_threads
        self.norm: Norm = tools.plain_norm(EPS)
        self.matrix: Matrix = tools.matrix("mm.a.input_projection", cols)
        self.rows: int = self.matrix.rows

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.matrix(normed(self.norm, x, self.n_threads))


class Ultravox:
    """Two matrices with norms before them, and a gate of which the second half is activated."""

    def __init__(self, tools: Tools, facts: AudioFacts, cols: int) -> None:
        self.tools = tools
        cols *= facts.stack
        self.norm: Norm = tools.norm("mm.a.norm_pre", cols, "rms", EPS)
        self.first: Matrix = tools.matrix(TWO[0], cols)
        half = self.first.rows // 2
        if self.first.rows != 2 * half:
            raise LoadError(f"{TWO[0]}.weight: expected an even number of rows, got {self.first.rows}")
        self.middle: Norm = tools.norm("mm.a.norm_mid", half, "rms", EPS)
        self.last: Matrix = tools.matrix(TWO[1], half)
        self.rows: int = self.last.rows

    def __call__(self, x: np.ndarray) -> np.ndarray:
        both = self.first(normed(self.norm, x, self.tools.n_threads))
        half = both.shape[1] // 2
        gates = self.tools.activate(np.ascontiguousarray(both[:, half:]), "silu")
        return self.last(normed(self.middle, both[:, :half] * gates, self.tools.n_threads))


class AudioMerger(Protocol):
    """The layers after the blocks of an encoder; `rows` is the width of its embeddings."""

    rows: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """float32 (tokens, rows) of float32 (tokens, cols)."""


MERGERS: dict[str, Callable[[Tools, AudioFacts, int], AudioMerger]] = {
    "one": lambda tools, facts, cols: tools.matrix("mm.a.fc", cols),
    "two": lambda tools, facts, cols: Mlp(tools, *TWO, cols * facts.stack, ACTIVATION),
    "ultravox": Ultravox,
    "projected": Projected,
}
"""By `AudioProjector.merger`."""
