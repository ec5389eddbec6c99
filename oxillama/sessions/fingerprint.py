"""Fingerprints of a model's results: a hash of the file, and a hash of the logits of fixed tokens.

Equal files with equal options give equal logits on every machine, so comparing two lines is enough. If
files are equal but logits differ, the library or the machine is at fault.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from oxillama.base.config import EngineConfig
from oxillama.base.contract import CONTRACT
from oxillama.base.version import __version__
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.known_hashes import KnownHashes
from oxillama.gguf.model_file import ModelFile
from oxillama.sessions.chain import LogitsChain

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxillama.engine.loading import LoadedModel
    from oxillama.models.adapters.stack import Adaptation

VERSION = b"oxillama logits fingerprint 1"
N_TOKENS = 32
"""Number of tokens that are run: more than a tile of rows, and few enough for any model."""


@dataclass(frozen=True)
class LogitsFingerprint:
    """A fingerprint of a model file's logits with given options.

    Attributes:
        model: hash of the file (`ModelFingerprint.content`), 64 hexadecimal digits.
        logits: last link of the hash chain over the logits of fixed tokens (`LogitsChain`), 64 hexadecimal
            digits.
        library: version of the library that computed them.
        compute, quantize, kv_type: as in `EngineConfig`.
    """

    model: str
    logits: str
    library: str
    compute: str
    quantize: str | None
    kv_type: str


def fixed_tokens(n_vocab: int, n: int) -> list[int]:
    """``n`` token ids that depend only on the size of the vocabulary."""
    words = blake3(VERSION).digest(length=4 * n)
    return [int.from_bytes(words[4 * i : 4 * i + 4], "little") % n_vocab for i in range(n)]


def logits_hash(model: LoadedModel, adapters: Adaptation | None = None) -> bytes:
    """The last link of the chain over the logits after each fixed token, 32 bytes.

    ``adapters`` : as `LoadedModel.adaptation` gives them; None without adapters.

    Raises ConfigError for an encoder, which has no logits.
    """
    from oxillama.sessions.session import Session

    model.runner.check_logits()
    chain = LogitsChain()
    tokens = fixed_tokens(model.spec.n_vocab, min(N_TOKENS, model.context_size))
    with Session(model, model.config.sampler, adapters) as session:
        for row in session.logits(tokens):
            chain.add(row)
    return chain.digest


def logits_fingerprint(
    config: EngineConfig, load: Callable[[EngineConfig], LoadedModel]
) -> LogitsFingerprint:
    """The fingerprint of a model file with a configuration's options.

    The hashes of files are cached, so that a known model is not loaded again.

    Args:
        load: called with the configuration if the hash is not cached.

    Raises:
        ModelFileError, GGUFError, LoadError, TokenizerError: the model cannot be read or loaded; says why.
        ConfigError: the model is an encoder, which has no logits.
    """
    assert config.model_path is not None
    quantize = config.quantize_format
    options = f"{__version__} {CONTRACT} {config.compute} {quantize} {config.kv_type}"
    known = KnownHashes("logits", VERSION + options.encode())
    with ModelFile.open(config.model_path) as file:
        content, identity, start = ModelFingerprint.compute(file).content, file.identity, time.time()
        found = known.find(identity) if identity else None
        if found is None:
            found = logits_hash(load(config))
            if identity and file.current_identity() == identity:
                known.keep(identity, found, start)
    return LogitsFingerprint(
        content.hex(), found.hex(), __version__, config.compute, quantize, config.kv_type
    )
