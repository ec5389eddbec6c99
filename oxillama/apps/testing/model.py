"""A model for tests: loaded when first needed, with reproducible answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from oxillama import EngineConfig, InferenceEngine, demo
from oxillama.apps.testing.answers import Answer, AnswerCache
from oxillama.engine.completion import Completion
from oxillama.engine.loading import Prompt
from oxillama.errors import ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.hub.names import hub_name
from oxillama.gguf.hub.pretrained import pretrained_path

DEMO = "demo"
"""The name of the story model in the package."""

DEFAULTS: dict[str, Any] = {"temperature": 0.0, "seed": 0, "receipt": True}
"""Default options of every answer."""

FILES = ("adapters", "tokenizer_path", "mmproj")
"""Options that name files. The files' contents are not part of keys, so such answers are not cached."""


def path_of(name: str | os.PathLike[str], root: Path) -> Path:
    """The file of a model: "demo", a path relative to the folder ``root``, or a hub name.

    Raises ModelFileError if it does not exist, ConfigError for an ambiguous name.
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
    """A model with options of `EngineConfig`.

    Args:
        path: path of the file.
        options: options of the engine.
        cache: the cache of answers.
    """

    __test__ = False  # otherwise pytest would collect the class by its name

    def __init__(self, path: Path, options: Mapping[str, Any], cache: AnswerCache) -> None:
        self.path = path
        self.cache = cache
        self._options = dict(options)
        self._engine: InferenceEngine | None = None
        self._key: list[Any] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._engine is not None

    @property
    def engine(self) -> InferenceEngine:
        """The engine, for direct use; its answers are not cached."""
        if self._engine is None:
            self._engine = InferenceEngine(EngineConfig(model_path=self.path, **self._options))
        return self._engine

    @property
    def key(self) -> list[Any]:
        """Identifies the model in cache keys: its file's content and the engine's options."""
        if self._key is None:
            content = ModelFingerprint.compute(self.path).content.hex()
            self._key = [content, sorted((name, repr(value)) for name, value in self._options.items())]
        return self._key

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Continue a prompt, by default greedily.

        ``options`` : fields of `GenerationOptions`.
        """
        options = {**DEFAULTS, **options}
        return self._answer(
            "generate", prompt, options, lambda: self.engine.stream(prompt, **options).result()
        )

    def chat(self, messages: str | Iterable[Mapping[str, Any]], **options: Any) -> Answer:
        """Answer a conversation, or a single user message; options as for `stream_chat`."""
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
        if self._engine is not None:
            self._engine.close()
            self._engine = None
