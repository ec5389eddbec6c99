"""Quantizers side by side, ours and llama.cpp's: errors on matrices, and the demo model's perplexity.

    python -m benchmarks quantizers

Both get the same weights and the same importance. Perplexity is that of oxillama on either file, over the
held-out stories of the demo; the importance is collected on stories that the model tells itself. Each of our
files is also loaded and run by llama.cpp.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from oxillama import ImportanceMatrix, SamplerConfig, collect_imatrix, demo, quantize_model
from oxillama._kernels import best, pack
from oxillama.apps.bench.report import Metric, Row, Summary
from oxillama.apps.doctor.measure import seconds
from oxillama.base.formats import FORMATS, WRITABLE
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError
from oxillama.gguf.file_types import FILE_TYPES, FLOATS, UNWEIGHTED
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights.requantize import quantized

ROWS, COLS = 64, 1024
FORMATS_COMPARED = [name for name in WRITABLE if name not in (*FLOATS, "Q2_0_G128")]
TYPES_COMPARED = [name for name in FILE_TYPES if name not in ("F32", "Q2_0_G128", "NVFP4")]


ERROR = Metric("relative error", "1", higher_is_better=False)
SPEED = Metric("quantizing", "ns/weight", higher_is_better=False)
PERPLEXITY = Metric("perplexity", "1", higher_is_better=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, metavar="FILE", help="write llama.cpp's errors, for the tests")
    parser.add_argument("--errors-only", action="store_true", help="leave the perplexities out")
    runs.add_threads(parser)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print both tables."""
    whole = runs.Run(args, "threads", engines=("oxillama", "llama.cpp"), rows=ROWS, columns=COLS)
    peer = Peer()
    results: list[Row] = []
    recorded = compare_errors(whole, peer, results)
    if args.record is not None:
        args.record.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    if not args.errors_only:
        compare_perplexities(peer, args.threads, results)
    print()
    return whole.finish(results)


def matrices() -> Iterator[tuple[str, np.ndarray]]:
    """float32 (ROWS, COLS) by name: Gaussian, heavy-tailed (Student's t, 4 degrees of freedom)."""
    rng = np.random.default_rng(20)
    yield "Gaussian", (0.02 * rng.standard_normal((ROWS, COLS))).astype(np.float32)
    yield "heavy-tailed", (0.02 * rng.standard_t(4, (ROWS, COLS))).astype(np.float32)


def importance() -> np.ndarray:
    """float32 (COLS,) over some five powers of ten, as activations of real models have."""
    values = np.random.default_rng(21).standard_gamma(1.0, COLS) ** 2
    return (values / values.mean() + 1e-6).astype(np.float32)


def relative_error(name: str, blocks: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """Root of the weighted squared error of quantized rows, relative to the weighted square of the rows."""
    values = np.empty(x.shape, np.float32)
    pack.dequantize(FORMATS[name].id, blocks.reshape(-1), values)
    x64 = x.astype(np.float64)
    return float(np.sqrt((weights * (values - x64) ** 2).sum() / (weights * x64**2).sum()))


class Peer:
    """llama.cpp's quantizers, through llama-cpp-python."""

    def __init__(self) -> None:
        try:
            import llama_cpp
        except ImportError as error:
            raise ConfigError("llama.cpp: expected the package llama-cpp-python, got none") from error
        self.api = llama_cpp
        library = ctypes.CDLL(next(str(p) for p in Path(llama_cpp.__file__).parent.rglob("*ggml-base.*")))
        self.chunk = library.ggml_quantize_chunk
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self.chunk.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
        self.chunk.restype = ctypes.c_size_t
        self._silence = self.api.llama_log_callback(lambda level, text, data: None)
        self.api.llama_log_set(self._silence, pointer(0))

    def quantize(self, name: str, x: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """uint8 blocks of float32 (rows, cols)."""
        rows, cols = x.shape
        out = np.zeros(rows * FORMATS[name].nbytes(cols), np.uint8)
        data = None if weights is None else weights.ctypes.data
        self.chunk(FORMATS[name].id, x.ctypes.data, out.ctypes.data, 0, rows, cols, data)
        return out

    def quantize_model(
        self, source: Path, target: Path, file_type: str, pure: bool, imatrix: ImportanceMatrix | None
    ) -> None:
        """Writes a file with `llama_model_quantize`."""
        api: Any = self.api
        params = api.llama_model_quantize_default_params()
        params.ftype, params.pure, params.nthread = FILE_TYPES[file_type].id, pure, 2
        kept = []
        if imatrix is not None:
            for name, entry in imatrix.entries.items():
                kept.append((name.encode(), np.ascontiguousarray(entry.sums / entry.counts[:, None])))
            items = (api.llama_model_imatrix_data * (len(kept) + 1))()
            for item, (name, means) in zip(items, kept):
                item.name, item.size = name, means.size
                item.data = means.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            params.imatrix = items
        if api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
            raise ConfigError(f"llama.cpp: cannot make {file_type} of {source}")

    def logits(self, model: Path, tokens: list[int]) -> np.ndarray:
        """float32 (n, vocab) of a file it loads."""
        llama = self.api.Llama(str(model), n_ctx=512, n_threads=2, logits_all=True, verbose=False)
        llama.eval(tokens)
        found = np.array(llama.scores[: len(tokens)])
        llama.close()
        return found


def compare_errors(whole: runs.Run, peer: Peer, results: list[Row]) -> dict[str, dict[str, float]]:
    """Print errors, ours and the peer's, and append them to ``results``; the peer's by format and case."""
    recorded: dict[str, dict[str, float]] = {}
    quantized(best(), next(matrices())[1], FORMATS["Q4_0"], None)  # starts the threads
    print(f"relative error of a {ROWS} x {COLS} matrix; with an importance, weighted by it\n")
    print("| format | weights | importance | oxillama | llama.cpp | ratio | ns/weight | llama.cpp |")
    print("|---|---|---|---|---|---|---|---|")
    for name in FORMATS_COMPARED:
        recorded[name] = {}
        for kind, x in matrices():
            for weights in (None, importance()):
                by = np.ones(COLS) if weights is None else weights
                work = {
                    "oxillama": partial(quantized, best(), x, FORMATS[name], weights),
                    "llama.cpp": partial(peer.quantize, name, x, weights),
                }
                errors = {who: relative_error(name, make(), x, by) for who, make in work.items()}
                turns = {who: partial(per_weight, make, x.size) for who, make in work.items()}
                case = "no" if weights is None else "yes"
                recorded[name][f"{kind}, {case}"] = errors["llama.cpp"]
                label = f"{name}, {kind}, importance: {case}"
                found = [Row(label, ERROR, {who: [error] for who, error in errors.items()})]
                found += whole.rows(turns, [SPEED], label)
                results += found
                mine, theirs = errors.values()
                a, b = (Summary.of(samples).median for samples in found[1].samples.values())
                print(f"| {name} | {kind} | {case} | {mine:.5f} | {theirs:.5f} |", end="")
                print(f" {mine / theirs:.4f} | {a:.0f} | {b:.0f} |", flush=True)
    return recorded


def per_weight(make: Callable[[], object], n_weights: int) -> dict[str, float]:
    """Nanoseconds of a weight when a matrix of so many is quantized."""
    return {SPEED.name: seconds(make) / n_weights * 1e9}


def perplexity(path: Path, threads: int) -> float:
    """The perplexity of the held-out stories, as `demo.PERPLEXITY` describes."""
    recorded = json.loads(demo.PERPLEXITY.read_text())
    engine = InferenceEngine.from_gguf(path, num_threads=threads)
    losses: list[float] = []
    for document in demo.HELDOUT.read_text(encoding="utf-8").split(recorded["separator"]):
        ids = [recorded["bos"], *engine.tokenize(document, add_special=False), recorded["eos"]]
        logits = engine.logits(ids[:-1]).astype(np.float64)
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        losses += (total - logits[np.arange(len(logits)), ids[1:]]).tolist()
    return float(np.exp(np.mean(losses)))


def own_stories(path: Path, count: int = 12) -> str:
    """Stories the model tells."""
    engine = InferenceEngine.from_gguf(path)
    prompts = demo.PROMPTS
    told = []
    for seed in range(count):
        prompt = prompts[seed % len(prompts)]
        told.append(prompt + engine.generate(prompt, sampler=SamplerConfig(seed=seed), max_tokens=300))
    return "\n\n".join(told)


def formats_of(path: Path) -> dict[str, str]:
    """The format of each tensor."""
    with ModelFile.open(path) as file:
        return {name: info.format.name for name, info in file.tensors.items()}


def compare_perplexities(peer: Peer, threads: int, results: list[Row]) -> None:
    """Print the perplexity of the demo model in every file type, quantized by either."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, mine, theirs = folder / "f16.gguf", folder / "mine.gguf", folder / "theirs.gguf"
        quantize_model(demo.STORY, source, "F16", allow_requantize=True)
        text = folder / "stories.txt"
        text.write_text(own_stories(source), encoding="utf-8")
        imatrix = collect_imatrix(source, text, chunk_size=256, num_threads=threads)
        print(f"\nperplexity of the demo model; F16: {perplexity(source, threads):.4f}\n")
        print("| type | importance | oxillama | llama.cpp | ratio | formats equal | runs in llama.cpp |")
        print("|---|---|---|---|---|---|---|")
        cases = [(t, False) for t in TYPES_COMPARED]
        cases += [(t, True) for t in ("Q3_K_S", "Q4_K_S", "Q5_K_S", "Q2_K", "Q6_K", "Q4_0")]
        for file_type, pure in cases:
            for weights in (None, imatrix):
                if weights is not None and FILE_TYPES[file_type].base in UNWEIGHTED:
                    continue
                try:
                    peer.quantize_model(source, theirs, file_type, pure, weights)
                except ConfigError:
                    if weights is not None:
                        raise
                    continue  # a type that llama.cpp writes with an importance matrix alone
                quantize_model(source, mine, file_type, imatrix=weights, pure=pure, num_threads=threads)
                found = [perplexity(path, threads) for path in (mine, theirs)]
                tokens = [1, *range(100, 160)]
                ours = InferenceEngine.from_gguf(mine, num_threads=threads).logits(tokens).ravel()
                other = peer.logits(mine, tokens).ravel()
                cosine = float(ours @ other / np.linalg.norm(ours) / np.linalg.norm(other))
                label = f"{file_type} pure" if pure else file_type
                samples = {who: [value] for who, value in zip(("oxillama", "llama.cpp"), found)}
                same = "yes" if formats_of(mine) == formats_of(theirs) else "no"
                runs = f"cosine of logits {cosine:.5f}"
                case = "no" if weights is None else "yes"
                results.append(Row(f"{label}, importance: {case}", PERPLEXITY, samples))
                print(f"| {label} | {case} | {found[0]:.4f} | {found[1]:.4f} |", end="")
                print(f" {found[0] / found[1]:.4f} | {same} | {runs} |", flush=True)
