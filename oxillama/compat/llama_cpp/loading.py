"""Constructs a `Llama`: its arguments, its engine, and the properties of the model."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from oxillama.base.config import EngineConfig, available_cpus, checks
from oxillama.base.formats import FORMATS, KV_TYPES
from oxillama.compat.llama_cpp import llama_cpp as c
from oxillama.compat.llama_cpp.arguments import check_rope, refuse_changed, warn_of_others
from oxillama.compat.llama_cpp.evaluated import Evaluated
from oxillama.compat.llama_cpp.llama_cache import BaseLlamaCache, common_prefix
from oxillama.compat.llama_cpp.llama_chat_format import TEMPLATE, template_handlers
from oxillama.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from oxillama.compat.llama_cpp.llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError
from oxillama.gguf.model_file import ModelFile
from oxillama.text.chat.bridge import TokenizerBridge

MOST_DRAFT = 64
"""The maximum number of tokens of a draft."""

ATTENDING = ("attention", "mla")
"""Kinds of layers that have keys and values."""

KV_NAMES = {format.id: format.name.lower() for format in FORMATS.values() if format.name.lower() in KV_TYPES}
"""Types of keys and values by llama.cpp's numbers."""


class Loaded:
    """A model with the constructor arguments of llama-cpp-python's `Llama` and their defaults.

    `docs/from-llama-cpp-python.md` lists the parameters: supported ones, ignored ones (`arguments.HARMLESS`),
    and those that must keep their default (`arguments.REFUSED`). Unknown arguments are ignored with a
    UserWarning.

    Raises:
        ConfigError: a ValueError; the file does not exist, or an argument is not supported.
        ModelFileError, GGUFError, LoadError, TokenizerError: the model cannot be loaded; says why.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = c.LLAMA_SPLIT_MODE_LAYER,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        seed: int = c.LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = c.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        pooling_type: int = c.LLAMA_POOLING_TYPE_UNSPECIFIED,
        attention_type: int = c.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        draft_model: Any = None,
        tokenizer: BaseLlamaTokenizer | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs")}
        refuse_changed(given)
        warn_of_others(kwargs)
        path = os.fspath(model_path)
        if not os.path.exists(path):
            raise ConfigError(f"model_path: Model path does not exist: {path}")
        self._arguments: dict[str, Any] = {**given, **kwargs}
        self._lock = threading.Lock()
        self.model_path: str = path
        self.verbose: bool = verbose
        self.last_n_tokens_size: int = last_n_tokens_size
        self.spm_infill: bool = spm_infill
        self.lora_base: str | None = lora_base
        self.lora_scale: float = lora_scale
        self.lora_path: str | None = lora_path
        self.draft_model: Any = draft_model
        self.cache: BaseLlamaCache | None = None
        self._seed: int = seed or c.LLAMA_DEFAULT_SEED
        self._logits_all: bool = logits_all or draft_model is not None
        self._pooling: int = pooling_type
        self._embedding: bool = embedding
        self.n_threads: int = n_threads or available_cpus()
        self.n_threads_batch: int = n_threads_batch or self.n_threads
        with ModelFile.open(path) as file:
            self.metadata: dict[str, str] = text_metadata(file.metadata)
            self._trained = trained_context(file.metadata)
            check_rope(self.metadata, rope_freq_base, rope_freq_scale)
            self._bridge = TokenizerBridge.from_metadata(file.metadata) if vocab_only else None
        self._n_ctx: int = n_ctx or self._trained
        self.n_batch: int = min(self._n_ctx, n_batch)
        self._engine: InferenceEngine | None = None
        if not vocab_only:
            self._load(given)
            self._evaluated = Evaluated(self.engine, self._logits_all)
        self.tokenizer_: BaseLlamaTokenizer = tokenizer or LlamaTokenizer(self.model)
        self.chat_handler: Any = chat_handler
        self._chat_handlers: dict[str, Any] = template_handlers(self.model)
        self.chat_format: str | None = chat_format
        if chat_format is None and chat_handler is None:
            self.chat_format = TEMPLATE if TEMPLATE in self._chat_handlers else "llama-2"
        self.context_params: SimpleNamespace = SimpleNamespace(
            n_ctx=self._n_ctx, n_batch=self.n_batch, embeddings=embedding, n_threads=self.n_threads
        )

    def _load(self, given: Mapping[str, Any]) -> None:
        """Make the engine from the constructor's arguments."""
        more: dict[str, Any] = {}
        draft = self.draft_model
        if draft is not None:
            if not isinstance(draft, LlamaPromptLookupDecoding):
                raise checks.refuse("draft_model", "a LlamaPromptLookupDecoding or None", draft)
            more |= {"speculate": "lookup", "draft_max": min(max(draft.num_pred_tokens, 1), MOST_DRAFT)}
        if self.lora_path:
            more["adapters"] = ((Path(self.lora_path), self.lora_scale),)
        projector = getattr(given["chat_handler"], "clip_model_path", None)
        if projector is not None:
            more["mmproj"] = projector
        kv_types = [kv_type(name, given[name]) for name in ("type_k", "type_v")]
        config = EngineConfig(
            model_path=self.model_path,
            context_size=self._n_ctx,
            num_threads=given["n_threads"] or None,
            prefill_chunk_size=self.n_batch,
            kv_type=":".join(kv_types),
            **more,
        )
        self._engine = InferenceEngine(config)

    # --- what it is made of -------------------------------------------------------------------------

    @property
    def engine(self) -> InferenceEngine:
        """The engine. Raises ConfigError if only the vocabulary was loaded."""
        if self._engine is None:
            raise ConfigError("vocab_only: expected False for this, got True")
        return self._engine

    @property
    def model(self) -> TokenizerBridge:
        """The vocabulary of the file, in place of a pointer to llama.cpp's model."""
        return self._bridge if self._bridge is not None else self.engine.tokenizer

    @property
    def ctx(self) -> object:
        """The loaded model, in place of a pointer to llama.cpp's context."""
        return self if self._engine is None else self._engine.model

    @property
    def _ctx(self) -> SimpleNamespace:
        return SimpleNamespace(ctx=self.ctx)

    @property
    def _is_recurrent(self) -> bool:
        """Whether all layers are recurrent."""
        return self._layer_kinds == (True, False)

    @property
    def _is_hybrid(self) -> bool:
        """Whether some layers are recurrent and others have attention."""
        return self._layer_kinds == (True, True)

    @property
    def _layer_kinds(self) -> tuple[bool, bool]:
        """Whether there are recurrent layers, and whether there are attention layers."""
        spec = self.engine.model.spec
        return spec.recurrent is not None, any(layer.mixer in ATTENDING for layer in spec.layers)

    def n_ctx(self) -> int:
        """The maximum number of tokens in a sequence."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Width of the hidden states."""
        return self.engine.model.spec.n_embd

    def n_vocab(self) -> int:
        """The size of the vocabulary; with a model, the size of its logits."""
        return self.model.n_vocab if self._engine is None else self._engine.model.spec.n_vocab

    def token_eos(self) -> int:
        """The EOS token; -1 if the vocabulary has none."""
        return token_of(self.model.eos_id)

    def token_bos(self) -> int:
        """The BOS token; -1 if the vocabulary has none."""
        return token_of(self.model.bos_id)

    def token_nl(self) -> int:
        """The token of a line break; -1 if the vocabulary has none."""
        ids = self.model.encode("\n")
        return ids[-1] if ids else -1

    # --- the end, and copies ------------------------------------------------------------------------

    def close(self) -> None:
        """Close the engine; running texts are cancelled."""
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be shutting down
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments: unpickling loads the model again."""
        return {**self._arguments, "seed": self._seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # --- functions of the class ---------------------------------------------------------------------

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> np.ndarray:
        """float32, same shape as the logits: log(softmax(logits))."""
        rows = np.asarray(logits, np.float32)
        highest = np.max(rows, axis=axis, keepdims=True)
        shifted = rows - np.where(np.isfinite(highest), highest, 0)
        with np.errstate(divide="ignore"):
            found: np.ndarray = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
        return found

    longest_token_prefix = staticmethod(common_prefix)


def token_of(id: int | None) -> int:
    """An id in llama.cpp's convention: -1 instead of None."""
    return -1 if id is None else id


def kv_type(name: str, number: int | None) -> str:
    """The name of a KV type number. Raises ConfigError for an unsupported type."""
    if number is None:
        return "f16"
    if number not in KV_NAMES:
        raise checks.refuse(name, f"the number of one of {', '.join(KV_NAMES.values())}", number)
    return KV_NAMES[number]


def trained_context(metadata: Mapping[str, Any]) -> int:
    """The model's training context in tokens; 512 if the file does not say."""
    value = metadata.get(f"{metadata.get('general.architecture')}.context_length", 512)
    return int(value)


def text_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """A file's metadata as text, without arrays."""
    found: dict[str, str] = {}
    for key, value in metadata.items():
        if isinstance(value, bool | np.bool_):
            found[key] = "true" if value else "false"
        elif isinstance(value, float | np.floating):
            found[key] = f"{value:.6f}"
        elif isinstance(value, bytes):
            found[key] = value.decode("utf-8", "replace")
        elif isinstance(value, str | int | np.integer):
            found[key] = str(value)
    return found
