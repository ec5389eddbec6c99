"""How tokens are chosen: the options, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, TypedDict

from oxillama.config import checks
from oxillama.config.checks import ABOVE_ZERO, BELOW_ONE, FLOAT_MAX
from oxillama.errors import ConfigError

ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "top_a",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc",
    "temperature",
)
"""The stages in the order they are applied, llama.cpp's; before them come bans, biases and the grammar."""

STAGE_OF = {
    "repetition_penalty": "penalties",
    "frequency_penalty": "penalties",
    "presence_penalty": "penalties",
    "dry_multiplier": "dry",
    "xtc_probability": "xtc",
    "dynatemp_range": "temperature",
    **{name: name for name in ORDER if name not in ("penalties", "dry", "xtc")},
}
"""The stage that an option switches on."""

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
"""The values that switch off the stages that are on by default."""

CUTS = tuple(name for name in ORDER if name not in ("penalties", "dry", "temperature"))
"""The stages that mirostat replaces."""

CONSTRAINTS = ("grammar", "json_schema", "regex", "choices", "structural_tag")
"""The fields that say what texts are allowed, of which one at most is given."""

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, FLOAT_MAX),
    "top_k": (0, 2**31 - 1),
    "top_p": (ABOVE_ZERO, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (ABOVE_ZERO, 1.0),
    "top_a": (0.0, 1.0),
    "top_n_sigma": (0.0, FLOAT_MAX),
    "eta_cutoff": (0.0, BELOW_ONE),
    "epsilon_cutoff": (0.0, BELOW_ONE),
    "repetition_penalty": (ABOVE_ZERO, FLOAT_MAX),
    "frequency_penalty": (-FLOAT_MAX, FLOAT_MAX),
    "presence_penalty": (-FLOAT_MAX, FLOAT_MAX),
    "repetition_window": (-1, 2**31 - 1),
    "dry_multiplier": (0.0, FLOAT_MAX),
    "dry_base": (1.0, FLOAT_MAX),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_range": (-1, 2**31 - 1),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, FLOAT_MAX),
    "dynatemp_exponent": (0.0, FLOAT_MAX),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, FLOAT_MAX),
    "mirostat_eta": (0.0, FLOAT_MAX),
    "min_tokens": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
}
"""Lowest and highest value of each number; an option is an integer where its lowest value is one."""


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Sampling options. The defaults are those of llama.cpp's command line.

    Attributes
    ----------
    temperature : divides the logits; 0 picks the highest one that is left. [0, inf)
    top_k : keep this many of the highest; 0 keeps all. [0, inf)
    top_p : keep the fewest whose probabilities sum to this (Holtzman et al., 2020). (0, 1]
    min_p : keep those with at least this times the highest probability (Nguyen et al., 2024). [0, 1]
    typical_p : keep the fewest of the most typical surprise that sum to more (Meister et al., 2022). (0, 1]
    top_a : keep those with at least this times the square of the highest probability. [0, 1]
    top_n_sigma : keep logits within so many standard deviations of the highest (Tang et al., 2024); 0 is
        off. [0, inf)
    eta_cutoff : keep p >= min(eta, sqrt(eta) e^-entropy) (Hewitt et al., 2022); 0 is off. [0, 1)
    epsilon_cutoff : keep p >= epsilon (Hewitt et al., 2022); 0 is off. [0, 1)
    repetition_penalty : divides positive logits of recent tokens, multiplies negative ones, once
        per distinct token (Keskar et al., CTRL, 2019). (0, inf)
    frequency_penalty : subtracted from the logit of a recent token for each time it occurs. (-inf, inf)
    presence_penalty : subtracted from the logit of a recent token. (-inf, inf)
    repetition_window : how many of the last tokens count as recent; -1 for all. [-1, inf)
    dry_multiplier : penalty for extending a repetition of the allowed length (DRY); 0 is off. [0, inf)
    dry_base : factor of the penalty for each token beyond the allowed length. [1, inf)
    dry_allowed_length : length from which a repetition is penalized. [0, inf)
    dry_range : how many of the last tokens are searched for repetitions; -1 for all. [-1, inf)
    dry_sequence_breakers : texts, or tuples of token ids, at which a repetition ends.
    xtc_probability : chance that, of the tokens that reach the threshold, all but the least likely are
        dropped (XTC). [0, 1]
    xtc_threshold : probability from which a token counts; above 0.5 no two tokens do, none is dropped. [0, 1]
    dynatemp_range : the temperature varies with the entropy, by this much down and up; 0 is off. [0, inf)
    dynatemp_exponent : of the entropy's share of the highest possible, which maps to that range. [0, inf)
    mirostat : 1 or 2 replaces every cut by one that holds the surprise near tau (Basu et al., 2021); 0 is
        off.
    mirostat_tau : target surprise, in bits. [0, inf)
    mirostat_eta : learning rate. [0, inf)
    seed : of the random numbers; None takes the engine's, or a new one. [0, 2^64)
    logit_bias : by token id, what is added to its logit; -inf bans it.
    banned_tokens : token ids that are never chosen.
    allowed_tokens : the only token ids that may be chosen; None for all.
    min_tokens : tokens before which no end of generation is chosen. [0, inf)
    ignore_eos : never choose an end of generation.
    grammar : text must follow this grammar (GBNF; Lark, with ``%llguidance`` or as JSON; or compiled).
    json_schema : text must be JSON that fits this schema (a dict, JSON text, True, or a type: a
        dataclass, a pydantic model, ``list[str]``).
    regex : text must match this regular expression.
    choices : text must be one of these.
    structural_tag : text must follow this structural tag (a dict or JSON text): free text in which some
        parts are ruled.
    any_order : objects of JSON schemas (json_schema, and those in a structural tag that do not say, or in a
        Lark grammar) take their properties in any order; if False in the order of the schema.
    order : names of the stages in the order they are applied, and callables (see `SamplerStage`) among them.

    Raises
    ------
    ConfigError : a value is outside its range, or options cannot be honoured together: one that switches on
        a stage that ``order`` leaves out; more than one of grammar, json_schema, regex, choices and
        structural_tag;
        mirostat with a cut (those on by default are then left out, as in llama.cpp) or at temperature 0.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_a: float = 0.0
    top_n_sigma: float = 0.0
    eta_cutoff: float = 0.0
    epsilon_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_window: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = -1
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    grammar: Any = field(default=None, hash=False)
    json_schema: Any = field(default=None, hash=False)
    regex: str | None = None
    choices: tuple[str, ...] | None = None
    structural_tag: Any = field(default=None, hash=False)
    any_order: bool = False
    order: tuple[str | Callable[..., Any], ...] = ORDER

    def __post_init__(self) -> None:
        for name in RANGES:
            if name != "seed" or self.seed is not None:
                self._check_range(name)
        checks.boolean("ignore_eos", self.ignore_eos)
        checks.boolean("any_order", self.any_order)
        self._check_tokens()
        self._check_breakers()
        self._check_constraints()
        self._check_order()
        self._check_mirostat()

    @classmethod
    def greedy(cls) -> SamplerConfig:
        """Always the highest logit; among equals the lowest id."""
        return cls(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)

    @classmethod
    def mirostat_v2(cls, tau: float = 5.0, eta: float = 0.1, **others: Any) -> SamplerConfig:
        """Mirostat 2 at temperature 1, unless ``others`` say something else."""
        return cls(**{"temperature": 1.0, **others, "mirostat": 2, "mirostat_tau": tau, "mirostat_eta": eta})

    @property
    def is_greedy(self) -> bool:
        """Whether the highest logit is chosen and no random number is drawn."""
        return self.temperature == 0 and self.dynatemp_range == 0

    @property
    def constraint(self) -> str | None:
        """Which of `CONSTRAINTS` is given."""
        return next((name for name in CONSTRAINTS if getattr(self, name) is not None), None)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_range(self, name: str) -> None:
        low, high = RANGES[name]
        check = checks.integer if isinstance(low, int) else checks.number
        self._set(name, check(name, getattr(self, name), low, high))

    def _check_tokens(self) -> None:
        self._set("banned_tokens", checks.token_ids("banned_tokens", self.banned_tokens))
        if self.allowed_tokens is not None:
            self._set("allowed_tokens", checks.token_ids("allowed_tokens", self.allowed_tokens))
        if self.allowed_tokens == ():
            raise checks.refuse("allowed_tokens", "at least one token id", ())
        if not isinstance(self.logit_bias, Mapping):
            raise checks.refuse("logit_bias", "a mapping of token ids to numbers", self.logit_bias)
        for token, bias in self.logit_bias.items():
            if not checks.is_token(token):
                raise checks.refuse("logit_bias", "token ids", token)
            if not isinstance(bias, Real) or bias != -math.inf:
                checks.number(f"logit_bias[{token}]", bias)
        self._set("logit_bias", {int(token): float(bias) for token, bias in self.logit_bias.items()})

    def _check_breakers(self) -> None:
        name, wanted = "dry_sequence_breakers", "strings or tuples of token ids, none empty"
        self._set_tuple(name, is_breaker, wanted)

    def _check_constraints(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{given[0]}: cannot be combined with {given[1]}")
        plain = (bool, int, float, bytes, list, tuple, dict)
        if isinstance(self.grammar, plain) or is_empty(self.grammar) or hasattr(self.grammar, "tolist"):
            raise checks.refuse("grammar", "GBNF text or a compiled grammar", self.grammar)
        schema = self.json_schema
        is_number = isinstance(schema, (int, float)) and not isinstance(schema, bool)
        is_array = hasattr(schema, "tolist") and not isinstance(schema, type)
        if is_number or is_array or isinstance(schema, (bytes, list, tuple)) or is_empty(schema):
            raise checks.refuse("json_schema", "a mapping, JSON text, True, False or a type", schema)
        if self.regex is not None and not isinstance(self.regex, str):
            raise checks.refuse("regex", "a string", self.regex)
        if self.choices is not None:
            self._set("choices", checks.texts("choices", self.choices, empty=True))
            if not self.choices:
                raise checks.refuse("choices", "at least one string", ())
        tag = self.structural_tag
        if tag is not None and (not isinstance(tag, (str, Mapping)) or is_empty(tag)):
            raise checks.refuse("structural_tag", "a mapping or JSON text", tag)

    def _check_order(self) -> None:
        self._set_tuple(
            "order", lambda s: s in ORDER if isinstance(s, str) else callable(s), f"callables or {ORDER}"
        )
        names = [stage for stage in self.order if isinstance(stage, str)]
        if len(set(names)) < len(names):
            raise checks.refuse("order", "each stage at most once", names)
        for name, stage in STAGE_OF.items():
            if stage not in names and self._is_asked_for(name):
                raise ConfigError(
                    f"{name}: expected the stage {stage} in order, got {checks.shown(self.order)}"
                )

    def _check_mirostat(self) -> None:
        if not self.mirostat:
            return
        for name, stage in STAGE_OF.items():
            if stage in CUTS and self._is_asked_for(name):
                raise ConfigError(f"mirostat: cannot be combined with {name} {getattr(self, name)}")
        if self.is_greedy:
            raise ConfigError("mirostat: expected a temperature > 0, got 0")

    def _is_asked_for(self, name: str) -> bool:
        """Whether an option is neither at its default nor off."""
        default = next(f.default for f in fields(self) if f.name == name)
        return getattr(self, name) not in (default, OFF.get(name))

    def _set_tuple(self, name: str, is_good: Callable[[Any], bool], wanted: str) -> None:
        """Makes a tuple of a list or tuple whose items are good."""
        value = getattr(self, name)
        if not isinstance(value, (list, tuple)) or not all(map(is_good, value)):
            raise checks.refuse(name, wanted, value)
        self._set(name, tuple(value))


def is_empty(value: Any) -> bool:
    """Whether ``value`` is the empty string."""
    return isinstance(value, str) and not value


def is_breaker(value: Any) -> bool:
    """Whether ``value`` can be a DRY sequence breaker."""
    if isinstance(value, str):
        return 0 < len(value) == len(value.encode(errors="ignore").decode())
    return isinstance(value, tuple) and len(value) > 0 and all(map(checks.is_token, value))


class SamplerFields(TypedDict, total=False):
    """The fields of `SamplerConfig` as keyword arguments, for editors and type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_a: float
    top_n_sigma: float
    eta_cutoff: float
    epsilon_cutoff: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repetition_window: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...]
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    seed: int | None
    logit_bias: Mapping[int, float]
    banned_tokens: tuple[int, ...]
    allowed_tokens: tuple[int, ...] | None
    min_tokens: int
    ignore_eos: bool
    grammar: Any
    json_schema: Any
    regex: str | None
    choices: tuple[str, ...] | None
    structural_tag: Any
    any_order: bool
    order: tuple[str | Callable[..., Any], ...]
