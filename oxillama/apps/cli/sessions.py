"""``--session FILE``: a session that outlives the process, read at the start and written at the end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli.console import check_writable
from oxillama.base.atomic_file import exists
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama import Generation, GenerationOptions, InferenceEngine, Session


def add_session_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--session",
        metavar="FILE",
        help="go on where the session in this file ended, and write it there at the end; "
        "a file that does not exist begins one",
    )


class KeptSession:
    """A session of an engine that begins as a file says, and is written there by `save`.

    Args:
        kind: of the command, "run" or "chat": one does not go on with a session of the other.

    Attributes:
        notes: what was saved with it; empty for a new one.

    Raises:
        ConfigError: the file cannot be written, is of the other command, or has other adapters; or the engine
            keeps prompts in a folder, which a session does not use.
        SnapshotIncompatible, ModelFileError: it is damaged, does not fit the engine, or cannot be read.
    """

    def __init__(self, engine: InferenceEngine, path: str, kind: str) -> None:
        from oxillama.sessions.restore import restore_session
        from oxillama.sessions.snapshot import read

        if engine.config.prefix_cache_dir is not None:
            raise ConfigError(
                "--prefix-cache-dir: cannot be combined with --session, which keeps what it ran"
            )
        self.path: str = path
        self.kind: str = kind
        check_writable("--session", Path(path))
        self.notes: dict[str, Any] = {}
        self._ends = engine.tokenizer.eog_ids
        self.is_new: bool = not exists(path)
        if self.is_new:
            self.session: Session = engine.session()
            return
        taken = read(path)
        self.notes = taken.notes
        found = self.notes.get("command")
        if found != kind:
            raise ConfigError(f"--session: expected one of oxillama {kind} in {path}, got one of {found}")
        self.session = restore_session(engine.model, taken)
        asked = engine.model.adaptation(None, None)
        if asked is not None and asked != self.session.adapters:
            raise ConfigError(f"--lora: expected the adapters of the session in {path}, got others")

    def stream(self, prompt: Any, chosen: GenerationOptions) -> Generation:
        """Continues with a whole prompt: a beginning that equals the session is not run again."""
        from oxillama.sessions.going_on import go_on

        go_on(self.session, prompt)
        return self.session.stream(chosen)

    def save(self, **notes: Any) -> None:
        """Writes the file, without the token that ended the text. Raises ModelFileError."""
        tokens = self.session.tokens
        if tokens and tokens[-1] in self._ends:
            self.session.rewind(len(tokens) - 1)
        self.session.snapshot_to_file(self.path, notes={**notes, "command": self.kind})
