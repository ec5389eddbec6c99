"""A small story grammar: templates with choices, rules and fields, expanded by a seeded generator.

A template is plain text in which

- ``(one|two|)`` is a choice (it may be nested, an option may be empty),
- ``<name>`` is replaced by one of the templates of the rule ``name`` (rules may be recursive),
- ``{h.he}`` is a field of the story's cast, as in `str.format`,
- ``^`` marks the start of a sentence after a closing quotation mark, where the text alone does not show it.

Sentences are capitalised afterwards, so a template can be at the start or inside of a sentence.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from words import NUMBERS

_CHOICE = re.compile(r"\(([^()]*)\)")
_RULE = re.compile(r"<(\w+)>")
_START = re.compile(r'(^"?|[.!?] |[^,] "|\^"?)([a-z])', re.M)
_SPACES = re.compile(r" {2,}")

_VOWELS = "aeiou"
_PRONOUNS = {"f": ("she", "her", "her", "herself"), "m": ("he", "him", "his", "himself")}


def with_article(noun: str) -> str:
    """``noun`` with "a" or "an"; no word of the stories has a silent h."""
    return ("an " if noun[0] in _VOWELS else "a ") + noun


def definite(noun: str) -> str:
    """``noun`` with "the" in place of its "a" or "an"."""
    return re.sub(r"^an? ", "the ", noun)


@dataclass(frozen=True)
class Person:
    """A person or animal in a story, with the pronouns."""

    name: str
    kind: str  # "girl", "fox"
    look: str  # "little"
    gender: str  # "f" or "m"
    age: int
    trait: str = "kind"

    def __str__(self) -> str:
        return self.name

    he, him, his, himself = (property(lambda self, i=i: _PRONOUNS[self.gender][i]) for i in range(4))

    @property
    def kind_a(self) -> str:
        """The kind with "a" and the look: "a little fox"."""
        return with_article(f"{self.look} {self.kind}")

    @property
    def the(self) -> str:
        """The kind with "the": "the fox"."""
        return f"the {self.kind}"

    @property
    def years(self) -> str:
        """The age as a word."""
        return NUMBERS[self.age]


@dataclass(frozen=True)
class Thing:
    """An object, with a word for its look."""

    noun: str  # "kite"
    look: str = ""  # "red"

    def __str__(self) -> str:
        return f"{self.look} {self.noun}".strip()

    @property
    def a(self) -> str:
        """The thing with "a": "a red kite"."""
        return with_article(str(self))

    @property
    def title(self) -> str:
        """The thing in a title: "Red Kite"."""
        return str(self).title()


@dataclass(frozen=True)
class Place:
    """A place, with its preposition."""

    noun: str
    preposition: str

    @property
    def to(self) -> str:
        """The way to the place: "to the forest"."""
        return f"to the {self.noun}"

    def __str__(self) -> str:
        return f"the {self.noun}"

    @property
    def at(self) -> str:
        """Being at the place: "in the forest"."""
        return f"{self.preposition} the {self.noun}"


@dataclass(frozen=True)
class Count:
    """A number of things: "one apple", "three apples"."""

    n: int
    one: str
    many: str

    def __str__(self) -> str:
        return f"{NUMBERS[self.n]} {self.one if self.n == 1 else self.many}"

    @property
    def word(self) -> str:
        """The number as a word."""
        return NUMBERS[self.n]


def expand(
    template: str, rng: random.Random, rules: Mapping[str, Sequence[str]], cast: Mapping[str, object]
) -> str:
    """The text of ``template``: choices made, rules applied, fields filled, sentences capitalised."""
    text = template
    while True:
        text, choices = _CHOICE.subn(lambda match: rng.choice(match[1].split("|")), text)
        if choices:
            continue
        rule = _RULE.search(text)
        if rule is None:
            break
        text = text[: rule.start()] + rng.choice(rules[rule[1]]) + text[rule.end() :]
    text = text.format_map(cast)
    text = _SPACES.sub(" ", text).replace(" \n", "\n").replace("\n ", "\n").strip()
    return _START.sub(lambda match: match[1] + match[2].upper(), text).replace("^", "")
