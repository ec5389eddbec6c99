"""Runs hostile inputs in a process of its own, and says which of them do what the library promises not to.

An input may be used, or be refused with an `OxiLlamaError`. Anything else is a finding: another exception,
the end of the process, more than `SECONDS` for one input, more than `MEMORY` bytes. Findings are told apart
by the place in the library that they come from; one input of each is minimized and saved.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from oxillama.errors import OxiLlamaError
from tests.fuzz.mutate import SkipInput, minimized

SECONDS = 10.0  # seconds of CPU time
WALL = 30.0  # seconds after which an input hangs, on a machine that others use too
MEMORY = 3 << 30
GROWTH = 1 << 30  # bytes that one input may make the process grow by
BATCH = 100
LIFE = 4000  # inputs after which a process is replaced, so that what one leaves behind is not another's
CORPUS = Path(__file__).parent / "corpus"


class Target(ABC):
    """A kind of input: where inputs come from, and what is done with them.

    Attributes:
        name: of the target and of its folder in the corpus.
        allowed: exceptions that refuse an input.
        per_run: inputs in one run of the test suite.
    """

    name: str
    allowed: tuple[type[BaseException], ...] = (OxiLlamaError,)
    per_run = 150

    @abstractmethod
    def seeds(self) -> list[Any]:
        """Valid inputs, made once in each process."""

    @abstractmethod
    def mutate(self, value: Any, rng: Random) -> Any:
        """A changed copy of an input."""

    @abstractmethod
    def run(self, value: Any) -> None:
        """Uses an input in full."""

    def corpus(self) -> list[Any]:
        """Valid inputs, and those that once failed."""
        saved = sorted((CORPUS / self.name).glob("*.json")) if (CORPUS / self.name).is_dir() else []
        return [*self.seeds(), *(json.loads(path.read_text(encoding="utf-8")) for path in saved)]

    def make(self, corpus: list[Any], seed: int, index: int) -> Any:
        """The input of a number: those of the corpus first, then mutants."""
        if index < len(corpus):
            return corpus[index]
        rng = Random(f"{self.name}/{seed}/{index}")
        return self.mutate(rng.choice(corpus), rng)


@dataclass
class Outcome:
    """What became of an input: "used", "skipped", the class of an error that refused it, or a finding."""

    kind: str
    is_finding: bool = False
    details: str = ""


@dataclass
class Finding:
    kind: str
    details: str
    value: Any
    count: int = 1


@dataclass
class Report:
    """What became of the inputs of a run."""

    target: str
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def n(self) -> int:
        return sum(self.counts.values())

    def add(self, finding: Finding) -> None:
        self.counts["FINDINGS"] += 1
        known = self.findings.setdefault(finding.kind, finding)
        if known is not finding:
            known.count += 1

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {n}" for kind, n in self.counts.most_common())
        return f"{self.target}: {self.n} inputs in {self.seconds:.0f} s: {counts}"


# --- in the worker ----------------------------------------------------------------------------------


def peak() -> int:
    """Bytes of the process's largest size so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_memory() -> None:
    """Allows `MEMORY` bytes more than the process has now, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = pages * resource.getpagesize() + MEMORY  # of data, not of address space
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def place_of(error: BaseException) -> str:
    """Where in the library an error comes from, or where else."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f"{os.sep}oxillama{os.sep}" in f.filename and "tests" not in f.filename]
    frame = (inside or frames)[-1]
    line = f":{frame.lineno}" if isinstance(error, AssertionError) else ""  # one function checks many things
    return f"{Path(frame.filename).name}:{frame.name}{line}"


def attempt(target: Target, value: Any) -> Outcome:
    """Runs one input in this process."""
    before, start = peak(), time.process_time()
    try:
        target.run(value)
        outcome = Outcome("used")
    except SkipInput:
        outcome = Outcome("skipped")
    except target.allowed as error:
        outcome = Outcome(type(error).__name__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a Rust panic is no Exception
        text = "".join(traceback.format_exception(error)[-14:])[-6000:]
        outcome = Outcome(f"{type(error).__name__} in {place_of(error)}", True, text)
    if not outcome.is_finding and peak() - before > GROWTH:
        outcome = Outcome(f"memory, {outcome.kind}", True, f"grew by {(peak() - before) >> 20} MB")
    if not outcome.is_finding and time.process_time() - start > SECONDS:
        outcome = Outcome(
            f"time, {outcome.kind}", True, f"took {time.process_time() - start:.1f} s of CPU time"
        )
    return outcome


def serve(connection: Any, current: Any, log: str, extra: list[Target], wall: float) -> None:
    """The worker's life: answers requests until the pipe is closed."""
    targets = {target.name: target for target in extra}
    with open(log, "w", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        os.dup2(file.fileno(), 2)  # Rust and the C library write there
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.chdir(folder)
        faulthandler.enable(file)
        warnings.simplefilter("ignore")
        corpora: dict[str, list[Any]] = {}
        while True:
            try:
                name, what = connection.recv()
            except EOFError:
                break
            if name not in targets:
                from tests.fuzz.targets import TARGETS

                targets |= TARGETS
            target = targets[name]
            if name not in corpora:
                corpora[name] = target.corpus()
                with contextlib.suppress(BaseException):
                    target.run(corpora[name][0])  # imports and caches are not the first input's
                limit_memory()
            if what is None:
                connection.send(len(corpora[name]))
                continue
            counts: Counter[str] = Counter()
            found: list[Finding] = []
            seed, start, n = what if isinstance(what, tuple) else (0, 0, 1)
            for index in range(start, start + n):
                current.value = index
                try:
                    value = target.make(corpora[name], seed, index) if isinstance(what, tuple) else what[0]
                except Exception:  # an input that cannot even be made
                    counts["skipped"] += 1
                    continue
                faulthandler.dump_traceback_later(wall, exit=True, file=file)
                outcome = attempt(target, value)
                faulthandler.cancel_dump_traceback_later()
                if outcome.is_finding:
                    found.append(Finding(outcome.kind, outcome.details, value))
                else:
                    counts[outcome.kind] += 1
            connection.send((counts, found))
        os.chdir(os.path.dirname(log))


# --- beside it ---------------------------------------------------------------------------------------


class WorkerDied(Exception):
    """The process ended; the message says what it left."""


class Worker:
    """A process that runs inputs; it is started when it is needed, and again after it died."""

    def __init__(self, extra: Sequence[Target] = (), wall: float = WALL) -> None:
        self._context = multiprocessing.get_context("spawn")  # the caller may have threads
        self._process: Any = None
        self._extra, self._wall = list(extra), wall
        self._folder = tempfile.TemporaryDirectory()
        self._log = os.path.join(self._folder.name, "log")
        self.current = self._context.RawValue("q", 0)
        self.n_served = 0

    def ask(self, name: str, what: Any) -> Any:
        """The answer to a request. Raises WorkerDied."""
        if self._process is None:
            self._connection, other = self._context.Pipe()
            arguments = (other, self.current, self._log, self._extra, self._wall)
            self._process = self._context.Process(target=serve, args=arguments, daemon=True)
            self._process.start()
            other.close()
            self.n_served = 0
        try:
            self._connection.send((name, what))
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self._process = None
            with open(self._log, encoding="utf-8", errors="replace") as file:
                text = file.read()
            raise WorkerDied(f"{self._kind(code, text)}\n{text[-6000:]}") from None

    @staticmethod
    def _kind(code: int, log: str) -> str:
        """What ended the process, and the innermost place in the library that its log names."""
        how = "hang" if "Timeout (" in log else f"exit code {code}"
        frames = [
            line
            for line in log.splitlines()
            if "oxillama" in line and '", line' in line and "tests" not in line
        ]
        place = (
            frames[0].split('"')[1].rpartition("/")[2] + ":" + frames[0].rpartition(" in ")[2]
            if frames
            else "?"
        )
        return f"{how} in {place}"

    def close(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._folder.cleanup()


def outcome_of(worker: Worker, name: str, value: Any) -> Finding | None:
    """Runs one input; what was found, if anything."""
    try:
        _, found = worker.ask(name, [value])
    except WorkerDied as error:
        kind, _, details = str(error).partition("\n")
        return Finding(kind, details, value)
    return found[0] if found else None


def fuzz(
    worker: Worker,
    target: Target,
    *,
    runs: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    start: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Report:
    """Runs the corpus, then mutants of it: so many inputs, or for so many seconds."""
    report, began, index = Report(target.name), time.monotonic(), start
    while (runs is None or index - start < runs) and (seconds is None or time.monotonic() - began < seconds):
        n = BATCH if runs is None else min(BATCH, runs - (index - start))
        if worker.n_served > LIFE:
            worker.close()
        try:
            counts, found = worker.ask(target.name, (seed, index, n))
            worker.n_served += n
            index += n
        except WorkerDied as death:
            guilty = worker.current.value
            try:  # what became of those before it was lost
                counts, found = worker.ask(target.name, (seed, index, guilty - index))
            except WorkerDied:
                counts, found = Counter({"before a crash": guilty - index}), []
            index = guilty + 1
            value = target.make(target.corpus(), seed, guilty)
            again = outcome_of(worker, target.name, value)
            if again is None:  # not this input alone
                counts["died, not again"] += 1
                tell(f"{target.name}: input {guilty} of seed {seed} died, but not alone: {death}"[:3000])
            else:
                found.append(again)
        report.counts.update(counts)
        for finding in found:
            if finding.kind not in report.findings:
                tell(f"{target.name}: {finding.kind}")
            report.add(finding)
    report.seconds = time.monotonic() - began
    return report


def minimize(worker: Worker, target: Target, finding: Finding, tries: int = 300) -> None:
    """Makes the input of a finding as small as it easily gets."""
    if finding.kind.startswith(("hang", "time")):
        tries = 12
    first = outcome_of(worker, target.name, finding.value)
    if first is None or first.kind != finding.kind:
        return  # needs what came before it

    def fails(value: Any) -> bool:
        now = outcome_of(worker, target.name, value)
        return now is not None and now.kind == finding.kind

    finding.value = minimized(finding.value, fails, tries)


def save(finding: Finding, target: str, folder: Path) -> Path:
    """Writes the input and what it did."""
    text = json.dumps(finding.value)
    path = folder / target / f"{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_suffix(".txt").write_text(
        f"{finding.kind}\n{finding.details}\n", encoding="utf-8", errors="replace"
    )
    return path


def kept(found: Report) -> Iterator[Finding]:
    """The findings, the most frequent first."""
    yield from sorted(found.findings.values(), key=lambda finding: -finding.count)
