"""Whatever a kernel is given ends in an exception: it checks its arguments in the build that is shipped."""

from __future__ import annotations

import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.network import Network, Program
from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama._kernels.grammar.trie import Trie
from oxillama._kernels.recurrent.state_batch import StateBatch
from oxillama.base.formats import FORMATS, WRITABLE
from oxillama.base.targets import PER_TARGET
from oxillama.text.grammar.rules import Ref
from tests.support.kernel_calls import OF_TARGET, PROGRAM, check_complete
from tests.support.kernels import PRESENT, linear, matrix, normal, on_targets, refuses, same_bits
from tests.support.paths import ROOT
from tests.support.spread import leading


@pytest.mark.parametrize("target", leading(PRESENT, 1))  # all are compiled from the same checks
def test_wrong_arguments_of_every_kernel_are_refused(target: str) -> None:
    """The calls run in a process of their own, because a crash would end the process."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.kernel_calls", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout == "\n", f"taken, though wrong:\n{done.stdout}"
    assert done.returncode == 0, f"ended in a crash after:\n{done.stderr[-2000:]}"


def test_every_callable_is_called() -> None:
    assert set(OF_TARGET) == set(PER_TARGET)
    assert check_complete(PRESENT[0]) == []


@on_targets
def test_outputs_that_overlap_inputs_are_refused(target: str) -> None:
    k, rows = load(target), normal(4, 64)
    layer = linear(k, [("Q4_0", matrix("Q4_0", 64, 64))], 64)
    scratch = np.zeros(layer.scratch_bytes(3), np.uint8)
    states = StateBatch([None], [normal(64)], np.int32([0, 3]), 64, [()], [()], np.int32([3]), 64)
    for call, *arguments in (
        (layer.apply, rows[:3], rows[1:], scratch, 1),
        (k.vector.rms_norm, rows[:3], None, 1e-5, rows[1:], 1),
        (k.vector.gate, rows[:2].reshape(1, 128), "silu", rows[1:2], 1),
        (k.vector.softmax, rows.reshape(-1)[:9], rows.reshape(-1)[1:]),
        (k.recurrent.shift, states, 0, 0, rows[:3], rows[1:]),
    ):
        refuses("expected arrays apart in memory, got arrays that overlap", call, *arguments)


def test_states_of_two_sequences_do_not_overlap() -> None:
    memory = normal(96)
    one, two, between = memory[:32], memory[32:64], memory[16:48]

    def batch(before: list[Any], after: list[Any], earlier: Any = ([], []), recorded: Any = ([], [])) -> None:
        starts, settled = np.int32([0, 1, 2]), np.int32([1, 1])
        StateBatch(before, after, starts, 32, earlier, recorded, settled, 8)

    third, fourth = memory[64:72], memory[72:80]
    batch([one, None], [one, two])
    batch([memory[64:], memory[64:]], [one, two])
    batch([None, None], [one, two], [[third], [third]], [[fourth], []])
    for before, after, *records in (
        ([None, None], [one, one]),
        ([None, None], [one, between]),
        ([None, one], [one, two]),
        ([None, between], [one, memory[64:]]),
        ([None, None], [one, two], ([], []), ([third], [third])),
        ([None, None], [one, two], ([], []), ([], [memory[60:68]])),
        ([None, None], [one, two], ([third], []), ([], [memory[66:74]])),
        ([None, None], [one, two], ([memory[24:32]], []), ([], [])),
        ([None, memory[64:]], [one, two], ([], []), ([fourth], [])),
    ):
        refuses(r"expected a (state|record)", batch, before, after, *records)


def test_records_are_of_rows_that_there_are() -> None:
    state, row = normal(32), normal(8)
    for earlier, recorded, settled in (([row], [row.copy()] * 3, 0), ([row], [], 4), ([], [], -1)):
        given = [None], [state], np.int32([0, 2]), 32, [earlier], [recorded], np.int32([settled]), 8
        refuses(r"expected (at most 2 rows|0 to)", StateBatch, *given)


@on_targets
def test_a_batch_keeps_the_pages_that_it_has_found(target: str) -> None:
    """Later changes of the caller's table and arrays do not change the batch."""
    attention = load(target).attention
    shape = attention.KvShape(1, 1, 16, 16, 0, 0, 16)
    memory = np.zeros((1, shape.page_bytes), np.uint8)
    kept = weakref.ref(memory)
    pages = PageTable(shape.page_bytes)
    pages.put(0, memory)
    tables, starts, position = np.int32([[0]]), np.int32([0, 2]), np.int32([0])
    batch = attention.PagedBatch(shape, pages, tables, starts, position)
    pages.remove(0)
    del memory
    tables[:], starts[:], position[:] = 2**30, 2**30, 2**30
    x, out = normal(2, 32), np.zeros((2, 16), np.float32)
    batch.store(0, x, 0, 16, 1)
    batch.attend(0, x, 1, 0.25, out, np.zeros(batch.scratch_bytes(1), np.uint8), 1)
    assert same_bits(out[0], x[0, 16:])
    given = shape, pages, np.int32([[0]]), np.int32([0, 1]), np.int32([0])
    refuses("expected pages with memory, got 0", attention.PagedBatch, *given)
    assert kept() is not None
    del batch
    assert kept() is None


def test_a_page_table_takes_memory_only_where_there_is_none() -> None:
    table = PageTable(100)
    memory = np.zeros((2, 128), np.uint8)
    table.put(0, memory)
    refuses("expected pages without memory from 0 to 1", table.put, 0, memory)
    refuses("expected pages without memory from 1 to 2", table.put, 1, memory)
    refuses("first: expected 0 to 2, got 3", table.put, 3, memory)
    refuses("rows of at least 100 bytes, got 99", table.put, 2, memory[:, :99].copy())
    refuses("first page of a piece of memory, got 1", table.remove, 1)
    table.put(2, memory.copy())
    table.remove(0)
    assert [table.has(page) for page in (-1, 0, 1, 2, 3, 4)] == [False, False, False, True, True, False]


@on_targets
def test_ids_of_stages_are_checked(target: str) -> None:
    sampling = load(target).sampling
    workspace = sampling.Workspace(10)
    one = np.float32([1])
    for stages, text in (
        ([("ban", (), (np.int32([-1]), one))], "ids: expected numbers >= 0, got -1"),
        ([("bias", (), (np.int32([1, 2]), one))], "values: expected at least 2"),
        ([("bias", (), (np.int32([1]), one * np.nan))], "got NaN"),
        ([("allow", (), (np.int32([2, 1]),))], "expected ascending numbers, got 1 after 2"),
        ([("top_k", (-1,), ())], "top_k: expected an integer from 1"),
        ([("top_k", (1e30,), ())], "top_k: expected an integer from 1"),
        ([("top_p", (np.nan,), ())], "top_p: expected finite numbers"),
        ([("top_p", (), ())], "top_p: expected 1 numbers and 0 arrays"),
        ([("dry", (1, 2, 2, -1), (np.zeros(9, np.uint8), np.int32([3, 1])))], "breakers: expected a length"),
        ([("dry", (1, 2, 2, -1), (np.zeros(9, np.uint8), np.int32([-2, 1])))], "breakers: expected a length"),
        ([("mask", (), ()), ("bias", (), (np.int32([1]), one))], "banned, biased and then allowed first"),
        ([("nothing", (), ())], "stages: expected names of"),
    ):
        refuses(text, sampling.Program, stages)
    program, history = sampling.Program([("ban", (), (np.int32([10]), one))]), np.zeros(0, np.int32)
    workspace.start(normal(10))
    text, row = "ids: expected 0 to 9, got 10", (program, normal(10), history, None, 0, 0, 0.5)
    refuses(text, workspace.apply, program, history, None, 0.0, 0.0)
    refuses(text, sampling.sample_rows, [row], [workspace])
    refuses("each once, got 2", sampling.sample_rows, [], [workspace, workspace])
    program = sampling.Program([("top_k", (2,), ())])
    workspace.apply(program, history, None, 0.0, 0.0)
    program = sampling.Program([("ban", (), (np.int32([9]), one))])
    refuses("before all other stages", workspace.apply, program, history, None, 0.0, 0.0)


@on_targets
def test_a_program_keeps_its_ids(target: str) -> None:
    """Arrays that are changed after the check change nothing."""
    sampling = load(target).sampling
    ids, values = np.int32([3]), np.float32([100])
    program = sampling.Program([("bias", (), (ids, values))])
    ids[:] = 2**30
    workspace = sampling.Workspace(10)
    ((status, token, _),) = sampling.sample_rows(
        [(program, np.zeros(10, np.float32), np.zeros(0, np.int32), None, 0, 0, 0.5)], [workspace]
    )
    assert (status, token) == (0, 3)


@on_targets
def test_logits_that_are_refused_leave_no_candidates(target: str) -> None:
    """Cuts count on numbers: a NaN among the maxima of blocks would let them write beyond their room."""
    workspace = load(target).sampling.Workspace(20000)
    assert workspace.start(np.full(20000, np.nan, np.float32)) != 0
    assert len(workspace.candidates()[0]) == 0
    assert workspace.draw(0.5)[0] != 0
    assert len(workspace.top(5)[0]) == 0


@on_targets
@pytest.mark.parametrize("name", WRITABLE)
def test_what_a_format_cannot_hold_is_refused(target: str, name: str) -> None:
    """Values are in the range of a block's scale, or of six times that; floats are converted."""
    fmt, kernel = FORMATS[name], load(target).quantize.quantize
    out = np.zeros(fmt.nbytes(512), np.uint8)
    for bad in (np.nan, np.inf, -np.inf, 65505.0, -3e38):
        x = normal(2, 256)
        x[1, 200] = bad
        for importance in (None, np.ones(256, np.float32)):
            if name in ("F32", "F16", "BF16"):
                kernel(fmt.id, x, 2, 256, importance, out)
                continue
            most = 2688 if name == "NVFP4" else 65504
            text = f"x: expected values from -{most} to {most}, got others"
            refuses(text, kernel, fmt.id, x, 2, 256, importance, out)
    for bad in (np.nan, np.inf, 0.0, -1.0):
        importance = np.ones(256, np.float32)
        importance[255] = bad
        text = "importance: expected finite numbers above 0, got others"
        refuses(text, kernel, fmt.id, normal(2, 256), 2, 256, importance, out)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q4_K", "Q6_K"])
def test_errors_that_overflow_are_refused(name: str) -> None:
    fmt, kernel = FORMATS[name], load(PRESENT[0]).quantize.quantize
    x, importance = np.full((1, 256), 60000, np.float32), np.full(256, 3e38, np.float32)
    x[0, ::2] *= -1
    given = fmt.id, x, 1, 256, importance, np.zeros(fmt.nbytes(256), np.uint8)
    refuses("products with squared values are finite", kernel, *given)


def test_a_trie_takes_bytes_only() -> None:
    wrong: Any
    for wrong in (["a"], [bytearray(b"a")], [None], [b"a", 3]):
        refuses("strings: expected bytes", Trie, wrong, bytes(len(wrong)), error=TypeError)


@pytest.mark.parametrize(
    "wrong", [Program(), Network(PROGRAM), None, object()], ids=lambda wrong: type(wrong).__name__
)
def test_only_what_a_builder_made_is_a_program(wrong: Any) -> None:
    refuses("program", ParserStates, wrong, 1 << 20, 1 << 20, error=TypeError)


@pytest.mark.parametrize("number", [-1, 1 << 29])
def test_numbers_of_units_are_checked(number: int) -> None:
    builder = Builder({"root": Ref("unit")}, {"root", "unit"}, {}, set(), {"unit"}, {"unit": number}, 99)
    refuses("unit: expected numbers from 0", builder.build, "root")
