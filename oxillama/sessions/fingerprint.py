"""Fingerprints of what a model computes: a hash of its file, and one of the logits of fixed tokens.

Equal files with equal options give equal logits on every machine, so two people compare two lines. Where the
files are equal and the logits are not, the library or the machine is at fault.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from oxillama._version import __version__
from oxillama.config import EngineConfig
from oxillama.contract import CONTRACT
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.known_hashes import KnownHashes
from oxillama.gguf.model_file import ModelFile
from oxillama.sessions.chain import LogitsChain

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxillama.engine.loading import LoadedModel

VERSION = b"oxillama logits fingerprint 1"
N_TOKENS = 32
"""Tokens that are run: more than a tile of rows, and few enough for any model."""


@dataclass(frozen=True)
class LogitsFingerprint:
    """What a model file gives with some options.

    Attributes
    ----------
    model : hash of the file (`ModelFingerprint.content`), 64 hexadecimal digits.
    logits : last link of the chain over the logits of fixed tokens (`LogitsChain`), 64 hexadecimal digits.
    library : version that computed them.
    compute, quantize, kv_type : as in `EngineConfig`.
    """

    model: str
    logits: str
    library: str
    compute: str
    quantize: str | None
    kv_type: str


def fixed_tokens(n_vocab: int, n: int) -> list[int]:
    """``n`` token ids that follow from the size of the vocabulary alone."""
    words = blake3(VERSION).digest(length=4 * n)
    return [int.from_bytes(words[4 * i : 4 * i + 4], "little") % n_vocab for i in range(n)]


def logits_hash(model: LoadedModel) -> bytes:
    """32 bytes: the last link over the logits after each of the fixed tokens.

    Raises ConfigError for an encoder, which has none.
    """
    from oxillama.sessions.session import Session

    model.runner.check_logits()
    chain = LogitsChain()
    tokens = fixed_tokens(model.spec.n_vocab, min(N_TOKENS, model.context_size))
    with Session(model, model.config.sampler, None) as session:
        for row in session.logits(tokens):
            chain.add(row)
    return chain.digest


def logits_fingerprint(
    config: EngineConfig, load: Callable[[EngineConfig], LoadedModel]
) -> LogitsFingerprint:
    """The fingerprint of a model file with the options of a configuration.

    The hashes of a file on the disk are kept, and the model is not loaded again.

    Parameters
    ----------
    load : called with the configuration where the logits are not known.

    Raises
    ------
    ModelFileError, GGUFError, LoadError, TokenizerError : the model cannot be read or loaded, and why.
    ConfigError : the model is an encoder, which has no logits.
    """
    assert config.model_path is not None
    quantize = None if config.quantize is None else config.quantize.upper()
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
