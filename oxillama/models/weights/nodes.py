"""Matrices split over the NUMA nodes of a machine: each node has some rows of every matrix in its own memory.

Of the n panels of a linear layer's stack of matrices, panel p belongs to node p * N // n of N. The kernels
give the same share of each product to threads of that node (``kernels.linear.use_nodes``), which also take
what other nodes' threads have left. Linux only.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from oxillama._kernels import cpu
from oxillama._kernels.machine import team
from oxillama.base.cgroups import ROOT, text
from oxillama.base.system_files import numbers, table
from oxillama.errors import ConfigError
from oxillama.models.weights.linear import ResidentPanels, ResidentStore
from oxillama.models.weights.packer import Packer, Source

PANEL_ROWS = 16


@dataclass(frozen=True)
class Node:
    """A NUMA node with memory and processors that this process may use.

    Attributes:
        number: the system's.
        cpus: numbers of its processors.
    """

    number: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """Bytes ``start`` to ``stop`` of a matrix's memory, and the node that owns them, an index."""

    matrix: int
    start: int
    stop: int
    node: int


def read_nodes(root: Path = ROOT) -> list[Node]:
    """The nodes, by number; none where the system does not tell. ``root``: the folder of the system."""
    folder, status = root / "sys/devices/system/node", table(root / "proc/self/status")
    allowed = numbers(status.get("Cpus_allowed_list"))  # the first thread's: no product binds it
    usable = numbers(text(folder / "has_memory")) & numbers(status.get("Mems_allowed_list"))
    cpus = {number: allowed & numbers(text(folder / f"node{number}/cpulist")) for number in sorted(usable)}
    return [Node(number, tuple(sorted(own))) for number, own in cpus.items() if own]


def shares(matrices: Sequence[tuple[int, int]], n_nodes: int) -> list[Share]:
    """The bytes of a stack of matrices that each node owns, in the order of the memory; no share is empty.

    Args:
        matrices: (panels, bytes of a panel) of each, from the top of the stack.
        n_nodes: nodes, N.
    """
    total, above, found = sum(panels for panels, _ in matrices), 0, []
    begins = [-(-total * node // n_nodes) for node in range(n_nodes + 1)]
    for matrix, (panels, panel_bytes) in enumerate(matrices):
        for node in range(n_nodes):
            first, last = max(begins[node] - above, 0), min(begins[node + 1] - above, panels)
            if first < last:
                found.append(Share(matrix, first * panel_bytes, last * panel_bytes, node))
        above += panels
    return found


def remote_bytes(matrices: Sequence[tuple[int, int]], n_nodes: int, unit: int | None) -> float:
    """Bytes of a stack that a product reads from other nodes, if every thread has time for its node's share.

    Args:
        matrices: as for `shares`.
        n_nodes: nodes, N.
        unit: panels of a unit (`Linear.unit_panels` of the kernels): of n, unit u is run by node u * N // n.
            None if the memory lies in the nodes in turn, or threads take any units.
    """
    if unit is None:
        return sum(panels * size for panels, size in matrices) * (n_nodes - 1) / n_nodes
    n_units, above, remote = -(-sum(panels for panels, _ in matrices) // unit), 0, 0
    owned = shares(matrices, n_nodes)
    for matrix, (panels, size) in enumerate(matrices):
        for share in owned:
            if share.matrix == matrix:
                own = range(share.start // size + above, share.stop // size + above)
                remote += size * sum(panel // unit * n_nodes // n_units != share.node for panel in own)
        above += panels
    return remote


def place(memory: np.ndarray, nodes: Sequence[Node]) -> None:
    """Has the whole pages in uint8 ``memory`` lie in a node, as far as it has room, or in several in turn.

    Raises ConfigError if the system refuses.
    """
    wanted = [node.number for node in nodes]
    if error := team.place(memory, np.array(wanted, np.int32)):
        raise ConfigError(
            f"numa: expected a system that places memory in NUMA nodes {wanted} (mbind), "
            f"got {os.strerror(error)}"
        )


class SplitPanels(ResidentPanels):
    """Panels in memory, each in the node that owns it. Raises as `place`."""

    def __init__(self, packer: Packer, sources: list[Source], cols: int, nodes: Sequence[Node]) -> None:
        super().__init__(packer, sources, cols)
        panels = [-(-source.rows // PANEL_ROWS) for source in sources]
        matrices = [(n, data.size // n) for n, (_, data) in zip(panels, self._parts)]
        for share in shares(matrices, len(nodes)):
            _, data = self._parts[share.matrix]
            place(data[share.start : share.stop], [nodes[share.node]])


class SplitStore(ResidentStore):
    """Packs each matrix once and keeps it, split over nodes.

    While there is one, products of all models of the process are split over the nodes of the newest.

    Args:
        packer: packs the matrices, with as many threads as the products have.
        nodes: at least two.
    """

    _running: ClassVar[Counter[str]] = Counter()
    """By target: stores there are."""

    def __init__(self, packer: Packer, nodes: Sequence[Node]) -> None:
        super().__init__(packer)
        self.nodes = nodes
        node_of = np.full(1 + max(number for node in nodes for number in node.cpus), -1, np.int32)
        for i, node in enumerate(nodes):
            node_of[list(node.cpus)] = i
        packer.kernels.linear.use_nodes(node_of, packer.n_threads)
        self._running[packer.kernels.target] += 1
        weakref.finalize(self, self._end, packer.kernels).atexit = False

    def panels(self, sources: list[Source], cols: int) -> SplitPanels:
        return SplitPanels(self.packer, sources, cols, self.nodes)

    @classmethod
    def _end(cls, kernels: Any) -> None:
        cls._running[kernels.target] -= 1
        if not cls._running[kernels.target]:
            kernels.linear.use_nodes(None, 1)


def split_nodes() -> list[Node]:
    """The nodes of this machine. Raises ConfigError if there are less than two, or there is no OpenMP."""
    if not cpu.openmp_threads():
        raise ConfigError('numa: expected kernels with OpenMP for "split", got serial ones')
    nodes = read_nodes()
    if len(nodes) < 2:
        got = "one" if nodes else "no word of nodes from the system"
        raise ConfigError(
            f'numa: expected several NUMA nodes that the process may use for "split", got {got}'
        )
    return nodes


def split_store(packed: Any) -> Callable[[Packer], SplitStore]:
    """Makes the store of a model with ``numa`` "split". ``packed``: its packed file, or None.

    Raises ConfigError as `split_nodes`, and if there is a packed file, whose memory other processes share.
    """
    if packed is not None:
        raise ConfigError(f'numa: expected no packed file with "split" (packed "off"), got {packed.path}')
    return partial(SplitStore, nodes=split_nodes())


def interleaving() -> Callable[[np.ndarray], None]:
    """Places new memory of keys and values: in all nodes in turn. Raises ConfigError as `split_nodes`."""
    return partial(place, nodes=split_nodes())
