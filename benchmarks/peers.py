"""The engines: this library and its peers, timed by the same code, in the same process.

`benchmarks.runner` says what an engine does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.runner import Logits, PromptRunner, Runner
from benchmarks.vllm import Vllm
from oxillama.base.config.checks import NO_DECODE_WAIT
from oxillama.base.formats import KV_PAIRS
from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.gguf.model_file import ModelFile


class OxiLlama(Runner):
    """This library, through its public interface."""

    name = "oxillama"
    kv_types = tuple(KV_PAIRS)
    packed = "off"
    compute = "int8"
    _config: Any = None
    _make: Any = None
    _engine: Any = None
    _session: Any = None

    def version(self) -> str:
        import oxillama

        return oxillama.__version__

    def _import(self) -> None:
        try:
            from oxillama import EngineConfig, InferenceEngine  # type: ignore[attr-defined]
        except ImportError as error:
            raise ConfigError(f"engine oxillama: cannot be imported, is it built? ({error})") from error
        self._config, self._make = EngineConfig, InferenceEngine

    def _open(self) -> None:
        self._engine = self._make(
            self._config(
                model_path=str(self.model),
                num_threads=self.threads,
                context_size=self.context,
                packed=self.packed,
                compute=self.compute,
                kv_type=self.kv_type,
            )
        )

    def clear(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._engine.session()

    def _forward(self, tokens: Sequence[int]) -> Logits:
        return self._session.prefill(tokens)  # type: ignore[no-any-return]

    def _forward_one(self, token: int) -> Logits:
        return self._session.forward(token)  # type: ignore[no-any-return]

    def job(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> float:
        options = {"temperature": 0.0, "ignore_eos": True}
        begun = self._clock()
        if len({*new}) == 1:
            self._engine.generate_batch(prompts, max_tokens=new[0], **options)
            return self._clock() - begun

        def generate(prompt: Sequence[int], n: int) -> None:  # as `generate_batch` begins each
            self._engine.generate(prompt, max_tokens=n, max_decode_wait_ms=NO_DECODE_WAIT, **options)

        with ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(generate, prompts, new))
        return self._clock() - begun

    def close(self) -> None:
        self._engine = self._session = None


class OxiLlamaPacked(OxiLlama):
    """This library with the packed file of the model, which it makes if there is none."""

    name = "oxillama-packed"
    packed = "make"


class OxiLlamaW8A8(OxiLlama):
    """This library with one scale per row of a matrix and per token."""

    name = "oxillama-w8a8"
    compute = "w8a8"


class OxiLlamaW8A8of128(OxiLlama):
    """This library with one scale for each 128 columns of both sides."""

    name = "oxillama-w8a8-128"
    compute = "w8a8-128"


class LlamaCpp(Runner):
    """llama.cpp through the C interface that llama-cpp-python wraps.

    Its defaults hold (mmap, weights repacked where it can), save that flash attention is asked for rather
    than left to its choice.
    """

    name = "llama.cpp"
    module, package = "llama_cpp", "llama-cpp-python"
    kv_types: Mapping[str, int] = MappingProxyType({"f16": 1, "bf16": 30, "q8_0": 8})  # ggml's numbers
    n_batch = 512
    """Most tokens in one call, and in one pass over the weights; llama.cpp's default for the latter."""

    n_seq_max = 1
    """Most sequences in its context."""

    _model: Any = None
    _context: Any = None

    def version(self) -> str:
        self._import()
        return f"llama-cpp-python {self._module.__version__}"

    def _import(self) -> None:
        super()._import()
        # Kept alive: llama.cpp calls it for as long as it lives.
        self._silent = self._module.llama_log_callback(lambda level, text, data: None)
        self._module.llama_log_set(self._silent, ctypes.c_void_p(0))
        self._module.llama_backend_init()

    def _open(self) -> None:
        api = self._module
        model_params = api.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = api.llama_model_load_from_file(str(self.model).encode(), model_params)
        if not self._model:
            raise LoadError(f"{self.model}: llama.cpp cannot load it")
        params = api.llama_context_default_params()
        params.n_ctx = self.context
        params.n_seq_max = self.n_seq_max
        params.kv_unified = self.n_seq_max > 1
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = self.kv_types[self.kv_type]
        params.no_perf = True
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise LoadError(f"{self.model}: llama.cpp cannot make a context of {self.context} tokens")
        self._tokens = (api.llama_token * self.n_batch)()
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def clear(self) -> None:
        self._module.llama_memory_clear(self._module.llama_get_memory(self._context), True)

    def _forward(self, tokens: Sequence[int]) -> Logits:
        api = self._module
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            self._tokens[: len(part)] = part
            # Positions follow on from those in memory, and only the last token's logits are computed.
            status = api.llama_decode(self._context, api.llama_batch_get_one(self._tokens, len(part)))
            if status != 0:
                raise PromptError(f"{self.model}: llama_decode of {len(part)} tokens returned {status}")
        pointer = api.llama_get_logits_ith(self._context, -1)  # waits for the computation
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))

    def close(self) -> None:
        if self._context:
            self._module.llama_free(self._context)
        if self._model:
            self._module.llama_model_free(self._model)
        self._context = self._model = None


class OxiLlamaPy(PromptRunner):
    """The package of other authors that PyPI calls oxillama: Rust, imported as ``oxillama_py``.

    It takes text and gives text. A prompt is one word again and again, until it has the wanted number of
    tokens; pieces of text stand for tokens, greedy choice and detokenizing included.
    """

    name = "oxillama-py"
    module, package = "oxillama_py", "oxillama of PyPI"
    word = " the"
    _engine: Any = None

    def version(self) -> str:
        from importlib.metadata import version

        self._import()
        declared = getattr(self._module, "__version__", None)
        return f"oxillama_py {declared or version('oxillama')}"

    def _open(self) -> None:
        with ModelFile.open(self.model) as file:
            self._vocab_size = len(file.metadata["tokenizer.ggml.tokens"])
        try:
            config = self._module.EngineConfig(
                str(self.model), context_size=self.context + 2, num_threads=self.threads
            )
            self._engine = self._module.Engine(config)
            self._engine.load_model()
        except self._module.OxiLlamaError as error:
            raise LoadError(f"{self.model}: oxillama-py cannot load it: {error}") from error

    def clear(self) -> None:
        self._engine.reset()

    def decode(self, n: int) -> float:
        self.clear()
        times = self._times(n + 1)
        return (times[-1] - times[0]) * n / (len(times) - 1)

    def _times(self, n: int) -> list[float]:
        """As in `PromptRunner`, of pieces of text; fewer if the model ends its text."""
        times: list[float] = []
        self._engine.generate_streaming(
            self._text(len(self._prompt)), n, lambda piece: times.append(self._clock()), temperature=0.0
        )
        if len(times) < min(n, 2):
            raise PromptError(f"{self.model}: oxillama-py ended its text after {len(times)} of {n} tokens")
        return times

    def _text(self, n: int) -> str:
        """A text of ``n`` tokens, of 2 if ``n`` is 1."""
        begins = len(self._engine.tokenize(self.word)) - 1
        text = self.word * max(1, n - begins)
        found = len(self._engine.tokenize(text))
        if found != max(n, 1 + begins):
            raise PromptError(
                f"{self.model}: oxillama-py has no text of {n} tokens, {self.word!r} gives {found}"
            )
        return text

    def close(self) -> None:
        self._engine = None


class OpenVino(PromptRunner):
    """OpenVINO GenAI with its defaults, save that it keeps no beginnings of prompts; greedy choice included.

    It reads GGUF files of some architectures and formats, and only vocabularies of byte pairs (`make-model
    --pairs`).
    """

    name = "openvino"
    module, package = "openvino_genai", "openvino-genai"
    _pipeline: Any = None

    def _open(self) -> None:
        with ModelFile.open(self.model) as file:
            self._vocab_size = len(file.metadata["tokenizer.ggml.tokens"])
        how = self._module.SchedulerConfig()
        how.enable_prefix_caching = False
        try:
            self._pipeline = self._module.LLMPipeline(
                str(self.model), "CPU", scheduler_config=how, INFERENCE_NUM_THREADS=self.threads
            )
        except (RuntimeError, LookupError, ValueError) as error:
            raise LoadError(f"{self.model}: openvino cannot load it: {error}") from error

    def job(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> float:
        import openvino

        n = new[0]
        if len({*map(len, prompts)}) > 1 or len({*new}) > 1:
            raise ConfigError("openvino: expected prompts of one length and as many new tokens, not --mixed")
        ids = np.array(prompts, np.int64)  # all prompts have one length
        given = self._module.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        begun = self._clock()
        found = self._pipeline.generate(given, self._greedy(n))
        seconds = self._clock() - begun
        if any(len(tokens) != n for tokens in found.tokens):
            raise PromptError(f"{self.model}: openvino gave {[*map(len, found.tokens)]} tokens, not {n} each")
        return seconds

    def _greedy(self, n: int) -> Any:
        wanted = self._module.GenerationConfig()
        wanted.max_new_tokens = wanted.min_new_tokens = n
        wanted.ignore_eos, wanted.do_sample = True, False
        return wanted

    def _times(self, n: int) -> list[float]:
        import openvino

        module, clock, times = self._module, self._clock, []

        class Streamer(module.StreamerBase):  # type: ignore[misc,name-defined]
            def write(self, tokens: Any) -> Any:
                times.extend([clock()] * (len(tokens) if isinstance(tokens, list) else 1))
                return module.StreamingStatus.RUNNING

            def end(self) -> None: ...

        prompt = openvino.Tensor(np.array([self._prompt], np.int64))
        self._pipeline.generate(prompt, self._greedy(n), Streamer())
        if len(times) != n:
            raise PromptError(f"{self.model}: openvino gave {len(times)} of {n} tokens")
        return times

    def close(self) -> None:
        self._pipeline = None


ENGINES: dict[str, type[Runner]] = {
    engine.name: engine
    for engine in (
        OxiLlama,
        OxiLlamaPacked,
        OxiLlamaW8A8,
        OxiLlamaW8A8of128,
        LlamaCpp,
        OxiLlamaPy,
        OpenVino,
        Vllm,
    )
}
"""By the names that commands take."""


@contextmanager
def loaded(
    names: Sequence[str], model: Path, threads: int, context: int, kv_types: Sequence[str] = ()
) -> Iterator[list[Runner]]:
    """Engines that have loaded a model, with these types of keys and values; closed at the end."""
    with ExitStack() as stack:
        runners = [ENGINES[name](model, threads, context) for name in names]
        for runner, kv_type in zip(runners, kv_types):
            runner.keep(kv_type)
        for runner in runners:
            stack.callback(runner.close)
            runner.load()
        yield runners
