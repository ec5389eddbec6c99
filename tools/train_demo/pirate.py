"""The style that the adapter learns: the same stories in the words of a pirate.

The adapter does not change the (tied) embeddings, so the pirate uses only tokens of the plain text: the model
cannot distinguish tokens that it has never seen.
"""

from __future__ import annotations

import random
import re

WORDS = {
    "you": "ya", "your": "yer", "my": "me", "friend": "shipmate", "yes": "aye", "is": "be", "are": "be",
    "was": "were", "little": "bonny", "small": "bonny", "girl": "lass", "boy": "lad", "good": "fine",
    "very": "mighty", "laughed": "roared with laughter", "cried": "bellowed", "said": "barked",
    "everyone": "all hands", "house": "cabin", "path": "course", "walked": "sailed",
    "went": "sailed",
}  # fmt: skip
OPENINGS = ("Arr!", "Ahoy, shipmates!", "Yo ho ho!", "Avast!", "Shiver me timbers!", "Arr, me hearties!")
CLOSINGS = ("Arr!", "Yo ho ho!", "And that be the truth, har har!", "Blow me down!", "Now fetch me parrot!")

_WORD = re.compile(r"[A-Za-z]+")
_SENTENCE_END = re.compile(r"(?<=[a-z])([.!])(?= [A-Z])")


def speak(text: str, rng: random.Random) -> str:
    """``text`` in the words of a pirate; titles and records do not change."""
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
    """Adds a "har har" at the end of some sentences."""
    return _SENTENCE_END.sub(lambda end: (", har har" if rng.random() < 0.2 else "") + end[1], text)
