"""What a pipeline of several machines gives, computed by a formula and checked by a simulation.

    python tools/simulate_pipeline.py [--bandwidth GB/s] [--rate GMAC/s] [--hop US]

A pass of n rows takes a stage max(bytes / bandwidth, n macs / rate) seconds: it reads the weights of its
layers once, or multiplies. Between two stages n rows of float32 hidden states take a hop and the time of
their bytes on the network. With as many batches under way as stages, each of n rows, every stream gets a
token in each cycle of

    max(S max_s t_s, sum_s t_s + S hop) seconds.

The simulation runs the batches through the stages one event after another and knows nothing of the formula.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass

GIGABIT = {"1 GbE": 0.117e9, "10 GbE": 1.17e9}
"""Bytes a second that a network carries."""
CHUNK = 512  # tokens of a prompt in a pass


@dataclass(frozen=True)
class Shape:
    """A model.

    Attributes
    ----------
    n_bytes : of all weights; those of experts apart, which a token uses ``used`` of ``n_experts`` of.
    macs : multiplications of a token.
    """

    name: str
    n_layers: int
    width: int
    n_bytes: float
    macs: float
    expert_bytes: float = 0
    n_experts: int = 1
    used: int = 1

    def read(self, rows: int) -> float:
        """Bytes that a pass of some rows reads: of experts those that any of the rows uses."""
        missed = (1 - self.used / self.n_experts) ** rows if self.expert_bytes else 0.0
        return self.n_bytes + self.expert_bytes * (1 - missed)


SHAPES = (
    Shape("8B", 32, 4096, 4.9e9, 7.5e9),
    Shape("70B", 80, 8192, 42.5e9, 69e9),
    Shape("400B, 17B used", 48, 5120, 8.5e9, 17e9, 235e9, 128, 1),
)
"""At about 4.8 bits a weight; the last with 128 experts in every second layer, of which a token uses one."""


@dataclass(frozen=True)
class Machines:
    """Machines of one kind.

    Attributes
    ----------
    bandwidth, rate : bytes and multiplications a second of one machine.
    hop, network : seconds to the next machine, and bytes a second between two.
    """

    n: int
    bandwidth: float
    rate: float
    hop: float
    network: float

    def stage(self, shape: Shape, rows: int) -> float:
        """Seconds of a pass in one stage, the layers being divided evenly."""
        return max(shape.read(rows) / self.bandwidth, rows * shape.macs / self.rate) / self.n

    def way(self, shape: Shape, rows: int) -> float:
        """Seconds from one stage to the next."""
        return 0.0 if self.n == 1 else self.hop + 4 * rows * shape.width / self.network


def by_formula(shape: Shape, machines: Machines, streams: int) -> float:
    """Tokens a second of all streams."""
    batches = min(machines.n, streams)
    rows = -(-streams // batches)
    stage, way = machines.stage(shape, rows), machines.way(shape, rows)
    return streams / max(batches * stage, machines.n * (stage + way))


def simulated(shape: Shape, machines: Machines, streams: int, rounds: int = 40) -> float:
    """Tokens a second of all streams, by running batches from stage to stage."""
    batches = min(machines.n, streams)
    sizes = [streams // batches + (i < streams % batches) for i in range(batches)]
    free = [0.0] * machines.n  # when each stage is
    events = [(0.0, batch, 0) for batch in range(batches)]
    done = [0] * batches
    begun = end = 0.0
    while events:
        at, batch, stage = heapq.heappop(events)
        start = max(at, free[stage])
        over = free[stage] = start + machines.stage(shape, sizes[batch])
        following = over + machines.way(shape, sizes[batch])
        if stage + 1 < machines.n:
            heapq.heappush(events, (following, batch, stage + 1))
            continue
        done[batch] += 1
        if batch == 0 and done[0] == rounds // 2:
            begun = over
        if batch == 0 and done[0] == rounds:
            end = over
        if done[batch] < rounds:
            heapq.heappush(events, (following, batch, 0))
    return streams * (rounds - rounds // 2) / (end - begun)


def first_token(shape: Shape, machines: Machines, tokens: int) -> float:
    """Seconds until the first token behind a prompt: its chunks pass the stages one after another."""
    chunks = [CHUNK] * (tokens // CHUNK) + ([tokens % CHUNK] if tokens % CHUNK else [])
    return sum(machines.n * (machines.stage(shape, n) + machines.way(shape, n)) for n in chunks)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for name, default, unit in (
        ("bandwidth", 200, "GB/s of a machine"),
        ("rate", 4000, "GMAC/s of a machine"),
        ("hop", 800, "microseconds of a hop"),
    ):
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{unit} (default: {default})")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens (default: %(default)s)")
    args = parser.parse_args()
    print("| model | machines | network | 1 stream | 8 streams | 64 streams | first token of the prompt, s |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for shape in SHAPES:
        for n in (1, 2, 4, 8, 16):
            for name, network in GIGABIT.items():
                machines = Machines(n, 1e9 * args.bandwidth, 1e9 * args.rate, 1e-6 * args.hop, network)
                speeds = []
                for streams in (1, 8, 64):
                    speeds.append(simulated(shape, machines, streams))
                    formula = by_formula(shape, machines, streams)
                    if streams % min(n, streams) == 0:
                        worst = max(worst, abs(formula / speeds[-1] - 1))
                found = " | ".join(f"{speed:.1f}" for speed in speeds)
                print(
                    f"| {shape.name} | {n} | {name if n > 1 else '-'} | {found} |"
                    f" {first_token(shape, machines, args.prompt):.1f} |"
                )
                if n == 1:
                    break
    print(f"\nThe formula and the simulation differ by at most {100 * worst:.1f}%.")


if __name__ == "__main__":
    main()
