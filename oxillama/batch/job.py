"""A run over a file of rows, which goes on where it was killed.

The answers are written in the order of the rows to OUT.part, so the number of whole lines in it says where to
go on. OUT.job says of which job they are: the input, the model, the options. When all rows are answered,
OUT.part becomes OUT, and OUT.job goes. One process holds the lock on OUT.part until then, and looks under it
whether OUT exists.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from oxillama.atomic_file import publish, replaced_file
from oxillama.batch.plain import Settings
from oxillama.batch.pool import in_order
from oxillama.batch.rows import Rows, has_failed
from oxillama.batch.sources import Source, counted, is_parquet
from oxillama.batch.tables import write_parquet
from oxillama.config import EngineConfig
from oxillama.config.adapters import adapter_specs
from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.sessions.options import plain_options

VERSION = 1
"""Of the form of answers: another one makes another job."""

Answers = AsyncIterator[bytes]
Lines = Iterator[tuple[int, bytes]]


@dataclass
class Tally:
    """How far a job is.

    Attributes
    ----------
    n_rows, n_done, n_failed : rows of the input, those answered, and those among them whose answer is an
        error.
    n_known : rows that an earlier run had answered.
    """

    n_rows: int
    n_done: int = 0
    n_failed: int = 0
    n_known: int = 0


class Job:
    """A run of the rows of a file.

    Parameters
    ----------
    source : JSONL, or Parquet by its name.
    target : to write; Parquet by its name, else JSONL.
    facts : what the answers follow from, beside the input: `facts_of`.
    overwrites : whether a target that is there is replaced.
    restarts : whether what an earlier run has answered is dropped.

    Raises
    ------
    ConfigError : the input cannot be read, the target is there, or an earlier run was of another job.
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
        """Raises ConfigError if the target exists and is not to be replaced."""
        with self._writing():
            if self.target.exists() and not (self.overwrites and self.target.is_file()):
                raise self._exists()

    def _exists(self) -> ConfigError:
        return ConfigError(f"output: expected a new file, got {self.target}, which exists (see --overwrite)")

    def run(self, answers: Callable[[Lines], Answers], seen: Callable[[Tally], object]) -> Tally:
        """Answers the rows that are left, and writes the target.

        Parameters
        ----------
        answers : from rows to their answers, in the order of the rows.
        seen : called after each answer.
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
            if os.name == "nt":  # renames no open file, and has no lock on it
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
        """Has errors of files inside the block say what could not be written. Raises ConfigError."""
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
            part.flush()  # what a kill leaves is a beginning of the last line
        self.tally.n_done += 1
        self.tally.n_failed += has_failed(json.loads(answer))

    def _changed(self, found: str) -> ConfigError:
        path = self.source.path
        return ConfigError(f"input: expected {self.tally.n_rows} rows, got {found}: {path} has changed")

    @contextmanager
    def _part(self) -> Iterator[BinaryIO]:
        """The file of answers, behind the last whole one. Nobody else has it meanwhile."""
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
        """Reads what an earlier run has answered, and removes a line that a kill has cut."""
        self._check_target()  # another job may have ended meanwhile
        if self.restarts:
            part.truncate(0)
            self.note.unlink(missing_ok=True)
        self._check_note(os.fstat(part.fileno()).st_size == 0)
        part.seek(0)
        whole = 0
        for line in part_lines(part):
            self.tally.n_known += 1
            self.tally.n_failed += has_failed(json.loads(line))
            whole += len(line)
        part.truncate(whole)
        self.tally.n_done = self.tally.n_known
        part.seek(0, os.SEEK_END)

    def _locked(self) -> BinaryIO:
        """The file of answers, opened and locked. Raises ConfigError."""
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
                        self.part.unlink()  # a run was killed when this had become the target
            except BaseException:
                part.close()
                raise
            part.close()  # it has become another job's target

    def _check_note(self, is_new: bool) -> None:
        """Raises ConfigError if the answers that are there are of another job; notes this one."""
        try:
            known = json.loads(self.note.read_bytes())
        except FileNotFoundError:
            known = None
        except ValueError:
            known = {}
        if known is not None and not is_new:
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
    """The whole lines of a file, up to one that a kill has cut."""
    with open(part.fileno(), "rb", closefd=False) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def locked(file: BinaryIO, path: Path) -> None:
    """Holds a file for this process alone, where the system can. Raises ConfigError if another one has it."""
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"output: expected {path} for this run alone, another one writes it") from error
        except OSError:  # a file system without locks
            pass


def facts_of(config: EngineConfig, settings: Settings) -> dict[str, Any]:
    """What answers follow from, as plain data: the contents of files, and options. Not, say, threads.

    Raises ModelFileError, GGUFError if the model cannot be read; ConfigError for an adapter that is no path.
    """
    fields = {
        name: getattr(config, name) for name in ("context_size", "compute", "quantize", "kv_type", "seed")
    }
    if config.chat_template is not None:
        path = os.fspath(config.chat_template)
        fields["chat_template"] = digest_of(path) if os.path.isfile(path) else path
    with ModelFile.open(os.fspath(config.model_path or "")) as file:
        model = ModelFingerprint.of_loaded(file, config, None)
    return {
        "model": model.content.hex(),
        "contract": dict(model.settings).get("contract", "1"),
        "tokenizer": None if config.tokenizer_path is None else digest_of(config.tokenizer_path),
        "adapters": [
            [digest_of(source), scale] for source, scale in adapter_specs("adapters", config.adapters)
        ],
        **fields,
        "sampler": json.loads(json.dumps(plain_options(config.sampler))),
        "settings": json.loads(json.dumps(asdict(settings))),
    }


def digest_of(path: Any) -> str:
    """BLAKE3 of a file, in hexadecimal. Raises ConfigError if it cannot be read, or is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"adapters: expected paths for a job, got {type(path).__name__}")
    try:
        return counted(Path(path))[1]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def with_engine(rows: Rows, window: int) -> Callable[[Lines], Answers]:
    """Answers of one engine, for `Job.run`."""

    def answers(lines: Lines) -> Answers:
        return in_order(lines, lambda line: rows.line(*line), window)

    return answers
