"""Panels of a packed file: mapped, so that processes share them, or read into memory."""

from __future__ import annotations

import logging
import mmap
import sys

import numpy as np

from oxillama._kernels.linear import Linear
from oxillama.gguf.extent import Extent
from oxillama.weights.packed_file import PackedFile
from oxillama.weights.packer import Packer, Source
from oxillama.weights.panels import Panels, PanelStore, ResidentPanels

log = logging.getLogger(__name__)


class PackedStore(PanelStore):
    """Takes the panels of one model from a packed file.

    Parameters
    ----------
    packed : the file, opened for this model.
    packer : gives the memory of panels that are read, and packs matrices that the file does not have.
    mapping : whether to map the file. It is read where the system cannot.
    """

    def __init__(self, packed: PackedFile, packer: Packer, *, mapping: bool = True) -> None:
        self.packed = packed
        self.packer = packer
        self._find = packed.finder()
        self._mapped = mapped_file(packed) if mapping else None

    def panels(self, sources: list[Source], cols: int) -> Panels:
        """The panels of a layer: from the file, if it has all of them."""
        found = [self._find(source, cols) for source in sources]
        extents = [extent for extent in found if extent is not None]
        if len(extents) < len(found):
            return ResidentPanels(self.packer, sources, cols)
        if self._mapped is None:
            return ReadPanels(self.packer, sources, extents)
        views = [self._mapped[extent.start : extent.start + extent.nbytes] for extent in extents]
        return MappedPanels(self.packer, sources, views)

    def begin_pass(self) -> None:
        """Raises ModelFileError if the file has changed since it was opened, if it is mapped."""
        if self._mapped is not None:
            self.packed.file.check()

    def end_pass(self) -> None:
        """As `begin_pass`."""
        self.begin_pass()


class MappedPanels:
    """Panels in a mapped file."""

    def __init__(self, packer: Packer, sources: list[Source], views: list[np.ndarray]) -> None:
        self._packer, self._sources, self._views = packer, sources, views

    def place(self, linear: Linear) -> bool:
        """As `Panels.place`."""
        linear.give(self._views)
        for source in self._sources:
            self._packer.progress(source.info.name, source.nbytes)
        return True


class ReadPanels:
    """Panels that are read from a file into memory when they are first asked for."""

    def __init__(self, packer: Packer, sources: list[Source], extents: list[Extent]) -> None:
        self._packer, self._sources = packer, sources
        self._parts = [(extent, packer.memory(extent.nbytes)) for extent in extents]

    def place(self, linear: Linear) -> bool:
        """As `Panels.place`."""
        linear.give([extent.read(buffer=memory) for extent, memory in self._parts])
        for source in self._sources:
            self._packer.progress(source.info.name, source.nbytes)
        return True


def mapped_file(packed: PackedFile) -> np.ndarray | None:
    """The whole file as uint8 (n,), read-only; None where the system cannot map it."""
    if sys.platform == "win32":  # a mapped file could not be replaced by a new one
        return None
    try:
        mapped = mmap.mmap(packed.file.fd, packed.file.size, access=mmap.ACCESS_READ)
    except (OSError, ValueError, OverflowError) as error:
        log.info("%s: cannot be mapped, so it is read: %s", packed.path, error)
        return None
    return np.frombuffer(mapped, np.uint8)
