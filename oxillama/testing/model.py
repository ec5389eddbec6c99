"""A model as tests use it: loaded when it is first needed, with the same answers every time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from oxillama import EngineConfig, InferenceEngine, demo
from oxillama.engine.generation import Completion
from oxillama.engine.loading import Prompt
from oxillama.errors import ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.hub.names import hub_name
from oxillama.hub.pretrained import pretrained_path
from oxillama.testing.answers import Answer, AnswerCache

DEMO = "demo"
"""The name of the story model that the package ships."""

DEFAULTS = {"temperature": 0.0, "seed": 0, "receipt": True}
"""Options of every answer, unless a test asks for others."""

FILES = ("adapters", "tokenizer_path", "mmproj")
"""Options that name files, whose content no key knows: answers with them are not kept."""


def path_of(name: str | os.PathLike[str], root: Path) -> Path:
    """The file of a model: "demo", a path from the folder ``root``, or a name of the hub.

    Raises ModelFileError if there is none, ConfigError for a name that means several.
    """
    if name == DEMO:
        return demo.STORY
    path = root / name
    if path.exists():
        return path
    text = os.fspath(name)
    if hub_name(text) is None:
        raise ModelFileError(f"{path}: no such file")
    return pretrained_path(text, None, None, None, None, pull_mmproj=False)


class TestedModel:
    """A model by name, with options of `EngineConfig`.

    Parameters
    ----------
    path : of the file.
    options : of the engine.
    cache : of answers.
    """

    __test__ = False  # its name begins as those of pytest's classes do

    def __init__(self, path: Path, options: Mapping[str, Any], cache: AnswerCache) -> None:
        self.path = path
        self.cache = cache
        self._options = dict(options)
        self._engine: InferenceEngine | None = None
        self._key: list[Any] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether an answer, or a test, has needed the engine."""
        return self._engine is not None

    @property
    def engine(self) -> InferenceEngine:
        """The engine, for all that is not here; what it answers is not kept."""
        if self._engine is None:
            self._engine = InferenceEngine(EngineConfig(model_path=self.path, **self._options))
        return self._engine

    @property
    def key(self) -> list[Any]:
        """What tells this model from others: the content of its file and the options of the engine."""
        if self._key is None:
            content = ModelFingerprint.compute(self.path).content.hex()
            self._key = [content, sorted((name, repr(value)) for name, value in self._options.items())]
        return self._key

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """The text that follows a prompt: the likeliest one, unless options say otherwise.

        ``options`` : of `GenerationOptions`.
        """
        options = {**DEFAULTS, **options}
        return self._answer(
            "generate", prompt, options, lambda: self.engine.stream(prompt, **options).result()
        )

    def chat(self, messages: str | Iterable[Mapping[str, Any]], **options: Any) -> Answer:
        """The answer to a conversation, or to one message of the user; options are those of `stream_chat`."""
        said: list[Any] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        options = {**DEFAULTS, **options}
        return self._answer("chat", said, options, lambda: self.engine.stream_chat(said, **options).result())

    def _answer(
        self, kind: str, prompt: Any, options: dict[str, Any], make: Callable[[], Completion]
    ) -> Answer:
        key = None
        if self.cache.folder is not None and not set(FILES) & {*self._options, *options}:
            key = self.cache.key(self.key, kind, prompt, options)
        found = self.cache.find(key)
        if found is None:
            found = Answer.of(make())
            self.cache.keep(key, found)
        return found

    def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
