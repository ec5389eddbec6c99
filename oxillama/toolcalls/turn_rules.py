"""Grammars of messages that are made of several: what `toolcalls/turns.py` reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from oxillama.grammar.rulebook import SPACE, RuleBook, texts_without
from oxillama.grammar.rules import Alt, Dfa, Node, Repeat, Seq, Text
from oxillama.toolcalls.call_rules import BREAK, MANY, CallRules
from oxillama.toolcalls.turns import ENDS, WRAPPER
from oxillama.toolcalls.value_rules import Tool

NOTHING = Seq(())


def escaped(text: str) -> str:
    """A regular expression of a text alone."""
    return re.escape(text).replace("\\\n", "\\n")


def free_text(stops: Sequence[str], begins: Sequence[str] = (), blank: bool = True) -> Dfa:
    """`texts_without`, whose languages are as few as may be: states multiply with each."""
    found = [f"[^]*({'|'.join(map(escaped, stops))})"] if stops else []
    found += [f"({'|'.join(begins)})"] if begins else []
    return texts_without((), tuple(found), blank)


@dataclass(frozen=True)
class TurnRules:
    """The parts of such a message.

    Attributes
    ----------
    thought, plain, call : a message that is reasoning; one without a call; one that is a call.
    next : what ends a message and begins the next one.
    first : the body of a message whose header the prompt has; None if it never has.
    """

    thought: Node | None
    plain: Node
    call: Node
    next: Node
    first: Node | None = None

    def root(self, choice: str, in_reasoning: bool, many: bool) -> Node:
        """The whole message: see `message_rules`."""
        begun = self.first if in_reasoning else None
        thoughts: list[Node] = []
        if choice == "none":
            return Seq((begun or self.plain, Repeat(Seq((self.next, self.plain)), 0, None)))
        if choice in ("required", "one"):
            more = Repeat(Seq((self.next, self.call)), 0, MANY - 1) if many else NOTHING
            if begun is not None and self.thought is not None:
                again = Repeat(Seq((self.next, self.thought)), 0, 1)
                return Seq((begun, again, self.next, self.call, more))
            if self.thought is not None:
                thoughts.append(Repeat(Seq((self.thought, self.next)), 0, 1))
            return Seq((*thoughts, self.call, more))
        plains = Repeat(Seq((self.next, self.plain)), 0, None)
        if many:
            item = Alt((self.plain, self.call))
            return Seq((begun or item, Repeat(Seq((self.next, item)), 0, None)))
        ways: list[Node] = [
            Seq((begun or self.plain, plains, Repeat(Seq((self.next, self.call, plains)), 0, 1)))
        ]
        if begun is None:
            ways.append(Seq((self.call, plains)))
        return Alt(tuple(ways))


def harmony(book: RuleBook, calls: CallRules) -> TurnRules:
    """gpt-oss's: a header has a channel, and of a call the tool."""
    mark = calls.mark
    body = book.rule(free_text(ENDS))
    header = rf"{SPACE}*(<\|channel\|>|to=)"
    channel, message = mark("<|channel|>"), mark("<|message|>")
    channels = Alt(tuple(map(Text, ("analysis", "commentary", "final"))))

    constrained = Seq((Repeat(Text(" "), 0, 1), mark("<|constrain|>"), Text("json")))
    kind = Alt((NOTHING, Text(" json"), constrained))
    commentary = book.rule(Seq((channel, Text("commentary"))))

    def write(tool: Tool) -> Node:
        """A call, whose recipient stands behind the channel or, as in templates, before it."""
        to = Text(f" to=functions.{tool.name}")
        head = Alt((Seq((commentary, to)), Seq((to, commentary))))
        return Seq((head, kind, message, calls.arguments(tool)))

    return TurnRules(
        thought=book.rule(Seq((channel, Text("analysis"), message, body))),
        plain=book.rule(Seq((channel, channels, message, body))),
        call=calls.each(write),
        next=book.rule(Seq((mark("<|end|>"), mark("<|start|>assistant")))),
        first=book.rule(free_text(ENDS, (header,))),  # of a prompt with a header
    )


def recipients(book: RuleBook, calls: CallRules, names: Sequence[str]) -> TurnRules:
    """A header is the name of the user, of the model itself, or of a tool."""
    grammar, mark = calls.grammar, calls.mark
    lead, behind, end, user, myself = grammar.headers
    start = grammar.opens[0]
    starts = (start,) if end else tuple(f"{start}{name}{behind}" for name in (user, *names))
    unnamed = (f"{start.removesuffix(lead)}{behind}",) if lead else ()
    body = book.rule(free_text((*starts, *unnamed, *((end,) if end else ()), *grammar.dropped)))

    def header(name: str) -> Node:
        return Seq((Text(f"{lead}{name}"), mark(behind)))

    def write(tool: Tool) -> Node:
        if not grammar.tags:
            return Seq((header(tool.name), calls.arguments(tool)))
        inside = Seq((mark(WRAPPER), BREAK, calls.invoke(tool), BREAK, mark(f"</{WRAPPER[1:]}")))
        return Seq((header(tool.name), inside))

    thought = book.rule(Seq((header(myself), body))) if myself else None
    answer = book.rule(Seq((header(user), body)))
    following = (mark(end), mark(start.removesuffix(lead))) if end else (mark(start),)
    return TurnRules(
        thought=thought,
        plain=answer if thought is None else book.rule(Alt((answer, thought))),
        call=calls.each(write),
        next=book.rule(Seq(following)),
    )
