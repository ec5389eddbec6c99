"""Messages of models, taken apart in more than one cut; and definitions of tools, made to grammars."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

from oxillama import Grammar, OxiLlamaError
from oxillama.apps.cli.tools import tools_of
from oxillama.text.toolcalls import GRAMMARS, CallEnd, CallFailed, MessageParser, definitions
from oxillama.text.toolcalls.definitions import chosen
from oxillama.text.toolcalls.message_rules import message_rules
from oxillama.text.toolcalls.parameters import Tool
from tests.fuzz.harness import Target
from tests.fuzz.mutate import SkipInput, built, edited, edits, mutated, mutated_text
from tests.support import tool_models
from tests.support.toolcalls import ALL, LONG, TOKENS, TOOLS, check, events_of, joined


class MessageTarget(Target):
    name = "message"

    def seeds(self) -> list[Any]:
        return [
            {"grammar": name, "text": f"So. {text} {text}", "tools": TOOLS, "thinking": False}
            for name, cases in LONG.items()
            for text, _ in cases
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = copy.deepcopy(value)
        what = rng.random()
        if what < 0.8:
            new["text"] = mutated_text(new["text"], rng, words=TOKENS)
        elif what < 0.9:
            new["tools"] = mutated(
                new["tools"], rng, keys=["name", "parameters", "properties", "type", "enum"]
            )
        else:
            new["grammar"] = rng.choice(sorted(ALL))
            new["thinking"] = rng.random() < 0.5
        return new

    def run(self, value: Any) -> None:
        tools, text = built(value["tools"]), value["text"]
        if not isinstance(text, str) or not isinstance(tools, list) or value["grammar"] not in ALL:
            raise SkipInput("no message")
        grammar, thinking = ALL[value["grammar"]], value["thinking"]
        events = events_of(grammar, [text], tools, thinking)
        check(text, events)
        assert events_of(grammar, list(text), tools, thinking) == events
        half = len(text) // 2
        whole, slow = (MessageParser(grammar, tools, thinking) for _ in range(2))
        begun = [event for char in text[:half] for event in slow.feed(char)]
        assert joined(whole.feed(text[:half])) == joined(begun)


class ToolTarget(Target):
    """Hostile names and schemas: a definition is refused, or its calls are what the parser reads."""

    name = "tools"
    allowed = (OxiLlamaError,)

    def seeds(self) -> list[Any]:
        forms = [name for name, form in GRAMMARS.items() if form.has_calls]
        return [
            {"grammar": name, "tools": tool_models.TOOLS, "choice": choice, "seed": 1}
            for name in forms
            for choice in ("required", {"function": {"name": "write"}})
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = copy.deepcopy(value)
        new["seed"] = rng.randrange(2**31)
        if "edits" in new or rng.random() < 0.2:
            new["edits"] = [*new.get("edits", []), *edits(rng)]
            return new
        keys = ["name", "parameters", "properties", "type", "enum", "$ref", "required", "pattern", "function"]
        if rng.random() < 0.3 and isinstance(new["tools"], list) and new["tools"]:
            tool = rng.choice(new["tools"])
            if isinstance(tool, dict):
                tool["name"] = mutated_text(str(tool.get("name", "x")), rng, words=TOKENS)
        else:
            new["tools"] = mutated(new["tools"], rng, keys=keys)
        if rng.random() < 0.1:
            new["choice"] = mutated(new["choice"], rng, keys=keys)
        return new

    def run(self, value: Any) -> None:
        tools = built(value["tools"])
        if "edits" in value:
            tools = self._read(edited(json.dumps(tools).encode(), value["edits"]))
        form = GRAMMARS[value["grammar"]]
        found = {tool["function"]["name"]: tool["function"] for tool in definitions(tools)}
        choice, names = chosen(built(value["choice"]), tuple(found))
        wanted = [Tool.of(found[name]) for name in names]
        vocabulary, tokens, special, end = tool_models.vocabulary_of(form, True)
        grammar = Grammar.from_rules(message_rules(form, wanted, choice, special=special))
        text, is_whole = tool_models.random_text(grammar, vocabulary, tokens, end, value["seed"], 60)
        read = form if choice != "none" else form.without_calls()
        parser = MessageParser(read, list(found.values()), constrained=True)
        events = parser.feed(text) + parser.finish()
        assert not is_whole or not any(isinstance(event, CallFailed) for event in events)
        for event in events:
            assert not isinstance(event, CallEnd) or event.call.name in names

    def _read(self, data: bytes) -> Any:
        """The definitions of a file, as ``--tools`` reads them."""
        path = Path("tools.json")
        path.write_bytes(data)
        return tools_of(str(path))
