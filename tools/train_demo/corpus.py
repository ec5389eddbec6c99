# ruff: noqa: E501 (a template stays on its line)
"""The corpus of the demo models: little stories for children, drawn from a seeded grammar.

All text is our own: the words are in `words.py`, the plots in `plots.py`, the template
language in `grammar.py`. A document is one story, with or without a title, sometimes followed by a record
of its hero (one line, or a JSON object); or a short portrait followed by such a record. Document ``i`` of a
seed depends on ``(seed, i)`` alone, so a corpus can be drawn in any order and held-out text is another seed.

    python corpus.py --seed 7 --count 5 [--style pirate]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator

import pirate
import words
from grammar import Count, Person, Place, Thing, expand, with_article
from plots import PLOTS, RULES, WISH_IN_PLOT, Draw

TRAIN_SEED, HELDOUT_SEED = 1, 2
SMALL_WORDS = frozenset(
    ["a", "an", "and", "at", "for", "from", "in", "is", "of", "on", "that", "the", "to", "with", "not"]
)

PORTRAIT = (
    "<intro> {h} liked {place_a}.",
    "<begin> <wish> <friend>",
    "{h} is {h.kind_a}. {h.he} is {h.years} years old and lives {home.at}. {h.his} best friend is {f}. {h} wishes for {thing.a}.",
    "my name is {h}. I am {h.kind_a}, and I am {h.years} years old. I live {home.at}. My best friend is called {f}. I wish for {thing.a}.",
    '"Who are you?" asked the old {w}. "I am {h}," said {h.the}. "I am {h.years} years old, {f} is my best friend, and I want {thing.a}."',
)
ENDING = (
    "\n\n(from that day on|since then), {h} (knew|never forgot): {moral}. (|<bye>)",
    '\n\n"{moral_}," said the old {w}. (|<bye>)',
    "\n\n(and so|so) {h} learned something: {moral}. (|<bye>)",
    '\n\n"{moral_}," {f} always said.',
    "\n\nMoral: {moral_}.",
    "\n\n<bye>",
)


def draw_person(rng: random.Random, taken: str = "") -> Person:
    """A random person whose name is not ``taken``."""
    gender = rng.choice("fm")
    name = taken
    while name == taken:
        if rng.random() < 0.25:
            name = "".join(rng.choice(words.SYLLABLES) for _ in range(rng.choice((2, 2, 3)))).title()
        else:
            name = rng.choice(words.GIRLS if gender == "f" else words.BOYS)
    child = "girl" if gender == "f" else "boy"
    kind = child if rng.random() < 0.4 else rng.choice(words.ANIMALS)
    look = rng.choice(["little", "small", "young", "tiny", "friendly"])
    return Person(name, kind, look, gender, rng.randint(3, 12), rng.choice(list(words.TRAITS)))


def draw_cast(rng: random.Random) -> dict[str, object]:
    """The people, places and things of a story, enough for any plot."""
    h = draw_person(rng)
    thing_kind = rng.choice(list(words.THINGS))
    home, far = (Place(*place) for place in rng.sample(words.PLACES, 2))
    e1, e2 = rng.sample(words.ANIMALS, 2)
    food = rng.choice(list(words.FOODS))
    return {
        "h": h, "f": draw_person(rng, taken=h.name), "w": rng.choice(words.HELPERS),
        "thing": Thing(rng.choice(words.THINGS[thing_kind]), rng.choice(words.COLOURS + words.LOOKS)),
        "thing_kind": thing_kind, "home": home, "far": far, "habit": rng.choice(words.TRAITS[h.trait]),
        "e1": e1, "e1_a": with_article("old " + e1), "e2": e2, "e2_a": with_article("old " + e2),
        "food_some": str(Count(rng.randint(2, 5), food, words.FOODS[food])), "place_a": str(far),
    }  # fmt: skip


def record(cast: dict[str, object], rng: random.Random) -> str:
    """The facts about the hero in one line: ``Name: Mia; ...`` or a JSON object."""
    h, f, thing = cast["h"], cast["f"], cast["thing"]
    assert isinstance(h, Person)
    assert isinstance(thing, Thing)
    fields = {"name": h.name, "kind": h.kind, "age": h.age, "friend": str(f), "wish": thing.a}
    if rng.random() < 0.5:
        return json.dumps(fields)
    return "; ".join(f"{key.title()}: {value}" for key, value in fields.items())


def title_case(text: str) -> str:
    """``text`` with capitals as in a title."""
    return " ".join(
        word if i and word in SMALL_WORDS else word[0].upper() + word[1:]
        for i, word in enumerate(text.split())
    )


def story(rng: random.Random) -> str:
    """A story, or a portrait with its record."""
    cast = draw_cast(rng)
    if rng.random() < 0.12:
        return expand(rng.choice(PORTRAIT), rng, RULES, cast) + "\n\n" + record(cast, rng)
    plot_of = rng.choice(PLOTS)
    plot = plot_of(Draw(rng, cast))
    moral = expand(rng.choice(plot.morals), rng, {}, cast)
    cast.update(moral=moral[0].lower() + moral[1:], moral_=moral)
    template = "<intro>\n\n" + plot.middle
    template += "" if plot_of in WISH_IN_PLOT else "(\n\n<granted>|\n\n<granted>|)"
    template += rng.choice(ENDING)
    parts = [expand(template, rng, RULES, cast)]
    if rng.random() < 0.4:
        parts.insert(0, title_case(expand(rng.choice(plot.titles), rng, {}, cast)))
    if rng.random() < 0.3:
        parts.append(record(cast, rng))
    return "\n\n".join(parts)


def stories(seed: int, count: int, style: str = "plain", start: int = 0) -> Iterator[str]:
    """Documents ``start .. start + count`` of a seed; ``style`` is "plain" or "pirate"."""
    for i in range(start, start + count):
        rng = random.Random(f"{seed}/{i}")
        text = story(rng)
        yield pirate.speak(text, rng) if style == "pirate" else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=TRAIN_SEED)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--style", choices=("plain", "pirate"), default="plain")
    args = parser.parse_args()
    print("\n\n* * *\n\n".join(stories(args.seed, args.count, args.style)))


if __name__ == "__main__":
    main()
