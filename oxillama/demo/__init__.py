"""Faces: the small models that the package ships, so that every example runs without a download.

A story model, a draft for it, and an adapter that turns its stories into a pirate's, all trained on text
drawn from a grammar (`tools/train_demo`): they write little stories for children and know nothing else. Model
and draft have one vocabulary (byte-level BPE, 1024 tokens) and a context of 512 tokens; the matrices are Q8_0
and their rows are a multiple of 256 wide, so that each block format can be made from them. By their chat
template the last message is the title of a story or how it begins, and the answer is the rest of it.

>>> from oxillama import demo
>>> demo.STORY.name
'story.gguf'
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_FOLDER = Path(str(files(__name__)))

STORY: Path = _FOLDER / "story.gguf"
"""The story model: `llama` architecture, 3.4 million parameters in four layers."""

DRAFT: Path = _FOLDER / "draft.gguf"
"""The draft: one layer, 0.6 million parameters, distilled from `STORY`, with the same vocabulary."""

PIRATE: Path = _FOLDER / "pirate.gguf"
"""A LoRA adapter (rank 8, every matrix of every layer) for `STORY`."""

HELDOUT: Path = _FOLDER / "heldout.txt"
"""Stories that are not in the training data, UTF-8, with `SEPARATOR` between them."""

HELDOUT_PIRATE: Path = _FOLDER / "heldout_pirate.txt"
"""Stories told by a pirate that are not in the training data, in the same form."""

PERPLEXITY: Path = _FOLDER / "perplexity.json"
"""The perplexity of the models on these texts, and how it is computed."""

SEPARATOR = "\n\n* * *\n\n"
"""Separates two stories in `HELDOUT` and `HELDOUT_PIRATE`."""

PROMPTS: tuple[str, ...] = (
    "Once upon a time, there was a little fox named",
    "Help for a Goat\n\n",
    "Mia and the Golden Drum\n\n",
    "This is the story of Tom, a tiny dragon who lived in the lighthouse.",
    "On the island, there lived a brave",
    "Two Riddles\n\n",
)
"""Beginnings the story model continues well; a title line with an empty line after it sets the subject."""

RECORD_PROMPT = (
    "My name is Mia. I am a tiny dragon, and I am seven years old. I live by the sea. "
    "My best friend is called Tom. I wish for a red kite.\n\n"
)
"""A portrait. The model sums it up as one line (``Name: Mia; ...``) or as a JSON object with the keys name,
kind, age, friend and wish."""
