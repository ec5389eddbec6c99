"""Grammars for requests: compiled once for an engine, one small state for each request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from oxillama.config.sampler import SamplerConfig
from oxillama.engine.loading import LoadedModel
from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState
from oxillama.grammar.compiling import compiled_by
from oxillama.grammar.grammar import spelled_ids
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.lark import is_lark, parse_lark
from oxillama.grammar.python_types import schema_of_type
from oxillama.grammar.rules import Alt, Rules, Text
from oxillama.grammar.state import Timer
from oxillama.grammar.structural_tags import structural_tag_rules
from oxillama.grammar.vocabulary import Vocabulary
from oxillama.locks import ForkedOpen
from oxillama.made_once import MadeOnce
from oxillama.tokenizer.bridge import TokenizerBridge

MOST_GRAMMARS = 32
"""Grammars that are kept; what is asked for again is not compiled again."""


class Constraints:
    """Makes the constraints that sampler options ask for, over one model's vocabulary.

    Thread-safe. The vocabulary is prepared when the first is asked for.

    Parameters
    ----------
    timer : as `GrammarState` takes it, for the masks of all constraints.
    """

    def __init__(self, tokenizer: TokenizerBridge, timer: Timer | None = None) -> None:
        self.tokenizer = tokenizer
        self._timer = timer
        self._vocabulary: Vocabulary | None = None
        self._grammars: MadeOnce[Grammar] = MadeOnce(MOST_GRAMMARS)
        self._lock = ForkedOpen()

    @classmethod
    def of(cls, model: LoadedModel) -> Constraints:
        """Those of a model."""
        return cls(model.tokenizer, None if model.counters is None else model.counters.mask_timer.note)

    def new(self, config: SamplerConfig) -> GrammarState | None:
        """A fresh state of the grammar that one of `CONSTRAINTS` comes to; None if ``config`` has none.

        Raises
        ------
        GrammarError : it is malformed, matches nothing, or is over a limit.
        """
        if config.constraint is None:
            return None
        return GrammarState(self._grammar(config), self.vocabulary, self._timer)

    @property
    def vocabulary(self) -> Vocabulary:
        """That of the model, prepared for grammars."""
        with self._lock.lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
            return self._vocabulary

    def _grammar(self, config: SamplerConfig) -> Grammar:
        if isinstance(config.grammar, Grammar):
            return config.grammar
        return self._grammars.get(key_of(config), partial(compiled_by, compiled, config, self.tokenizer))


def key_of(config: SamplerConfig) -> tuple[str, bool, object]:
    """What a grammar is kept under: the field, the order, and the value as something that can be hashed."""
    name = config.constraint or ""
    value = getattr(config, name)
    try:
        hash(value)
    except TypeError:  # a mapping, or annotations that hold one
        schema = value if isinstance(value, Mapping) else schema_of_type(value)
        try:
            text = json.dumps(schema, default=repr)
            return f"{name} of {type(value).__name__}", config.any_order, text
        except RecursionError:
            raise GrammarError("#: nested too deeply") from None
        except Exception as error:  # a value within itself, an integer of thousands of digits, a class's repr
            raise GrammarError(f"schema: expected JSON values, got others: {error}") from error
    return name, config.any_order, value


def compiled(config: SamplerConfig, tokenizer: TokenizerBridge) -> Grammar:
    """The grammar of a configuration that has one."""
    if config.choices is not None:
        return Grammar.from_rules(Rules("root", {"root": Alt(tuple(Text(text) for text in config.choices))}))
    if config.regex is not None:
        return Grammar.from_regex(config.regex)
    if config.json_schema is not None:
        compiler = JsonSchemaCompiler(any_order=config.any_order, plain_integers=True)
        return Grammar.from_json_schema(config.json_schema, compiler=compiler)
    spelled = spelled_ids(tokenizer)
    if config.structural_tag is not None:
        return Grammar.from_rules(structural_tag_rules(config.structural_tag, spelled, config.any_order))
    text = str(config.grammar)
    if is_lark(text):
        return Grammar.from_rules(parse_lark(text, spelled, config.any_order))
    return Grammar.parse(text, tokenizer=tokenizer)
