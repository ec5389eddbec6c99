"""Pagers for tests: over models in memory, and over matrices that are written by the test."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np

from oxillama._kernels import load
from oxillama.models.offload.memory import mapped
from oxillama.models.offload.pager import LayerPager
from oxillama.models.offload.parts import Fetch
from oxillama.models.weights.packer import Packer
from tests.support.kernels import PRESENT
from tests.support.tiny_models import Running

pack = Packer(load(PRESENT[0]), 1, lambda name, n_bytes: None).pack


def pager_of(budget: int, **options: Any) -> LayerPager:
    """A pager that packs, with one thread."""
    fetch: Fetch = options.pop("fetch", pack)
    return LayerPager(budget, fetch, options.pop("fetch_now", fetch), **options)


def paged(data: bytes, pager: LayerPager, **options: Any) -> Running:
    """A model whose matrices a pager brings; ``options`` as for `Running`."""
    model = Running(data, store=lambda packer: pager, **options)
    pager.arrange(model.model.groups())
    return model


def sizes(data: bytes) -> tuple[int, int]:
    """Bytes of the smallest budget of a model, and of all its matrices."""
    pager = pager_of(1 << 60)
    paged(data, pager)
    return pager.least, pager.total_bytes


class CountedMemory:
    """Replaces `mapped`, and counts the bytes of its arrays that are alive.

    Attributes:
        peak: max bytes that were alive at a time.
    """

    def __init__(self) -> None:
        self.alive = self.peak = 0
        self._lock = threading.RLock()  # threads that read; and a collection may free within `__call__`

    def __call__(self, n_bytes: int) -> np.ndarray:
        memory = mapped(n_bytes)
        owner = memory.base if isinstance(memory.base, np.ndarray) else memory
        weakref.finalize(owner, self._free, n_bytes)
        with self._lock:
            self.alive += n_bytes
            self.peak = max(self.peak, self.alive)
        return memory

    def _free(self, n_bytes: int) -> None:
        with self._lock:
            self.alive -= n_bytes

    def settle(self) -> int:
        """Bytes alive after the garbage is collected."""
        gc.collect()
        return self.alive
