"""Measures the peak rates of the machine, and the rates that a model reaches."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from oxillama._kernels import Kernels
from oxillama._kernels.machine import team
from oxillama._kernels.memory import aligned_empty
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.apps.bench.kernel_calls import PRODUCTS, KernelCalls, counted_kernels
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.machine import Machine, Shares, read_cpu_time, shares

LEAST_BYTES = 96 << 20
"""Minimum number of bytes to read; more if a quarter of them would fit the caches."""
PEAK_ROUNDS = 40_000  # some milliseconds
ROUNDS = 5

PROMPT_TOKENS, NEW_TOKENS, MODEL_ROUNDS = 128, 16, 3


@dataclass(frozen=True)
class Rates:
    """Peak rates of the machine with a number of threads.

    Attributes:
        read: bytes/s of a plain read of memory.
        products, float_products: int8 and float32 multiply-adds/s from registers.
    """

    threads: int
    read: float
    products: float
    float_products: float


@dataclass(frozen=True)
class ModelRates:
    """Rates that a model reaches, as medians.

    Attributes:
        threads: threads of the kernels.
        prefill, decode: tokens/s, without the time for counting calls.
        bytes_per_token: packed weights that a decode step reads.
        macs_per_token: multiply-adds with weights for a prompt token.
        float_share: share of these multiply-adds whose weights are floats.
        kernel_calls: number of kernel calls of a decode step.
        outside: share of a decode step's time outside kernels, 0 to 1.
        other_kernels: share of a decode step's time in kernels without weights.
    """

    threads: int
    prefill: float
    decode: float
    bytes_per_token: float
    macs_per_token: float
    float_share: float
    kernel_calls: int
    outside: float
    other_kernels: float

    def share_of_read(self, rates: Rates) -> float:
        """The bandwidth that decoding reaches, relative to a plain read."""
        return self.decode * self.bytes_per_token / rates.read

    def share_of_products(self, rates: Rates) -> float:
        """The time of a prompt's multiply-adds at peak rates, relative to the actual prefill time."""
        floats = self.float_share / rates.float_products + (1 - self.float_share) / rates.products
        return self.prefill * self.macs_per_token * floats


def thread_counts(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n."""
    return [1 << i for i in range((n - 1).bit_length())] + [n]


def buffer_bytes(machine: Machine) -> int:
    """Bytes to read for the bandwidth: many times the caches, but at most an eighth of the free memory."""
    wanted = max(LEAST_BYTES, 4 * (machine.cache or 0))
    free = machine.free_memory
    return max(1 << 20, wanted if free is None else min(wanted, free // 8)) // 256 * 256


def measure_rates(
    kernels: Kernels, counts: Sequence[int], n_bytes: int, rounds: int = ROUNDS
) -> tuple[list[Rates], Shares | None]:
    """Peak rates for each number of threads, and the processor time lost to others meanwhile.

    One thread initializes the memory that is read, so with several NUMA nodes and the default policy all of
    it is on one node.
    """
    data = aligned_empty(n_bytes)
    data[:] = 1
    roofline = kernels.roofline

    def wake(n: int) -> None:
        roofline.integer_products(PEAK_ROUNDS // 4, n)
        team.spread(n)

    def measure() -> list[Rates]:
        found = []
        for n in counts:
            wake(n)
            read = [n_bytes / seconds(partial(roofline.read_bytes, data, n)) for _ in range(rounds)]
            wake(n)
            peaks = [peak(work, n, rounds) for work in (roofline.integer_products, roofline.float_products)]
            found.append(Rates(n, statistics.median(read), *peaks))
        return found

    before, start = read_cpu_time(), time.perf_counter()
    rates = in_openmp_thread(measure)
    return rates, shares(before, read_cpu_time(), time.perf_counter() - start)


def measure_peak(kernels: Kernels, n_threads: int) -> float:
    """int8 multiply-adds/s of a target."""
    return in_openmp_thread(lambda: peak(kernels.roofline.integer_products, n_threads, ROUNDS))


def peak(products: Callable[[int, int], int], n_threads: int, rounds: int) -> float:
    """Median multiply-adds/s of a function of `RooflineModule`."""
    work = products(PEAK_ROUNDS // 4, n_threads) / (PEAK_ROUNDS // 4) * PEAK_ROUNDS
    return work / statistics.median(seconds(lambda: products(PEAK_ROUNDS, n_threads)) for _ in range(rounds))


def seconds(work: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_model(path: str | os.PathLike[str], num_threads: int) -> ModelRates:
    """Load a model, run a prompt of `PROMPT_TOKENS` tokens, and decode `NEW_TOKENS` more, several times.

    Raises the errors of loading and running a model.
    """
    from oxillama import EngineConfig, InferenceEngine

    prefill, decode = [], []
    with counted_kernels() as calls:
        config = EngineConfig(
            model_path=path, num_threads=num_threads, context_size=PROMPT_TOKENS + NEW_TOKENS
        )
        with InferenceEngine(config) as engine:
            with engine.session() as session:
                n_vocab = len(session.prefill([1]))
            prompt, new = fixed_tokens(PROMPT_TOKENS, n_vocab), fixed_tokens(NEW_TOKENS, n_vocab)
            for _ in range(1 + MODEL_ROUNDS):
                with engine.session() as session:
                    prefill.append(step(calls, partial(session.prefill, prompt)))
                    decode.append([step(calls, partial(session.forward, token)) for token in new])
    prompts, steps = prefill[1:], [found for round_ in decode[1:] for found in round_]
    median = statistics.median
    n_bytes = statistics.mean(found.bytes for found in steps)
    step_seconds = median(found.seconds for found in steps)
    prefill_seconds = median(found.seconds for found in prompts)
    return ModelRates(
        threads=num_threads,
        prefill=PROMPT_TOKENS / prefill_seconds,
        decode=1 / step_seconds,
        bytes_per_token=n_bytes,
        macs_per_token=prompts[0].macs / PROMPT_TOKENS,
        float_share=prompts[0].float_macs / prompts[0].macs,
        kernel_calls=steps[0].calls,
        outside=median(1 - found.in_kernels / found.seconds for found in steps),
        other_kernels=median((found.in_kernels - found.in_products) / found.seconds for found in steps),
    )


@dataclass(frozen=True)
class StepCost:
    """The cost of one pass.

    Attributes:
        seconds: time without the time for counting.
        in_kernels, in_products: seconds in all kernels, and in products with weights.
        calls: number of kernel calls.
        bytes, macs: packed weights and multiply-adds of the products.
        float_macs: multiply-adds whose weights are floats.
    """

    seconds: float
    in_kernels: float
    in_products: float
    calls: int
    bytes: int
    macs: int
    float_macs: int


def step(calls: KernelCalls, work: Callable[[], object]) -> StepCost:
    """Run one pass of an engine with counted kernels."""
    calls.clear()
    taken = seconds(work) - calls.added
    return StepCost(
        taken,
        calls.in_kernels,
        calls.of(PRODUCTS),
        sum(calls.counts.values()),
        sum(product.bytes for product in calls.products),
        sum(product.macs for product in calls.products),
        sum(product.macs for product in calls.products if product.is_float),
    )


def weight_bytes(path: str | os.PathLike[str]) -> int:
    """The bytes of a model's packed weights in memory. Raises the errors of opening a model file."""
    from oxillama.gguf.model_file import ModelFile
    from oxillama.models.preflight import preflight

    with ModelFile.open(path) as file:
        return preflight(file).weight_bytes or file.file_size
