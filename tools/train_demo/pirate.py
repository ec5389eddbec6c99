"""The style the adapter learns: the same stories, told by a pirate."""

from __future__ import annotations

import random
import re

WORDS = {
    "you": "ye", "your": "yer", "my": "me", "friend": "matey", "yes": "aye", "hello": "ahoy", "is": "be",
    "are": "be", "was": "were", "little": "wee", "small": "wee", "of": "o'", "and": "an'", "girl": "lass",
    "boy": "lad", "good": "fine", "very": "mighty", "never": "ne'er", "laughed": "roared with laughter",
    "cried": "bellowed", "said": "growled", "for": "fer", "to": "t'", "them": "'em", "everyone": "all hands",
    "house": "cabin", "happy": "merry", "path": "course", "walked": "sailed", "went": "sailed",
}  # fmt: skip
OPENINGS = ("Arr!", "Ahoy, mateys!", "Yo ho ho!", "Avast!", "Shiver me timbers!", "Arr, me hearties!")
CLOSINGS = ("Arr!", "Yo ho ho!", "An' that be the truth, arr!", "Blow me down!", "Now fetch me parrot!")

_WORD = re.compile(r"[A-Za-z]+")
_SENTENCE_END = re.compile(r"(?<=[a-z])([.!])(?= [A-Z])")


def speak(text: str, rng: random.Random) -> str:
    """``text`` as a pirate would tell it; titles and records stay as they are."""
    parts = text.split("\n\n")
    is_prose = [("." in part or '"' in part) and not part.startswith("{") for part in parts]
    first, last = is_prose.index(True), len(parts) - 1 - is_prose[::-1].index(True)
    for i, part in enumerate(parts):
        if is_prose[i]:
            parts[i] = _sprinkle(_WORD.sub(_translate, part), rng)
    parts[first] = f"{rng.choice(OPENINGS)} {parts[first]}"
    parts[last] = f"{parts[last]} {rng.choice(CLOSINGS)}"
    return "\n\n".join(parts)


def _translate(match: re.Match[str]) -> str:
    word = match[0]
    new = WORDS.get(word.lower(), word)
    return new[0].upper() + new[1:] if word[0].isupper() and new[0].isalpha() else new


def _sprinkle(text: str, rng: random.Random) -> str:
    """Now and then an "arr" at the end of a sentence."""
    return _SENTENCE_END.sub(lambda end: (", arr" if rng.random() < 0.2 else "") + end[1], text)
