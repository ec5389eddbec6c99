"""How tokens are chosen: the options, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeVar

from oxillama.base.config import checks
from oxillama.base.config.checks import ABOVE_ZERO, BELOW_ONE, INT_MAX, MAX_SEED
from oxillama.base.config.option import Options, declared, option
from oxillama.errors import ConfigError

Values = TypeVar("Values", bound=tuple[Any, ...])


class Stage(NamedTuple):
    """A stage that options switch on. Its kernel takes the values of ``off`` and ``others``, in this order.

    Attributes:
        off: by option, the value at which the stage does nothing; all of them together switch it off.
        others: further options of the stage.
        has_window: whether the last of ``others`` is the number of recent tokens that the stage looks at.
        is_cut: whether it drops candidates; mirostat replaces such stages.
        keeps_highest: whether a cut always keeps the highest logit.
    """

    off: dict[str, float]
    others: tuple[str, ...] = ()
    has_window: bool = False
    is_cut: bool = True
    keeps_highest: bool = True


STAGES = {
    "penalties": Stage({"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0},
                       ("repetition_window",), has_window=True, is_cut=False),
    "dry": Stage({"dry_multiplier": 0}, ("dry_base", "dry_allowed_length", "dry_range"),
                 has_window=True, is_cut=False),
    "top_n_sigma": Stage({"top_n_sigma": 0}),
    "top_k": Stage({"top_k": 0}),
    "typical_p": Stage({"typical_p": 1}, keeps_highest=False),
    "top_p": Stage({"top_p": 1}),
    "min_p": Stage({"min_p": 0}),
    "top_a": Stage({"top_a": 0}),
    "epsilon_cutoff": Stage({"epsilon_cutoff": 0}),
    "eta_cutoff": Stage({"eta_cutoff": 0}),
    "xtc": Stage({"xtc_probability": 0}, ("xtc_threshold",), keeps_highest=False),
    "temperature": Stage({"temperature": 1, "dynatemp_range": 0}, ("dynatemp_exponent",), is_cut=False),
}  # fmt: skip
"""The stages by name, in the order they are applied, llama.cpp's; before them come bans, biases and the
grammar."""

ORDER = tuple(STAGES)
STAGE_OF = {option: name for name, stage in STAGES.items() for option in stage.off}
"""The stage that an option switches on."""

CONSTRAINTS = ("grammar", "json_schema", "regex", "choices", "structural_tag")
"""The fields that say what texts are allowed, of which one at most is given."""


def _logit_biases(name: str, value: Any) -> dict[int, float]:
    """Biases by token id. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise checks.refuse(name, "a mapping of token ids to numbers", value)
    for token, bias in value.items():
        if not checks.is_token(token):
            raise checks.refuse(name, "token ids", token)
        if not isinstance(bias, Real) or bias != -math.inf:
            checks.number(f"{name}[{token}]", bias)
    return {int(token): float(bias) for token, bias in value.items()}


def _some_tokens(name: str, value: Any) -> tuple[int, ...]:
    """At least one token id. Raises ConfigError."""
    return _some(name, checks.token_ids(name, value), "token id")


def _some_texts(name: str, value: Any) -> tuple[str, ...]:
    """At least one string. Raises ConfigError."""
    return _some(name, checks.texts(name, value, empty=True), "string")


def _some(name: str, values: Values, what: str) -> Values:
    if not values:
        raise checks.refuse(name, f"at least one {what}", ())
    return values


def _is_breaker(value: Any) -> bool:
    """Whether ``value`` can be a DRY sequence breaker."""
    if isinstance(value, str):
        return 0 < len(value) == len(value.encode(errors="ignore").decode())
    return isinstance(value, tuple) and len(value) > 0 and all(map(checks.is_token, value))


def _is_grammar(value: Any) -> bool:
    """Whether ``value`` can be GBNF, Lark, or a compiled grammar."""
    plain = (bool, int, float, bytes, list, tuple, dict)
    return not (isinstance(value, plain) or _is_empty(value) or hasattr(value, "tolist"))


def _is_schema(value: Any) -> bool:
    """Whether ``value`` can be a JSON schema or a Python type."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_array = hasattr(value, "tolist") and not isinstance(value, type)
    return not (is_number or is_array or isinstance(value, (bytes, list, tuple)) or _is_empty(value))


def _is_empty(value: Any) -> bool:
    """Whether ``value`` is the empty string."""
    return isinstance(value, str) and not value


_breakers = checks.expecting(
    "strings or tuples of token ids, none empty",
    lambda value: isinstance(value, (list, tuple)) and all(map(_is_breaker, value)),
    tuple,
)
_grammar = checks.expecting("GBNF text or a compiled grammar", _is_grammar)
_json_schema = checks.expecting("a mapping, JSON text, True, False or a type", _is_schema)
_regex = checks.expecting("a string", lambda value: isinstance(value, str))
_structural_tag = checks.expecting(
    "a mapping or JSON text", lambda value: isinstance(value, (str, Mapping)) and not _is_empty(value)
)


def _is_stage(value: Any) -> bool:
    return value in ORDER if isinstance(value, str) else callable(value)


def _stages(name: str, value: Any) -> tuple[str | Callable[..., Any], ...]:
    """Names of stages, each at most once, and callables. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(map(_is_stage, value)):
        raise checks.refuse(name, f"callables or {ORDER}", value)
    names = [stage for stage in value if isinstance(stage, str)]
    if len(set(names)) < len(names):
        raise checks.refuse(name, "each stage at most once", names)
    return tuple(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplerConfig(Options):
    """Sampling options. The defaults are the same as in llama.cpp's command line.

    Raises:
        ConfigError: a value is outside its range, or options cannot be honoured together: one that switches
            on a stage that ``order`` leaves out; more than one constraint (grammar, json_schema, ...);
            mirostat with a cut (those on by default are then left out, as in llama.cpp) or at temperature 0.
    """

    # fmt: off
    temperature: float = option(0.8, low=0, flags="--temp",
        help="divides the logits; 0 picks the highest one that is left")
    top_k: int = option(40, low=0, high=INT_MAX, help="keep this many of the highest; 0 keeps all")
    top_p: float = option(0.95, low=0, high=1,
        help="keep the fewest whose probabilities sum to this (Holtzman et al., 2020); 0 keeps the highest")
    min_p: float = option(0.05, low=0, high=1,
        help="keep those with at least this times the highest probability (Nguyen et al., 2024)")
    typical_p: float = option(1.0, low=ABOVE_ZERO, high=1, flags="--typical",
        help="keep the fewest of the most typical surprise that sum to more (Meister et al., 2022)")
    top_a: float = option(0.0, low=0, high=1,
        help="keep those with at least this times the square of the highest probability")
    top_n_sigma: float = option(0.0, low=0, flags="--top-nsigma",
        help="keep logits within so many standard deviations of the highest (Tang et al., 2024); 0 is off")
    eta_cutoff: float = option(0.0, low=0, high=BELOW_ONE,
        help="keep p >= min(eta, sqrt(eta) e^-entropy) (Hewitt et al., 2022); 0 is off")
    epsilon_cutoff: float = option(0.0, low=0, high=BELOW_ONE,
        help="keep p >= epsilon (Hewitt et al., 2022); 0 is off")
    repetition_penalty: float = option(1.0, low=ABOVE_ZERO, flags="--repeat-penalty", names="repeat_penalty",
        help="divides positive logits of recent tokens, multiplies negative ones, once per distinct token "
             "(Keskar et al., CTRL, 2019)")
    frequency_penalty: float = option(0.0,
        help="subtracted from the logit of a recent token for each time it occurs")
    presence_penalty: float = option(0.0, help="subtracted from the logit of a recent token")
    repetition_window: int = option(64, low=-1, high=INT_MAX, flags="--repeat-window --repeat-last-n",
        names="repeat_last_n",
        help="how many of the last tokens count as recent; -1 for all")
    dry_multiplier: float = option(0.0, low=0,
        help="penalty for extending a repetition of the allowed length (DRY); 0 is off")
    dry_base: float = option(1.75, low=1,
        help="factor of the penalty for each token beyond the allowed length")
    dry_allowed_length: int = option(2, low=0, high=INT_MAX,
        help="length from which a repetition is penalized")
    dry_range: int = option(-1, low=-1, high=INT_MAX, flags="--dry-penalty-last-n",
        names="dry_penalty_last_n",
        help="how many of the last tokens are searched for repetitions; -1 for all")
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...] = option(("\n", ":", '"', "*"),
        check=_breakers, argument="TEXT", flags="--dry-sequence-breaker",
        help="texts at which a repetition ends", python="or tuples of token ids")
    xtc_probability: float = option(0.0, low=0, high=1,
        help="chance that, of the tokens that reach the threshold, all but the least likely are dropped "
             "(XTC)")
    xtc_threshold: float = option(0.1, low=0, high=1,
        help="probability from which a token counts; above 0.5 no two tokens do, none is dropped")
    dynatemp_range: float = option(0.0, low=0,
        help="the temperature varies with the entropy, by this much down and up; 0 is off")
    dynatemp_exponent: float = option(1.0, low=0, flags="--dynatemp-exp",
        help="of the entropy's share of the highest possible, which maps to that range")
    mirostat: int = option(0, low=0, high=2,
        help="1 or 2 replaces every cut by one that holds the surprise near tau (Basu et al., 2021); 0 is "
             "off")
    mirostat_tau: float = option(5.0, low=0, flags="--mirostat-ent", help="target surprise, in bits")
    mirostat_eta: float = option(0.1, low=0, flags="--mirostat-lr", help="learning rate")
    seed: int | None = option(None, low=0, high=MAX_SEED, flags="-s",
        help="seed of the random numbers; None takes the engine's, or a new one")
    logit_bias: Mapping[int, float] = option({}, check=_logit_biases, hash=False, argument="ID+BIAS",
        is_list=True,
        help="by token id, what is added to its logit; -inf bans it")
    banned_tokens: tuple[int, ...] = option((), help="token ids that are never chosen")
    allowed_tokens: tuple[int, ...] | None = option(None, check=_some_tokens, names="allowed_token_ids",
        help="the only token ids that may be chosen; None for all")
    min_tokens: int = option(0, low=0, high=INT_MAX,
        help="tokens before which no end of generation is chosen, unless a grammar allows nothing else")
    ignore_eos: bool = option(False,
        help="never choose an end of generation, unless a grammar allows nothing else")
    grammar: Any = option(None, check=_grammar, hash=False, argument="FILE", is_read=True,
        names="guided_grammar",
        help="text must follow this grammar (GBNF; Lark, with ``%llguidance`` or as JSON; or compiled)")
    json_schema: Any = option(None, check=_json_schema, hash=False, argument="FILE", is_read=True,
        names="guided_json",
        help="text must be JSON that fits this JSON schema",
        python="a dict, JSON text, True, or a type: a dataclass, a pydantic model, ``list[str]``")
    regex: str | None = option(None, check=_regex, names="guided_regex",
        help="text must match this regular expression")
    choices: tuple[str, ...] | None = option(None, check=_some_texts, flags="--choice",
        names="choice guided_choice",
        help="text must be one of these")
    structural_tag: Any = option(None, check=_structural_tag, hash=False, argument="FILE", is_read=True,
        help="text must follow this structural tag: free text in which some parts are ruled",
        python="a dict or JSON text")
    any_order: bool = option(False,
        help="objects of JSON schemas (json_schema, and those in a structural tag that do not say, or in a "
             "Lark grammar) take their properties in any order; else in the order of the schema")
    order: tuple[str | Callable[..., Any], ...] = option(ORDER, check=_stages, argument="A;B;...",
        is_list=False, flags="--samplers", names="samplers",
        help="names of the stages in the order they are applied",
        python="and callables among them: see `SamplerStage`")
    # fmt: on

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
        """The option among `CONSTRAINTS` that is set."""
        return next((name for name in CONSTRAINTS if getattr(self, name) is not None), None)

    def _check_together(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{given[0]}: cannot be combined with {given[1]}")
        if self.order is not ORDER:
            names = [stage for stage in self.order if isinstance(stage, str)]
            for name, stage in STAGE_OF.items():
                if stage not in names and self._is_asked_for(name):
                    found = checks.shown(self.order)
                    raise ConfigError(f"{name}: expected the stage {stage} in order, got {found}")
        if self.mirostat:
            for name, stage in STAGE_OF.items():
                if STAGES[stage].is_cut and self._is_asked_for(name):
                    raise ConfigError(f"mirostat: cannot be combined with {name} {getattr(self, name)}")
            if self.is_greedy:
                raise ConfigError("mirostat: expected a temperature > 0, got 0")

    def _is_asked_for(self, name: str) -> bool:
        """Whether an option is neither at its default nor off."""
        off = STAGES[STAGE_OF[name]].off[name]
        return getattr(self, name) not in (declared(type(self))[name].default, off)
