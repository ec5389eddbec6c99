"""`EngineBeamAdapter`: an engine as a `BeamForwardPass`."""

from __future__ import annotations

import numpy as np

from oxillama.engine.cache.radix import common_length
from oxillama.engine.engine import InferenceEngine


class EngineBeamAdapter:
    """Runs one sequence of an engine for `beam_generate`. Logits are cut to the vocabulary's tokens.

    After a `reset`, the common prefix with the previous tokens is not run again.
    `InferenceEngine.beam_search` runs all beams in one pass, which is faster.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self._session = engine.session()
        self._n_vocab = engine.tokenizer.n_vocab
        self._is_reset = True

    def forward_tokens(self, tokens: list[int]) -> np.ndarray:
        """Append tokens; returns float32 (vocab,) logits after the last. Raises as `Session.prefill` does."""
        if self._is_reset:
            n = min(common_length(self._session.tokens, tokens), max(0, len(tokens) - 1))
            self._session.rewind(n)
            tokens = tokens[n:]
            self._is_reset = False
        return self._session.prefill(tokens)[: self._n_vocab]

    def reset(self) -> None:
        """Forget all tokens."""
        self._is_reset = True
