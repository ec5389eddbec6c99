"""The one sequence of a `Llama` that the caller runs step by step: `eval`, `sample`, `generate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

import numpy as np

from oxillama.compat.llama_cpp.completion import without
from oxillama.compat.llama_cpp.llama_cache import common_prefix
from oxillama.compat.llama_cpp.llama_grammar import LlamaGrammar
from oxillama.compat.llama_cpp.llama_tokenizer import LlamaTokenizer
from oxillama.compat.llama_cpp.processors import LogitsProcessorList, StoppingCriteriaList
from oxillama.compat.llama_cpp.sampling import Sampling, seed_of
from oxillama.compat.llama_cpp.vectors import Vectors
from oxillama.engine.sampling.sampler import Sampler

Tokens = Sequence[int]


class OneSequence(Vectors):
    """Tokenization, and the sequence that `eval`, `sample` and `generate` work on."""

    # --- tokens -------------------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of a text in UTF-8; ``special``: parse names of control tokens."""
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens; ``special``: include the names of control tokens."""
        return self.tokenizer_.detokenize(tokens, prev_tokens=prev_tokens, special=special)

    def encoded(self, text: str) -> list[int]:
        """The ids of a prompt's text; names of control tokens are parsed."""
        return self.tokenizer_.tokenize(text.encode(), False, True) if text else []

    def tokenizer(self) -> LlamaTokenizer:
        """A tokenizer with the vocabulary of the file."""
        return LlamaTokenizer(self.model)

    # --- one sequence -------------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """The number of tokens in the sequence."""
        return len(self._evaluated.tokens)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._evaluated.cut(n)

    @property
    def _input_ids(self) -> np.ndarray:
        return np.array(self._evaluated.tokens, np.intc)

    @property
    def input_ids(self) -> np.ndarray:
        """int32 (n_ctx,): the tokens of the sequence, then zeros."""
        found = np.zeros(self.n_ctx(), np.intc)
        tokens = self._input_ids
        found[: len(tokens)] = tokens
        return found

    @property
    def _scores(self) -> np.ndarray:
        return self._evaluated.scores(self.n_vocab())

    @property
    def scores(self) -> np.ndarray:
        """float32 (n_ctx, n_vocab): the logits after each token with ``logits_all``, else after the last."""
        found = np.zeros((self.n_ctx(), self.n_vocab()), np.float32)
        rows = self._scores
        found[: len(rows)] = rows
        return found

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens of the sequence."""
        return deque(self._evaluated.tokens, maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of `scores` with ``logits_all``, else the last row."""
        return deque(self._scores.tolist(), maxlen=self.n_ctx() if self._logits_all else 1)

    def reset(self) -> None:
        """Forget the tokens of the sequence."""
        self._evaluated.cut(0)

    def eval(self, tokens: Tokens) -> None:
        """Append tokens and run them. Raises PromptError if they exceed the context, or KvCacheFullError."""
        self._evaluated.eval(tokens)

    def set_seed(self, seed: int) -> None:
        """Set the seed that the next completion without a seed derives its own from."""
        self._seed = seed

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Sample a token from the logits after the sequence, or after token ``idx``. Appends nothing."""
        given = without(locals(), "self", "idx")
        with self._evaluated.lock:
            row = self._evaluated.row(-1 if idx is None else idx)
            tokens = self._evaluated.tokens
        history = tokens if idx is None else tokens[: idx + 1]
        return self._sampler(Sampling(**given), len(history)).sample(row, history)

    def _sampler(self, sampling: Sampling, n_prompt: int) -> Sampler:
        model = self.engine.model
        config = sampling.config(n_prompt, self.last_n_tokens_size, self.n_vocab(), seed_of(self._seed))
        return model.sampler(config)

    def generate(
        self,
        tokens: Tokens,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Tokens | None, None]:
        """Yield tokens after a prompt, without end. Tokens sent in are predictions, which are ignored.

        Args:
            reset: whether the prompt replaces the sequence (keeping a common prefix), or is appended.
        """
        given = without(locals(), "self", "tokens", "reset", "stopping_criteria")
        state, criteria = self._evaluated, StoppingCriteriaList(stopping_criteria or ())
        fresh = list(tokens)
        if reset:
            kept = common_prefix(state.tokens, fresh)
            state.cut(kept)
            fresh = fresh[kept:]
        state.eval(fresh)
        history = list(state.tokens)
        sampler = self._sampler(Sampling(**given), len(history))
        while True:
            row = state.row()
            token = sampler.sample(row, history)
            if criteria and criteria(np.array(history, np.intc), row):
                return
            yield token
            state.eval([token])
            history.append(token)
