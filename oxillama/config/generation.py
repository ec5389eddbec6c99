"""The options of a request for text, listed in this one place."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from oxillama.config import checks
from oxillama.config.adapters import Adapters, adapter_specs
from oxillama.config.checks import INT_MAX
from oxillama.config.response_format import constraint_of, same_constraint
from oxillama.config.sampler import SamplerConfig, SamplerFields
from oxillama.errors import ConfigError

WINDOW = 16
"""Pieces of text that a stream may run ahead of its reader."""


MOST_NAME = 200
"""Characters of a `GenerationOptions.request_id`."""

DRAFT_ACCEPTANCE = ("seeded", "rejection")
"""Rules by which a drafted token is accepted."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of one request, checked when they are made.

    Attributes
    ----------
    sampler : how tokens are chosen; None takes the engine's.
    max_tokens : most tokens to generate; None for as many as the context holds.
    stop : strings that end the text and are not part of it; None for none.
    priority : requests with a higher one run first.
    timeout : seconds from the submission after which the request ends; None for never.
    salt : prompts share cached keys and values only with prompts of the same salt.
    logprobs : notes the log-probability of each token, in the model's distribution and in the one it was
        drawn from.
    top_logprobs : the same, and so many of the likeliest tokens of either distribution.
    keep_logits : keeps the logits that each token was chosen from.
    adapters : LoRA adapters: a path or a `LoadedLora`, alone or in a pair with its scale, a list of these, or
        a mapping of them to scales; () for none. None takes those of the engine.
    speculate : what drafts tokens, as in `EngineConfig`, or "off"; None takes the engine's.
    draft_acceptance : "seeded" accepts a drafted token where the sampler draws the same one, so that the text
        is that of the same seed without drafts; "rejection" accepts more of them, and gives another text of
        the same distribution.
    window : pieces of text that may wait for the reader; with as many the request pauses. None for no limit.
    receipt : makes a receipt, with which anybody can check the text.
    message_format : how the model writes reasoning and tool calls, by which its text is taken apart: "auto"
        for what the file's chat template says, a name of `oxillama.toolcalls.GRAMMARS`, or a
        `ToolCallGrammar`. None leaves the text as it is, but is "auto" for chats and with ``tools``.
    tools : that the model may call: JSON definitions, Python functions, dataclasses, pydantic models.
    tool_choice : "auto", "none" (no call), "required" (at least one), or the name of the tool to be called
        once, alone or in OpenAI's form.
    parallel_tool_calls : whether one answer may have several calls.
    response_format : what the text must be, in OpenAI's form: "text", "json_object", "json_schema" or
        "structural_tag". It becomes ``json_schema`` or ``structural_tag`` of the sampler, and None here, as
        soon as there is a sampler.
    jump_forward : appends tokens that a grammar leaves no choice about without sampling them, several in a
        pass. Their text is the same, its tokens may be others than sampled ones. Cannot be combined with
        log-probabilities, kept logits, a receipt, mirostat, stages in Python, bans, biases of logits,
        ``min_tokens`` or ``ignore_eos``.
    request_id : what logs and traces call the request: 1 to 200 characters that can be printed. None for its
        number in the engine.

    Raises
    ------
    ConfigError : a value is outside its range, or cannot be combined with another; the message names the
        field.
    """

    sampler: SamplerConfig | None = None
    max_tokens: int | None = 256
    stop: str | tuple[str, ...] | list[str] | None = ()
    priority: int = 0
    timeout: float | None = None
    salt: str = ""
    logprobs: bool = False
    top_logprobs: int | None = None
    keep_logits: bool = False
    adapters: Adapters = None
    speculate: str | os.PathLike[str] | None = None
    draft_acceptance: str = "seeded"
    window: int | None = WINDOW
    receipt: bool = False
    message_format: Any = field(default=None, hash=False, repr=False)
    tools: Sequence[Any] | None = field(default=None, hash=False, repr=False)
    tool_choice: str | Mapping[str, Any] = field(default="auto", hash=False, repr=False)
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)
    jump_forward: bool = False
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None:
            checks.instance("sampler", self.sampler, SamplerConfig)
        if self.max_tokens is not None:
            self._set("max_tokens", checks.integer("max_tokens", self.max_tokens, 0))
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", checks.texts("stop", stop, empty=False))
        self._set("priority", checks.integer("priority", self.priority, -INT_MAX, INT_MAX))
        if self.timeout is not None:
            self._set("timeout", checks.number("timeout", self.timeout, checks.ABOVE_ZERO))
        checks.encodable("salt", self.salt)
        checks.boolean("logprobs", self.logprobs)
        checks.boolean("jump_forward", self.jump_forward)
        checks.boolean("keep_logits", self.keep_logits)
        if self.top_logprobs is not None:
            self._set("top_logprobs", checks.integer("top_logprobs", self.top_logprobs, 0))
        if self.adapters is not None:
            self._set("adapters", adapter_specs("adapters", self.adapters))
        if not isinstance(self.speculate, (str, os.PathLike, type(None))):
            raise checks.refuse("speculate", '"lookup", "self", "auto", "off" or a path', self.speculate)
        checks.one_of("draft_acceptance", self.draft_acceptance, DRAFT_ACCEPTANCE)
        if self.window is not None:
            self._set("window", checks.integer("window", self.window, 1))
        if self.request_id is not None:
            _check_request_id(self.request_id)
        if checks.boolean("receipt", self.receipt) and self.draft_acceptance == "rejection":
            raise ConfigError(
                "receipt: cannot be combined with draft_acceptance rejection, "
                "whose text does not follow from the seed alone"
            )

        self._check_tools()
        if self.response_format is not None:
            self._take_response_format()

    def _take_response_format(self) -> None:
        """Puts the response format into the sampler, if there is one yet: `of` gives it one."""
        asked = constraint_of(self.response_format)
        if self.sampler is None:
            return
        for name, value in asked.items():
            known = self.sampler.constraint
            if known is not None and not (
                known == name and same_constraint(getattr(self.sampler, known), value)
            ):
                raise ConfigError(f"response_format: cannot be combined with {known}")
            self._set("sampler", replace(self.sampler, **{name: value}))
        self._set("response_format", None)

    def _check_tools(self) -> None:
        if self.tools is not None:
            if isinstance(self.tools, (str, bytes, Mapping)) or not isinstance(self.tools, Sequence):
                raise checks.refuse("tools", "a list of tools", self.tools)
            self._set("tools", tuple(self.tools) or None)
        checks.boolean("parallel_tool_calls", self.parallel_tool_calls)
        if not isinstance(self.tool_choice, (str, Mapping)):
            raise checks.refuse("tool_choice", "a text or an object", self.tool_choice)
        if self.tools is None and self.tool_choice not in ("auto", "none"):
            raise ConfigError(f"tool_choice: expected tools, got none for {checks.shown(self.tool_choice)}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def n_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are noted with each; None without log-probabilities."""
        return 0 if self.top_logprobs is None and self.logprobs else self.top_logprobs

    @classmethod
    def of(
        cls, options: GenerationOptions | None, given: Mapping[str, Any], sampler: SamplerConfig
    ) -> GenerationOptions:
        """``options``, with the fields that are ``given`` replaced.

        Parameters
        ----------
        given : fields of this class and of `SamplerConfig`; the latter replace those of the options' sampler.
        sampler : in use where neither says one.

        Raises
        ------
        ConfigError : a name is no field, or a value is outside its range.
        """
        if options is not None:
            checks.instance("options", options, GenerationOptions)
        unknown = next((name for name in given if name not in OPTION_NAMES), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, OPTION_NAMES, 1)
            raise ConfigError(f"{unknown}: is no option" + (f"; {near[0]} is" if near else ""))
        own = {name: value for name, value in given.items() if name in FIELD_NAMES}
        sampling = {name: value for name, value in given.items() if name not in FIELD_NAMES}
        made = replace(options or cls(), **own)
        chosen = made.sampler or sampler
        return replace(made, sampler=replace(chosen, **sampling) if sampling else chosen)


class GenerationFields(SamplerFields, total=False):
    """The fields of `GenerationOptions` and of `SamplerConfig` as keyword arguments, for editors and type
    checkers."""

    sampler: SamplerConfig | None
    max_tokens: int | None
    stop: str | tuple[str, ...] | list[str] | None
    priority: int
    timeout: float | None
    salt: str
    logprobs: bool
    top_logprobs: int | None
    keep_logits: bool
    adapters: Adapters
    speculate: str | os.PathLike[str] | None
    draft_acceptance: str
    window: int | None
    receipt: bool
    message_format: Any
    tools: Sequence[Any] | None
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    response_format: Mapping[str, Any] | None
    jump_forward: bool
    request_id: str | None


def _check_request_id(value: Any) -> None:
    """Raises ConfigError for a name that would not stay on its line of a log."""
    name = checks.encodable("request_id", value)
    if not (0 < len(name) <= MOST_NAME and name.isprintable()):
        raise checks.refuse("request_id", f"1 to {MOST_NAME} characters that can be printed", value)


FIELD_NAMES = tuple(f.name for f in fields(GenerationOptions))
OPTION_NAMES = (*FIELD_NAMES, *(f.name for f in fields(SamplerConfig)))
