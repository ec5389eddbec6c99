"""Messages of models, taken apart into text, reasoning and tool calls, in more than one cut."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from oxillama.toolcalls import MessageParser
from tests.fuzz.harness import Target
from tests.fuzz.mutate import SkipInput, built, mutated, mutated_text
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
