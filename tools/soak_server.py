"""Has 64 clients use one server for an hour, and looks for leaks, wrong texts and wrong counters.

    python tools/soak_server.py [--minutes 60] [--clients 64] [--hostile]

The server is a child process that keeps at most two of its three models loaded, so the second and the third
are loaded and unloaded all the time. The clients have keys, two of which exceed their limits again and again.
A twentieth of the clients disconnect before their text ends. The exit code is 0 if

- each text is equal to the text of an engine that runs the request alone;
- a refused request has the status 429 and a Retry-After;
- the first model's counters in `/metrics` are the sums of the usages in its answers, even if the model was
  unloaded (clients that disconnect get no usage; they use the other models);
- the memory of the process does not grow after the first quarter;
- in the end no request runs or waits, no connection is open, and the log has no traceback.

With `--hostile` the server has HTTPS and tool servers, of which one answers and four hang, flood or end.
After a tenth of the time hostile clients join (`tools/soak_hostile.py`): half-open handshakes, chats with
tools whose clients read slowly and leave, calls of tools that never end. A process of its own asks for
`/health` all the time: the median of its times, and their 99th percentile, may be 50 ms above those of the
first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.server_load import Job, make_jobs, text_of
from oxillama import demo
from tools import soak_hostile

MODELS = {"main": demo.STORY, "second": demo.STORY, "third": demo.DRAFT}
"""The server keeps two of them loaded. Most requests name the first."""

OTHERS = 0.12
"""Share of the requests that name one of the other models."""

LEAVES = 0.05
"""Share of the requests whose client disconnects."""

KEYS = {
    "plenty": "running=24 waiting=64",
    "narrow": "running=4 waiting=4",
    "counted": "tokens=6000",
    "operator": "admin",
    "hostile": "running=16",
}
SHARES = (30, 18, 15, 1)
"""Of 64 clients, the number with each key."""

OPEN = 8
"""The number of open descriptors that the process may have gained in the end."""

GROWTH = 16 << 20
"""Bytes by which the process may grow after the first quarter."""

CACHE = 32 << 20
"""Bytes of a model's prefix cache: it is full within the first quarter, and does not look like a leak."""

WATCH_SECONDS = 2.0


@dataclass
class Found:
    """Results of a run.

    Attributes:
        seen: the number of requests by their outcome.
        usage: sums of the usages in answers of the first model: tokens of prompts, cached tokens, tokens of
        texts; and the number of answers.
        sizes: seconds since the start, and resident bytes of the process.
        faults: the first texts of failed checks.
    """

    seen: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.seen["fault"] += 1
        if len(self.faults) < 10:
            self.faults.append(text[:2000])


class Clients:
    """The clients of a server, in one event loop."""

    def __init__(
        self,
        port: int,
        pid: int,
        jobs: dict[str, list[Job]],
        seed: int,
        end: float,
        secure: ssl.SSLContext | None,
    ) -> None:
        self.port, self.pid, self.jobs, self.end, self.secure = port, pid, jobs, end, secure
        self.rng, self.found = random.Random(seed), Found()

    async def run(self, n: int) -> Found:
        """Has ``n`` clients send requests until the end."""
        shares = [((i + 0.5) / share, key) for key, share in zip(KEYS, SHARES) for i in range(share)]
        names = [key for _, key in sorted(shares)]  # mixes the keys evenly, for any number of clients
        watching = asyncio.ensure_future(self._watch())
        await asyncio.gather(*(self._client(names[i % len(names)]) for i in range(n)))
        await watching
        return self.found

    async def _watch(self) -> None:
        """Records the memory of the process, and asks for `/health`, every few seconds."""
        began, printed = time.monotonic(), 0.0
        while time.monotonic() < self.end:
            seconds = time.monotonic() - began
            self.found.sizes.append((seconds, resident(self.pid)))
            status, _, _ = await self._ask("GET", "/health", None, "")
            if status != 200:
                self.found.fault(f"/health: {status}")
            if seconds >= printed:
                size = self.found.sizes[-1][1] / 2**20
                print(f"{seconds / 60:.0f} min, {size:.1f} MB, {dict(self.found.seen)}", flush=True)
                printed += 60
            await asyncio.sleep(WATCH_SECONDS)

    async def _client(self, key: str) -> None:
        while time.monotonic() < self.end:
            try:
                await self._one(key)
            except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
                self.found.fault(f"{key}: {error!r}")
                await asyncio.sleep(0.1)

    async def _one(self, key: str) -> None:
        """Sends a request and checks its answer."""
        rng, found = self.rng, self.found
        leaves = rng.random() < LEAVES
        model = rng.choice(["second", "third"]) if leaves or rng.random() < OTHERS else "main"
        job = rng.choice(self.jobs[model])
        body: dict[str, Any] = {**job.body, "model": model}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        after = rng.choice([0, 1, 2, 5]) if leaves else None
        status, headers, lines = await self._ask("POST", "/v1/completions", body, key, after)
        if lines is None:
            found.seen["left"] += 1
        elif status == 429:
            found.seen[f"429 {key}"] += 1
            seconds = headers.get("retry-after", "")
            if not (seconds.isdigit() and int(seconds) >= 1):
                found.fault(f"a 429 without Retry-After: {headers}")
            await asyncio.sleep(min(5.0, float(seconds or 1)) * rng.random())
        elif status != 200:
            found.fault(f"{status} {model} {body}: {lines!r}")
        else:
            self._check(model, job, lines)

    def _check(self, model: str, job: Job, lines: list[bytes]) -> None:
        parts = [line.removeprefix(b"data: ") for line in lines]
        kept = [part for part in parts if part.startswith(b"{")]
        text = "".join(map(text_of, kept))
        if text != job.text:
            self.found.fault(f"{model} {job.body}: expected {job.text!r}, got {text!r}")
        usage = json.loads(kept[-1]).get("usage")
        if usage is None:
            return self.found.fault(f"{model} {job.body}: no usage at the end: {lines[-4:]!r}")
        self.found.seen[f"read {model}"] += 1
        if model == "main":
            self.found.usage["prompt_tokens"] += usage["prompt_tokens"]
            self.found.usage["generation_tokens"] += usage["completion_tokens"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.found.usage["cached_prompt_tokens"] += cached
            self.found.usage["request_success"] += 1

    async def _ask(
        self, method: str, path: str, body: Any, key: str, leaves: int | None = None
    ) -> tuple[int, dict[str, str], list[bytes] | None]:
        """Status, headers and lines of an answer; None as lines if the client disconnects before the end."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.secure)
        try:
            writer.write(head.encode() + data)
            if leaves == 0:
                await asyncio.sleep(self.rng.random() / 20)
                return 0, {}, None
            status = int((await reader.readline()).split()[1])
            headers = {}
            while line := (await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            lines: list[bytes] = []
            async for line in reader:
                lines.append(line.strip())
                if leaves is not None and len(lines) >= leaves:
                    return status, headers, None
            return status, headers, lines
        finally:
            writer.close()


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> int:
    """The number of descriptors that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def counters(port: int, secure: ssl.SSLContext | None) -> dict[str, float]:
    """The counters and gauges of the first model, by name, summed over other labels."""
    scheme, head = "http" if secure is None else "https", {"Authorization": "Bearer operator"}
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}/metrics", headers=head)
    with urllib.request.urlopen(request, context=secure) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for name, labels, value in re.findall(r"^oxillama:(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        if 'model_name="main"' in labels:
            found[name.removesuffix("_total")] += float(value)
    return dict(found)


def growth(sizes: list[tuple[float, int]]) -> tuple[float, float]:
    """Bytes by which the process has grown after the first quarter, and bytes a minute (least squares).

    Models and caches come and go within minutes and take more memory than a leak; leaked memory stays. So the
    low of the first third of the sizes is compared with the low of the last third (a tenth of the sizes is
    lower).
    """
    late = sizes[len(sizes) // 4 :]
    third = max(1, len(late) // 3)
    first, last = (sorted(size for _, size in part)[third // 10] for part in (late[:third], late[-third:]))
    n = len(late)
    x, y = sum(t for t, _ in late) / n, sum(size for _, size in late) / n
    spread = sum((t - x) ** 2 for t, _ in late) or 1.0
    return last - first, 60 * sum((t - x) * (size - y) for t, size in late) / spread


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="(default: %(default)s)")
    parser.add_argument("--clients", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=150, help="different requests (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hostile", action="store_true", help="HTTPS, tool servers and hostile clients, too")
    args = parser.parse_args()
    made = {demo.STORY: make_jobs(demo.STORY, args.jobs, args.seed)}
    made[demo.DRAFT] = make_jobs(demo.DRAFT, args.jobs, args.seed)
    jobs = {name: made[path] for name, path in MODELS.items()}
    with tempfile.TemporaryDirectory() as folder:
        return soak(Path(folder), args, jobs)


def soak(folder: Path, args: argparse.Namespace, jobs: dict[str, list[Job]]) -> int:
    """Runs the server and the clients. Returns 1 if a check fails."""
    keys, log = folder / "keys", folder / "log"
    keys.write_text("".join(f"{key} name={key} {words}\n" for key, words in KEYS.items()))
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0"]
    models = {**({"tools": demo.STORY} if args.hostile else {}), **MODELS}
    command += [part for name, path in models.items() for part in ("--model", f"{name}={path}")]
    command += ["--models-max", str(len(models) - 1)]
    command += ["--api-key-file", str(keys), "--quiet", "--threads", "1"]
    command += ["--prefix-cache-bytes", str(CACHE)]
    secure = hostile = None
    if args.hostile:
        secure = ssl._create_unverified_context()
        command += soak_hostile.options(folder)
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        port = port_of(server.pid, log, secure)
        n_open = descriptors(server.pid)
        seconds = 60 * args.minutes
        if args.hostile:
            hostile = soak_hostile.Hostile(port, seconds / 10, seconds, args.seed)
        clients = Clients(port, server.pid, jobs, args.seed, time.monotonic() + seconds, secure)
        found = asyncio.run(clients.run(args.clients))
        faults = [] if hostile is None else hostile.ended()
        now = settled(port, secure)
        n_left = descriptors(server.pid) - n_open
    finally:
        if hostile is not None:
            hostile.stop()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    faults += [*found.faults, *compared(found, now)]
    grown, slope = growth(found.sizes)
    if grown > GROWTH:
        faults.append(f"the process has grown by {grown / 2**20:.1f} MB")
    if n_left > OPEN + (soak_hostile.OPEN if args.hostile else 0):
        faults.append(f"{n_left} descriptors more are open than before the first client")
    if "Traceback" in log.read_text("utf-8", "replace"):
        faults.append(log.read_text("utf-8", "replace")[-3000:])
    n = sum(found.seen.values())
    print(f"{n} requests of {args.clients} clients in {args.minutes:g} minutes: {dict(found.seen)}")
    size = found.sizes[-1][1] / 2**20
    print(
        f"memory: {size:.1f} MB, grown by {grown / 2**20:.1f} MB after a quarter, {slope / 1024:.1f} kB/min"
    )
    print(f"descriptors: {n_left} more than before the first client")
    print(f"usages in answers: {dict(found.usage)}")
    print("\n".join(faults) or "no faults")
    return int(bool(faults))


def port_of(pid: int, log: Path, secure: ssl.SSLContext | None) -> int:
    """The port that a server listens at, once its default model is loaded."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        for port in listening_ports(pid):
            try:
                scheme = "http" if secure is None else "https"
                with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/health", context=secure) as answer:
                    if answer.status == 200:
                        return port
            except OSError:
                pass
        time.sleep(0.1)
    raise SystemExit(f"the server does not start: {log.read_text()}")


def listening_ports(pid: int) -> list[int]:
    """The ports at which a process listens (Linux)."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()))
        except OSError:
            continue
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            found.append(int(words[1].rpartition(":")[2], 16))
    return found


def settled(port: int, secure: ssl.SSLContext | None) -> dict[str, float]:
    """The counters once no request runs any more."""
    deadline = time.monotonic() + 30
    while True:
        now = counters(port, secure)
        if not now["num_requests_running"] + now["num_requests_waiting"] or time.monotonic() > deadline:
            return now
        time.sleep(0.2)


def compared(found: Found, now: dict[str, float]) -> list[str]:
    """Differences between the counters and the usages."""
    faults = []
    for name in ("prompt_tokens", "cached_prompt_tokens", "generation_tokens", "request_success"):
        if now[name] != found.usage[name]:
            faults.append(f"{name}: expected {found.usage[name]} as in the usages, got {now[name]:g}")
    for name in ("num_requests_running", "num_requests_waiting"):
        if now[name]:
            faults.append(f"{name}: expected 0, got {now[name]:g}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
