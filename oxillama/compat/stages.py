"""Sampler stages as objects, for `SamplerConfig.order`; they use the kernels of the built-in stages.

A stage object in ``order`` replaces the built-in stage, whose option then stays at its default:
``SamplerConfig(order=("top_k", TypicalPStage(0.5), "temperature"), top_p=1.0, min_p=0.0)``.

The probabilities equal the built-in stage's. With at most 1024 candidates, a seed also gives the same tokens.
With more, built-in cuts leave their candidates in another order, so that the same random number selects
another token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from oxillama.base.config import SamplerConfig
from oxillama.base.config.checks import FLOAT_MAX, MAX_SEED, integer
from oxillama.base.config.sampler import STAGE_OF
from oxillama.engine.sampling.batch import GOOD, error_of, workspaces
from oxillama.engine.sampling.chain import SamplerChain
from oxillama.engine.sampling.sampler import MASK, Xorshift64
from oxillama.text.chat.bridge import TokenizerBridge

BREAKERS = SamplerConfig().dry_sequence_breakers
POSITION_FACTOR = 0xD1342543DE82EF95  # odd, so that different positions have different seeds


class _KernelStage:
    """A `SamplerStage` made of a single stage of `SamplerConfig`; subclasses are frozen dataclasses.

    A subclass maps each of its fields to the option of `SamplerConfig` that sets it.
    """

    tokenizer: TokenizerBridge | None = None
    _chain: SamplerChain
    _switches: ClassVar[dict[str, str]]

    def __init_subclass__(cls, **switches: str) -> None:
        cls._switches = switches

    def options(self) -> dict[str, Any]:
        """The options of `SamplerConfig` that turn on the stage."""
        return {option: getattr(self, field) for field, option in self._switches.items()}

    def __post_init__(self) -> None:
        options = self.options()
        config = SamplerConfig(order=(STAGE_OF[next(iter(options))],), **options)
        object.__setattr__(self, "_chain", SamplerChain.from_config(config, tokenizer=self.tokenizer))

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray, /) -> np.ndarray:
        """float32 (n,): the logits after the stage, -inf for dropped candidates.

        Args:
            ids: int32 (n,), the candidates' tokens.
            logits: float32 (n,).
            history: int32 (tokens,), prompt included.

        Raises:
            SamplingError: a logit is NaN or +inf, every logit is -inf, or a token of the history is negative.
        """
        size = 1 + int(max(ids.max(initial=0), history.max(initial=0)))
        (workspace,) = workspaces(self._chain.kernels, size)
        status = workspace.replace(ids, logits)
        if status == GOOD:
            status = workspace.apply(self._chain.steps[0], history, None, self.chance(len(history)), 0.0)
        if status != GOOD:
            raise error_of(status, size)
        changed = np.full(size, -np.inf, np.float32)
        left, values = workspace.candidates()
        changed[left] = values
        found: np.ndarray = changed[ids]
        return found

    def chance(self, position: int) -> float:
        """A number in [0, 1) for a random stage; ``position`` is the length of the history."""
        return 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return type(self), tuple(values)


@dataclass(frozen=True)
class DryStage(
    _KernelStage,
    multiplier="dry_multiplier",
    base="dry_base",
    allowed_length="dry_allowed_length",
    range="dry_range",
    sequence_breakers="dry_sequence_breakers",
):
    """Penalizes tokens that extend a repetition: the options ``dry_*`` of `SamplerConfig`.

    Attributes:
        multiplier, base, allowed_length, range, sequence_breakers: ``dry_multiplier`` and so on.
        tokenizer: the model's, for breakers given as texts; may be None if all are tuples of token ids.

    Raises:
        ConfigError: a value is outside its range, or a breaker is a text and there is no tokenizer.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    range: int = -1
    sequence_breakers: tuple[str | tuple[int, ...], ...] = BREAKERS
    tokenizer: TokenizerBridge | None = None


@dataclass(frozen=True)
class XtcStage(_KernelStage, probability="xtc_probability", threshold="xtc_threshold"):
    """Randomly drops the top tokens: ``xtc_probability`` and ``xtc_threshold`` of `SamplerConfig`.

    A stage object has no access to the sampler's random numbers. Its random number is a function of ``seed``
    and the position, so texts can be repeated, rewound and forked.

    Attributes:
        probability, threshold: ``xtc_probability`` and ``xtc_threshold``.
        seed: seed of the stage's random numbers, 0 to 2**64 - 1.

    Raises:
        ConfigError: a value is outside its range.
    """

    probability: float
    threshold: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        integer("seed", self.seed, 0, MAX_SEED)
        super().__post_init__()

    def chance(self, position: int) -> float:
        """The random number in [0, 1) at a position; if below ``probability``, the stage drops tokens."""
        return Xorshift64((self.seed + position * POSITION_FACTOR) & MASK).uniform()


@dataclass(frozen=True)
class TypicalPStage(_KernelStage, p="typical_p"):
    """Locally typical sampling: keeps the fewest tokens, closest to the entropy, whose sum exceeds ``p``.

    Raises:
        ConfigError: ``p`` is not in (0, 1].
    """

    p: float


@dataclass(frozen=True)
class TopAStage(_KernelStage, a="top_a"):
    """Keeps tokens with p >= a * max(p)^2: ``top_a``.

    Raises:
        ConfigError: ``a`` is not in [0, 1].
    """

    a: float


@dataclass(frozen=True)
class EtaStage(_KernelStage, eta="eta_cutoff"):
    """Keeps tokens with p >= min(eta, sqrt(eta) * exp(-entropy)): ``eta_cutoff``.

    Raises:
        ConfigError: ``eta`` is not in [0, 1).
    """

    eta: float


class LogitBias:
    """Adds biases to the logits of tokens: ``logit_bias`` of `SamplerConfig`.

    The option ``logit_bias`` applies before allowed tokens and grammar; this stage applies at its place in
    ``order``. Tokens that are not candidates are ignored.

    Args:
        biases: token id -> number that is added to its logit; -inf bans the token.

    Raises:
        ConfigError: a key is not a token id, or a bias is neither finite nor -inf.
    """

    def __init__(self, biases: Mapping[int, float]) -> None:
        self.biases: dict[int, float] = dict(SamplerConfig(logit_bias=biases).logit_bias)
        self._ids = np.array(sorted(self.biases), np.int32)
        self._values = np.array([self.biases[int(token)] for token in self._ids], np.float32)

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray, /) -> np.ndarray:
        """float32 (n,): the candidates' logits, float32 (n,), plus their biases; ``ids`` int32 (n,)."""
        changed = np.array(logits, np.float32)
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            found = self._ids[places] == ids
            with np.errstate(over="ignore"):
                changed[found] = np.minimum(changed[found] + self._values[places[found]], FLOAT_MAX)
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogitBias) and self.biases == other.biases

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LogitBias({self.biases})"
