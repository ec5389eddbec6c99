"""`Llama`: a model with llama-cpp-python's methods, each of which calls one of the engine's."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from oxillama.compat.llama_cpp import llama_chat_format
from oxillama.compat.llama_cpp.answers import Answer
from oxillama.compat.llama_cpp.completion import (
    Text,
    free_tokens,
    joined,
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
from oxillama.config import GenerationOptions
from oxillama.engine.generation import Generation
from oxillama.errors import ConfigError
from oxillama.hub.pretrained import pretrained_path

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
    requests share batches. `eval`, `sample`, `generate`, `scores` and the states work on one sequence, which
    a completion replaces when it ends.

    Parameters are those of `Loaded`.
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
        """A text that goes on from a prompt: an answer in OpenAI's form, or its chunks with ``stream``.

        Parameters
        ----------
        suffix : what the text leads to, for models with tokens for infill.
        max_tokens : None, 0 and less for as many as the context holds.
        logprobs : with each token its log-probability and so many of the likeliest.
        echo : whether the answer begins with the prompt.
        seed : None for one that follows from the seed before.
        stopping_criteria : each is asked before a token; one that is met ends the text.

        Raises
        ------
        PromptError, a ValueError : the prompt fills the context.
        ConfigError, a ValueError : an argument cannot be honoured. And errors of `InferenceEngine.stream`.
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
        """Starts a text from token ids, or from a prompt with media; for `create_completion` and chats.

        Parameters
        ----------
        options : more fields of `GenerationOptions`.
        sampling : fields of `Sampling`.
        """
        tokens = list(prompt.tokens) if hasattr(prompt, "given") else prompt
        criteria = joined(stopping_criteria)
        n = free_tokens(len(tokens), max_tokens, self.n_ctx())
        chosen = Sampling(temp=temperature, logit_bias=logit_bias or {}, **sampling)
        with self._lock:  # seeds follow each other
            self._seed = random.Random(self._seed).randint(0, 2**32) if seed is None else seed
            number = seed_of(self._seed)
        fields: dict[str, Any] = {
            "sampler": chosen.config(len(tokens), self.last_n_tokens_size, self.n_vocab(), number),
            "max_tokens": n,
            "stop": tuple(each for each in stop if each),
            "top_logprobs": logprobs,
            **(options or {}),
        }
        if criteria is not None:  # each is asked before the next token is read
            fields |= {"keep_logits": True, "window": 1}
        asked = GenerationOptions(**fields)
        plain = tokens if prompt is tokens else None
        done = self._done if plain is None else self._kept(plain)
        generation = self._start(prompt, plain, asked)
        name = self.model_path if model is None else model
        return Text(self, generation, tokens, shown, offset, name, criteria, logprobs, echo, done)

    def _done(self, tokens: Tokens, all_run: bool) -> None:
        """A text with media leaves no state: its tokens alone do not say what was run."""

    def _kept(self, prompt: list[int]) -> Any:
        """Called at the end of a text, to make its tokens the state, and to cache it."""

        def done(tokens: Tokens, all_run: bool) -> None:
            whole = [*prompt, *tokens]
            self._evaluated.put(whole if all_run else whole[: max(len(prompt), len(whole) - 1)])
            if self.cache is not None:
                self.cache[whole] = self.save_state()

        return done

    def _start(self, prompt: Any, tokens: list[int] | None, options: GenerationOptions) -> Generation:
        """The request, which goes on from a state of the cache if one begins most like its prompt."""
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
        """The next message of a conversation: an answer in OpenAI's form, or its chunks with ``stream``.

        ``chat_handler`` makes the answer, else the handler of ``chat_format``. Raises as `create_completion`;
        ChatTemplateError if a template refuses the messages.
        """
        given = without(locals(), "self")
        return self.handler()(llama=self, **given)

    def handler(self) -> LlamaChatCompletionHandler:
        """What makes the answers of chats. Raises LlamaChatCompletionHandlerNotFoundException."""
        name = self.chat_format or ""
        found = self.chat_handler or self._chat_handlers.get(name)
        return found or llama_chat_format.get_chat_completion_handler(name)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """`create_chat_completion`, as objects of the package `openai`, which must be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream"):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)

    # --- states -------------------------------------------------------------------------------------

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Keeps the state after each completion, and goes on from the one that begins most like a prompt."""
        self.cache = cache

    def save_state(self) -> LlamaState:
        """The tokens that were run, with their keys and values, their logits and the seed."""
        with self._evaluated.lock:
            data, tokens = self._evaluated.snapshot(), self._input_ids
            scores = self._scores if self._logits_all else np.zeros((0, self.n_vocab()), np.float32)
            return LlamaState(self.input_ids, scores, len(tokens), data, len(data), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Puts a state of `save_state` in place. Raises SnapshotIncompatible if it is of another model."""
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
        """A model of the Hugging Face Hub, downloaded unless it is in the cache.

        Parameters
        ----------
        filename : a file, or a pattern of one. The other files of a split model are downloaded with it.
        additional_files : that are downloaded, too.
        local_dir : refused, unless None: files are in ``cache_dir``.
        kwargs : arguments of `Llama`.

        Raises ConfigError, ModelFileError, as `InferenceEngine.from_pretrained`.
        """
        if local_dir is not None:
            raise ConfigError("local_dir: expected None, for files are in cache_dir, got a folder")
        for name in additional_files or ():
            pretrained_path(repo_id, name, None, cache_dir, None, pull_mmproj=False)
        return cls(
            str(pretrained_path(repo_id, filename, None, cache_dir, None, pull_mmproj=False)), **kwargs
        )
