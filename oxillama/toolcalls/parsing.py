"""How the text of a request is read: taken apart into answer, reasoning and calls, of which each is valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oxillama.config import GenerationOptions, SamplerConfig, checks
from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.grammar.compiling import compiled_by
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.made_once import MadeOnce
from oxillama.structured.constraints import key_of
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.tokenizer.vocabulary import HIDDEN
from oxillama.toolcalls.definitions import Definition, chosen, definitions
from oxillama.toolcalls.formats import GRAMMARS, grammar_of_template
from oxillama.toolcalls.message import MessageParser
from oxillama.toolcalls.message_rules import message_rules
from oxillama.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.toolcalls.value_rules import Tool

MOST_GRAMMARS = 32
"""Grammars of tools that are kept; what is asked for again is not compiled again."""

TAIL = 64
"""Tokens at the end of a prompt in which the beginning of reasoning is looked for."""

WITH_TOOLS = "tool_use"
"""Name of the chat template that some files have for conversations with tools."""


@dataclass(frozen=True)
class TextFormat:
    """How the text of one request is parsed.

    Attributes
    ----------
    format : of calls and reasoning; without calls where there can be none.
    tools : definitions; None without tools.
    in_reasoning : whether the text begins inside reasoning.
    grammar : of the whole text; None without tools.
    shown : special tokens that the format is made of, whose names belong to the text.
    answers : whether a text that is no call is an answer of a schema, in which nothing else is looked for.
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
    """Makes the parsers that options ask for, over one model's vocabulary. Thread-safe."""

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self.tokenizer = tokenizer
        self._special: dict[ToolCallGrammar, dict[str, int]] = {}
        self._grammars: MadeOnce[Grammar] = MadeOnce(MOST_GRAMMARS)

    @classmethod
    def of(cls, model: Any) -> Parsers:
        """Those of a `LoadedModel`."""
        return cls(model.tokenizer)

    def new(self, options: GenerationOptions, prompt: list[int]) -> TextFormat | None:
        """How a text that follows a prompt is parsed; None for a text that is left as it is.

        Raises
        ------
        ConfigError : there is no such format, or it has no calls and there are tools; a tool is none.
        GrammarError : the schema of a tool cannot be enforced, or is over a limit; the message names it.
        """
        if options.message_format is None and options.tools is None:
            return None
        form = self.format(options)
        tail = self.tokenizer.decode(prompt[-TAIL:], skip_special=False)
        in_reasoning = form.begins_in_reasoning(tail)
        tools, grammar, answers = None, None, False
        plain = form.without_calls()
        if options.tools is not None:
            tools = definitions(options.tools)
            choice = chosen(options.tool_choice, called_names(tools))[0]
            has_schema = options.sampler is not None and options.sampler.json_schema is not None
            if choice == "none" and has_schema:
                return None  # the schema rules all of the text
            answers = choice == "auto" and has_schema
            form = with_answers(form) if answers else form
            grammar = self._grammar(options, form, tools, in_reasoning, answers)
            plain = plain if choice == "none" else form
        if not plain.has_calls and not (plain.reasoning or plain.dropped or grammar):
            return None  # there is nothing to take apart
        shown = frozenset(self.special(plain).values())
        return TextFormat(plain, tools, in_reasoning, grammar, shown, answers)

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
        known = self.tokenizer.chat_template_names
        if options.tools is not None and WITH_TOOLS in known:
            name = WITH_TOOLS
        if name not in known:
            raise ConfigError("message_format: expected one, for the file has no chat template, got auto")
        return format_of_source(self.tokenizer.chat_template_source(name), options.tools is not None)

    def special(self, form: ToolCallGrammar) -> dict[str, int]:
        """Special tokens that delimiters of a format may be made of, by their texts."""
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
        return self._grammars.get(key, lambda: compiled_by(compiled, *wanted, self.special(form), answer))


def called_names(tools: list[Definition]) -> tuple[str, ...]:
    """The names of functions."""
    return tuple(tool["function"]["name"] for tool in tools)


def with_answers(form: ToolCallGrammar) -> ToolCallGrammar:
    """The format for texts that are calls or an answer in JSON: every call has a delimiter.

    Raises ConfigError if the format cannot tell the two apart.
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

    Parameters
    ----------
    answer : the schema that a text without calls follows, and whether members have any order.
    """
    tools = [Tool.of(each) for each in functions]
    schema = None
    if answer is not None:
        schema = JsonSchemaCompiler(any_order=answer[1], plain_integers=True).compile(answer[0])
    rules = message_rules(
        form, tools, choice, parallel=parallel, in_reasoning=in_reasoning, special=special, answer=schema
    )
    return Grammar.from_rules(rules)


def format_of_source(source: str, with_tools: bool) -> ToolCallGrammar:
    """The format that a chat template writes. Raises ConfigError if it cannot write the tools there are."""
    found = grammar_of_template(source)
    if with_tools and not found.has_calls:
        wanted = "a chat template that writes tool calls in a known format, or a message_format"
        raise ConfigError(f"tools: expected {wanted}, got neither")
    return found


def template_values(template: Mapping[str, Any] | None, tools: list[Definition] | None) -> dict[str, Any]:
    """The variables of a chat template, with the tools. Raises ConfigError if they are given twice."""
    values = dict(template or {})
    if tools is not None:
        if values.get("tools") is not None:
            raise ConfigError("tools: expected them once, got them in template, too")
        values["tools"] = tools
    return values
