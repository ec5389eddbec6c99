"""An engine as a `BeamForwardPass`."""

from __future__ import annotations

import numpy as np

from oxillama.engine.engine import InferenceEngine
from oxillama.speculation.drafters import common_length


class EngineBeamAdapter:
    """Runs one sequence of an engine for `beam_generate`. The logits have the vocabulary's tokens only.

    What the tokens after a `reset` have in common with those before is not run again.
    `InferenceEngine.beam_search` runs all beams in one pass.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self._session = engine.session()
        self._n_vocab = engine.tokenizer.n_vocab
        self._is_reset = True

    def forward_tokens(self, tokens: list[int]) -> np.ndarray:
        """Appends tokens; float32 (vocab,) logits after the last. Errors are those of `Session.prefill`."""
        if self._is_reset:
            n = min(common_length(self._session.tokens, tokens), max(0, len(tokens) - 1))
            self._session.rewind(n)
            tokens = tokens[n:]
            self._is_reset = False
        return self._session.prefill(tokens)[: self._n_vocab]

    def reset(self) -> None:
        """Forgets all tokens."""
        self._is_reset = True
