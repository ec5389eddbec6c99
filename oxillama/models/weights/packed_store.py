"""Panels of a packed file: mapped, so that processes share them, or read into memory."""

from __future__ import annotations

import errno
import importlib.util
import logging
import mmap
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.gguf.extent import OpenFile
from oxillama.models.weights.linear import Panels, PanelStore, ResidentPanels
from oxillama.models.weights.packed_file import PackedFile
from oxillama.models.weights.packer import Packer, Source

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import Linear

fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None

log: logging.Logger = logging.getLogger(__name__)


class PackedStore(PanelStore):
    """Takes the panels of one model from a packed file.

    Args:
        packed: the file, opened for this model.
        packer: gives the memory of panels that are read, and packs matrices that the file does not have.
        mapping: whether to map the file. It is read where the system cannot.
    """

    def __init__(self, packed: PackedFile, packer: Packer, *, mapping: bool = True) -> None:
        self.packed = packed
        self.packer = packer
        self._find = packed.finder()
        self._mapped = mapped_file(packed) if mapping else None
        self._lease = Lease(packed.file)

    def panels(self, sources: list[Source], cols: int) -> Panels:
        """The panels of a layer: from the file, if it has all of them."""
        found = [self._find(source, cols) for source in sources]
        extents = [extent for extent in found if extent is not None]
        if len(extents) < len(found):
            return ResidentPanels(self.packer, sources, cols)
        if self._mapped is None:
            held = [(extent, self.packer.memory(extent.nbytes)) for extent in extents]
            return FilePanels(
                self.packer, sources, lambda: [extent.read(buffer=memory) for extent, memory in held]
            )
        views = [self._mapped[extent.start : extent.start + extent.nbytes] for extent in extents]
        return FilePanels(self.packer, sources, lambda: views)

    def begin_pass(self) -> None:
        """Raises ModelFileError if the file is mapped and has changed. It cannot be cut until `end_pass`."""
        if self._mapped is not None:
            self._lease.take()
            try:
                self.packed.file.check()
            except BaseException:
                self._lease.release()
                raise

    def end_pass(self) -> None:
        """Raises ModelFileError if the file is mapped and has changed."""
        if self._mapped is not None:
            try:
                self.packed.file.check()
            finally:
                self._lease.release()


class FilePanels:
    """Panels in a file, which ``read`` maps, or reads into memory at their first use."""

    def __init__(self, packer: Packer, sources: list[Source], read: Callable[[], list[np.ndarray]]) -> None:
        self._packer, self._sources, self._read = packer, sources, read

    def place(self, linear: Linear) -> bool:
        """As `Panels.place`."""
        linear.give(self._read())
        for source in self._sources:
            self._packer.progress(source.info.name, source.nbytes)
        return True


class Lease:
    """Makes programs that open a file for writing, or truncate it, wait while a pass reads the mapped file.

    Linux leases files to their owner and to root, on local disks; elsewhere this does nothing. A file that is
    open for writing cannot be leased. The system ends a lease after 45 seconds if a program waits.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._held = False
        self._possible = hasattr(fcntl, "F_SETLEASE")
        # A signal announces a program that waits: first a signal that is ignored by default, then no signal.
        if self._possible:
            self._ask(fcntl.F_SETSIG, signal.SIGURG)

    def take(self) -> None:
        """Takes the lease, if the system grants one."""
        if self._possible and not self._held:
            self._held = self._ask(fcntl.F_SETLEASE, fcntl.F_RDLCK)
            if self._held:
                self._ask(fcntl.F_SETOWN, 0)

    def release(self) -> None:
        """Releases the lease."""
        if self._held:
            self._held = False
            self._ask(fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def _ask(self, command: int, argument: int) -> bool:
        """Whether the system did this."""
        try:
            fcntl.fcntl(self._file.fd, command, argument)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # open for writing now: perhaps not in the next pass
                self._possible = False
                log.info(
                    "%s: cannot be leased: %s; a program that cuts it ends this one", self._file.path, error
                )
            return False
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
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without large pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)
