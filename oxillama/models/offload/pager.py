"""Keeps as much of a model in memory as a budget allows, and reads the rest when a layer needs it.

The resident parts (`plan.py`) have memory of their own. All others are read into one or two buffers: while a
part computes, threads read the next one into the other buffer. After the last part comes the first one of
the next pass. Experts stay by frequency of use (`expert_cache.py`); those that a pass has chosen are read
together.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.errors import TensorNotFound
from oxillama.models.offload.direct import DirectReads, read_cached
from oxillama.models.offload.expert_cache import ExpertCache
from oxillama.models.offload.memory import mapped
from oxillama.models.offload.parts import Fetch, Load, PagedPanels, Part, ReadExtent, parts_of, pin, sizes_of
from oxillama.models.offload.plan import Plan, Sizes, make_plan
from oxillama.models.offload.pressure import BudgetControl, MemoryPressureProbe
from oxillama.models.offload.reader import Reader, Task
from oxillama.models.weights.linear import MatrixGroup, PanelStore
from oxillama.models.weights.packed_file import Finder, PackedFile
from oxillama.models.weights.packer import Packer, Source

READERS = 2
"""Threads that read. With one, the storage waits while it packs."""

IDLE_SECONDS = 1.0
"""Seconds between two looks at the memory while nothing runs."""


class LayerPager(PanelStore):
    """The packed matrices of a model under a budget. For one thread at a time; the numbers are for any.

    Args:
        budget: maximum bytes of packed matrices.
        fetch: used by threads that read ahead; it must not enter OpenMP.
        fetch_now: used by the thread that computes, for resident parts.
        pinned: names of tensors that stay, with ``*`` and ``?`` as in `fnmatch`.
        probe: measures the available memory, so that the budget shrinks when it is short; None: a fixed
            budget.
        find: finds the panels of a matrix in a packed file, from which they are then read; None without one.
        access: how a packed file is read, as ``offload_access`` of `EngineConfig`; "auto" needs a probe.

    Attributes:
        budget: bytes that may be used now.
        resident_bytes: memory of packed matrices now.
        peak_bytes: the most so far.
        read_bytes: bytes read so far.
        wait_seconds: seconds that computing has waited for reading so far.
    """

    def __init__(
        self,
        budget: int,
        fetch: Fetch,
        fetch_now: Fetch,
        pinned: Sequence[str] = (),
        probe: MemoryPressureProbe | None = None,
        find: Finder | None = None,
        access: str = "auto",
    ) -> None:
        self.budget: int
        self.most = self.budget = budget
        self.resident_bytes: int = 0
        self.peak_bytes: int = 0
        self.read_bytes: int = 0
        self.wait_seconds: float = 0.0
        self._fetch, self._fetch_now = fetch, fetch_now
        self._pinned = tuple(pinned)
        self._probe = probe
        self._find = find
        self._access = access
        self._read_extent: ReadExtent = read_cached
        self._control: BudgetControl | None = None
        self._parts: list[Part] = []
        self._dense: list[Part] = []  # the parts that every pass uses, in the order of a pass
        self._sizes = Sizes(())
        self._plan = Plan(frozenset(), 0, 0, 0)
        self._reader = Reader(READERS)
        self._streamed: list[Part] = []  # the parts that go through the buffers
        self._places: dict[Part, int] = {}  # in that order
        self._free: list[np.ndarray] = []  # buffers without a part
        self._n_buffers = 0
        self._current: Part | None = None  # in use
        self._experts = ExpertCache()
        self._held: set[Part] = set()  # experts in use
        _pagers.add(self)

    # --- the store of a model -----------------------------------------------------------------------

    def panels(self, sources: list[Source], cols: int) -> PagedPanels:
        """As `PanelStore.panels`."""
        find = self._find
        return PagedPanels(self, sources, cols, [find and find(source, cols) for source in sources])

    def begin_pass(self) -> None:
        """Shrinks the budget if the system is short of memory, and grows it again when it is not."""
        if self._control is not None and self._control.look():
            self._use(self._control.budget)

    def rest(self) -> float:
        """As `begin_pass`, while the engine is idle."""
        self.begin_pass()
        return math.inf if self._control is None else IDLE_SECONDS

    def arrange(self, groups: Sequence[MatrixGroup]) -> None:
        """Sets the groups of the model, in the order of a pass, once it is built.

        Raises ConfigError if the budget is too small for it, or a pinned name matches no tensor.
        """
        self._parts = parts_of(groups)
        self._dense = [part for part in self._parts if not part.is_expert]
        pin(self._parts, self._pinned)
        self._sizes = sizes_of(self._parts, groups)
        self._use(self.budget)
        experts = iter([part for part in self._parts if part.is_expert])
        for group in groups:
            if group.experts is not None:
                group.experts.pages = LayerExperts(self, [next(experts) for _ in group.experts.members])
        if self._probe is not None:
            self._control = BudgetControl(self.budget, self._sizes.least, self._probe)

    def preload(self, linears: Sequence[object], progress: Callable[[str, int], object]) -> None:
        """Reads the resident parts; ``progress`` gets every matrix, as if all were in memory now."""
        for part in self._parts:
            if part.stays and part.load is None:
                self._bring_staying(part)
            for matrix in part.matrices():
                progress(matrix.source.info.name, matrix.source.nbytes)
        if self._streamed and self._current is None:
            self._enter(self._streamed[0])

    def busy_seconds(self) -> float:
        """As `PanelStore.busy_seconds`."""
        return time.perf_counter() - self.wait_seconds

    # --- numbers ------------------------------------------------------------------------------------

    @property
    def least(self) -> int:
        """The smallest budget, in bytes, that the model can run with."""
        return self._sizes.least

    @property
    def total_bytes(self) -> int:
        """Bytes of all packed matrices of the model."""
        return self._sizes.total

    @property
    def resident_count(self) -> int:
        """How many parts (layers, experts, the output) are in memory or on the way."""
        return sum(part.load is not None for part in self._parts)

    def is_pinned(self, tensor: str) -> bool:
        """Whether a matrix stays in memory from its first use on, by the user's wish or because it fits.

        Raises TensorNotFound if it is no matrix of the model.
        """
        found = [part for part in self._parts if tensor in part.tensors]
        if not found:
            raise TensorNotFound(tensor)
        return all(part.stays for part in found)

    @property
    def experts_at_once(self) -> int:
        """How many experts that are not resident can be in memory at the same time."""
        return max(1, self._experts.limit // max(1, self._sizes.expert))

    # --- bringing panels ----------------------------------------------------------------------------

    def bring(self, panels: PagedPanels) -> np.ndarray:
        """The memory of the part that the panels belong to, when they are in it.

        Raises what reading raises; the next call tries again.
        """
        part = self._parts[panels.part]
        load = part.load
        if part.is_expert:
            if load is None:
                self.hold([part], [])
                load = part.load
        elif part.stays:
            if load is None:
                load = self._bring_staying(part)
        elif part is not self._current or load is None:
            load = self._enter(part)
        assert load is not None
        if load.work is not None:
            self._wait(part, load, panels)
        elif part.stays:
            panels.placed = True
        return load.memory

    def hold(self, now: list[Part], soon: list[Part]) -> None:
        """Keeps experts in memory until the next call; reads those that are missing, then those ``soon``."""
        self._held = {*now, *(part for part in soon if part.load is not None)}
        missing: list[tuple[Part, np.ndarray]] = []
        for part in now:
            self._experts.count(part)
            if part.load is None:
                memory = self._expert_memory(part)
                if memory is None:  # the next parts have the rest
                    self._held = {*now}
                    memory = self._expert_memory(part)
                assert memory is not None, "more experts at once than `experts_at_once`"
                missing.append((part, memory))
        for part in soon:
            if part.load is None:
                memory = self._expert_memory(part)
                if memory is None:
                    break
                self._held.add(part)
                missing.append((part, memory))
        if missing:
            works = self._reader.start(*(self._tasks(part, memory) for part, memory in missing))
            for (part, memory), work in zip(missing, works):
                part.load = Load(memory, work)

    def _bring_staying(self, part: Part) -> Load:
        """Reads a resident part, with this thread."""
        memory = self._allocate(part.nbytes)
        try:
            for matrix in part.matrices():
                matrix.read(memory, self._fetch_now, self._read_extent)
        except BaseException:
            self._count(-part.nbytes)
            raise
        self.read_bytes += part.nbytes
        part.load = Load(memory)
        return part.load

    def _enter(self, part: Part) -> Load:
        """Begins to use a part that is not resident: reads it, unless it was read ahead, and the next one."""
        self._current = part
        if part.load is None:
            self._stream(part, (part,))
        if self._plan.n_buffers > 1:
            following = self._following(part)
            if following.load is None:
                self._stream(following, (part, following))
        assert part.load is not None
        return part.load

    def _following(self, part: Part) -> Part:
        """The next part after a part, of those that are not resident; perhaps in the next pass."""
        return self._streamed[(self._places[part] + 1) % len(self._streamed)]

    def _stream(self, part: Part, keep: Sequence[Part]) -> None:
        """Starts reading a part into a buffer that none of the parts to ``keep`` has."""
        if not self._free and self._n_buffers < self._plan.n_buffers:
            self._free.append(self._allocate(self._plan.buffer_bytes))
            self._n_buffers += 1
        if not self._free:
            loaded = [other for other in self._streamed if other.load is not None and other not in keep]
            here, n = self._places[keep[0]], len(self._streamed)
            self._drop(max(loaded, key=lambda other: (self._places[other] - here) % n))
        following = self._following(part)
        if following.load is None and self._read_extent is read_cached:  # the storage works meanwhile
            for matrix in following.matrices():
                matrix.expect()
        memory = self._free[-1]
        (work,) = self._reader.start(self._tasks(part, memory))
        part.load = Load(self._free.pop(), work)

    def _tasks(self, part: Part, memory: np.ndarray) -> list[Task]:
        """The tasks that read a part into memory."""
        self.read_bytes += part.nbytes
        return [partial(matrix.read, memory, self._fetch, self._read_extent) for matrix in part.matrices()]

    def _wait(self, part: Part, load: Load, panels: PagedPanels) -> None:
        """Returns when panels have been read. After an error the next use of their part reads it again."""
        work, start = load.work, time.perf_counter()
        assert work is not None
        try:
            for number in range(panels.first, panels.first + len(panels.sources)):
                self._reader.wait(work, number)
        except BaseException:
            self._drop(part)
            raise
        finally:
            self.wait_seconds += time.perf_counter() - start
        if work.is_whole:
            load.work = None

    # --- memory -------------------------------------------------------------------------------------

    def _allocate(self, n_bytes: int) -> np.ndarray:
        memory = mapped(n_bytes)
        self._count(n_bytes)
        return memory

    def _count(self, n_bytes: int) -> None:
        self.resident_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def _unload(self, part: Part) -> np.ndarray:
        """Removes the panels of a part; returns the memory that it had."""
        load = part.load
        assert load is not None
        if load.work is not None:
            self._reader.stop(load.work)
        part.take_away()
        part.load = None
        return load.memory

    def _drop(self, part: Part) -> None:
        """Removes the panels of a part: a buffer becomes free, other memory is returned to the system."""
        memory = self._unload(part)
        if part in self._places:
            self._free.append(memory)
        else:
            self._count(-part.nbytes)
            if part.is_expert and not part.stays:
                self._experts.remove(part)

    def _expert_memory(self, part: Part) -> np.ndarray | None:
        """Memory for an expert, perhaps of evicted experts; None if experts in use leave too little."""
        cache = self._experts
        if not part.stays:
            while cache.nbytes + part.nbytes > cache.limit:
                victim = cache.victim(self._held)
                if victim is None:
                    return None
                memory = self._unload(victim)
                if victim.nbytes == part.nbytes:
                    cache.add(part)
                    return memory
                self._count(-victim.nbytes)
                del memory
            cache.add(part)
        return self._allocate(part.nbytes)

    def _use(self, budget: int) -> None:
        """Applies a budget: first frees memory, then lets other parts use it."""
        before, self._plan = self._plan, make_plan(self._sizes, budget)
        plan, self.budget = self._plan, budget
        all_experts = plan.expert_bytes >= self._sizes.experts
        staying = {self._dense[i] for i in plan.stays}
        if (plan.buffer_bytes, plan.n_buffers) != (before.buffer_bytes, before.n_buffers):
            for part in self._streamed:
                if part.load is not None:
                    self._drop(part)
            self._count(-self._n_buffers * before.buffer_bytes)
            self._free, self._n_buffers = [], 0
        for part in self._parts:
            stays = part.is_pinned or (all_experts if part.is_expert else part in staying)
            if stays is part.stays:
                continue
            if part.load is not None and not part.is_expert:
                self._drop(part)
            elif part.load is not None and stays:
                self._experts.remove(part)
            elif part.load is not None:
                part.take_away()
                self._experts.add(part)
            part.stays = stays
        pinned = sum(part.nbytes for part in self._parts if part.is_expert and part.stays)
        self._experts.limit, self._held = plan.expert_bytes - pinned, set()
        while self._experts.nbytes > self._experts.limit:
            victim = self._experts.victim(())
            assert victim is not None
            self._unload(victim)
            self._count(-victim.nbytes)
        self._choose_access(sum(part.nbytes for part in self._parts if not part.stays))
        self._streamed = [part for part in self._dense if not part.stays]
        self._places = {part: i for i, part in enumerate(self._streamed)}
        self._current = None

    def _choose_access(self, n_bytes: int) -> None:
        """Reads past the system's cache if it could not keep the bytes that do not stay in memory."""
        is_direct = self._access == "direct"
        if self._access == "auto" and self._probe is not None:
            state = self._probe.state()
            is_direct = state is not None and n_bytes > state.available
        if is_direct is (self._read_extent is read_cached):
            self._read_extent = DirectReads() if is_direct else read_cached

    def after_fork_in_child(self) -> None:
        """Discards what threads of the parent were reading."""
        self._reader.forget()
        for part in self._parts:
            if part.load is not None and part.load.work is not None:
                part.load.work = None  # nobody is there to be waited for
                self._drop(part)
        self._current = None


class LayerExperts:
    """The experts of one layer, as `ExpertPages`."""

    def __init__(self, pager: LayerPager, parts: list[Part]) -> None:
        self._pager = weakref.ref(pager)
        self._parts = parts

    def most(self, n: int) -> int:
        """As `ExpertPages.most`: where not all fit, half of what does, to read the next ones meanwhile."""
        pager = self._pager()
        if pager is None or self._parts[0].stays or n <= pager.experts_at_once:
            return max(1, n)
        return max(1, pager.experts_at_once // 2)

    def hold(self, now: list[int], soon: list[int]) -> None:
        """As `ExpertPages.hold`."""
        pager = self._pager()
        assert pager is not None, "the model is gone"
        pager.hold([self._parts[i] for i in now], [self._parts[i] for i in soon])


def new_pager(packed: PackedFile | None, config: EngineConfig, packer: Packer) -> LayerPager:
    """Keeps the packed matrices within the configuration's budget. ``packed``: the model's packed file."""
    assert config.offload_budget is not None
    # without progress of every read: one for threads that must not enter OpenMP, and one for the engine's
    alone, together = (Packer(packer.kernels, n, lambda name, size: None) for n in (1, packer.n_threads))
    return LayerPager(
        config.offload_budget,
        alone.pack,
        together.pack,
        config.offload_pinned,
        MemoryPressureProbe() if config.offload_probe else None,
        None if packed is None else packed.finder(),
        config.offload_access,
    )


_pagers: weakref.WeakSet[LayerPager] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pager in list(_pagers):
        pager.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
