"""Writes records to a folder in a background thread, and keeps the folder within its limits."""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError
from oxillama.sessions.records.record import END, SNAPSHOT_END, Record, names_in, stamp, time_of

log: logging.Logger = logging.getLogger("oxillama.apps.server")

MOST_PENDING = 64 << 20
"""The maximum size in bytes of records that wait to be written; further records are lost, and counted."""
PRIVATE = 0o600
SCANS = 32
"""The folder is scanned again after 1 / SCANS of its limit was written; the same share is then kept free."""
SCAN_SECONDS = 60.0
"""The folder is scanned at least this often in seconds, for the age limit."""
LOG_SECONDS = 1.0


@dataclass
class RecordCounts:
    """Counts of records since the start of the server: kept, lost, and removed by a limit."""

    kept: int = 0
    lost: int = 0
    removed: int = 0

    def metrics_text(self) -> str:
        """The counts in the text format of Prometheus."""
        lines = []
        for name, meaning, n in (
            ("kept", "Requests that were recorded", self.kept),
            ("lost", "Requests whose record could not be written", self.lost),
            ("removed", "Records that a limit of the folder has removed", self.removed),
        ):
            full = f"oxillama:records_{name}_total"
            lines += [f"# HELP {full} {meaning}", f"# TYPE {full} counter", f"{full} {n}"]
        return "\n".join(lines) + "\n"


class RecordFolder:
    """A folder for records. Writing never raises: failures are counted and logged.

    Files appear complete, and only their owner may read them. Several servers may share a folder.

    Args:
        folder: created if it does not exist.
        max_bytes: maximum size of all files; None: unlimited.
        max_seconds: age at which files are removed; None: never.
        clock: returns seconds since 1970.

    Raises:
        ConfigError: the folder cannot be created or written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder: Path = Path(folder)
        self.max_bytes: int | None = max_bytes
        self.max_seconds: float | None = max_seconds
        self._clock = clock
        self.counts: RecordCounts = RecordCounts()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replaced_file(self.folder / ".writable", PRIVATE, synced=False):
                pass
            (self.folder / ".writable").unlink()
        except (OSError, ValueError, ModelFileError) as error:
            raise ConfigError(
                f"record: expected a folder to write to, got {os.fspath(folder)}: {error}"
            ) from None
        self._jobs: queue.SimpleQueue[Callable[[], tuple[Record, Sequence[bytes]]] | None] = (
            queue.SimpleQueue()
        )
        self._pending, self._lock = 0, threading.Lock()
        self._last, self._written, self._scanned_at = 0.0, math.inf, -math.inf
        self._logged_at, self._unlogged = -math.inf, 0
        self._thread = threading.Thread(target=self._work, name="records", daemon=True)
        self._thread.start()

    def add(self, make: Callable[[], tuple[Record, Sequence[bytes]]], n_bytes: int) -> None:
        """Queue a record with its snapshots for writing; returns at once; may be called from any thread.

        Args:
            make: makes the record and the bytes of its snapshots; called in the folder's thread.
            n_bytes: memory that the record takes while it waits.
        """
        with self._lock:
            fits = self._pending + n_bytes <= MOST_PENDING or not self._pending
            self._pending += n_bytes if fits else 0
        if not fits:
            self._lose(f"more than {MOST_PENDING} bytes wait to be written")
            return

        def job() -> tuple[Record, Sequence[bytes]]:
            try:
                return make()
            finally:
                with self._lock:
                    self._pending -= n_bytes

        self._jobs.put(job)

    def close(self) -> None:
        """Wait until everything is written."""
        self._jobs.put(None)
        self._thread.join()
        self._log_lost("")

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=SCAN_SECONDS)
            except queue.Empty:
                self._trim()
                continue
            if job is None:
                return
            try:
                self._write(*job())
            except Exception as error:  # the server must continue in any case
                self._lose(error)
            self._trim()

    def _write(self, record: Record, snapshots: Sequence[bytes]) -> None:
        self._last = max(self._clock(), self._last + 1e-6)  # makes names unique and ordered
        name = f"{stamp(self._last)}-{record.head.id}"
        files = {f"{name}.{i}{SNAPSHOT_END}": data for i, data in enumerate(snapshots)}
        files[f"{name}{END}"] = replace(record, snapshots=list(files)).to_bytes()
        n_bytes = sum(map(len, files.values()))
        if n_bytes > self._most:
            raise ModelFileError(f"record: expected at most {self._most} bytes, got {n_bytes}")
        written: list[Path] = []
        try:
            for file_name, data in files.items():  # the record comes last, because it names the other files
                with replaced_file(self.folder / file_name, PRIVATE) as file:
                    file.write(data)
                written.append(self.folder / file_name)
        except BaseException:
            for path in written:
                with suppress(OSError):
                    path.unlink()
            raise
        self.counts.kept += 1
        self._written += n_bytes

    def _lose(self, reason: object) -> None:
        with self._lock:
            self.counts.lost += 1
            self._unlogged += 1
        self._log_lost(reason)

    def _log_lost(self, reason: object) -> None:
        """Log the number of lost records, at most one line a second."""
        with self._lock:
            now = time.monotonic()
            n = self._unlogged if not reason or now - self._logged_at >= LOG_SECONDS else 0
            self._unlogged -= n
            self._logged_at = now if n else self._logged_at
        if n:
            log.warning("%d requests were not recorded%s", n, f": {reason}" if reason else "")

    @property
    def _most(self) -> float:
        """The maximum size of the folder in bytes after tidying."""
        return math.inf if self.max_bytes is None else self.max_bytes - self.max_bytes // SCANS

    def _trim(self) -> None:
        """Remove the oldest records beyond the limits, if a scan is due."""
        is_due = time.monotonic() - self._scanned_at >= SCAN_SECONDS
        if self.max_bytes is not None:
            is_due = is_due or self._written * SCANS >= self.max_bytes
        if not is_due or (self.max_bytes is None and self.max_seconds is None):
            return
        self._scanned_at, self._written = time.monotonic(), 0
        try:
            self._remove_old()
        except Exception as error:
            log.warning("records: %s could not be tidied: %s", self.folder, error)

    def _remove_old(self) -> None:
        sizes = {}
        for name, _ in names_in(self.folder):
            with suppress(FileNotFoundError):  # another server has removed it
                sizes[name] = os.stat(self.folder / name).st_size
        total, too_old = sum(sizes.values()), -math.inf
        if self.max_seconds is not None:
            too_old = self._clock() - self.max_seconds
        for name, size in sizes.items():  # oldest first; a record's snapshots precede it
            if total <= self._most and time_of(name) >= too_old:
                break
            with suppress(FileNotFoundError):
                os.unlink(self.folder / name)
            total -= size
            self.counts.removed += name.endswith(END)
