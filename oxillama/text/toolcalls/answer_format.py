"""The format in which the text of a request is parsed into answer, reasoning and valid calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oxillama.base.config import GenerationOptions, SamplerConfig, checks
from oxillama.base.single_flight import SingleFlight
from oxillama.errors import ConfigError
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.compiling import compiled_by, key_of
from oxillama.text.grammar.constraint import MOST_KEPT_BYTES
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.tokenizer.tokenizer import Tokenizer
from oxillama.text.tokenizer.vocabulary import HIDDEN
from oxillama.text.toolcalls.definitions import Definition, chosen, definitions
from oxillama.text.toolcalls.formats import (
    GRAMMARS,
    WITH_TOOLS,
    checked_format,
    grammar_of_template,
    reasons_before,
    rules_text,
)
from oxillama.text.toolcalls.message import MessageParser
from oxillama.text.toolcalls.message_rules import message_rules
from oxillama.text.toolcalls.parameters import Tool
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

MOST_GRAMMARS = 32
"""Grammars of tools that are kept, so that a repeated request compiles nothing."""

TAIL = 64
"""Tokens at the end of a prompt that are searched for the beginning of reasoning."""


@dataclass(frozen=True)
class TextFormat:
    """How the text of one request is parsed.

    Attributes:
        format: of calls and reasoning; a format without calls if no tool may be called.
        tools: definitions; None without tools.
        in_reasoning: whether the text begins inside reasoning.
        grammar: of the whole text; None without tools.
        shown: special tokens of the format; their names belong to the text.
        answers: whether a text that is not a call is an answer by a schema, which is not parsed further.
    """

    format: ToolCallGrammar
    tools: list[Definition] | None
    in_reasoning: bool
    grammar: Grammar | None
    shown: frozenset[int]
    answers: bool = False

    def parser(self) -> MessageParser:
        """A parser at the beginning of the text."""
        is_ruled = self.grammar is not None
        return MessageParser(self.format, self.tools, self.in_reasoning, is_ruled, self.answers)

    def sampler(self, options: GenerationOptions) -> SamplerConfig:
        """The options of the sampler, with the grammar of the text, if it has one.

        The grammar of the text has the schema of an answer in it. Raises ConfigError if there is another
        grammar beside it, or if a receipt could not say where the text ends.
        """
        assert options.sampler is not None
        if self.shown and options.receipt and options.stop:
            raise ConfigError("receipt: cannot be combined with stop strings where special tokens are text")
        if self.grammar is None:
            return options.sampler
        if options.sampler.constraint not in (None, "json_schema"):
            raise ConfigError(f"tools: cannot be combined with {options.sampler.constraint}")
        return options.sampler._changed(grammar=self.grammar, json_schema=None)


class Parsers:
    """Makes the parsers that options ask for, over one model's vocabulary. Thread-safe.

    Args:
        templates: Jinja sources of the model's chat templates by name.
    """

    def __init__(self, tokenizer: Tokenizer, templates: Mapping[str, str]) -> None:
        self.tokenizer = tokenizer
        self._templates = templates
        self._special: dict[ToolCallGrammar, dict[str, int]] = {}
        self._grammars: SingleFlight[Grammar] = SingleFlight(MOST_GRAMMARS)

    @classmethod
    def of(cls, model: Any) -> Parsers:
        """The parsers of a `LoadedModel`."""
        return cls(model.tokenizer, model.tokenizer.templates)

    def new(self, options: GenerationOptions, prompt: list[int]) -> TextFormat | None:
        """The format of a text that follows a prompt; None for a text that is not parsed.

        Raises:
            ConfigError: the format is unknown, or has no calls and there are tools; a tool is invalid.
            GrammarError: the schema of a tool cannot be enforced, or is over a limit; the message names it.
        """
        if options.message_format is None and options.tools is None:
            return None
        form = self.format(options)
        tail = self.tokenizer.decode(prompt[-TAIL:], skip_special=False)
        in_reasoning = form.begins_in_reasoning(tail)
        tools, grammar, answers = None, None, False
        plain = form.without_calls()
        if rules_text(options, form):
            if not reasons_before(options, form):
                return None
            return TextFormat(plain, None, in_reasoning, None, self.shown(plain), answers=True)
        if options.tools is not None:
            tools = definitions(options.tools)
            choice = chosen(options.tool_choice, called_names(tools))[0]
            has_schema = options.sampler is not None and options.sampler.json_schema is not None
            answers = choice == "auto" and has_schema
            form = with_answers(form) if answers else form
            grammar = self._grammar(options, form, tools, in_reasoning, answers)
            plain = plain if choice == "none" else form
        if not plain.has_calls and not (plain.reasoning or plain.dropped or grammar):
            return None  # there is nothing to parse
        return TextFormat(plain, tools, in_reasoning, grammar, self.shown(plain), answers)

    def format(self, options: GenerationOptions) -> ToolCallGrammar:
        """The format that options name. Raises ConfigError."""
        wanted, name = options.message_format, "default"
        if isinstance(wanted, ToolCallGrammar):
            return wanted
        if isinstance(wanted, Mapping):
            return ToolCallGrammar.of(wanted)
        if wanted is not None and not (isinstance(wanted, str) and wanted == "auto"):
            if not isinstance(wanted, str) or wanted not in GRAMMARS:
                names = ", ".join(GRAMMARS)
                raise checks.refuse("message_format", f"auto, a ToolCallGrammar, or one of {names}", wanted)
            return GRAMMARS[wanted]
        known = self._templates
        if options.tools is not None and WITH_TOOLS in known:
            name = WITH_TOOLS
        if name not in known:
            raise ConfigError("message_format: expected one, for the file has no chat template, got auto")
        form = grammar_of_template(self._templates[name])
        return form if options.tools is None else checked_format(form)

    def shown(self, form: ToolCallGrammar) -> frozenset[int]:
        """Special tokens whose names belong to the text."""
        return frozenset(self.special(form).values())

    def special(self, form: ToolCallGrammar) -> dict[str, int]:
        """Special tokens that occur in delimiters of a format, by their texts."""
        if form not in self._special:
            vocab, found = self.tokenizer.vocab, {}
            whole = "\0".join(form.delimiters)
            for id, kind in enumerate(vocab.types) if whole else ():
                text = vocab.tokens[id] if kind & HIDDEN and id not in vocab.eog_ids else ""
                if text and text in whole:
                    found[text] = id
            self._special[form] = found
        return self._special[form]

    def _grammar(
        self,
        options: GenerationOptions,
        form: ToolCallGrammar,
        tools: list[Definition],
        in_reasoning: bool,
        answers: bool,
    ) -> Grammar:
        """The grammar of a text with tools, whose answers follow the schema of the options if ``answers``."""
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        choice, names = chosen(options.tool_choice, tuple(functions))
        parallel, sampler = options.parallel_tool_calls, options.sampler
        answer = (sampler.json_schema, sampler.any_order) if answers and sampler is not None else None
        known = None if answer is None or sampler is None else key_of(sampler)
        key = (form, json.dumps(tools), choice, names, parallel, in_reasoning, known)
        wanted = form, [functions[name] for name in names], choice, parallel, in_reasoning
        found = self._grammars.get(key, lambda: compiled_by(compiled, *wanted, self.special(form), answer))
        self._grammars.trim(Grammar.table_bytes, MOST_KEPT_BYTES)
        return found


def called_names(tools: list[Definition]) -> tuple[str, ...]:
    """The names of functions."""
    return tuple(tool["function"]["name"] for tool in tools)


def with_answers(form: ToolCallGrammar) -> ToolCallGrammar:
    """The format for texts that are calls or an answer in JSON: every call has a delimiter.

    Raises ConfigError if a call in the format can look like an answer.
    """
    like_json = any(not set(text) - set('[{" \n') for text in form.opens)
    if form.headers or like_json:
        message = f"tools: cannot be combined with json_schema in the format {form.name}"
        raise ConfigError(f"{message}, whose delimiters could stand in an answer")
    return replace(form, bare=False)


def compiled(
    form: ToolCallGrammar,
    functions: list[Mapping[str, Any]],
    choice: str,
    parallel: bool,
    in_reasoning: bool,
    special: Mapping[str, int],
    answer: tuple[Any, bool] | None = None,
) -> Grammar:
    """The grammar of a text in which these functions may be called.

    Args:
        answer: the schema that a text without calls follows, and whether members have any order.
    """
    tools = [Tool.of(each) for each in functions]
    schema = None
    if answer is not None:
        schema = JsonSchemaCompiler(any_order=answer[1], plain_integers=True).compile(answer[0])
    rules = message_rules(
        form, tools, choice, parallel=parallel, in_reasoning=in_reasoning, special=special, answer=schema
    )
    return Grammar.from_rules(rules)
