"""What objects say of themselves (`repr`): one short line each, whatever they hold.

No object is asked for anything that could wait, load or fail; what is not there yet is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

MOST = 60
"""Characters of a text or of an option's value."""


def shown(thing: Any) -> str:
    """One line: the name of the class, then what the object is."""
    for cls in type(thing).__mro__:
        if cls.__name__ in FACTS:
            with suppress(AttributeError):  # it is not made yet
                facts = ", ".join(fact for fact in FACTS[cls.__name__](thing) if fact)
                return f"<{type(thing).__name__}: {facts}>"
    return object.__repr__(thing)


def shown_options(options: Any) -> str:
    """The options that are not as they are by default, as in a call."""
    given = []
    for each in fields(options):
        value = getattr(options, each.name, MISSING)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.repr and value is not MISSING and not is_same(value, default):
            given.append(f"{each.name}={cut(repr(value))}")
    return f"{type(options).__name__}({', '.join(given)})"


def is_same(value: Any, default: Any) -> bool:
    """Whether a value is the default; False for arrays and others that cannot be compared so."""
    return value is default or (type(value) is type(default) and bool(value == default))


def cut(text: str) -> str:
    """A text of at most `MOST` characters."""
    return text if len(text) <= MOST else f"{text[: MOST - 1]}\u2026"


def count(n: int, noun: str) -> str:
    """A number and what is counted."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def of_model(model: Any) -> Iterator[str]:
    """Name, architecture, size, context, threads."""
    path = model.config.model_path
    named = str(model.file.metadata.get("general.name") or (Path(os.fsdecode(path)).stem if path else ""))
    yield repr(cut(named)) if named else "from bytes"
    yield str(model.file.metadata["general.architecture"])
    yield f"{sum(tensor.n_elements for tensor in model.file.tensors.values()) / 1e6:,.1f}M parameters"
    yield f"{model.file.file_size / 1e6:,.1f} MB"
    yield f"context of {model.context_size:,}"
    yield count(model.runner.n_threads, "thread")
    yield "open" if model.thread.is_open else "closed"


def of_engine(engine: Any) -> Iterator[str]:
    if engine._model is None:
        yield "no model"
    else:
        yield from of_model(engine._model)


def of_asyncio(engine: Any) -> Iterator[str]:
    return of_engine(engine.engine)


def of_generation(generation: Any) -> Iterator[str]:
    n_run, n = generation.prefill_progress, generation.prefill_total
    yield generation.finish_reason or ("running" if generation.is_running else "not read to its end")
    yield f"{n_run:,} of {count(n, 'token')} of the prompt" if n_run < n else f"prompt of {count(n, 'token')}"
    yield f"{count(len(generation.tokens), 'token')} read"
    yield repr(cut(generation.text)) if generation.text else ""


def of_completion(completion: Any) -> Iterator[str]:
    yield repr(cut(completion.text))
    yield completion.finish_reason
    yield count(len(completion.tokens), "token")
    yield f"prompt of {count(completion.usage.prompt_tokens, 'token')}"
    for noun, part in (("call", completion.tool_calls), ("failed call", completion.failed_calls)):
        yield count(len(part), noun) if part else ""


def of_session(session: Any) -> Iterator[str]:
    yield count(len(session), "token")
    yield f"{session._sequence.cached_len:,} of them run"
    yield "closed" if session._is_closed else "open"


FACTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "AsyncEngine": of_asyncio,
    "Completion": of_completion,
    "Generation": of_generation,
    "InferenceEngine": of_engine,
    "LoadedModel": of_model,
    "Session": of_session,
}
"""By the name of a class, what is said of its objects."""
