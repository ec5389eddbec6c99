"""A model under a budget: the same bits, no more memory than that, and errors to whom they concern."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import ConfigError, ModelFileError, TensorNotFound
from oxillama.gguf.model_file import ModelFile
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.offload import pager as pager_module
from oxillama.models.offload.pressure import MemoryPressureProbe, MemoryState
from oxillama.models.weights.packer import Source
from tests.support.adapters import adapter_of
from tests.support.paging import CountedMemory, pack, paged, pager_of, sizes
from tests.support.spread import few, leading, pairs
from tests.support.tiny_models import WIDE, Running, Tiny, tokens_of
from tests.support.zoo import MODELS

DENSE = Tiny(n_layers=6)
MIXED = WIDE.but(n_layers=5, formats=("Q4_K", "Q6_K", "Q8_0", "F16"), tied=True)
EXPERTS = Tiny(architecture="llama4", n_layers=6, n_experts=6)
KINDS = {
    "dense": DENSE.file(),
    "mixed": MIXED.file(),
    "experts": EXPERTS.file(),
    **{name: MODELS[name].file() for name in ("deepseek2", "qwen3moe", "mamba2", "jamba", "rwkv7", "bert")},
}


@cache
def expected(kind: str, n: int) -> list[np.ndarray]:
    return run(Running(KINDS[kind]), n)


@cache
def bounds(kind: str) -> tuple[int, int]:
    return sizes(KINDS[kind])


def run(model: Running, n: int, chunk: int = 5) -> list[np.ndarray]:
    """Hidden states of ``n`` texts that are run together in chunks."""
    n_vocab = model.model.spec.n_vocab
    return model.hidden_states([tokens_of(7 + 3 * i, n_vocab, seed=i) for i in range(n)], chunk)


def equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, found, wanted))


@pytest.mark.parametrize("kind", leading(KINDS, 3))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_bits_are_those_of_the_resident_model(kind: str, data: st.DataObject) -> None:
    least, total = bounds(kind)
    budget = data.draw(st.integers(least, total + 1))
    n, chunk = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 5, 100]))
    pager = pager_of(budget)
    model = paged(KINDS[kind], pager)
    for _ in range(2):
        assert equal(run(model, n, chunk), expected(kind, n))
    assert pager.peak_bytes <= budget


@pytest.mark.parametrize("name", few(MODELS))
def test_every_architecture_runs_under_the_least_budget(name: str) -> None:
    data = MODELS[name].file()
    probe = pager_of(1 << 60)
    whole = paged(data, probe)
    groups = whole.model.groups()
    listed = [linear for group in groups for linear in group.linears]
    listed += [m for group in groups if group.experts for each in group.experts.members for m in each]
    assert len(listed) == len(whole.model.linears())
    assert {*listed} == {*whole.model.linears()}
    pager = pager_of(probe.least)
    assert equal(run(paged(data, pager), 2), run(whole, 2))
    assert pager.peak_bytes <= pager.budget


@pytest.mark.parametrize("kind", ["dense", "experts", "deepseek2"])
def test_adapters_are_added_under_a_budget(kind: str) -> None:
    file = ModelFile.open(KINDS[kind])
    lora = LoadedLora.load(adapter_of(file, Running(KINDS[kind]).model, 4, seed=1), everywhere=True)
    adapters = [(lora, 1.0, 2)]
    wanted = run(Running(KINDS[kind], adapters=adapters), 2)
    assert not np.array_equal(wanted[0], expected(kind, 2)[0])
    pager = pager_of(bounds(kind)[0])
    model = paged(KINDS[kind], pager, adapters=adapters)
    assert equal(run(model, 2), wanted)


@pytest.mark.parametrize(("kind", "share"), pairs(KINDS, [0.0, 0.3, 0.6, 1.0]))
def test_the_account_is_the_memory_that_is_alive(
    kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = CountedMemory()
    monkeypatch.setattr(pager_module, "mapped", memory)
    least, total = bounds(kind)
    pager = pager_of(int(least + share * (total - least)))
    model = paged(KINDS[kind], pager)
    for n in (1, 3):
        run(model, n)
        assert pager.resident_bytes == memory.settle()
    assert pager.peak_bytes == memory.peak <= pager.budget
    gone, threads = weakref.ref(pager), list(pager._reader._threads)
    del pager, model
    gc.collect()
    assert gone() is None
    for thread in threads:  # they may still read the part that would have come next
        thread.join()
    assert memory.settle() == 0


def test_a_pass_reads_what_does_not_stay_and_nothing_else() -> None:
    least, total = bounds("dense")
    pager = pager_of(least + (total - least) // 2)
    model = paged(KINDS["dense"], pager)
    run(model, 1, 1)
    before, n_passes = pager.read_bytes, 7
    run(model, 1, 1)
    streamed = sum(part.nbytes for part in pager._streamed)
    assert 0 < streamed < total
    assert pager.read_bytes - before == n_passes * streamed
    assert pager.resident_count == len(pager._dense) - len(pager._streamed) + 1  # no logits, no output


def test_a_model_that_fits_is_read_once() -> None:
    pager = pager_of(bounds("experts")[1])
    model = paged(KINDS["experts"], pager)
    run(model, 3)
    before = pager.read_bytes
    run(model, 3)
    assert pager.read_bytes == before <= pager.total_bytes


def test_the_next_part_is_read_while_one_computes() -> None:
    """The read of the part behind the one in use is under way before that is asked for."""
    read: list[str] = []
    seen = threading.Event()

    def fetch(source: Source, cols: int, data: np.ndarray) -> None:
        pack(source, cols, data)
        read.append(source.info.name)
        if source.info.name.startswith("blk.1"):
            seen.set()

    pager = pager_of(sizes(KINDS["dense"])[0] * 2, fetch=fetch)
    model = paged(KINDS["dense"], pager)
    streamed = pager._streamed
    first = model.model.layers[0].linears()[0]
    assert streamed[0].name == "layer 0" and streamed[1].name == "layer 1"
    first.pack()
    assert seen.wait(60), "layer 1 was not read though layer 0 is in use"


def test_hot_experts_stay() -> None:
    """Experts that are used every time are read once, while others come and go."""
    read: list[tuple[str, int]] = []

    def fetch(source: Source, cols: int, data: np.ndarray) -> None:
        read.append((source.info.name, source.expert))
        pack(source, cols, data)

    probe = pager_of(1 << 60)
    paged(KINDS["experts"], probe)
    size = probe._sizes.expert
    dense = sum(part.nbytes for part in probe._dense)
    pager = pager_of(dense + 3 * size, fetch=fetch)
    paged(KINDS["experts"], pager)
    layer = [part for part in pager._parts if part.is_expert][:6]
    for i in range(80):
        pager.hold([layer[0] if i % 2 else layer[1 + i // 2 % 5]], [])
        for part in layer:
            if part.load is not None and part.load.work is not None:
                for number in range(len(list(part.matrices()))):
                    pager._reader.wait(part.load.work, number)
                part.load.work = None
    counts = [sum(expert == e for _, expert in read) / 3 for e in range(6)]
    assert counts[0] == 1
    assert sum(counts[1:]) > 20


def test_pinned_tensors_stay() -> None:
    least, total = bounds("dense")
    pager = pager_of(least * 3, pinned=("blk.3.*", "output.weight"))
    run(paged(KINDS["dense"], pager), 1)
    assert pager.is_pinned("blk.3.attn_q.weight") and pager.is_pinned("output.weight")
    assert not pager.is_pinned("blk.2.attn_q.weight")
    with pytest.raises(TensorNotFound, match=r"blk\.9\.attn_q\.weight: expected the name of a matrix"):
        pager.is_pinned("blk.9.attn_q.weight")
    with pytest.raises(ConfigError, match=r"offload_pinned: .* got 'blk\.9\.\*'"):
        paged(KINDS["dense"], pager_of(total, pinned=("blk.9.*",)))
    experts = pager_of(bounds("experts")[1] // 2, pinned=("blk.1.ffn_up_exps.weight",))
    model = paged(KINDS["experts"], experts)
    assert equal(run(model, 3), expected("experts", 3))
    assert experts.is_pinned("blk.1.ffn_down_exps.weight")
    assert experts.peak_bytes <= experts.budget


def test_a_budget_that_is_too_small_names_the_least() -> None:
    least, _ = bounds("dense")
    with pytest.raises(ConfigError, match=f"offload_budget: expected at least {least} bytes .* got 5"):
        paged(KINDS["dense"], pager_of(5))


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "experts"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_error_reaches_the_pass_and_the_next_pass_tries_again(kind: str, share: float) -> None:
    broken: list[int] = []

    def fetch(source: Source, cols: int, data: np.ndarray) -> None:
        if broken and source.info.name.startswith("blk.3"):
            raise ModelFileError("model.gguf: cannot be read")
        pack(source, cols, data)

    least, total = bounds(kind)
    pager = pager_of(int(least + share * (total - least)), fetch=fetch)
    model = paged(KINDS[kind], pager)
    broken.append(1)
    for _ in range(2):
        with pytest.raises(ModelFileError, match="cannot be read"):
            run(model, 1)
    broken.clear()
    assert equal(run(model, 2), expected(kind, 2))
    assert pager.peak_bytes <= pager.budget
    if share == 1.0:  # what is in memory needs no file
        broken.append(1)
        run(model, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_a_forked_child_reads_for_itself(kind: str) -> None:
    least, total = bounds(kind)
    wanted = expected(kind, 2)  # before anything is read: a child computes none of its own
    gate = threading.Event()
    gate.set()

    def fetch(source: Source, cols: int, data: np.ndarray) -> None:
        gate.wait(60)
        pack(source, cols, data)

    pager = pager_of((least + total) // 2, fetch=fetch)
    model = paged(KINDS[kind], pager)
    run(model, 1)
    gate.clear()  # the parent is reading when it forks
    streamed = pager._streamed
    pager._use(pager.budget - 1)
    pager._enter(streamed[0])
    child = os.fork()
    if child == 0:
        try:
            gate.set()
            os._exit(0 if equal(run(model, 2), wanted) else 1)
        except BaseException:
            os._exit(2)
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equal(run(model, 2), wanted)


# --- memory pressure --------------------------------------------------------------------------------


class System:
    """A machine whose memory the test decides."""

    def __init__(self) -> None:
        self.now, self.available = 0.0, 1 << 40

    def probe(self) -> MemoryPressureProbe:
        return MemoryPressureProbe([lambda: MemoryState(1 << 40, self.available)])


@pytest.mark.parametrize("kind", few(KINDS, ("mixed",)))
def test_memory_is_given_back_under_pressure_and_taken_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, system = CountedMemory(), System()
    monkeypatch.setattr(pager_module, "mapped", memory)
    least, total = bounds(kind)
    pager = pager_of(total, probe=system.probe())
    model = paged(KINDS[kind], pager)
    control = pager._control
    assert control is not None
    control._clock = lambda: system.now
    seen = []

    def check(passes: int, step: float) -> None:
        for _ in range(passes):
            system.now += step
            assert equal(run(model, 2), expected(kind, 2))
            assert pager.resident_bytes == memory.settle() <= pager.budget
            seen.append(pager.budget)

    check(1, 1.0)
    assert pager.budget == total
    system.available = 0
    check(2, 1.0)
    assert pager.budget == least
    system.available = 1 << 40
    check(9, 11.0)
    assert pager.budget == total
    assert len(set(seen)) >= 3


def test_what_the_reader_wrote_is_not_used_after_a_change_of_plan() -> None:
    """A plan that changes in the middle of a read waits for it, so that memory is not written twice."""
    least, total = bounds("dense")
    slow, go_on = threading.Event(), threading.Event()

    def fetch(source: Source, cols: int, data: np.ndarray) -> None:
        if slow.is_set():
            go_on.wait(60)
        pack(source, cols, data)

    pager = pager_of((least + total) // 2, fetch=fetch, fetch_now=pack)
    model = paged(KINDS["dense"], pager)
    run(model, 1)
    slow.set()
    pager._use(pager.budget - 1)
    pager._enter(pager._streamed[0])
    timer = threading.Timer(0.05, lambda: (slow.clear(), go_on.set()))
    timer.start()
    pager._use(least)
    timer.join()
    assert np.array_equal(run(model, 1)[0], expected("dense", 1)[0])
