"""Patterns of calls: texts with ``$`` words in the place of what differs; see `ToolCallGrammar`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from oxillama.text.toolcalls.incoming_text import IncomingText, MalformedCall, Parsing

BODIES = ("json", "members", "keywords", "elements", "arguments")
"""Words that stand for the arguments of a call."""
WORDS = {word: f"(?P<{word}>.*)" for word in ("key", "type", "string", "id")}
WORDS |= {"name": "(?P<name>.+)", "code": "(?P<id>.*)", "number": r"\d+", "kind": "function"}
"""What other words stand for, as regular expressions."""
_PARTS = re.compile(r"\$[a-z]+|~|[^$~]*>(?=[\w.:]+\$)|[^$~]+")
_TEXTS = re.compile(r"<[^<>]*>?|[^<>]+")
_PLAIN = re.compile(r"[\w.:]+")


@dataclass(frozen=True)
class Head:
    """What stands before the arguments of a call, or before a value, up to a delimiter.

    Attributes:
        words: matches the text.
        stop: the delimiter; the beginning of the arguments if they follow at once.
        shown: both, for messages.
    """

    words: re.Pattern[str]
    stop: str
    shown: str


@dataclass(frozen=True)
class Pattern:
    """A pattern taken apart.

    Attributes:
        parts: its texts, ``$`` words and ``~``.
        begin: the text before the first word; may be "".
        heads: what stands between ``begin`` and the body.
        body: the word for arguments, or "value"; "" without such a word.
        ends: the texts after the body; "" without them, or if the body is an object in JSON.
        padded: line breaks stand around the body, which may be missing.
    """

    parts: tuple[str, ...]
    begin: str
    heads: tuple[Head, ...]
    body: str
    ends: tuple[str, ...]
    padded: bool

    @property
    def is_object(self) -> bool:
        """Whether it is an object in JSON."""
        return self.parts[:1] != () and self.parts[0].startswith("{")

    @property
    def literals(self) -> list[str]:
        """Its delimiters, of which some may be special tokens."""
        found = [text for part in self.parts if part[0] not in "$~" for text in _TEXTS.findall(part.strip())]
        return [] if self.is_object else [text.strip() for text in found if not _PLAIN.fullmatch(text)]


@lru_cache(maxsize=512)
def pattern(text: str) -> Pattern:
    """A pattern taken apart."""
    parts = tuple(_PARTS.findall(text))
    at = next((i for i, part in enumerate(parts) if part[1:] in (*BODIES, "value")), len(parts))
    body, behind = ("", parts[at:]) if at == len(parts) else (parts[at][1:], parts[at + 1 :])
    begin, words, shown, heads = "", "", "", []
    for part in parts[:at]:
        if part[0] == "$":
            words, shown = words + WORDS.get(part[1:], "(?!)"), shown + part[1:].upper()
        elif _PLAIN.fullmatch(part):
            words, shown = words + re.escape(part), shown + part
        elif part != "~" and not (words or begin):
            begin = shown = part.strip()
        elif part.strip("~\n"):
            heads.append(Head(re.compile(words, re.DOTALL), part.strip(), shown + part.strip()))
            words = shown = ""
    if words:
        stop = "{" if body in ("json", "members") else ""
        heads.append(Head(re.compile(words, re.DOTALL), stop, shown + stop))
    ends = tuple(part.strip() for part in behind if part != "~" and text[0] != "{") or ("",)
    padded = "".join(behind[:1]).startswith("\n") and parts[at - 1].endswith("\n")
    return Pattern(parts, begin, tuple(heads), body, ends, padded)


def parse_heads(
    source: IncomingText, patterns: Sequence[Pattern], ends: tuple[str, ...] = ()
) -> Parsing[tuple[Pattern, dict[str, str]]]:
    """What stands before the arguments or the value: the pattern that it follows, and its words.

    ``ends`` : texts behind which it is not looked for. Raises MalformedCall.
    """
    left, texts = list(patterns), list[str]()
    while any(len(one.heads) > len(texts) for one in left):
        n = len(texts)
        done = [one for one in left if len(one.heads) == n]
        if done:
            yield from source.spaces()
            if (yield from source.next()) == "{":
                left = done
                break
        left = [one for one in left if len(one.heads) > n]
        follows = tuple({one.heads[n].stop for one in left} - {""})
        if not any(one.heads[n].words.pattern for one in left):
            texts.append("")
            yield from source.expect(follows)
            continue
        outside = ("<", "\n") if ">" in follows else ('"',) if any(one[0] == '"' for one in follows) else ()
        stops = (*follows, *ends, *outside)  # a name in quotes has none, one in brackets no others
        text, stop = yield from source.text_until(stops)
        if stop == "{" or stop not in follows:
            source.unread(stop)
        shown = " or ".join(dict.fromkeys(one.heads[n].shown for one in left))
        left = [one for one in left if stop and (one.heads[n].stop or stop) == stop]
        texts.append(text.strip())
        if not left:
            raise MalformedCall(f"expected {shown}, got {text[:80]!r}")
    for one in left:
        found = [head.words.fullmatch(text) for head, text in zip(one.heads, texts)]
        if all(found):
            words = {key: word for match in found if match for key, word in match.groupdict().items()}
            if "$number" in one.parts and "id" not in words and len(texts) == 1:
                words["id"] = texts[0]
            return one, words
    raise MalformedCall(f"expected {left[0].heads[-1].shown}, got {texts[-1][:80]!r}")
