"""States of recurrent layers: checkpoints, forks, failed passes, snapshots; what a wrong file is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.kv import CHECKPOINTS
from oxillama.engine.cache.recurrent import RecurrentCache
from oxillama.engine.cache.recurrent_states import RecurrentStatePool
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, LoadError
from tests.support.kernels import same_bits
from tests.support.paths import SHARED
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, RECURRENT, VOCAB, Model

TOKENS = tokens_of(40, VOCAB)
MAMBA = SHARED / "parity" / "mamba.gguf"


def state_of(sequence: Sequence) -> RecurrentCache:
    assert isinstance(sequence.kv, RecurrentCache)
    return sequence.kv


def states(running: Running) -> RecurrentStatePool:
    assert running.pool.recurrent_states is not None
    return running.pool.recurrent_states


@pytest.mark.parametrize("name", RECURRENT)
def test_a_cut_goes_back_to_a_checkpoint_and_runs_the_rest_again(name: str) -> None:
    running = Running(MODELS[name].file())
    whole = running.logits(TOKENS)
    sequence = Sequence(running.pool, TOKENS)
    for n in (16, 5, 1, 1, 1, 16):
        running.runner.forward([(sequence, n)])
    for n in (39, 23, 22, 18, 3, 0):
        sequence.truncate(n)
        sequence.check()
        assert sequence.cached_len <= n
        assert sequence.cached_len == state_of(sequence).length
        sequence.tokens = TOKENS[:]
        rest = running.runner.forward([(sequence, sequence.pending)], all_logits=True)
        assert same_bits(rest, whole[len(whole) - len(rest) :])
    sequence.release()
    assert states(running).n_used == 0


def test_the_last_step_can_be_taken_back_without_running_anything_again() -> None:
    running = Running(MODELS["mamba2"].file())
    sequence = Sequence(running.pool, TOKENS)
    running.runner.forward([(sequence, 39)])
    running.runner.forward([(sequence, 1)])
    sequence.truncate(39)
    assert sequence.cached_len == 39


def test_checkpoints_are_few_and_the_further_back_the_further_apart() -> None:
    running = Running(MODELS["mamba"].file())
    sequence = Sequence(running.pool, tokens_of(300, VOCAB))
    while sequence.pending:
        running.runner.forward([(sequence, 1)])
    marks = [n for n, _ in state_of(sequence).checkpoints]
    assert len(marks) == CHECKPOINTS + 1
    assert marks[-2:] == [299, 300]
    assert marks[0] < 250
    assert states(running).memory_bytes <= (CHECKPOINTS + 2) * states(running).slot_bytes


@pytest.mark.parametrize(("checkpoints", "kept"), [(CHECKPOINTS, 20), (0, 0)])
@pytest.mark.parametrize("name", ["jamba", "rwkv7"])
def test_a_pass_that_fails_changes_nothing_but_a_state_in_place(
    name: str, checkpoints: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(MODELS[name].file())
    whole = running.logits(TOKENS)
    sequence = Sequence(running.pool, TOKENS, checkpoints=checkpoints)
    running.runner.forward([(sequence, 20)])
    last = running.model.layers[-1]

    def fails(*_: Any) -> None:
        raise RuntimeError("half way")

    with monkeypatch.context() as patch:
        patch.setattr(type(last.mixer), "run", fails)
        with pytest.raises(RuntimeError, match="half way"):
            running.runner.forward([(sequence, 20)])
    assert sequence.cached_len == kept
    assert states(running).n_used == bool(kept)
    assert same_bits(running.runner.forward([(sequence, sequence.pending)], all_logits=True), whole[kept:])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_that_nobody_goes_back_to_is_changed_in_place(name: str) -> None:
    running = Running(MODELS[name].file())
    whole = running.logits(TOKENS)
    sequence = Sequence(running.pool, TOKENS, checkpoints=0)
    parts = []
    for n in (16, 1, 2, 1, 3, 17):
        parts.append(running.runner.forward([(sequence, n)], all_logits=True))
        assert states(running).n_used == 1
    assert same_bits(np.concatenate(parts), whole)
    other = sequence.fork()
    other.tokens, sequence.tokens = [*TOKENS, 1], [*TOKENS, 2]
    ways = [running.runner.forward([(way, 1)]) for way in (other, sequence)]
    assert states(running).n_used == 2
    for token, found in zip((1, 2), ways):
        assert same_bits(found[-1], running.logits([*TOKENS, token])[-1])


def test_a_snapshot_holds_the_state() -> None:
    running = Running(MODELS["jamba"].file())
    sequence = Sequence(running.pool, TOKENS)
    running.runner.forward([(sequence, 20)])
    data = sequence.kv.snapshot(20)
    wanted = running.runner.forward([(sequence, 20)])
    other = Sequence(running.pool, TOKENS)
    other.kv.restore(data, 20)
    other.cached_len = other.scheduled_len = 20
    assert same_bits(running.runner.forward([(other, 20)]), wanted)
    with pytest.raises(ConfigError, match=r"expected 40 tokens \(those of the state\), got 20"):
        sequence.kv.snapshot(20)


def test_a_state_does_not_grow_with_its_tokens() -> None:
    running = Running(MODELS["rwkv6"].file())
    assert [group.sizes for group in running.model.page_groups] == [(1, 1, 1, 1)]
    (group,) = Running(MODELS["jamba"].file()).model.page_groups
    assert len(group.layers) == 1  # one of the two layers attends


def test_the_engine_rewinds() -> None:
    engine = InferenceEngine()
    if not MAMBA.exists():
        pytest.skip("the shared models are not at hand")
    engine.load_model(MAMBA)
    ids = [int(t) for t in np.random.default_rng(0).integers(0, 250, 30)]
    wanted = engine.logits(ids)[-1]
    engine.prefill(ids)
    engine.rewind(23)
    snapshot = engine.kv_snapshot()
    assert same_bits(engine.prefill(ids[23:]), wanted)
    engine.kv_restore(snapshot)
    assert same_bits(engine.prefill(ids[23:]), wanted)


@pytest.mark.parametrize(
    ("name", "keys", "text"),
    [
        ("mamba2", {"ssm.time_step_rank": 3}, "mamba2.ssm.inner_size: expected groups of equal heads"),
        ("mamba2", {"ssm.group_count": 3}, "mamba2.ssm.inner_size: expected groups of equal heads"),
        ("rwkv6", {"wkv.head_size": 5}, "rwkv6.wkv.head_size: expected a divisor of 32, got 5"),
        ("rwkv6", {"token_shift_count": 1}, "rwkv6.token_shift_count: expected 2 or no such key, got 1"),
        ("lfm2", {"shortconv.l_cache": 4}, r"blk\.0\.shortconv\.conv\.weight: expected shape \(4, 32\)"),
        ("jamba", {"attention.head_count": 0}, "jamba.attention.head_count: expected heads in some layer"),
    ],
)
def test_sizes_that_cannot_be(name: str, keys: dict[str, int], text: str) -> None:
    model: Model = MODELS[name]
    changed = replace(model, keys={key: ("u32", value) for key, value in keys.items()})
    with pytest.raises(LoadError, match=text):
        Running(changed.file())
