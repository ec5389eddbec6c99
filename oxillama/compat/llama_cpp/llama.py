"""`Llama`: a model with llama-cpp-python's methods, implemented by an oxillama engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from oxillama.base.config import GenerationOptions
from oxillama.compat.llama_cpp import llama_chat_format
from oxillama.compat.llama_cpp.answers import Answer
from oxillama.compat.llama_cpp.completion import (
    Text,
    free_tokens,
    prompt_tokens,
    stop_strings,
    without,
)
from oxillama.compat.llama_cpp.llama_cache import BaseLlamaCache, LlamaState, common_prefix
from oxillama.compat.llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from oxillama.compat.llama_cpp.llama_grammar import LlamaGrammar
from oxillama.compat.llama_cpp.llama_tokenizer import LlamaTokenizer
from oxillama.compat.llama_cpp.one_sequence import OneSequence
from oxillama.compat.llama_cpp.processors import LogitsProcessorList, StoppingCriteriaList
from oxillama.compat.llama_cpp.sampling import Sampling, seed_of
from oxillama.engine.generation import Generation
from oxillama.errors import ConfigError
from oxillama.gguf.hub.pretrained import pretrained_path

Tokens = Sequence[int]

__all__ = [
    "Llama",
    "LlamaGrammar",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessorList",
    "StoppingCriteriaList",
]


class Llama(OneSequence):
    """A model with llama-cpp-python's arguments, methods and answers.

    Completions, chats and embeddings are requests of one engine: threads may share a `Llama`, and their
    requests share batches. `eval`, `sample`, `generate`, `scores` and saved states work on one sequence,
    which each completion replaces when it ends.

    Parameters as for `Loaded`.
    """

    # --- texts --------------------------------------------------------------------------------------

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the default of the signature that is kept
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Answer | Iterator[Answer]:
        """Continue a prompt: returns an answer in OpenAI's form, or an iterator of chunks with ``stream``.

        Args:
            suffix: text that follows the completion, for models with infill tokens.
            max_tokens: None or values up to 0: as many as fit the context.
            logprobs: number of top tokens to report with each token's log-probability.
            echo: whether the answer begins with the prompt.
            seed: None: a seed derived from the previous one.
            stopping_criteria: called before each token; the text ends when one returns True.

        Raises:
            PromptError: a ValueError; the prompt fills the context.
            ConfigError: a ValueError; an argument is not supported. Also the errors of
                `InferenceEngine.stream`.
        """
        given = without(locals(), "self", "prompt", "suffix", "stop", "stream")
        tokens = prompt_tokens(self, prompt, suffix)
        shown = prompt if isinstance(prompt, str) else self.model.decode(tokens)
        text = self.text_of(tokens, **given, stop=stop_strings(stop), shown=shown, offset=len(prompt))
        return text.chunks() if stream else text.whole()

    __call__ = create_completion

    def text_of(
        self,
        prompt: Any,
        *,
        max_tokens: int | None = 16,
        logprobs: int | None = None,
        echo: bool = False,
        stop: Sequence[str] = (),
        seed: int | None = None,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        shown: str = "",
        offset: int = 0,
        options: Mapping[str, Any] | None = None,
        temperature: float = 0.8,
        logit_bias: Mapping[int, float] | None = None,
        **sampling: Any,
    ) -> Text:
        """Start generating from token ids, or from a prompt with media; for `create_completion` and chats.

        Args:
            options: further fields of `GenerationOptions`.
            sampling: fields of `Sampling`.
        """
        tokens = list(prompt.tokens) if hasattr(prompt, "embeddings") else prompt
        criteria = StoppingCriteriaList(stopping_criteria) if stopping_criteria else None
        n = free_tokens(len(tokens), max_tokens, self.n_ctx())
        chosen = Sampling(temp=temperature, logit_bias=logit_bias or {}, **sampling)
        with self._lock:  # each seed is derived from the one before
            self._seed = random.Random(self._seed).randint(0, 2**32) if seed is None else seed
            number = seed_of(self._seed)
        fields: dict[str, Any] = {
            "sampler": chosen.config(len(tokens), self.last_n_tokens_size, self.n_vocab(), number),
            "max_tokens": n,
            "stop": tuple(each for each in stop if each),
            "top_logprobs": logprobs,
            **(options or {}),
        }
        if criteria is not None:  # called before the next token is generated
            fields |= {"keep_logits": True, "window": 1}
        asked = GenerationOptions(**fields)
        plain = tokens if prompt is tokens else None
        done = self._done if plain is None else self._kept(plain)
        generation = self._start(prompt, plain, asked)
        name = self.model_path if model is None else model
        return Text(self, generation, tokens, shown, offset, name, criteria, logprobs, echo, done)

    def _done(self, tokens: Tokens, all_run: bool) -> None:
        """A text with media leaves no state, because its tokens do not determine its logits."""

    def _kept(self, prompt: list[int]) -> Any:
        """A function to call at the end of a text: makes its tokens the state, and caches the state."""

        def done(tokens: Tokens, all_run: bool) -> None:
            whole = [*prompt, *tokens]
            self._evaluated.put(whole if all_run else whole[: max(len(prompt), len(whole) - 1)])
            if self.cache is not None:
                self.cache[whole] = self.save_state()

        return done

    def _start(self, prompt: Any, tokens: list[int] | None, options: GenerationOptions) -> Generation:
        """Start the request; it continues a cached state if that shares a longer prefix with the prompt."""
        if self.cache is not None and tokens is not None:
            try:
                state = self.cache[tokens]
            except KeyError:
                state = None
            if state is not None:
                kept = common_prefix(state.input_ids[: state.n_tokens].tolist(), tokens)
                if kept > common_prefix(self._evaluated.tokens, tokens):
                    seed = self._seed
                    self.load_state(state)
                    self._seed = seed
            session = self._evaluated.fork(tokens)
            if session is not None:
                return session.stream(options)
        return self.engine.stream(prompt, options)

    def create_chat_completion(
        self,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the default of the signature that is kept
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Generate the next message of a conversation: an answer in OpenAI's form, or chunks with ``stream``.

        ``chat_handler`` makes the answer, or else the handler of ``chat_format``. Raises as
        `create_completion`; ChatTemplateError if a template refuses the messages.
        """
        given = without(locals(), "self")
        return self.handler()(llama=self, **given)

    def handler(self) -> LlamaChatCompletionHandler:
        """The handler for chats. Raises LlamaChatCompletionHandlerNotFoundException."""
        name = self.chat_format or ""
        found = self.chat_handler or self._chat_handlers.get(name)
        return found or llama_chat_format.get_chat_completion_handler(name)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """`create_chat_completion`, with results as objects of the package `openai` (must be installed)."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream"):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)

    # --- states -------------------------------------------------------------------------------------

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Cache the state after each completion; completions continue the state that matches them longest."""
        self.cache = cache

    def save_state(self) -> LlamaState:
        """The tokens with their keys and values, their logits, and the seed."""
        with self._evaluated.lock:
            data, tokens = self._evaluated.snapshot(), self._input_ids
            scores = self._scores if self._logits_all else np.zeros((0, self.n_vocab()), np.float32)
            return LlamaState(self.input_ids, scores, len(tokens), data, len(data), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Restore a state from `save_state`. Raises SnapshotIncompatible if it is of another model."""
        self._evaluated.restore(state.llama_state)
        self._seed = state.seed

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Llama:
        """A model from the Hugging Face Hub, downloaded unless cached.

        Args:
            filename: a file name or pattern. All files of a split model are downloaded.
            additional_files: further files to download.
            local_dir: must be None: files are stored in ``cache_dir``.
            kwargs: arguments of `Llama`.

        Raises ConfigError, ModelFileError, as `InferenceEngine.from_pretrained`.
        """
        if local_dir is not None:
            raise ConfigError("local_dir: expected None, for files are in cache_dir, got a folder")
        for name in additional_files or ():
            pretrained_path(repo_id, name, None, cache_dir, None, pull_mmproj=False)
        return cls(
            str(pretrained_path(repo_id, filename, None, cache_dir, None, pull_mmproj=False)), **kwargs
        )
