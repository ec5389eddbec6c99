"""Methods with the names of the reference implementation; each calls `InferenceEngine` or `Session`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import LoraStack
from oxillama.beams.search import BeamHypothesis, BeamSearchConfig
from oxillama.config import EngineConfig, SamplerConfig, checks
from oxillama.engine.embedding import PoolingMode
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt
from oxillama.observability.metrics_snapshot import MetricsSnapshot
from oxillama.offload.pager import LayerPager
from oxillama.sampling.logprobs import SampledToken
from oxillama.sessions.session import KvSnapshot, Session
from oxillama.weights.packer import Progress

E = TypeVar("E", bound="ReferenceNames")


class ReferenceNames:
    """Methods of `InferenceEngine` under the names of the reference implementation."""

    config: EngineConfig
    _default_session: Session | None
    _last: Any

    if TYPE_CHECKING:  # what it calls

        @property
        def model(self) -> LoadedModel: ...
        def session(self) -> Session: ...

        resume: Any
        _load: Any
        generate: Any
        stream_batch: Any
        embed: Any
        beam_search: Any
        embed_batch: Any

    # --- the model ----------------------------------------------------------------------------------

    def load_model_from_bytes(self, data: bytes, *, progress: Progress | None = None) -> None:
        """`load_model`, from the bytes of a whole GGUF file."""
        self._load(data, progress)

    @property
    def metadata(self) -> dict[str, Any]:
        """The model file's metadata."""
        return self.model.file.metadata

    def layer_pager(self) -> LayerPager | None:
        """What keeps the matrices within ``offload_budget``, with its numbers; None without a budget."""
        store = self.model.runner.model.store
        return store if isinstance(store, LayerPager) else None

    def metrics_snapshot(self) -> MetricsSnapshot:
        """``metrics.snapshot()``."""
        return self.model.metrics.snapshot()

    @classmethod
    def resume_from_file(
        cls: type[E],
        path: str | os.PathLike[str],
        model_path: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> E:
        """``resume(path, model_path)``."""
        found: E = cls.resume(path, model_path, **others)
        return found

    # --- text ---------------------------------------------------------------------------------------

    def generate_with_config(self, prompt: Prompt, config: SamplerConfig, **fields: Any) -> str:
        """``generate(prompt, sampler=config)``."""
        text: str = self.generate(prompt, sampler=config, **fields)
        return text

    def generate_with_logits(self, prompt: Prompt, **fields: Any) -> tuple[str, np.ndarray]:
        """The text, and float32 (tokens, vocab): the logits that each token was chosen from."""
        (generation,) = self.stream_batch([prompt], **{**fields, "keep_logits": True})
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

    # --- adapters -----------------------------------------------------------------------------------

    def push_lora(self, lora: LoadedLora | str | os.PathLike[str], scale: float = 1.0) -> None:
        """``lora_stack.push``, of an adapter or its path; checked against the model first."""
        ((loaded, checked),) = self.model.adapters.loaded([(lora, scale)])
        self.model.adapters.stack.push(loaded, checked)

    def pop_lora(self) -> LoadedLora | None:
        """``lora_stack.pop``."""
        return self.model.adapters.stack.pop()

    def clear_loras(self) -> None:
        """``lora_stack.clear``."""
        self.model.adapters.stack.clear()

    apply_lora = push_lora
    unapply_all_loras = clear_loras

    def apply_lora_stack(self, stack: LoraStack) -> None:
        """`push_lora` of each adapter of a stack."""
        for lora, scale in checks.instance("stack", stack, LoraStack):
            self.push_lora(lora, scale)

    def beam_generate(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **sampling: Any
    ) -> list[BeamHypothesis]:
        """`beam_search`, where the tokens of the hypotheses begin with those of the prompt."""
        tokens = self.model.prompt_tokens(prompt, free=1)
        return [found.after(tokens) for found in self.beam_search(tokens, config, **sampling)]

    # --- tokens -------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """``tokenizer.encode(text)``. Raises TokenizerError if it is not valid unicode."""
        return self.model.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Listed[int] | np.ndarray) -> str:
        """``tokenizer.decode(tokens)``."""
        return self.model.tokenizer.decode(tokens)

    def decode_token(self, token: int) -> str:
        """Text of one token; what is not a whole character becomes U+FFFD."""
        return self.detokenize([token])

    def is_eos(self, token: int) -> bool:
        """Whether a token ends a generation."""
        return token in self.model.tokenizer.eog_ids

    def vocab_bytes(self) -> list[bytes]:
        """The bytes each token stands for."""
        return self.model.tokenizer.vocab_bytes()

    # --- vectors ------------------------------------------------------------------------------------

    def embed_with(self, text: Prompt, pooling: PoolingMode | str, *, normalize: bool = False) -> np.ndarray:
        """``embed(text, pooling=pooling)``."""
        vector: np.ndarray = self.embed(text, pooling=pooling, normalize=normalize)
        return vector

    def embed_batch_with(
        self, texts: Iterable[Prompt], pooling: PoolingMode | str, *, normalize: bool = False
    ) -> np.ndarray:
        """``embed_batch(texts, pooling=pooling)``."""
        vectors: np.ndarray = self.embed_batch(texts, pooling=pooling, normalize=normalize)
        return vectors

    # --- the engine's own session -------------------------------------------------------------------

    @property
    def _own(self) -> Session:
        """It begins anew when the engine's adapters are others than it has been run with."""
        wanted = self.model.adapters.adaptation(None, None)
        if self._default_session is None or self._default_session.adapters != wanted:
            self._default_session = self.session()
        return self._default_session

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
        return 0 if self._default_session is None else len(self._default_session)

    def current_length(self) -> int:
        """`kv_cache_seq_len`."""
        return self.kv_cache_seq_len

    def kv_snapshot(self) -> KvSnapshot:
        """`Session.kv_snapshot` of the engine's own session."""
        return self._own.kv_snapshot()

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """`Session.kv_restore` into the engine's own session."""
        self._own.kv_restore(snapshot)
