"""One generation: an iterator of text that runs the model as it is asked for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed

import numpy as np

from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.sampling.chain import Sampler
from oxillama.tokenizer import TokenizerBridge


class StopText:
    """Holds text back while it may be the beginning of a stop string."""

    def __init__(self, stops: Listed[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown, and whether a stop string was found (dropped with what follows it)."""
        self.held += text
        found = [at for at in (self.held.find(stop) for stop in self.stops) if at >= 0]
        if found:
            shown, self.held = self.held[: min(found)], ""
            return shown, True
        keep = max((self._overlap(stop) for stop in self.stops), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, when nothing more comes."""
        shown, self.held = self.held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """How many characters at the end of the text begin ``stop``."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)


class Generation(Iterator[str]):
    """Yields pieces of text as they are generated; made by `InferenceEngine.stream`.

    Closing it (or `cancel`, from any thread) stops the work before the next token and frees its pages.

    Attributes
    ----------
    prompt_tokens : ids of the prompt.
    tokens : ids generated so far, an ending token included.
    text : text yielded so far.
    finish_reason : "stop" (the model ended, or a stop string was found), "length" (``max_tokens`` or the
        context is full), "cancelled", "error", or None while it goes on.
    seed : of the random numbers, to repeat the run.
    prefill_seconds, decode_seconds : time in the model and the sampler for the prompt, and for the
        tokens after the first.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: TokenizerBridge,
        sampler: Sampler,
        prompt: Listed[int],
        *,
        max_tokens: int,
        stop: Listed[str],
        context_size: int,
        chunk: int,
        callback: Callable[[str], object] | None = None,
    ) -> None:
        self.prompt_tokens = list(prompt)
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.seed = sampler.seed
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._runner = runner
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._sequence = Sequence(runner.pool, prompt)
        self._left = max_tokens
        self._context_size = context_size
        self._chunk = chunk
        self._callback = callback
        self._cancelled = False
        self._stop = StopText(stop)
        self._decoder = tokenizer.stream_decoder(continuing=True)

    def __next__(self) -> str:
        while self.finish_reason is None:
            try:
                shown = self._step()
                if shown:
                    self.text += shown
                    if self._callback is not None and self._callback(shown) is False:
                        self._cancelled = True
                    return shown
            except Exception:
                self._finish("error")
                raise
            except BaseException:  # the user's Ctrl-C
                self._finish("cancelled")
                raise
        raise StopIteration

    def cancel(self) -> None:
        """Stops before the next token."""
        self._cancelled = True

    def close(self) -> None:
        """Stops at once and frees the pages. Does nothing when it has ended."""
        self._finish("cancelled")

    def __del__(self) -> None:
        if hasattr(self, "_sequence"):
            self._sequence.release()

    def _finish(self, reason: str) -> None:
        self.finish_reason = self.finish_reason or reason
        self._sequence.release()

    def _step(self) -> str:
        """One token more, or the end: the text that may be shown now."""
        reason = None
        if self._cancelled:
            reason = "cancelled"
        elif self._left == 0 or len(self._sequence.tokens) >= self._context_size:
            reason = "length"
        else:
            token = self._next_token()
            reason = "stop" if token in self._tokenizer.eog_ids else None
        shown, found = self._stop.push(self._decoder.push(token) if reason is None else self._decoder.flush())
        if found:
            reason = "stop"
        elif reason is not None:
            shown += self._stop.flush()
        if reason is not None:
            self._finish(reason)
        return shown

    def _next_token(self) -> int:
        """Runs what is pending (the prompt in chunks, then one token at a time) and samples."""
        sequence, start = self._sequence, time.perf_counter()
        logits: np.ndarray | None = None
        while sequence.pending:
            logits = self._runner.forward([(sequence, min(self._chunk, sequence.pending))])
        assert logits is not None
        token = self._sampler.sample(logits[0], sequence.tokens)
        sequence.tokens.append(token)
        if self.tokens:
            self.decode_seconds += time.perf_counter() - start
        else:
            self.prefill_seconds = time.perf_counter() - start
        self.tokens.append(token)
        self._left -= 1
        return token
