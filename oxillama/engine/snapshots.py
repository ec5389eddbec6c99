"""Snapshots in all forms, of what can be captured."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxillama.sessions.snapshot import EngineSnapshot


class Captured:
    """Something that goes on from its snapshot, with `InferenceEngine.restore`, in any process."""

    @abstractmethod
    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of."""

    def snapshot(self, *, compress: bool = False, notes: Mapping[str, Any] | None = None) -> bytes:
        """Where it is now; it goes on itself, too.

        Text that was not read yet is part of the snapshot, and the generation that goes on yields it first.

        Parameters
        ----------
        compress : store with zlib what gets smaller by it.
        notes : JSON values to be kept with it.

        Raises
        ------
        ConfigError : an option cannot be saved; a generation has ended, or goes on from a session; a session
            is closed, or a generation goes on from it.
        EngineClosed : the engine was closed.
        """
        return self.capture(notes).serialize(compress=compress)

    def snapshot_to_file(
        self,
        path: str | os.PathLike[str],
        *,
        compress: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """`snapshot`, to a file, which others see whole or not at all. Raises ModelFileError, too."""
        self.capture(notes).write(path, compress=compress)
