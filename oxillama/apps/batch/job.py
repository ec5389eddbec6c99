"""A run over a file of rows, which can be resumed after it was killed.

The answers are written in the order of the rows to OUT.part, so the number of complete lines says where to
resume. OUT.job records which job they belong to: the input, the model, the options. When all rows are
answered, OUT.part is renamed to OUT, and OUT.job is deleted. One process holds the lock on OUT.part until
then, and checks under the lock whether OUT exists.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from oxillama.apps.batch.pool import in_order
from oxillama.apps.batch.rows import Rows, has_failed
from oxillama.apps.batch.sources import Source, is_parquet
from oxillama.apps.batch.tables import write_parquet
from oxillama.base.atomic_file import publish, replaced_file
from oxillama.errors import ConfigError, OxiLlamaError

VERSION = 2
"""The version of the answers' form: another version makes another job."""

Answers = AsyncIterator[bytes]
Lines = Iterator[tuple[int, bytes]]


@dataclass
class Tally:
    """The progress of a job.

    Attributes:
        n_rows, n_done, n_failed: number of rows of the input, of answered rows, and of answers that are
            errors.
        n_known: number of rows that an earlier run had answered.
    """

    n_rows: int
    n_done: int = 0
    n_failed: int = 0
    n_known: int = 0


class Job:
    """A run over the rows of a file.

    Args:
        source: JSONL; Parquet if the name ends so.
        target: file to write; Parquet if the name ends so, else JSONL.
        facts: everything besides the input that determines the answers, see `oxillama.apps.batch.facts`.
        overwrites: whether to replace an existing target.
        restarts: whether to drop the answers of an earlier run.

    Raises:
        ConfigError: the input cannot be read, the target exists, or an earlier run was of another job.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        facts: Mapping[str, Any],
        *,
        overwrites: bool = False,
        restarts: bool = False,
    ) -> None:
        self.source: Source = Source.of(source)
        self.target: Path = target
        self.overwrites: bool = overwrites
        self._check_target()
        with self._writing():
            if target.exists() and source.samefile(target):
                raise ConfigError(f"output: expected another file than the input, got {target}")
        self.part: Path = target.with_name(f"{target.name}.part")
        self.note: Path = target.with_name(f"{target.name}.job")
        self.facts: dict[str, Any] = {"version": VERSION, "input": self.source.digest, **facts}
        self.restarts = restarts
        self.tally: Tally = Tally(self.source.n_rows)

    def _check_target(self) -> None:
        """Raise ConfigError if the target exists and must not be replaced."""
        with self._writing():
            if self.target.exists() and not (self.overwrites and self.target.is_file()):
                raise self._exists()

    def _exists(self) -> ConfigError:
        return ConfigError(f"output: expected a new file, got {self.target}, which exists (see --overwrite)")

    def run(self, answers: Callable[[Lines], Answers], seen: Callable[[Tally], object]) -> Tally:
        """Answer the remaining rows, and write the target.

        Args:
            answers: maps rows to their answers, in the order of the rows.
            seen: called after each answer.
        """

        async def work(part: BinaryIO) -> None:
            async for answer in answers(self.source.lines(self.tally.n_known)):
                self._write(part, answer)
                seen(self.tally)

        with self._part() as part:
            seen(self.tally)
            asyncio.run(work(part))
            with self._writing():
                part.flush()
                os.fsync(part.fileno())
            if self.tally.n_done != self.tally.n_rows:
                raise self._changed(str(self.tally.n_done))
            if os.name == "nt":  # Windows cannot rename an open file, and has no lock on it
                part.close()
            self._publish()
        return self.tally

    def _publish(self) -> None:
        """Makes the file of answers the target. Raises ConfigError, ModelFileError; the answers stay then."""
        self._check_target()
        with self._writing():
            if is_parquet(self.target):
                write_parquet(self.part, self.target, overwrite=self.overwrites)
                self.part.unlink()
            else:
                publish(self.part, self.target, overwrite=self.overwrites)
            self.note.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn file errors inside the block into ConfigError that says what could not be written."""
        try:
            yield
        except OxiLlamaError:
            raise
        except FileExistsError as error:
            raise self._exists() from error
        except OSError as error:
            raise ConfigError(
                f"output: {self.target} cannot be written: {error.strerror or error}"
            ) from error

    def _write(self, part: BinaryIO, answer: bytes) -> None:
        if self.tally.n_done >= self.tally.n_rows:
            raise self._changed("more")
        with self._writing():
            part.write(answer + b"\n")
            part.flush()  # after a kill, at most the last line is incomplete
        self.tally.n_done += 1
        self.tally.n_failed += has_failed(json.loads(answer))

    def _changed(self, found: str) -> ConfigError:
        path = self.source.path
        return ConfigError(f"input: expected {self.tally.n_rows} rows, got {found}: {path} has changed")

    @contextmanager
    def _part(self) -> Iterator[BinaryIO]:
        """The locked file of answers, positioned after the last complete line."""
        self._check_target()
        part = self._locked()
        try:
            with self._writing():
                self._begin(part)
            yield part
        finally:
            with self._writing():
                part.close()

    def _begin(self, part: BinaryIO) -> None:
        """Count the answers of an earlier run, and remove an incomplete last line."""
        self._check_target()  # another job may have finished in the meantime
        if self.restarts:
            part.truncate(0)
            self.note.unlink(missing_ok=True)
        self._check_note(os.fstat(part.fileno()).st_size == 0)
        part.seek(0)
        whole = 0
        for line in part_lines(part):
            try:
                self.tally.n_failed += has_failed(json.loads(line))
            except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
                at = f"line {self.tally.n_known + 1} of {self.part}"
                raise ConfigError(f"output: expected an answer in {at}, got another text") from error
            self.tally.n_known += 1
            whole += len(line)
        part.truncate(whole)
        self.tally.n_done = self.tally.n_known
        part.seek(0, os.SEEK_END)

    def _locked(self) -> BinaryIO:
        """Open and lock the file of answers. Raises ConfigError."""
        while True:
            try:
                part = self.part.open("ab+")
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"output: {self.part} cannot be written: {reason}") from error
            try:
                with self._writing():
                    locked(part, self.part)
                    if is_at(part, self.part):
                        if not is_at(part, self.target):
                            return part
                        self.part.unlink()  # already the target: a run was killed after the rename
            except BaseException:
                part.close()
                raise
            part.close()  # another job has renamed it to its target

    def _check_note(self, is_new: bool) -> None:
        """Raise ConfigError if existing answers belong to another job; record this job."""
        try:
            known = json.loads(self.note.read_bytes())
        except FileNotFoundError:
            known = None
        except (ValueError, RecursionError):
            known = {}
        if known is not None and not is_new:
            known = known if isinstance(known, dict) else {}
            changed = [name for name, value in self.facts.items() if known.get(name) != value]
            if changed:
                raise ConfigError(
                    f"output: expected {self.part} to be of this job, but {' and '.join(changed)} changed "
                    "(--restart drops it)"
                )
            return
        if not is_new:
            raise ConfigError(
                f"output: expected {self.note} beside {self.part}, got none (--restart drops it)"
            )
        with replaced_file(self.note) as file:
            file.write(json.dumps(self.facts, indent=1).encode())


def part_lines(part: BinaryIO) -> Iterator[bytes]:
    """The complete lines of a file; an incomplete last line is left out."""
    with open(part.fileno(), "rb", closefd=False) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def is_at(file: BinaryIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def locked(file: BinaryIO, path: Path) -> None:
    """Lock a file for this process, if the system can. Raises ConfigError if another process has the lock."""
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"output: expected {path} for this run alone, another one writes it") from error
        except OSError:  # a file system without locks
            pass


def with_engine(rows: Rows, window: int) -> Callable[[Lines], Answers]:
    """Answers from one engine, for `Job.run`."""

    def answers(lines: Lines) -> Answers:
        return in_order(lines, lambda line: rows.line(*line), window)

    return answers
