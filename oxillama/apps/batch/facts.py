"""What determines the answers of a job: the contents of its files, and options.

Each process that answers rows of a job compares the files that it has loaded with the files of the job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.sources import counted
from oxillama.base.config import EngineConfig
from oxillama.base.config.adapters import adapter_specs
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.beside import found_beside
from oxillama.sessions.options import plain_options

SHOWN = 16
"""Characters of a fingerprint in a message."""


def model_facts(config: EngineConfig) -> dict[str, Any]:
    """What of a model and its options determines answers, as plain data; not threads.

    Drafts of tokens are not among the facts, since a text does not depend on them.

    Raises ModelFileError or GGUFError if the model or its projector file cannot be read; ConfigError for an
    adapter without a path.
    """
    fields = {
        name: getattr(config, name) for name in ("context_size", "compute", "quantize", "kv_type", "seed")
    }
    if config.chat_template is not None:
        path = os.fspath(config.chat_template)
        fields["chat_template"] = digest_of(path) if os.path.isfile(path) else path
    with ModelFile.open(os.fspath(config.model_path or "")) as file:
        model = ModelFingerprint.of_loaded(file, config, None)
    projector = config.mmproj or found_beside(os.fspath(config.model_path or ""))
    return {
        "model": model.content.hex(),
        "contract": dict(model.settings).get("contract", "1"),
        "projector": None if projector is None else ModelFingerprint.compute(projector).content.hex(),
        "tokenizer": None if config.tokenizer_path is None else digest_of(config.tokenizer_path),
        "adapters": [
            [digest_of(source), scale] for source, scale in adapter_specs("adapters", config.adapters)
        ],
        **fields,
        "sampler": json.loads(json.dumps(plain_options(config.sampler))),
    }


def facts_of(config: EngineConfig, settings: Settings) -> dict[str, Any]:
    """Everything that determines the answers of a job, as plain data. Raises as `model_facts`."""
    return {**model_facts(config), "settings": json.loads(json.dumps(asdict(settings)))}


def digest_of(path: Any) -> str:
    """BLAKE3 of a file in hexadecimal. Raises ConfigError if it cannot be read, or is not a path."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"adapters: expected paths for a job, got {type(path).__name__}")
    try:
        return counted(Path(path))[1]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def check_files(facts: Mapping[str, Any], config: EngineConfig) -> None:
    """Compares the files at the paths of a configuration with the facts of a job.

    Raises ModelFileError for another file, with both fingerprints and the path; and as `model_facts`.
    """
    found = model_facts(config)
    for name, value in found.items():
        if name != "seed" and facts.get(name) != value:  # jobs have a seed where the options have none
            raise differs(name, facts.get(name), value, config)


def check_engine(facts: Mapping[str, Any], engine: InferenceEngine) -> None:
    """`check_files`, of the files that an engine has loaded."""
    content = engine.model.fingerprint.content.hex()
    if facts["model"] != content:
        raise differs("model", facts["model"], content, engine.config)
    check_files(facts, engine.config)


def differs(name: str, wanted: Any, got: Any, config: EngineConfig) -> ModelFileError:
    """The error of a machine that has other files than the job."""
    first, second = (fingerprint(value) for value in (wanted, got))
    at = f"{config.model_path}" if name == "model" else f"the {name} of {config.model_path}"
    return ModelFileError(f"{name}: expected that of the job, fingerprint {first}, got {second} at {at}")


def fingerprint(value: Any) -> str:
    """A fact in a message: the first digits of a hash, another value whole."""
    if isinstance(value, str) and len(value) == 64:
        return value[:SHOWN]
    return json.dumps(value)[:200]
