"""The sampling state of one sequence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.config import checks
from oxillama.base.config.sampler import SamplerConfig
from oxillama.base.lazy_import import lazy
from oxillama.engine.sampling.batch import GOOD, SampledToken, as_logits, error_of, is_row, workspaces
from oxillama.engine.sampling.chain import SamplerChain
from oxillama.errors import ConfigError, SamplingError
from oxillama.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.engine.sampling.protocols import History, TokenConstraint

MASK = 2**64 - 1


class Xorshift64:
    """Marsaglia's xorshift64 (2003), seeded through a step of splitmix64 (Steele et al., 2014).

    Attributes:
        state: the whole state, an int in [1, 2^64); set it to continue from there.
    """

    def __init__(self, seed: int) -> None:
        z = (seed + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        self.state: int = (z ^ (z >> 31)) or 1  # zero is the one state xorshift never leaves

    def uniform(self) -> float:
        """A double in [0, 1) with 53 random bits."""
        x = self.state
        x ^= (x << 13) & MASK
        x ^= x >> 7
        x ^= (x << 17) & MASK
        self.state = x
        return (x >> 11) * 2.0**-53


LN2 = 0.6931471805599453
restore_sampler: Callable[..., Any] = lazy("oxillama.engine.sampling.state:restore_sampler")
call_stage: Callable[..., Any] = lazy("oxillama.engine.sampling.python_stages:call_stage")
sampled_token: Callable[..., Any] = lazy("oxillama.engine.sampling.logprobs:sampled_token")

NO_HISTORY = np.empty(0, np.int32)

Distribution = tuple[np.ndarray, np.ndarray]
"""int32 (n,) token ids and float64 (n,) their probabilities."""


class Sampler:
    """Sampling state of one sequence: random numbers, mirostat's mu, the tokens so far, the grammar.

    `sample` chooses a token and adds it to the state. Either each call gets the tokens so far as ``history``,
    or the sampler keeps them: then `feed` it the prompt once.

    Args:
        config: the options, or the chain that was made of them.
        kernels: the target to run on; all give the same tokens. None takes the best.
        seed: for a config without one; None draws one from the system.
        tokenizer: see `SamplerChain.from_config`.
        constraint: the state of the config's grammar, json_schema, regex or choices, at its start.

    Attributes:
        seed: the seed in use, so that a run can be repeated.
        random: the generator; its state may be saved and restored.
        mu: mirostat's bound on the surprise, in bits.
        n_generated: tokens sampled or accepted.

    Raises:
        ConfigError: an option needs a tokenizer or a constraint, which is missing.
    """

    def __init__(
        self,
        config: SamplerConfig | SamplerChain,
        kernels: Kernels | None = None,
        seed: int | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        constraint: TokenConstraint | None = None,
    ) -> None:
        chain = (
            config
            if isinstance(config, SamplerChain)
            else SamplerChain.from_config(config, kernels, tokenizer)
        )
        if constraint is None and chain.config.constraint is not None:
            raise ConfigError(f"{chain.config.constraint}: expected its constraint compiled, got none")
        self.chain = chain
        self.kernels: Kernels = chain.kernels
        self.constraint = constraint
        chosen = chain.config.seed if chain.config.seed is not None else seed
        self.seed: int = int.from_bytes(os.urandom(8), "little") if chosen is None else checked_seed(chosen)
        self.random: Xorshift64 = Xorshift64(self.seed)
        self.mu: float = 2.0 * chain.config.mirostat_tau
        self._tokens = np.empty(64, np.int32)
        self._n = 0
        self._before: list[tuple[int, float]] = []  # random state and mu before each generated token
        self._drawn_from: int | None = None  # random state before the numbers of the choice under way

    @property
    def config(self) -> SamplerConfig:
        """The options."""
        return self.chain.config

    @property
    def n_generated(self) -> int:
        """Tokens sampled or accepted."""
        return len(self._before)

    @property
    def history(self) -> np.ndarray:
        """int32: the tokens fed, sampled and accepted."""
        return self._tokens[: self._n]

    # --- choosing ---------------------------------------------------------------------------------------

    def sample(self, logits: np.ndarray, history: History | None = None) -> int:
        """The next token, which is taken into the state.

        Args:
            logits: float32 (vocab,); not changed.
            history: the tokens so far, prompt included; None for those the sampler knows.

        Raises:
            SamplingError: a logit is NaN or +inf, every one is -inf (the grammar allows none, say), or the
                history holds an unknown token. The state is then as it was.
            ConfigError: an option names a token that is not in the vocabulary.
        """
        row = self.row(logits, history)
        if row is None:
            return self._choose(logits, history)[0]
        try:
            rooms = workspaces(self.kernels, len(row[1]))
            ((status, token, logprob),) = self.kernels.sampling.sample_rows([row], rooms)
        except BaseException:
            self.abandon()
            raise
        return self.take(status, token, logprob, len(row[1]))

    def sample_with_logprobs(
        self, logits: np.ndarray, history: History | None = None, top: int = 0
    ) -> SampledToken:
        """`sample`, with log-probabilities of the token and of the ``top`` likeliest, raw and processed."""
        top = checks.integer("top", top, 0)
        token, logprob, workspace = self._choose(logits, history)
        found: SampledToken = sampled_token(token, logprob, workspace, logits, top, self.kernels)
        return found

    def distribution(self, logits: np.ndarray, history: History | None = None) -> Distribution:
        """What `sample` would draw from now, without changing anything.

        Returns:
            int32 (n,) ids and float64 (n,) probabilities, in the order of the draw
        """
        try:
            workspace, _ = self.apply(logits, history)
        finally:
            self.abandon()
        found: Distribution | None = workspace.distribution()
        if found is None:
            raise SamplingError("logits: every token is masked")
        return found

    def row(self, logits: np.ndarray, history: History | None) -> tuple[Any, ...] | None:
        """A row for `sample_rows`, random numbers drawn; None if the chain holds stages in Python."""
        chain = self.chain
        if chain.has_callables:
            return None
        if not is_row(logits):
            logits = as_logits(logits)
        vocab = len(logits)
        if chain.largest_token >= vocab:
            chain.check_vocabulary(vocab)
        recent = NO_HISTORY if chain.window == 0 else self._recent(history)
        mask = None if self.constraint is None else self._mask(vocab)
        if mask is None:
            steps = chain.early_steps if len(self._before) < chain.min_tokens else chain.steps
        else:
            steps = chain.steps_at(len(self._before), mask)
        return (steps[0], logits, recent, mask, *self._numbers())

    def take(self, status: int, token: int, logprob: float, vocab: int) -> int:
        """Takes what the kernel chose for a `row` into the state; raises what it refused."""
        if status != GOOD:
            self.abandon()
            raise error_of(status, vocab)
        random, self._drawn_from = self._drawn_from, None
        assert random is not None, "a choice is taken once"
        before = (random, self.mu)
        if self.chain.config.mirostat:
            self.mu -= self.config.mirostat_eta * (-logprob / LN2 - self.config.mirostat_tau)
        try:
            self._append(token, before)
        except BaseException:
            self.random.state, self.mu = before
            raise
        return token

    def abandon(self) -> None:
        """Gives back the random numbers of a choice that was not made."""
        if self._drawn_from is not None:
            self.random.state, self._drawn_from = self._drawn_from, None

    def _choose(self, logits: np.ndarray, history: History | None) -> tuple[int, float, Any]:
        """Samples step by step: token, its log-probability, and the workspace with the candidates."""
        try:
            workspace, u = self.apply(logits, history)
            status, token, logprob = workspace.draw(u)
        except BaseException:
            self.abandon()
            raise
        self.take(status, token, logprob, workspace.vocab)
        return token, logprob, workspace

    def apply(self, logits: np.ndarray, history: History | None) -> tuple[Any, float]:
        """Applies every step: the workspace, and the number for the draw."""
        logits = as_logits(logits)
        vocab = len(logits)
        self.chain.check_vocabulary(vocab)
        recent, mask = self._recent(history), self._mask(vocab)
        chance, mu, u = self._numbers()
        (workspace,) = workspaces(self.kernels, vocab)
        status = workspace.start(logits)
        for step in self.chain.steps_at(self.n_generated, mask):
            if status != GOOD:
                break
            if isinstance(step, self.kernels.sampling.Program):
                status = workspace.apply(step, recent, mask, chance, mu)
            else:
                status = call_stage(step, workspace, recent)
        if status != GOOD:
            raise error_of(status, vocab)
        return workspace, u

    def _numbers(self) -> tuple[float, float, float]:
        """XTC's chance, mu, and the number for the draw; none is drawn that nobody looks at."""
        self._drawn_from = self.random.state
        chance = self.random.uniform() if self.chain.draws_chance else 0.0
        return chance, self.mu, 0.0 if self.chain.is_greedy else self.random.uniform()

    def _recent(self, history: History | None) -> np.ndarray:
        """The latest tokens, as many as the chain looks at; the sampler's own are not copied."""
        window = self.chain.window
        if window == 0:
            return NO_HISTORY
        tokens = self.history if history is None else history
        if isinstance(tokens, dict):  # slicing would look up a key
            raise TypeError("history: expected a sequence of token ids, got a dict")
        recent = tokens if window < 0 else tokens[max(0, len(tokens) - window) :]
        return as_tokens("history", recent)

    def _mask(self, vocab: int) -> np.ndarray | None:
        if self.constraint is None:
            return None
        mask = np.ascontiguousarray(self.constraint.mask(), np.uint32)
        if mask.shape != ((vocab + 31) // 32,):
            raise SamplingError(f"mask: expected {(vocab + 31) // 32} numbers of 32 bits, got {mask.shape}")
        return mask

    # --- state ------------------------------------------------------------------------------------------

    def feed(self, tokens: Iterable[int]) -> None:
        """Takes a prompt in: tokens that penalties look at, but no grammar. Not after a generated token."""
        if self._before:
            raise SamplingError(f"feed: expected before the first of {self.n_generated} generated tokens")
        fresh = as_tokens("feed", list(tokens))
        self._reserve(len(fresh))
        self._tokens[self._n : self._n + len(fresh)] = fresh
        self._n += len(fresh)

    def accept(self, token: int) -> None:
        """Takes a token in that was chosen elsewhere: accepted from a draft, or the only one possible."""
        if not checks.is_token(token):
            raise SamplingError(f"accept: expected a token id, got {checks.shown(token)}")
        self._append(token, (self.random.state, self.mu))

    def rollback(self, n: int) -> None:
        """Takes the last n generated tokens back; random numbers, mu and grammar are then as before them."""
        if not isinstance(n, Integral) or not 0 <= n <= self.n_generated:
            raise SamplingError(f"rollback: expected 0 to {self.n_generated}, got {checks.shown(n)}")
        if n == 0:
            return
        if self.constraint is not None:
            self.constraint.rollback(n)
        self.random.state, self.mu = self._before[-n]
        del self._before[-n:]
        self._n -= n

    def truncate(self, n_generated: int) -> None:
        """Keeps the first ``n_generated`` generated tokens; see `rollback`."""
        if not isinstance(n_generated, Integral):
            raise SamplingError(f"truncate: expected an integer, got {checks.shown(n_generated)}")
        self.rollback(self.n_generated - int(n_generated))

    def fork(self, seed: int | None = None) -> Sampler:
        """An independent copy, which continues with the same random numbers unless it gets a seed."""
        copy = Sampler.__new__(Sampler)
        copy.chain, copy.kernels = self.chain, self.kernels
        copy.constraint = self.constraint.fork() if self.constraint is not None else None
        copy.seed = self.seed if seed is None else checked_seed(seed)
        copy.random = Xorshift64(copy.seed)
        if seed is None:
            copy.random.state = self.random.state
        copy.mu = self.mu
        copy._tokens, copy._n = self._tokens.copy(), self._n
        copy._before, copy._drawn_from = self._before.copy(), None
        return copy

    def state(self) -> dict[str, Any]:
        """Everything but the options and the grammar, as what JSON can hold; see `restore`."""
        return {
            "seed": self.seed,
            "random": self.random.state,
            "mu": self.mu,
            "tokens": self.history.tolist(),
            "before": [list(pair) for pair in self._before],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state` of a sampler with the same options. The grammar accepts its tokens again.

        Raises:
            SamplingError: it is no such state, or the grammar refuses its tokens; nothing has changed then.
        """
        restore_sampler(self, state)

    def _append(self, token: int, before: tuple[int, float]) -> None:
        if self.constraint is not None:
            self.constraint.advance(token)
        if self._n >= len(self._tokens):
            self._reserve(1)
        self._tokens[self._n] = token
        self._n += 1
        self._before.append(before)

    def _reserve(self, n: int) -> None:
        if self._n + n > len(self._tokens):
            grown = np.empty(2 * (self._n + n), np.int32)
            grown[: self._n] = self.history
            self._tokens = grown


def as_tokens(name: str, tokens: Any) -> np.ndarray:
    """int32 token ids. Raises SamplingError."""
    try:
        found = np.ascontiguousarray(tokens, np.int32)
    except (OverflowError, ValueError, TypeError) as error:
        raise SamplingError(f"{name}: expected token ids: {error}") from error
    if found.ndim != 1:
        raise SamplingError(f"{name}: expected one row of token ids, got shape {found.shape}")
    return found


def checked_seed(seed: Any) -> int:
    """A seed as an int. Raises ConfigError."""
    return checks.integer("seed", seed, 0, checks.MAX_SEED)


def sample(
    logits: np.ndarray,
    config: SamplerConfig | SamplerChain,
    history: History = (),
    *,
    seed: int | None = None,
    kernels: Kernels | None = None,
) -> int:
    """A token, sampled by a new `Sampler`. Parameters and errors as for `Sampler`."""
    return Sampler(config, kernels, seed).sample(logits, history)
