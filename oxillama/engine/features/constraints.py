"""Grammars for requests: compiled once for an engine, one small state for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from oxillama.base.config.sampler import SamplerConfig
from oxillama.base.lazy_import import lazy
from oxillama.base.locks import ForkedOpen
from oxillama.base.single_flight import SingleFlight
from oxillama.engine.loading import LoadedModel
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, GrammarState
from oxillama.text.grammar.compiling import compiled_by, key_of
from oxillama.text.grammar.constraint import MOST_KEPT_BYTES
from oxillama.text.grammar.grammar import spelled_ids
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.lark import is_lark, parse_lark
from oxillama.text.grammar.rules import Alt, Rules, Text
from oxillama.text.grammar.state import Timer
from oxillama.text.grammar.structural_tags import structural_tag_rules
from oxillama.text.grammar.vocabulary import Vocabulary
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

reasoned_rules: Callable[..., Rules] = lazy("oxillama.text.toolcalls.message_rules:reasoned_rules")

MOST_GRAMMARS = 32
"""Grammars that are kept; what is asked for again is not compiled again."""


class Constraints:
    """Makes the constraints that sampler options ask for, over one model's vocabulary.

    Thread-safe. The vocabulary is prepared when the first is asked for.

    Args:
        timer: as `GrammarState` takes it, for the masks of all constraints.
    """

    def __init__(self, tokenizer: TokenizerBridge, timer: Timer | None = None) -> None:
        self.tokenizer = tokenizer
        self._timer = timer
        self._vocabulary: Vocabulary | None = None
        self._grammars: SingleFlight[Grammar] = SingleFlight(MOST_GRAMMARS)
        self._lock = ForkedOpen()

    @classmethod
    def of(cls, model: LoadedModel) -> Constraints:
        """The constraints of a model."""
        metrics = model.made("metrics")
        return cls(model.tokenizer, None if metrics is None else metrics.mask_timer.note)

    def new(self, config: SamplerConfig) -> GrammarState | None:
        """A fresh state of the grammar that one of `CONSTRAINTS` comes to; None if ``config`` has none.

        Raises:
            GrammarError: it is malformed, matches nothing, or is over a limit.
        """
        if config.constraint is None:
            return None
        return GrammarState(self._grammar(config), self.vocabulary, self._timer)

    def behind_reasoning(
        self, answer: Grammar, form: ToolCallGrammar, special: Mapping[str, int], in_reasoning: bool
    ) -> GrammarState:
        """A fresh state of the grammar of reasoning, which need not come, and an answer.

        Args:
            answer: the grammar of the answer.
            form, special, in_reasoning: as for `message_rules`.
        """

        def make() -> Grammar:
            rules = reasoned_rules(form, answer.rules, in_reasoning=in_reasoning, special=special)
            return Grammar.from_rules(rules)

        grammar = self._grammars.get((answer, form, in_reasoning), make)
        return GrammarState(grammar, self.vocabulary, self._timer)

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary, prepared for grammars."""
        with self._lock.lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
            return self._vocabulary

    def _grammar(self, config: SamplerConfig) -> Grammar:
        if isinstance(config.grammar, Grammar):
            return config.grammar
        found = self._grammars.get(key_of(config), partial(compiled_by, compiled, config, self.tokenizer))
        self._grammars.trim(Grammar.table_bytes, MOST_KEPT_BYTES)
        return found


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
