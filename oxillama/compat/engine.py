"""`InferenceEngine` with the methods of the reference implementation, each of which calls one of ours."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import LoraStack
from oxillama.beams.search import BeamHypothesis, BeamSearchConfig
from oxillama.cache.prefix import PinnedPrefix
from oxillama.compat.adapters import apply_lora, apply_lora_stack
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.config.adapters import Adapters
from oxillama.embeddings.pooling import PoolingMode
from oxillama.engine import engine as ours
from oxillama.engine.engine import Callback
from oxillama.engine.generation import Generation, text_of
from oxillama.engine.loading import Prompt
from oxillama.engine.request import TextRequest
from oxillama.engine.snapshots import Captured
from oxillama.errors import KvCacheFullError
from oxillama.models import Spec
from oxillama.observability.metrics_snapshot import MetricsSnapshot
from oxillama.offload.pager import LayerPager
from oxillama.sampling.logprobs import SampledToken
from oxillama.sessions.adapters import Loras
from oxillama.sessions.options import Stages
from oxillama.sessions.restore import restore_generation, restore_session, resume, snapshot_of_engine
from oxillama.sessions.session import KvSnapshot, Session
from oxillama.sessions.snapshot import EngineSnapshot, Source
from oxillama.weights.packer import Progress

if TYPE_CHECKING:
    from typing import Unpack

    from oxillama.config import EngineFields


class InferenceEngine(Captured, ours.InferenceEngine):
    """An `oxillama.InferenceEngine` with the reference's names, and with a session of its own."""

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
        """Loads a model in place of the present one, which stays if the new one cannot be loaded.

        Generations and sessions of the present model go on with it to their end.
        """
        self._load(path, progress)
        self._own_session, self._last = None, threading.local()

    def load_model_from_bytes(self, data: bytes, *, progress: Progress | None = None) -> None:
        """`load_model`, from the bytes of a whole GGUF file."""
        self._load(data, progress)
        self._own_session, self._last = None, threading.local()

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model to run."""
        return self._model is not None

    @property
    def spec(self) -> Spec:
        """Sizes and facts of the model."""
        return self.model.spec

    @property
    def metadata(self) -> dict[str, Any]:
        """The model file's metadata."""
        return self.model.file.metadata

    def layer_pager(self) -> LayerPager | None:
        """Keeps the matrices within ``offload_budget``, with its numbers; None without a budget."""
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
        # a text that is wanted whole is a result, whose generation the caller does not have
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
        """As `oxillama.InferenceEngine.generate`; `finish_reason` and `logprobs` are of that text then."""
        generation = self._stream(prompt, options, fields, callback, whole=callback is None)
        text = text_of(generation.result())
        self._last.generation = generation
        return text

    def generate_with_config(self, prompt: Prompt, config: SamplerConfig, **fields: Any) -> str:
        """``generate(prompt, sampler=config)``."""
        return self.generate(prompt, sampler=config, **fields)

    def generate_with_logits(self, prompt: Prompt, **fields: Any) -> tuple[str, np.ndarray]:
        """The text, and float32 (tokens, vocab): the logits that each token was chosen from."""
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
        """Of the calling thread's last generation; None if there is none or it goes on."""
        last = self._last_generation
        return last.finish_reason if last else None

    @property
    def logprobs(self) -> list[SampledToken] | None:
        """Of the calling thread's last generation; None if they were not asked for."""
        last = self._last_generation
        return last.logprobs if last else None

    def generate_batch_with_logprobs(
        self, prompts: Iterable[Prompt], *, top_logprobs: int = 0, **fields: Any
    ) -> list[tuple[str, list[SampledToken]]]:
        """The former way to the results of `stream_batch`; it will go."""
        message = "generate_batch_with_logprobs: take the results of stream_batch(..., top_logprobs=n)"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        handles = self.stream_batch(prompts, **{**fields, "top_logprobs": top_logprobs, "window": None})
        results = [handle.result() for handle in handles]
        return [(result.text, result.logprobs or []) for result in results]

    def prime_with_prefix(self, prompt: Prompt, *, salt: str = "", adapters: Adapters = None) -> PinnedPrefix:
        """Runs a prompt that others will begin with, and keeps it in the prefix cache until it is released.

        Raises as `stream`, and KvCacheFullError if it does not fit into ``prefix_cache_bytes``.
        """
        model = self.model
        fields = {"sampler": SamplerConfig.greedy(), "max_tokens": 1, "salt": salt, "adapters": adapters}
        generation = self._stream(prompt, None, fields, whole=True)
        generation.result()
        tokens, key = generation.prompt_tokens, model.prefix_key(salt)
        path = generation._text_request.sequence.path(len(tokens))  # with the adapters that it was run with
        pinned = model.call(lambda: model.prefix_cache.pin(key, path))
        if pinned is None:
            limit = self.config.prefix_cache_bytes
            raise KvCacheFullError(f"prefix: {len(tokens)} tokens do not fit {limit} bytes of cache")
        return pinned

    def beam_generate(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **sampling: Any
    ) -> list[BeamHypothesis]:
        """`beam_search`, where the tokens of the hypotheses begin with those of the prompt."""
        tokens = self.model.prompt_tokens(prompt, free=1)
        return [found.after(tokens) for found in self.beam_search(tokens, config, **sampling)]

    # --- adapters -----------------------------------------------------------------------------------

    @property
    def lora_stack(self) -> LoraStack:
        """``adapters.stack``: the adapters of requests that name none of their own."""
        return self.adapters.stack

    def load_adapter(self, source: str | os.PathLike[str] | LoadedLora) -> LoadedLora:
        """Loads an adapter for later requests, or finds it loaded. Raises as `Adapters.loaded`."""
        ((lora, _),) = self.adapters.loaded(source)
        return lora

    def unload_adapter(self, lora: LoadedLora) -> None:
        """``adapters.forget(lora)``."""
        self.adapters.forget(checks.instance("lora", lora, LoadedLora))

    def push_lora(self, lora: LoadedLora | str | os.PathLike[str], scale: float = 1.0) -> None:
        """``adapters.stack.push``, of an adapter or its path; checked against the model first."""
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
        """`oxillama.compat.adapters.apply_lora_stack` of this engine."""
        apply_lora_stack(self, stack)

    # --- tokens -------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """``tokenizer.encode(text)``. Raises TokenizerError if it is not valid unicode."""
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
        """The bytes each token stands for."""
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
        """It begins anew when the engine's adapters are others than it has been run with."""
        wanted = self.model.adaptation(None, None)
        if self._own_session is None or self._own_session.adapters != wanted:
            self._own_session = self.session()
        return self._own_session

    def logits(self, tokens: Prompt) -> np.ndarray:
        """float32 (n, vocab): logits after each token of a fresh session."""
        with self.session() as session:
            return session.logits(tokens)

    def prefill(self, tokens: Prompt) -> np.ndarray:
        """`Session.prefill` of the engine's own session."""
        return self._own.prefill(tokens)

    forward_prefill = prefill

    def forward_one(self, token: int) -> np.ndarray:
        """`Session.forward` of the engine's own session."""
        return self._own.forward(token)

    forward_decode = forward_one

    def rewind(self, n_tokens: int) -> None:
        """`Session.rewind` of the engine's own session: keeps the first ``n_tokens``."""
        self._own.rewind(n_tokens)

    truncate = rewind

    def reset(self) -> None:
        """Forgets the engine's own session."""
        self._own.rewind(0)

    @property
    def kv_cache_seq_len(self) -> int:
        """Tokens in the engine's own session."""
        return 0 if self._own_session is None else len(self._own_session)

    def current_length(self) -> int:
        """`kv_cache_seq_len`."""
        return self.kv_cache_seq_len

    def kv_snapshot(self) -> KvSnapshot:
        """`Session.kv_snapshot` of the engine's own session."""
        return self._own.kv_snapshot()

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """`Session.kv_restore` into the engine's own session."""
        self._own.kv_restore(snapshot)

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of: the options of the engine and its own session, for `resume`."""
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
        """An engine like the one that a snapshot was taken of, with its session as the engine's own.

        See `oxillama.sessions.restore.resume` for parameters and errors.
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
        """`restore`, of a session."""
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
        """`restore`, of a generation."""
        return restore_generation(self.model, snapshot, fields, loras, stages, callback)
