"""One generation: an iterator of text that runs the model as it is asked for more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from oxillama.engine.core import EngineCore
from oxillama.engine.request import Request
from oxillama.sampling.logprobs import SampledToken


class Generation(Iterator[str]):
    """Yields pieces of text as they are generated; made by `InferenceEngine.stream`.

    Nothing is run before it is asked for. Closing it (or `cancel`, from any thread) stops the work before the
    next step, even in the middle of a prompt, and frees its pages.

    Attributes
    ----------
    prompt_tokens : ids of the prompt.
    text : text yielded so far.
    seed : of the random numbers, to repeat the run.
    eager : whether it also runs in steps that others lead, before it is asked for more.
    """

    def __init__(
        self,
        core: EngineCore,
        request: Request,
        callback: Callable[[str], object] | None = None,
    ) -> None:
        self.prompt_tokens = request.prompt
        self.text = ""
        self.eager = False
        self.seed = request.sampler.seed
        self._core = core
        self._request = request
        self._callback = callback
        self._submitted = False

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, an ending token included."""
        return self._request.tokens

    @property
    def logits(self) -> list[np.ndarray] | None:
        """float32 (vocab,) each token was chosen from; None unless they were asked for."""
        return self._request.logits

    @property
    def logprobs(self) -> list[SampledToken] | None:
        """Log-probabilities of each of `tokens`: in the model's own distribution (``raw``) and in the one it
        was drawn from (``processed``), each with the likeliest others; None unless they were asked for."""
        return self._request.logprobs

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not run, because the prefix cache had them."""
        return self._request.n_cached

    @property
    def finish_reason(self) -> str | None:
        """ "stop" (the model ended, or a stop string was found), "length" (``max_tokens`` or the context is
        full), "timeout", "cancelled", "error", or None while it goes on or there is text to be read."""
        return None if self._request.pieces else self._request.finish_reason

    @property
    def prefill_seconds(self) -> float:
        """Time in steps, of the model and the sampler, up to the first token."""
        return self._request.prefill_seconds

    @property
    def decode_seconds(self) -> float:
        """Time in the steps of the tokens after the first."""
        return self._request.decode_seconds

    def __next__(self) -> str:
        try:
            if not self._submitted:
                self._core.submit(self._request)
                self._submitted = True
            piece = self._core.next_piece(self._request, math.inf if self.eager else 1)
            if piece is None:
                raise StopIteration
            self.text += piece
            if self._callback is not None and self._callback(piece) is False:
                self.cancel()
        except StopIteration:
            raise
        except Exception:
            self._end("error")
            raise
        except BaseException:  # the user's Ctrl-C
            self._end("cancelled")
            raise
        return piece

    def cancel(self) -> None:
        """Stops before the next token."""
        self._core.cancel(self._request)

    def close(self) -> None:
        """Stops at once and frees the pages; text that was not read is dropped."""
        self._end("cancelled")

    def __del__(self) -> None:
        if hasattr(self, "_submitted") and self._request.finish_reason is None:
            self._core.abandon(self._request)

    def _end(self, reason: str) -> None:
        self._core.end(self._request, reason)
