"""The options of a request for text, listed in this one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from oxillama.base.config import checks
from oxillama.base.config.checks import ABOVE_ZERO, INT_MAX, NO_DECODE_WAIT
from oxillama.base.config.option import Adapters, AnyPath, Options, declared, no_option, option
from oxillama.base.config.sampler import CONSTRAINTS, SamplerConfig
from oxillama.base.lazy_import import lazy
from oxillama.errors import ConfigError

adapter_specs: Callable[..., Any] = lazy("oxillama.base.config.adapters:adapter_specs")
constraint_of: Callable[..., Any] = lazy("oxillama.base.config.response_format:constraint_of")
same_constraint: Callable[..., Any] = lazy("oxillama.base.config.response_format:same_constraint")

WINDOW = 16
"""Pieces of text that a stream may run ahead of its consumer."""

MOST_NAME = 200
"""Characters of a `GenerationOptions.request_id`."""

DRAFT_ACCEPTANCE = ("seeded", "rejection")
"""Rules by which a drafted token is accepted."""


def _stops(name: str, value: Any) -> tuple[str, ...]:
    """Strings, or one alone, as a tuple; () for None. Raises ConfigError."""
    found = () if value is None else (value,) if isinstance(value, str) else value
    return checks.texts(name, found, empty=False)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, Mapping))


def _response_format(name: str, value: Any) -> Any:
    """OpenAI's object, in one of its forms. Raises ConfigError."""
    constraint_of(value)
    return value


def _line(name: str, value: Any) -> str:
    """A name that stays on its line of a log. Raises ConfigError."""
    text = checks.encodable(name, value)
    if not (0 < len(text) <= MOST_NAME and text.isprintable()):
        raise checks.refuse(name, f"1 to {MOST_NAME} characters that can be printed", value)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class GenerationOptions(Options):
    """Options of one request, checked when they are made.

    Raises:
        ConfigError: a value is outside its range, or cannot be combined with another; the message names the
            field.
    """

    # fmt: off
    sampler: SamplerConfig | None = option(None, check=partial(checks.instance, kind=SamplerConfig),
        cli=False, server=False,
        help="how tokens are chosen; None takes the engine's")
    max_tokens: int | None = option(256, low=0, flags="-n",
        names="max_completion_tokens max_output_tokens num_predict n_predict",
        help="max tokens to generate; None for as many as the context holds")
    stop: str | tuple[str, ...] | list[str] | None = option((), check=_stops, argument="TEXT", is_list=True,
        help="strings that end the text and are not part of it; one that is the text of a special token ends "
             "the text at that token. None for none")
    priority: int = option(0, low=-INT_MAX, high=INT_MAX, cli=False,
        help="requests with a higher one run first")
    max_decode_wait_ms: float | None = option(None, low=ABOVE_ZERO, high=NO_DECODE_WAIT, cli=False,
        help="milliseconds between two tokens of this text, to which others' prompts are cut; 1e9 where "
             "nobody reads along. None takes the scheduler's")
    timeout: float | None = option(None, low=ABOVE_ZERO,
        help="seconds from the submission after which the request ends; None for never")
    salt: str = option("", cli=False, names="cache_salt cache_prompt",
        help="prompts share cached keys and values only with prompts of the same salt")
    tenant: str = option("", cli=False, server=False,
        help="whose request it is. Tenants share the batch evenly: a request of one with less than its share "
             "is admitted at once, and the latest request of the largest waits")
    logprobs: bool = option(False, cli=False, server=False,
        help="notes the log-probability of each token, in the model's distribution and in the one it was "
             "drawn from")
    top_logprobs: int | None = option(None, low=0, cli=False, server=False,
        help="the same, and so many of the likeliest tokens of either distribution")
    keep_logits: bool = option(False, cli=False, server=False,
        help="keeps the logits that each token was chosen from")
    adapters: Adapters = option(None, check=adapter_specs, argument="FILE[=SCALE]", is_list=True,
        server=False, names="lora",
        help="LoRA adapters: a path or a `LoadedLora`, alone or in a pair with its scale, a list of these, "
             "or a mapping of them to scales; () for none. None takes those of the engine")
    speculate: AnyPath | None = option(None, choices=("lookup", "self", "auto", "off"),
        help='what drafts tokens, as in `EngineConfig`, or "off"; '
             "None takes the engine's")
    draft_acceptance: str = option("seeded", choices=DRAFT_ACCEPTANCE,
        help='"seeded" accepts a drafted token where the sampler draws the same one, so that the text is '
             'that of the same seed without drafts; "rejection" accepts more of them, and gives another text '
             "of the same distribution")
    window: int | None = option(WINDOW, low=1, cli=False, server=False,
        help="pieces of text that may wait for the consumer; with as many the request pauses. None for no "
             "limit")
    receipt: bool = option(False, cli=False, help="makes a receipt, with which anybody can check the text")
    message_format: Any = option(None, hash=False, repr=False, cli=False, server=False,
        help='how the model writes reasoning and tool calls, by which its text is taken apart: "auto" for '
             "what the file's chat template says, a name of `oxillama.text.toolcalls.GRAMMARS`, or a "
             '`ToolCallGrammar`. None leaves the text as it is, but is "auto" for chats and with ``tools``')
    special_in_content: bool = option(False,
        help="whether names of control tokens in the messages of a chat become these tokens, not text")
    reasoning_budget: int | None = option(None, low=0,
        names="thinking_budget_tokens reasoning_budget_tokens thinking_token_budget thinking_budget",
        help="max tokens of reasoning, after which the text that ends it is forced; 0 for no reasoning. "
             "Cannot be combined with a receipt. None for any number")
    tools: Sequence[Any] | None = option(None, hash=False, repr=False, cli=False, server=False,
        check=checks.expecting("a list of tools", _is_list, lambda value: tuple(value) or None),
        help="that the model may call: JSON definitions, Python functions, dataclasses, pydantic models")
    tool_choice: str | Mapping[str, Any] = option("auto", hash=False, repr=False, cli=False, server=False,
        check=checks.expecting("a text or an object", lambda value: isinstance(value, (str, Mapping))),
        help='"auto", "none" (no call), "required" (at least one), or the name of the tool to be called '
             "once, alone or in OpenAI's form")
    parallel_tool_calls: bool = option(True, cli=False, server=False,
        help="whether one answer may have several calls")
    response_format: Mapping[str, Any] | None = option(None, check=_response_format, hash=False,
        repr=False, cli=False,
        help="what the text must be, in OpenAI's form: "
             '"text", "json_object", "json_schema" or "structural_tag". It becomes '
             "``json_schema`` or ``structural_tag`` of the sampler, and None here, once there is a sampler")
    jump_forward: bool = option(False,
        help="appends tokens that a grammar leaves no choice about without sampling them, several in a pass. "
             "What follows them may differ from the text without it. Cannot be combined with "
             "log-probabilities, kept logits, a receipt, mirostat, stages in Python, bans, biases of logits, "
             "``min_tokens`` or ``ignore_eos``")
    request_id: str | None = option(None, check=_line, cli=False, server=False,
        help="what logs and traces call the request: 1 to 200 characters that can be printed. None for its "
             "number in the engine")
    # fmt: on

    def _check_together(self) -> None:
        if self.receipt and self.draft_acceptance == "rejection":
            raise ConfigError(
                "receipt: cannot be combined with draft_acceptance rejection, "
                "whose text does not follow from the seed alone"
            )
        if self.tools is None and self.tool_choice not in ("auto", "none"):
            raise ConfigError(f"tool_choice: expected tools, got none for {checks.shown(self.tool_choice)}")
        if self.response_format is not None and self.sampler is not None:
            asked = _constraint(self.response_format, self.sampler, {})
            vars(self).update(sampler=self.sampler._with(asked), response_format=None)

    @property
    def n_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are noted with each; None without log-probabilities."""
        return 0 if self.top_logprobs is None and self.logprobs else self.top_logprobs

    @staticmethod
    def of(
        options: GenerationOptions | None, given: Mapping[str, Any], sampler: SamplerConfig
    ) -> GenerationOptions:
        """``options``, with the fields that are ``given`` replaced. Only these are checked.

        Args:
            given: fields of this class and of `SamplerConfig`; the latter replace the options' sampler's.
            sampler: in use where neither says one.

        Raises:
            ConfigError: a name is no field, or a value is outside its range.
        """
        made: GenerationOptions = USUAL
        if options is not None:
            made = checks.instance("options", options, GenerationOptions)
        own: dict[str, Any] = {}
        sampling: dict[str, Any] = {}
        for name, value in given.items():
            if name in FIELD_NAMES:
                own[name] = value
            elif name in OPTION_NAMES:
                sampling[name] = value
            else:
                raise no_option(name, GenerationOptions, SamplerConfig)
        chosen = own.get("sampler", made.sampler)
        chosen = sampler if chosen is None else checks.instance("sampler", chosen, SamplerConfig)
        wanted = own.pop("response_format", made.response_format)
        if wanted is not None:
            sampling |= _constraint(wanted, chosen, sampling)
        if made.response_format is not None:
            own["response_format"] = None
        own["sampler"] = chosen._with(sampling) if sampling else chosen
        return made if len(own) == 1 and own["sampler"] is made.sampler else made._with(own)


def _constraint(wanted: Any, sampler: SamplerConfig, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a sampler that a response format comes to; ``sampling`` replaces some others.

    Raises ConfigError for another form, and for another constraint beside it.
    """
    asked: dict[str, Any] = constraint_of(wanted)
    for name in CONSTRAINTS if asked else ():
        known = sampling.get(name, getattr(sampler, name))
        if known is not None and not same_constraint(known, asked.get(name)):
            raise ConfigError(f"response_format: cannot be combined with {name}")
    return asked


USUAL = GenerationOptions()
FIELD_NAMES = tuple(declared(GenerationOptions))
OPTION_NAMES = (*FIELD_NAMES, *declared(SamplerConfig))
