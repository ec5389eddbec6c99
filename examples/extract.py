"""Records from a text: what the model writes is an instance of a Pydantic model, always.

`python examples/extract.py` needs pydantic; the language model is one the package ships.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from oxillama import InferenceEngine, SamplerConfig, demo

PORTRAITS = (
    "My name is Mia. I am a tiny dragon, and I am seven years old. I live by the sea. "
    "My best friend is called Tom. I wish for a red kite.",
    "My name is Kai. I am a brave fox, and I am five years old. I live near the bridge. "
    "My best friend is called Ada. I wish for a new drum.",
)


class Person(BaseModel):
    """Who tells of themselves in a portrait."""

    name: str = Field(pattern="^[A-Z][a-z]+$")
    kind: str = Field(max_length=20)
    age: int = Field(ge=1, le=99)
    friend: str = Field(pattern="^[A-Z][a-z]+$")
    wish: str = Field(max_length=30)
    mood: Literal["glad", "sad"] | None = None


def extract(engine: InferenceEngine, texts: tuple[str, ...]) -> list[Person]:
    """One record of each text, all in one batch."""
    sampler = SamplerConfig(json_schema=Person, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    answers = engine.generate_batch([f"{text}\n\n" for text in texts], sampler=sampler, max_tokens=200)
    return [Person.model_validate_json(answer) for answer in answers]


if __name__ == "__main__":
    for person in extract(InferenceEngine.from_gguf(demo.STORY), PORTRAITS):
        print(repr(person))
