"""Engines that `benchmarks.grammar` compares: each compiles a case and finds masks along a document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.grammar_texts import Case
from oxillama.errors import ConfigError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, GrammarState, JsonSchemaCompiler, Vocabulary, structural_tag_rules

Clock = Callable[[], float]


class Engine:
    """One engine over one vocabulary.

    ``masks`` yields the seconds of each mask along the tokens; ConfigError or GrammarError where a token is
    refused, or the text may not end.
    """

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self.tokenizer = tokenizer

    def compile(self, case: Case) -> Any:
        raise NotImplementedError

    def masks(self, compiled: Any, tokens: list[int], clock: Clock) -> Iterator[float]:
        raise NotImplementedError

    def held(self, compiled: Any) -> int | None:
        """Bytes of a compiled grammar and what was found with it; None where that is not known."""
        return None


class Oxillama(Engine):
    def __init__(self, tokenizer: TokenizerBridge) -> None:
        super().__init__(tokenizer)
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.compiler = JsonSchemaCompiler()
        self.counted: dict[int, np.ndarray] = {}

    def compile(self, case: Case) -> Grammar:
        if case.tag is not None:
            grammar = Grammar.from_rules(structural_tag_rules(case.tag))
        else:
            grammar = (
                Grammar.parse(case.gbnf)
                if case.gbnf
                else Grammar.from_json_schema(case.schema, compiler=self.compiler)
            )
        grammar.constraint(self.vocabulary)
        return grammar

    def masks(self, compiled: Grammar, tokens: list[int], clock: Clock) -> Iterator[float]:
        state = GrammarState(compiled, self.vocabulary)
        for token in tokens:
            start = clock()
            state.mask()
            yield clock() - start
            state.advance(token)
        if not state.is_complete:
            raise ConfigError("oxillama: refuses the document")

    def held(self, compiled: Grammar) -> int:
        """As if all grammars were kept: a mask counts with the first that has it, a slice never."""
        tables = compiled.constraint(self.vocabulary).tables()
        masks = {id(mask): mask for mask in tables.masks.values() if id(mask) not in self.counted}
        self.counted |= masks
        own: int = tables.states.n_bytes - tables.matcher.n_shared
        return own + sum(mask.nbytes for mask in masks.values())


class LlGuidance(Engine):
    def __init__(self, tokenizer: TokenizerBridge) -> None:
        import llguidance

        super().__init__(tokenizer)
        self.library = llguidance

        def encode(text: bytes) -> list[int]:
            return tokenizer.encode(text.decode("utf-8", "replace"), add_special=False)

        encode.eos_token_id = tokenizer.eos_id  # type: ignore[attr-defined]
        encode.bos_token_id = tokenizer.bos_id  # type: ignore[attr-defined]
        encode.tokens = tokenizer.vocab_bytes()  # type: ignore[attr-defined]
        control = [id for id in range(tokenizer.n_vocab) if tokenizer.is_control(id)]
        encode.special_token_ids = control  # type: ignore[attr-defined]
        self.tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(encode))
        self.words = np.zeros((tokenizer.n_vocab + 31) // 32, np.int32)

    def compile(self, case: Case) -> Any:
        if case.tag is not None:
            tag = self.library.StructTag
            tags = [
                tag(
                    trigger=case.tag["triggers"][0], begin=one["begin"], grammar=one["schema"], end=one["end"]
                )
                for one in case.tag["structures"]
            ]
            text = tag.to_grammar(tags)
        elif case.schema is not None:
            text = self.library.LLMatcher.grammar_from_json_schema(json.dumps(case.schema))
        else:
            text = self.library.grammar_from("gbnf", case.gbnf)
        matcher = self.library.LLMatcher(self.tokens, text)
        if matcher.is_error():
            raise ConfigError(f"llguidance: {matcher.get_error()}")
        return matcher

    def masks(self, compiled: Any, tokens: list[int], clock: Clock) -> Iterator[float]:
        matcher = compiled.deep_copy()
        for token in tokens:
            start = clock()
            matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
            yield clock() - start
            if not self.words[token >> 5] >> (token & 31) & 1:  # without asking: it would print a warning
                raise ConfigError(f"llguidance: refuses token {token}")
            if not matcher.consume_token(token):
                raise ConfigError(f"llguidance: {matcher.get_error()}")
        if not matcher.is_accepting():
            raise ConfigError("llguidance: refuses the document")


class XGrammar(Engine):
    def __init__(self, tokenizer: TokenizerBridge) -> None:
        import xgrammar

        super().__init__(tokenizer)
        self.library = xgrammar
        self.info = xgrammar.TokenizerInfo(
            tokenizer.vocab_bytes(), xgrammar.VocabType.RAW, stop_token_ids=sorted(tokenizer.eog_ids)
        )
        self.bits = xgrammar.allocate_token_bitmask(1, tokenizer.n_vocab)

    def compile(self, case: Case) -> Any:
        compiler = self.library.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        if case.tag is not None:
            tags = [
                {
                    "begin": one["begin"],
                    "content": {"type": "json_schema", "json_schema": one["schema"]},
                    "end": one["end"],
                }
                for one in case.tag["structures"]
            ]
            form = {"type": "triggered_tags", "triggers": case.tag["triggers"], "tags": tags}
            return compiler.compile_structural_tag({"type": "structural_tag", "format": form})
        if case.schema is not None:
            return compiler.compile_json_schema(json.dumps(case.schema))
        return (
            compiler.compile_builtin_json_grammar() if case.is_json else compiler.compile_grammar(case.gbnf)
        )

    def masks(self, compiled: Any, tokens: list[int], clock: Clock) -> Iterator[float]:
        matcher = self.library.GrammarMatcher(compiled)
        for token in tokens:
            start = clock()
            matcher.fill_next_token_bitmask(self.bits)
            yield clock() - start
            if not matcher.accept_token(token):
                raise ConfigError("XGrammar: refuses the document")


ENGINES: dict[str, Callable[[TokenizerBridge], Engine]] = {
    "oxillama": Oxillama,
    "llguidance": LlGuidance,
    "xgrammar": XGrammar,
}
