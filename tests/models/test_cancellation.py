"""A cancelled forward pass: after the rollback, running again gives the bits of an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from oxillama.engine.sequence import Sequence
from oxillama.models.decoder import ForwardCancelled
from tests.support.kernels import same_bits
from tests.support.spread import pairs
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, VOCAB

ATTENTION = ("llama", "deepseek2", "gemma2", "qwen3moe")
RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv7")
HYBRID = ("jamba", "granitehybrid", "lfm2", "qwen35", "kimi-linear")


class Cancellable(Running):
    """A runner whose next pass can be cancelled at one layer."""

    layer: int | None = None
    asked: Iterator[int]

    def __init__(self, data: bytes, n_threads: int) -> None:
        super().__init__(data, n_threads=n_threads)
        self.model.hidden_states = self._cancellable(self.model.hidden_states)  # type: ignore[method-assign]

    def _cancellable(self, run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        """``run`` that asks `cancelled`."""
        return lambda batch, kv, work, tuner, *_: run(batch, kv, work, tuner, self.cancelled)

    def cancelled(self) -> bool:
        return self.layer is not None and next(self.asked) == self.layer

    def cancel_pass(self, parts: list[tuple[Sequence, int]], layer: int, states: bool = False) -> None:
        """Runs a pass that is cancelled before ``layer``."""
        self.layer, self.asked = layer, count()
        with pytest.raises(ForwardCancelled):
            self.runner.forward(parts, all_logits=True, states=states)
        self.layer = None
        for sequence, _ in parts:
            sequence.check()
            assert sequence.scheduled_len == sequence.cached_len


def cancelled_run(
    running: Cancellable, lists: list[list[int]], checkpoints: int, chunk: int, layer: int
) -> list[np.ndarray]:
    """float32 (tokens, vocab) logits of each list, all run in one batch; the pass of every chunk is cancelled
    once before ``layer``."""
    sequences = [Sequence(running.pool, tokens, checkpoints) for tokens in lists]
    found = [np.full((len(tokens), VOCAB), np.nan, np.float32) for tokens in lists]
    goal = 0
    while any(sequence.pending for sequence in sequences):
        goal += chunk

        def parts(end: int) -> list[tuple[Sequence, int]]:
            return [(s, n) for s in sequences if (n := min(end, s.total_len) - s.cached_len) > 0]

        running.cancel_pass(parts(goal), layer)
        running.pool.check_integrity([sequence.kv.pages for sequence in sequences])
        if running.pool.recurrent_states is not None:
            running.pool.recurrent_states.check_integrity([sequence.kv.slots for sequence in sequences])
        now = parts(goal)
        starts = [sequence.cached_len for sequence, _ in now]
        rows = running.runner.forward(now, all_logits=True)
        pieces = np.split(rows, np.cumsum([n for _, n in now])[:-1])
        for (sequence, n), start, piece in zip(now, starts, pieces):
            found[sequences.index(sequence)][start : start + n] = piece
    for sequence in sequences:
        sequence.release()
    running.pool.check_integrity([])
    return found


@pytest.mark.parametrize(
    ("name", "chunk", "checkpoints"), pairs([*ATTENTION, *RECURRENT, *HYBRID], [4, 100], [2, 2, 0, 0])
)
def test_a_pass_cancelled_at_any_layer_changes_no_bit(name: str, chunk: int, checkpoints: int) -> None:
    """With ``checkpoints`` 0 a recurrent state changes in place, so a cancelled pass loses the state."""
    data = MODELS[name].file()
    running = Cancellable(data, n_threads=2)
    lists = [tokens_of(n, VOCAB, seed=n) for n in (11, 3, 7)]
    expected = [Running(data).logits(tokens) for tokens in lists]
    for layer in range(len(running.model.layers)):
        found = cancelled_run(running, lists, checkpoints, chunk, layer)
        for rows, wanted in zip(found, expected, strict=True):
            assert same_bits(rows, wanted), layer


def test_hidden_states_of_an_encoder_can_be_cancelled() -> None:
    data, tokens = MODELS["bert"].file(), tokens_of(9, VOCAB)
    running, undisturbed = Cancellable(data, n_threads=1), Running(data)
    expected = undisturbed.runner.forward([(Sequence(undisturbed.pool, tokens), 9)], True, states=True)
    for layer in range(len(running.model.layers)):
        sequence = Sequence(running.pool, tokens)
        running.cancel_pass([(sequence, 9)], layer, states=True)
        assert same_bits(running.runner.forward([(sequence, 9)], True, states=True), expected)


def test_a_pass_asks_before_every_layer() -> None:
    running = Cancellable(MODELS["llama"].file(), n_threads=1)
    running.layer, running.asked = 10**6, count()
    running.logits([1, 2, 3])
    assert next(running.asked) == len(running.model.layers)
