"""Embeddings by llama-cpp-python's names."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from oxillama.base.config import checks
from oxillama.compat.llama_cpp import llama_cpp as c
from oxillama.compat.llama_cpp.loading import Loaded

POOLING = {
    c.LLAMA_POOLING_TYPE_NONE: None,
    c.LLAMA_POOLING_TYPE_MEAN: "mean",
    c.LLAMA_POOLING_TYPE_CLS: "cls",
    c.LLAMA_POOLING_TYPE_LAST: "last",
}
"""The engine's pooling names by llama.cpp's numbers; None: a vector for each token."""

NUMBERS = {name: number for number, name in POOLING.items() if name}


class Vectors(Loaded):
    """The embeddings of a `Llama`."""

    def pooling_type(self) -> int:
        """The pooling of tokens' vectors to one vector: as requested, or else as the file says."""
        if self._pooling != c.LLAMA_POOLING_TYPE_UNSPECIFIED:
            return self._pooling
        named = self.engine.model.spec.pooling
        return c.LLAMA_POOLING_TYPE_RANK if named == "rank" else NUMBERS.get(named, 0)

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embedding of a text, or a list of embeddings of several texts, which share batches.

        Args:
            normalize: whether to scale each vector to length 1.
            truncate: True: cut a text to ``n_batch`` tokens with a UserWarning; False: raise ValueError
                instead.
            return_count: whether to return the number of tokens, too.

        Returns:
            A list of floats for each text; without pooling, a list of such lists, one for each token.

        Raises:
            RuntimeError: the model was loaded without ``embedding``.
            ConfigError: ``pooling_type`` is not a kind that gives embeddings.
        """
        if not self._embedding:
            raise RuntimeError("embed: expected Llama(..., embedding=True), got embedding=False")
        texts = [input] if isinstance(input, str) else list(input)
        tokens = [self._cut(self.tokenizer_.tokenize(text.encode()), truncate) for text in texts]
        number = self.pooling_type()
        if number not in POOLING:
            raise checks.refuse("pooling_type", f"one of {', '.join(map(str, POOLING))}", number)
        pooling = POOLING[number]
        if pooling is None:
            found: list[Any] = [self.engine.hidden_states(each) for each in tokens]
            found = [unit(each) if normalize else each for each in found]
        else:
            found = list(self.engine.embed_batch(tokens, pooling=pooling, normalize=normalize))
        vectors = [each.tolist() for each in found]
        output = vectors[0] if isinstance(input, str) else vectors
        return (output, sum(map(len, tokens))) if return_count else output

    def _cut(self, tokens: list[int], truncate: bool) -> list[int]:
        if len(tokens) <= self.n_batch:
            return tokens
        message = f"embed: Requested tokens ({len(tokens)}) exceed batch size of {self.n_batch}"
        if not truncate:
            raise ValueError(message)
        warnings.warn(f"{message}, the rest is left out", UserWarning, stacklevel=3)
        return tokens[: self.n_batch]

    def create_embedding(self, input: str | list[str], model: str | None = None) -> dict[str, Any]:
        """An answer in OpenAI's form: the vectors of `embed`, and token counts. Raises as `embed`."""
        vectors, n = self.embed(input if isinstance(input, list) else [input], return_count=True)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": vector, "index": index}
                for index, vector in enumerate(vectors)
            ],
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": n, "total_tokens": n},
        }


def unit(rows: np.ndarray) -> np.ndarray:
    """The vectors scaled to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
    found: np.ndarray = rows / np.where(lengths == 0, 1, lengths)
    return found
