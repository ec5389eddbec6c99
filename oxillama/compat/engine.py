"""`InferenceEngine` with the reference implementation's method names; each calls one of oxillama's own."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence as Listed
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.base.config.adapters import Adapters
from oxillama.compat.adapters import apply_lora, apply_lora_stack
from oxillama.engine import engine as ours
from oxillama.engine.cache.prefix import PinnedPrefix
from oxillama.engine.completion import Captured, text_of
from oxillama.engine.engine import Callback
from oxillama.engine.features.beam_search import BeamHypothesis, BeamSearchConfig
from oxillama.engine.features.embeddings import PoolingMode
from oxillama.engine.features.observability.metrics_snapshot import MetricsSnapshot
from oxillama.engine.generation import Generation
from oxillama.engine.loading import Prompt
from oxillama.engine.request import TextRequest
from oxillama.engine.sampling.batch import SampledToken
from oxillama.errors import KvCacheFullError
from oxillama.models import Spec
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import LoraStack
from oxillama.models.offload.pager import LayerPager
from oxillama.models.weights.packer import Progress
from oxillama.sessions.adapters import Loras
from oxillama.sessions.options import Stages
from oxillama.sessions.restore import restore_generation, restore_session, resume, snapshot_of_engine
from oxillama.sessions.session import KvSnapshot, Session
from oxillama.sessions.snapshot import EngineSnapshot, Source

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.base.config import EngineFields


class InferenceEngine(Captured, ours.InferenceEngine):
    """An `oxillama.InferenceEngine` with the reference's names, and with a built-in session."""

    def __init__(
        self,
        config: EngineConfig | str | os.PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        self._own_session: Session | None = None
        self._last = threading.local()
        super().__init__(config, progress=progress)

    # --- the model ----------------------------------------------------------------------------------

    def load_model(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
        """Replace the model. If loading fails, the present model stays.

        Running generations and sessions of the present model continue with it.
        """
        self._load(path, progress)
        self._own_session, self._last = None, threading.local()

    def load_model_from_bytes(self, data: bytes, *, progress: Progress | None = None) -> None:
        """`load_model` from the bytes of a whole GGUF file."""
        self._load(data, progress)
        self._own_session, self._last = None, threading.local()

    @property
    def is_loaded(self) -> bool:
        """Whether a model is loaded."""
        return self._model is not None

    @property
    def spec(self) -> Spec:
        """The model's sizes and architecture."""
        return self.model.spec

    @property
    def metadata(self) -> dict[str, Any]:
        """The model file's metadata."""
        return self.model.file.metadata

    def layer_pager(self) -> LayerPager | None:
        """The pager that keeps matrices within ``offload_budget``, with counters; None without a budget."""
        store = self.model.store
        return store if isinstance(store, LayerPager) else None

    def metrics_snapshot(self) -> MetricsSnapshot:
        """``metrics.snapshot()``."""
        return self.metrics.snapshot()

    def check_integrity(self) -> None:
        """``model.check_integrity()``."""
        self.model.check_integrity()

    # --- text ---------------------------------------------------------------------------------------

    def _submit(self, requests: Listed[TextRequest], *others: Any, **kind: Any) -> list[Generation]:
        found = super()._submit(requests, *others, **kind)
        # the caller of `generate` has no Generation object, so a strong reference is kept
        self._last.generation = found[-1] if requests[-1].whole else weakref.ref(found[-1])
        return found

    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        callback: ours.Callback | None = None,
        **fields: Any,
    ) -> str:
        """`oxillama.InferenceEngine.generate`; `finish_reason` and `logprobs` then refer to this text."""
        generation = self._stream(prompt, options, fields, callback, whole=callback is None)
        text = text_of(generation.result())
        self._last.generation = generation
        return text

    def generate_with_config(self, prompt: Prompt, config: SamplerConfig, **fields: Any) -> str:
        """``generate(prompt, sampler=config)``."""
        return self.generate(prompt, sampler=config, **fields)

    def generate_with_logits(self, prompt: Prompt, **fields: Any) -> tuple[str, np.ndarray]:
        """Generate a text; returns it with float32 (tokens, vocab), the logits of each token."""
        generation = self.stream(prompt, **{**fields, "keep_logits": True})
        text, rows = generation.result().text, generation.logits or []
        self._last.generation = generation
        return text, np.array(rows, np.float32).reshape(len(rows), -1 if rows else self.model.spec.n_vocab)

    @property
    def _last_generation(self) -> Generation | None:
        last = getattr(self._last, "generation", None)
        return last if last is None or isinstance(last, Generation) else last()

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the calling thread's last generation; None if none has ended."""
        last = self._last_generation
        return last.finish_reason if last else None

    @property
    def logprobs(self) -> list[SampledToken] | None:
        """The log-probabilities of the calling thread's last generation; None if not requested."""
        last = self._last_generation
        return last.logprobs if last else None

    def generate_batch_with_logprobs(
        self, prompts: Iterable[Prompt], *, top_logprobs: int = 0, **fields: Any
    ) -> list[tuple[str, list[SampledToken]]]:
        """Deprecated: use the results of `stream_batch`."""
        message = "generate_batch_with_logprobs: take the results of stream_batch(..., top_logprobs=n)"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        handles = self.stream_batch(prompts, **{**fields, "top_logprobs": top_logprobs, "window": None})
        results = [handle.result() for handle in handles]
        return [(result.text, result.logprobs or []) for result in results]

    def prime_with_prefix(self, prompt: Prompt, *, salt: str = "", adapters: Adapters = None) -> PinnedPrefix:
        """Run a prefix that later prompts share, and pin it in the prefix cache until it is released.

        Raises as `stream`; KvCacheFullError if the prefix does not fit ``prefix_cache_bytes``.
        """
        model = self.model
        fields = {"sampler": SamplerConfig.greedy(), "max_tokens": 1, "salt": salt, "adapters": adapters}
        generation = self._stream(prompt, None, fields, whole=True)
        generation.result()
        tokens, key = generation.prompt_tokens, model.prefix_key(salt)
        path = generation._text_request.sequence.path(len(tokens))  # includes the adapters in use
        pinned = model.call(lambda: model.prefix_cache.pin(key, path))
        if pinned is None:
            limit = self.config.prefix_cache_bytes
            raise KvCacheFullError(f"prefix: {len(tokens)} tokens do not fit {limit} bytes of cache")
        return pinned

    def beam_generate(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **sampling: Any
    ) -> list[BeamHypothesis]:
        """`beam_search`, but the tokens of each hypothesis begin with the prompt."""
        tokens = self.model.prompt_tokens(prompt, free=1)
        return [found.after(tokens) for found in self.beam_search(tokens, config, **sampling)]

    # --- adapters -----------------------------------------------------------------------------------

    @property
    def lora_stack(self) -> LoraStack:
        """``adapters.stack``: the default adapters of requests."""
        return self.adapters.stack

    def load_adapter(self, source: str | os.PathLike[str] | LoadedLora) -> LoadedLora:
        """Load an adapter for later requests, unless already loaded. Raises as `Adapters.loaded` does."""
        ((lora, _),) = self.adapters.loaded(source)
        return lora

    def unload_adapter(self, lora: LoadedLora) -> None:
        """``adapters.forget(lora)``."""
        self.adapters.forget(checks.instance("lora", lora, LoadedLora))

    def push_lora(self, lora: LoadedLora | str | os.PathLike[str], scale: float = 1.0) -> None:
        """``adapters.stack.push`` of an adapter or path, after a check that it fits the model."""
        apply_lora(self, lora, scale)

    def pop_lora(self) -> LoadedLora | None:
        """``adapters.stack.pop()``."""
        return self.adapters.stack.pop()

    def clear_loras(self) -> None:
        """``adapters.stack.clear()``."""
        self.adapters.stack.clear()

    apply_lora = push_lora
    unapply_all_loras = clear_loras

    def apply_lora_stack(self, stack: LoraStack) -> None:
        """`oxillama.compat.adapters.apply_lora_stack` for this engine."""
        apply_lora_stack(self, stack)

    # --- tokens -------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """``tokenizer.encode(text)``. Raises TokenizerError for text that is not valid Unicode."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Listed[int] | np.ndarray) -> str:
        """``tokenizer.decode(tokens)``."""
        return self.tokenizer.decode(tokens)

    def decode_token(self, token: int) -> str:
        """Text of one token; an incomplete character becomes U+FFFD."""
        return self.detokenize([token])

    def is_eos(self, token: int) -> bool:
        """Whether a token ends a generation."""
        return token in self.tokenizer.eog_ids

    def vocab_bytes(self) -> list[bytes]:
        """The bytes of each token by id."""
        return self.tokenizer.vocab_bytes()

    vocab_bytes_cached = vocab_bytes

    # --- vectors ------------------------------------------------------------------------------------

    def embed_with(self, text: Prompt, pooling: PoolingMode | str, *, normalize: bool = False) -> np.ndarray:
        """``embed(text, pooling=pooling)``."""
        return self.embed(text, pooling=pooling, normalize=normalize)

    def embed_batch_with(
        self, texts: Iterable[Prompt], pooling: PoolingMode | str, *, normalize: bool = False
    ) -> np.ndarray:
        """``embed_batch(texts, pooling=pooling)``."""
        return self.embed_batch(texts, pooling=pooling, normalize=normalize)

    # --- the engine's own session -------------------------------------------------------------------

    @property
    def _own(self) -> Session:
        """The built-in session; a new one if the engine's default adapters have changed."""
        wanted = self.model.adaptation(None, None)
        if self._own_session is None or self._own_session.adapters != wanted:
            self._own_session = self.session()
        return self._own_session

    def logits(self, tokens: Prompt) -> np.ndarray:
        """float32 (n, vocab): the logits after each token, run in a temporary session."""
        with self.session() as session:
            return session.logits(tokens)

    def prefill(self, tokens: Prompt) -> np.ndarray:
        """`Session.prefill` of the built-in session."""
        return self._own.prefill(tokens)

    forward_prefill = prefill

    def forward_one(self, token: int) -> np.ndarray:
        """`Session.forward` of the built-in session."""
        return self._own.forward(token)

    forward_decode = forward_one

    def rewind(self, n_tokens: int) -> None:
        """`Session.rewind` of the built-in session: keeps the first ``n_tokens``."""
        self._own.rewind(n_tokens)

    truncate = rewind

    def reset(self) -> None:
        """Forget the tokens of the built-in session."""
        self._own.rewind(0)

    @property
    def kv_cache_seq_len(self) -> int:
        """The number of tokens in the built-in session."""
        return 0 if self._own_session is None else len(self._own_session)

    def current_length(self) -> int:
        """`kv_cache_seq_len`."""
        return self.kv_cache_seq_len

    def kv_snapshot(self) -> KvSnapshot:
        """`Session.kv_snapshot` of the built-in session."""
        return self._own.kv_snapshot()

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """`Session.kv_restore` into the built-in session."""
        self._own.kv_restore(snapshot)

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """The snapshot that `snapshot` serializes: the engine's options and the built-in session."""
        return snapshot_of_engine(self.model, self._own_session, notes)

    @classmethod
    def resume(
        cls,
        snapshot: Source,
        model_path: str | os.PathLike[str] | None = None,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        progress: Progress | None = None,
        **config: Unpack[EngineFields],
    ) -> InferenceEngine:
        """An engine with a snapshot's options; the snapshot's session becomes the built-in session.

        Parameters and errors as for `oxillama.sessions.restore.resume`.
        """
        engine, own = resume(
            cls, snapshot, model_path, loras=loras, stages=stages, progress=progress, **config
        )
        engine._own_session = own
        return engine

    @classmethod
    def resume_from_file(
        cls,
        path: str | os.PathLike[str],
        model_path: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> InferenceEngine:
        """``resume(path, model_path)``."""
        return cls.resume(path, model_path, **others)

    def restore_session(self, snapshot: Source, *, loras: Loras = None) -> Session:
        """`restore` for a session."""
        return restore_session(self.model, snapshot, loras)

    def resume_generation(
        self,
        snapshot: Source,
        *,
        loras: Loras = None,
        stages: Stages | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> Generation:
        """`restore` for a generation."""
        return restore_generation(self.model, snapshot, fields, loras, stages, callback)
