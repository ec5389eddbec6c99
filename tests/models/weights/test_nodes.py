"""The memory of a stack of matrices that each NUMA node owns, and the requests for it."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama._kernels.machine import team
from oxillama.errors import ConfigError
from oxillama.models.weights import nodes
from oxillama.models.weights.nodes import Node, Share, SplitStore, read_nodes, remote_bytes, shares
from oxillama.models.weights.packer import Packer
from tests._kernels.test_nodes import in_new_thread, pytestmark as needs_openmp
from tests.support.kernels import PRESENT, same_bits
from tests.support.tiny_models import Running, Tiny, tokens_of

STACKS = ([(8, 10)], [(3, 10), (5, 7)], [(1, 64)], [(1, 3), (1, 5), (1, 7)], [(40, 9), (2, 9), (130, 5)])


@pytest.mark.parametrize("n_nodes", range(1, 6))
@pytest.mark.parametrize("matrices", STACKS)
def test_each_byte_belongs_to_one_node_in_order(matrices: list[tuple[int, int]], n_nodes: int) -> None:
    found = shares(matrices, n_nodes)
    owners: list[int] = []
    for matrix, (panels, size) in enumerate(matrices):
        own = [share for share in found if share.matrix == matrix]
        edges = [0, *(share.stop for share in own)]
        assert [share.start for share in own] == edges[:-1] and edges[-1] == panels * size
        assert all(share.start < share.stop for share in own)
        owners += [share.node for share in own for _ in range(share.start, share.stop, size)]
    total = sum(panels for panels, _ in matrices)
    assert owners == [panel * n_nodes // total for panel in range(total)]


def test_a_node_may_have_no_panel_or_parts_of_two_matrices() -> None:
    assert shares([(1, 64)], 2) == [Share(0, 0, 64, 0)]
    assert shares([(3, 10), (5, 7)], 2) == [Share(0, 0, 30, 0), Share(1, 0, 7, 0), Share(1, 7, 35, 1)]
    assert shares([(2, 10), (1, 7)], 2) == [Share(0, 0, 20, 0), Share(1, 0, 7, 1)]


def test_only_units_across_a_border_are_remote() -> None:
    """A stack of two matrices, in units of the kernels."""
    matrices = [(30, 100), (9, 10)]
    assert remote_bytes(matrices, 2, None) == 3090 / 2
    assert remote_bytes(matrices, 4, None) == 3090 * 3 / 4
    assert remote_bytes([(40, 100)], 2, 4) == 0  # five units each
    assert remote_bytes([(40, 100)], 2, 8) == 400  # units 0, 1 and 2 are the first node's: panels 0 to 23
    assert remote_bytes([(40, 100)], 3, 1) == 0
    assert remote_bytes([(10, 100), (10, 10)], 2, 8) == 60  # panels 10 to 15
    for n_nodes in (2, 3, 4):
        for unit in (1, 2, 3, 4, 7):  # at most a unit and a panel to a border
            assert remote_bytes(matrices, n_nodes, unit) <= (n_nodes - 1) * (unit + 1) * 100


def test_a_decode_step_of_a_large_matrix_reads_little_from_other_nodes() -> None:
    layer = load(PRESENT[0]).linear.Linear([(0, 4096, None)], 4096)
    panels, size = 256, 1000
    for n_threads, n_nodes in ((32, 2), (64, 4), (128, 8)):
        unit = layer.unit_panels(1, n_threads)
        assert 1 <= unit <= max(1, panels // (4 * n_threads))
        assert remote_bytes([(panels, size)], n_nodes, unit) < 0.02 * remote_bytes(
            [(panels, size)], n_nodes, None
        )


def write_tree(root: Path, **files: str) -> Path:
    folder = root / "sys/devices/system/node"
    for name, value in files.items():
        path = root / "proc/self/status" if name == "status" else folder / name
        path = folder / name / "cpulist" if name.startswith("node") else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return root


def test_nodes_are_those_with_memory_and_processors_that_the_process_may_use(tmp_path: Path) -> None:
    cpus = {"node0": "0-3,8\n", "node1": "4-7,9\n", "node2": "\n", "node3": "10\n", "node10": "11\n"}
    status = "Cpus_allowed_list:\t1-5,8-11\nMems_allowed_list:\t0-2,10\n"
    root = write_tree(tmp_path, status=status, has_memory="0-3,10\n", **cpus)
    assert read_nodes(root) == [Node(0, (1, 2, 3, 8)), Node(1, (4, 5, 9)), Node(10, (11,))]
    write_tree(tmp_path, has_memory="1\n")
    assert read_nodes(root) == [Node(1, (4, 5, 9))]
    assert read_nodes(tmp_path / "proc") == []


@pytest.mark.parametrize("names", [("Q4_0",), ("Q4_0", "F16")])
def test_memory_is_asked_for_before_matrices_are_packed(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, list[int]]] = []

    def place(memory: np.ndarray, numbers: np.ndarray) -> int:
        asked.append((memory.ctypes.data, memory.nbytes, numbers.tolist()))
        return 0

    monkeypatch.setattr(nodes, "team", SimpleNamespace(place=place))
    tiny = Tiny(n_embd=64, n_ff=96, formats=names)
    running = Running(tiny.file(), store=partial(SplitStore, nodes=[Node(3, (0,)), Node(7, (1,))]))
    before = len(asked)
    found = running.hidden_states([tokens_of(9, 50)])
    assert len(asked) == before, "nothing is placed once there are values"
    assert all(same_bits(a, b) for a, b in zip(found, Running(tiny.file()).hidden_states([tokens_of(9, 50)])))
    wanted = []
    for linear in running.model.linears():
        linear.pack()
        panels: Any = linear._linear.panels
        sizes = [-(-source.rows // 16) for source in linear.sources]
        for share in shares([(n, data.size // n) for n, data in zip(sizes, panels)], 2):
            start = panels[share.matrix].ctypes.data + share.start
            wanted.append((start, share.stop - share.start, [(3, 7)[share.node]]))
    assert sorted(asked) == sorted(wanted)


def test_a_system_that_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "team", SimpleNamespace(place=lambda memory, numbers: 1))
    with pytest.raises(ConfigError, match=r"^numa: expected .* nodes \[4\] \(mbind\), got Operation"):
        nodes.place(np.empty(5, np.uint8), [Node(4, (0,))])


@needs_openmp
def test_products_are_split_as_long_as_there_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits with 1, 2 and 4 threads, in steps of one token and of many."""
    placed = SimpleNamespace(
        place=lambda memory, numbers: team.place(memory, numbers) * 0
    )  # or refused: fine
    monkeypatch.setattr(nodes, "team", placed)
    tiny, texts = Tiny(n_embd=256, n_ff=2048, formats=("Q4_0", "Q8_0")), [tokens_of(20, 50), tokens_of(1, 50)]
    module = load(PRESENT[0]).linear

    def states(**kind: Any) -> list[np.ndarray]:
        running = Running(tiny.file(), **kind)
        return [running.hidden_states([text])[0] for text in texts]

    def counted(n_threads: int) -> int:
        split = [Node(0, (0,)), Node(0, (1,))]
        stores = [SplitStore(Packer(load(PRESENT[0]), n_threads, lambda *_: None), split)]
        store = partial(SplitStore, nodes=split)
        assert all(same_bits(*pair) for pair in zip(states(n_threads=n_threads, store=store), whole))
        gc.collect()
        first = sum(module.units_taken())
        states(n_threads=2)
        assert sum(module.units_taken()) > first, "there is another store yet"
        stores.clear()
        gc.collect()
        states(n_threads=2)
        assert module.units_taken() == (0, 0)
        return first

    whole = states()
    for n_threads in (1, 2, 4):
        assert (in_new_thread(partial(counted, n_threads)) > 0) == (n_threads > 1)
