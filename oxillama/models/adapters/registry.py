"""The adapters of a loaded model: files that requests name, bound once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from oxillama.base.config import checks
from oxillama.base.config.adapters import Adapters as AdapterOption, adapter_specs
from oxillama.base.locks import ForkedOpen
from oxillama.errors import ConfigError
from oxillama.gguf.extent import FileIdentity
from oxillama.models import Decoder
from oxillama.models.adapters.bind import bind
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied, LoraStack, invocation_start
from oxillama.models.weights.low_rank import Adapter

Loaded = tuple[tuple[LoadedLora, float], ...]


class Adapters:
    """Loads adapters and keeps them until `forget`. For any thread.

    Attributes:
        stack: adapters of requests without the option.
    """

    def __init__(self, model: Decoder) -> None:
        self.stack: LoraStack = LoraStack()
        self._model = model
        self._lock = ForkedOpen()
        self._files: dict[str, tuple[FileIdentity, LoadedLora]] = {}  # by path
        self._bound: dict[bytes, Adapter] = {}  # by fingerprint

    @classmethod
    def of(cls, model: Any) -> Adapters:
        """The adapters of a `LoadedModel`; adapters of its options are loaded and apply to all requests.

        Raises as `load`.
        """
        adapters = cls(model.runner.model)
        for lora, scale in adapters.loaded(model.config.adapters) if model.config.adapters else ():
            adapters.stack.push(lora, scale)
        return adapters

    def load(self, source: str | os.PathLike[str] | LoadedLora) -> LoadedLora:
        """An adapter that fits the model; a path whose file has changed since is loaded again.

        Raises:
            ModelFileError, GGUFError, LoadError: as `LoadedLora.load` and `bind`.
            ConfigError: only some layers of the model are here.
        """
        if self._model.spec.part is not None:
            raise ConfigError("adapters: cannot be honoured in a pipeline")
        with self._lock.lock:
            lora = self.from_file(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else source
            checks.instance("adapters", lora, LoadedLora)
            if lora.fingerprint not in self._bound:
                self._bound[lora.fingerprint] = bind(lora, self._model)
            return lora

    def from_file(self, path: str) -> LoadedLora:
        """The adapter in a file, which need not fit the model. Raises as `LoadedLora.load`."""
        known = self._files.get(path)
        try:
            identity = FileIdentity.of(os.stat(path))
        except (OSError, ValueError):
            return LoadedLora.load(path)  # raises what is wrong
        if known is not None and known[0] == identity:
            return known[1]
        lora = LoadedLora.load(path)
        self._files[path] = identity, lora
        return lora

    def bound(self, lora: LoadedLora) -> Adapter:
        """An adapter in the layouts of the model. Raises as `load`."""
        with self._lock.lock:
            return self._bound[self.load(lora).fingerprint]

    def known(self) -> list[LoadedLora]:
        """The adapters that were loaded from files, and the adapters of `stack`."""
        with self._lock.lock:
            return [*(lora for _, lora in self._files.values()), *(lora for lora, _ in self.stack)]

    @property
    def n_loaded(self) -> int:
        """Number of adapters that are bound to the model."""
        return len(self._bound)

    def forget(self, lora: LoadedLora) -> None:
        """Frees an adapter; requests that use it go on."""
        with self._lock.lock:
            self._bound.pop(lora.fingerprint, None)
            for path in [path for path, (_, known) in self._files.items() if known is lora]:
                del self._files[path]

    def loaded(self, option: AdapterOption) -> Loaded:
        """The adapters that an option names, with their scales. Raises as `load` does, and ConfigError."""
        return tuple((self.load(source), scale) for source, scale in adapter_specs("adapters", option))

    def adaptation(self, option: AdapterOption, tokens: Sequence[int] | None) -> Adaptation | None:
        """The adapters of a sequence; None without adapters.

        Args:
            option: of the request; None for the adapters of `stack`.
            tokens: the prompt. An activated adapter applies from the last of its invocations on, and not at
                all without one. None for a sequence whose prompt is not known yet.

        Raises:
            ConfigError: an activated adapter for a sequence without a prompt.
        """
        chosen = self.stack.items if option is None else self.loaded(option)
        applied = []
        for lora, scale in chosen:
            start: int | None = 0
            if lora.invocation_tokens:
                if tokens is None:
                    raise ConfigError(f"adapters: {lora.name} is activated by a prompt, a session has none")
                start = invocation_start(lora.invocation_tokens, tokens)
            if scale and start is not None:
                applied.append(Applied(lora, self.bound(lora), scale, start))
        return Adaptation(applied) if applied else None
