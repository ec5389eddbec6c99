"""The small models that the package contains, so that every example runs without a download.

A story model, a draft model for it, and an adapter that makes its stories a pirate's, all trained on text
generated from a grammar (`tools/train_demo`): they write short stories for children and know nothing else.
The models share a vocabulary (byte-level BPE, 1024 tokens) and have a context of 512 tokens. Matrices are
Q8_0 with row lengths that are multiples of 256, so that every block format can be made from them. In a chat,
the last message is the title or the beginning of a story, and the answer is the rest of it.

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
"""Stories outside the training data, UTF-8, separated by `SEPARATOR`."""

HELDOUT_PIRATE: Path = _FOLDER / "heldout_pirate.txt"
"""Pirate stories outside the training data, in the same format."""

PERPLEXITY: Path = _FOLDER / "perplexity.json"
"""The perplexity of the models on these texts, and how it was computed."""

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
"""Beginnings that the story model continues well; a title and an empty line set the subject."""

RECORD_PROMPT = (
    "My name is Mia. I am a tiny dragon, and I am seven years old. I live by the sea. "
    "My best friend is called Tom. I wish for a red kite.\n\n"
)
"""A self-portrait. The model summarizes it as one line (``Name: Mia; ...``) or as a JSON object with the keys
name, kind, age, friend and wish."""
