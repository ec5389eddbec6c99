"""Grammars of texts with tools are kept by all that they depend on."""

from __future__ import annotations

from itertools import product

import pytest

from oxillama import GenerationOptions, demo
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.toolcalls.answer_format import Parsers
from oxillama.text.toolcalls.formats import GRAMMARS

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def test_each_way_to_call_has_a_grammar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parsers, form, digests = Parsers(TokenizerBridge.from_gguf(demo.STORY), {}), GRAMMARS["deepseek"], set()
    for parallel, choice, inside in product((True, False), ("auto", "required"), (True, False)):
        monkeypatch.setattr(type(form), "begins_in_reasoning", lambda self, tail, inside=inside: inside)
        options = GenerationOptions(
            tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel, message_format="deepseek"
        )
        found, again = (parsers.new(options, []) for _ in range(2))
        assert found is not None and again is not None and found.grammar is not None
        assert again.grammar is found.grammar
        digests.add(found.grammar.digest)
    assert len(digests) == 8
