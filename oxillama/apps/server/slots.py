"""Slots: sequences that clients name by number, and that outlive a request.

Requests need no slot here: they share one batch and one prefix cache. A slot is for clients of llama-server
that keep a conversation in one, save it, and go on with it later. It is a session of the engine.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from oxillama.apps.server.errors import fault, invalid, without_paths
from oxillama.apps.server.workers import in_daemon
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.errors import ModelFileError, SnapshotIncompatible
from oxillama.sessions.going_on import go_on
from oxillama.sessions.restore import restore_session
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import read

T = TypeVar("T")

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""Names of files that clients may choose: no separators, no hidden files."""


@dataclass
class Slot:
    """A sequence with a number.

    Attributes:
        session: None for an empty slot.
        lock: held by the request that uses it; others wait.
    """

    id: int
    session: Session | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def start(self, engine: InferenceEngine, prompt: Any, options: GenerationOptions) -> Generation:
        """Continues with a whole prompt: a beginning that equals the slot's tokens is not run again."""
        adapters = engine.model.feature("adapters").adaptation(options.adapters, None)
        if self.session is None or self.session.adapters != adapters:
            self.erase()
            self.session = engine.session(adapters=options.adapters)
            self.session.give_way()
        go_on(self.session, prompt)
        return self.session.stream(options)

    def erase(self) -> int:
        """Frees the slot's memory; returns the number of its tokens."""
        n = 0 if self.session is None else len(self.session)
        if self.session is not None:
            self.session.close()
        self.session = None
        return n

    def save(self, path: Path) -> dict[str, Any]:
        """Writes the slot to a file; returns the numbers of tokens and bytes, and the seconds."""
        began = time.perf_counter()
        if self.session is None or not len(self.session):
            raise fault("id_slot", f"expected a slot with tokens, {self.id} has none")
        self.session.recompute()
        taken = self.session.capture({"command": "slot"})
        taken.write(path)
        return {
            "n_saved": taken.n_cached,
            "n_written": size_of(path),
            "timings": {"save_ms": 1000 * (time.perf_counter() - began)},
        }

    def restore(self, engine: InferenceEngine, path: Path) -> dict[str, Any]:
        """Loads the slot from a file; returns numbers of tokens and bytes, and seconds. Raises ApiError."""
        began = time.perf_counter()
        try:
            taken, n_bytes = read(path), size_of(path)
            restored = restore_session(engine.model, taken, [lora for lora, _ in engine.adapters.stack])
        except (ModelFileError, SnapshotIncompatible) as error:
            is_missing = isinstance(error.__cause__, FileNotFoundError)
            if isinstance(error, ModelFileError) and not is_missing:
                raise  # not a fault of the client
            reason = "no such file" if is_missing else without_paths(error)
            wanted = "expected a saved slot of this model"
            raise fault("filename", f"{wanted}, got {path.name}: {reason}") from error
        restored.give_way()
        self.erase()
        self.session = restored
        return {
            "n_restored": taken.n_cached,
            "n_read": n_bytes,
            "timings": {"restore_ms": 1000 * (time.perf_counter() - began)},
        }


class Slots:
    """The slots of a loaded model, as many as sequences may run at a time."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], Slot] = {}

    def find(self, engine: InferenceEngine, id: int, owner: str) -> Slot:
        """A slot of a key, by its number. Raises ApiError for an unknown number."""
        n = engine.config.scheduler.max_sequences
        if not 0 <= id < n:
            raise invalid("id_slot", f"-1, or a number below {n}", id)
        return self._slots.setdefault((owner, id), Slot(id))

    @asynccontextmanager
    async def used(self, engine: InferenceEngine, id: int, owner: str) -> AsyncIterator[Slot]:
        """A slot of a key, for one request alone; it waits until the one before has ended."""
        slot = self.find(engine, id, owner)
        async with slot.lock:
            yield slot

    def listed(self, engine: InferenceEngine, owner: str) -> list[dict[str, Any]]:
        """The list of slots in llama-server's form, for the owner of a key.

        As many slots are processing as requests run; requests without a slot count as free slots.
        """
        n = engine.config.scheduler.max_sequences
        slots = list(self._slots.items())  # at once: the event loop may add others
        own = {id: slot for (name, id), slot in slots if name == owner}
        named = {id for id, slot in own.items() if slot.lock.locked()}
        n_locked = sum(slot.lock.locked() for _, slot in slots)
        others = engine.metrics.snapshot().running - n_locked
        speculative = engine.config.speculate not in (None, "off")
        found = []
        for id in range(n):
            session = own[id].session if id in own else None
            is_busy = id in named
            if not is_busy and others > 0 and session is None:
                others -= 1
                is_busy = True
            found.append(
                {
                    "id": id,
                    "n_ctx": engine.context_size,
                    "speculative": speculative,
                    "is_processing": is_busy,
                    "n_tokens": 0 if session is None else len(session),
                }
            )
        return found


async def to_its_end(job: Callable[..., T], *arguments: Any) -> T:
    """The result of a job in a thread; a cancelled task also waits for it, since the job uses the slot."""
    running = asyncio.ensure_future(in_daemon(partial(job, *arguments)))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        found = (await asyncio.gather(running, return_exceptions=True))[0]
        if isinstance(found, Generation):
            found.cancel()
        raise


def file_in(folder: Path, name: str, below: str = "") -> Path:
    """The path of a file in a folder, or in the folder ``below`` that, which is made.

    Raises ApiError for a name that may lead elsewhere, ModelFileError if the folder cannot be made.
    """
    if not FILE_NAME.fullmatch(name):
        raise invalid("filename", "letters, digits, _, - and dots", name)
    if below:
        folder = folder / below
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ModelFileError(f"{folder}: cannot be made: {error.strerror or error}") from error
    return folder / name


def size_of(path: Path) -> int:
    """Bytes of a file. Raises ModelFileError."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
