"""Finds and loads the drafters of a model: prompt lookup, other model files, the model with fewer bits."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oxillama.base.config import EngineConfig
from oxillama.base.config.engine import Texts
from oxillama.base.config.offload import OffloadPolicy
from oxillama.base.formats import FORMATS
from oxillama.base.lazy_import import lazy
from oxillama.engine.building import (
    load_decoder,
    load_weights,
    matrix_bytes,
    new_pool,
    packed_file,
    weight_store,
)
from oxillama.engine.loading import LoadedModel
from oxillama.engine.runner import Runner
from oxillama.errors import ConfigError, OxiLlamaError, TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.registry import DRAFT_FAMILIES
from oxillama.models.weights.low_bits import LowBitWeights
from oxillama.speculation.corpus import Corpus
from oxillama.speculation.drafters import Drafter, LookupDrafter, ModelDrafter
from oxillama.speculation.mapped import MappedDrafter
from oxillama.speculation.mtp import offer_next_token
from oxillama.speculation.token_map import TokenMap, same_tokens
from oxillama.text.tokenizer.tokenizer import Tokenizer

load_draft_file: Callable[..., Drafter] = lazy("oxillama.speculation.draft_files:load_draft_file")

log: logging.Logger = logging.getLogger(__name__)

MOST_OF_TARGET = 0.5
"""Maximum size of a draft model relative to the target; a pass takes as long as reading the weights."""

SELF_FORMATS = ("Q4_0", "Q2_K")
"""Formats of a model's own low-bit draft: the first that is small enough is used."""

AUTO_SELF_BYTES = 256 << 20
"""With smaller matrices, "auto" makes no low-bit draft: passes are not limited by memory bandwidth."""

AUTO_SELF_BITS = 12
"""With fewer bits a weight, "auto" makes no low-bit draft. A pass with Q4_0 takes 0.36 of a pass with F16,
but a pass with Q2_K takes 0.45 of a pass with Q8_0, which hardly justifies the memory."""

OFFERED: list[Callable[[ModelFile, Runner, Tokenizer], Drafter | None]] = [offer_next_token]
"""Functions that make a drafter from layers in the model's own file; they return None without such layers."""


class Drafters:
    """The drafters of one model, each loaded once. Used by the engine thread only.

    Args:
        file, runner, tokenizer: the target model.
        config: the engine's options.
        context_size: max tokens of the target's sequences.

    Attributes:
        loaded: drafters by the value of ``speculate``.
    """

    def __init__(
        self,
        file: ModelFile,
        runner: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        context_size: int,
    ) -> None:
        self.loaded: dict[str, Drafter] = {}
        self._file = file
        self._target = runner
        self._tokenizer = tokenizer
        resident = config.with_offload(OffloadPolicy.None_)  # a draft model read from disk is too slow
        self._config = replace(
            resident, tokenizer_path=None, chat_template=None, quantize=None, kv_memory_limit=None
        )
        self._corpus_sources = config.draft_corpora
        self._context_size = context_size

    @classmethod
    def of(cls, model: LoadedModel) -> Drafters:
        """The drafters of a model; loads the drafter that the model's options name."""
        found = cls(model.file, model.runner, model.tokenizer, model.config, model.context_size)
        default = "lookup" if model.config.draft_corpora else "off"
        wanted = default if model.config.speculate is None else os.fspath(model.config.speculate)
        if wanted != "off":
            found.load(wanted)
        return found

    def load(self, name: str) -> Drafter:
        """The drafter for requests with ``speculate=name``: "lookup", "self", "auto" or a path.

        Raises:
            ModelFileError, GGUFError, LoadError, TokenizerError: a draft model cannot be loaded.
            ConfigError: the drafter cannot draft for this model, or the corpus cannot be read; says why.
        """
        if name not in self.loaded:
            makers = {"auto": self._best, "lookup": self._lookup, "self": self._of_itself}
            self._target.check_logits()
            self.loaded[name] = makers[name]() if name in makers else self._of_file(name)
        return self.loaded[name]

    def _best(self) -> Drafter:
        """The first available: layers in the model's file, another file, the low-bit model, or lookup."""
        for offer in OFFERED:
            offered = offer(self._file, self._target, self._tokenizer)
            if offered is not None:
                log.info("speculate: auto takes %s", offered.name)
                return offered
        found = find_draft_model(self._file.paths[0], self._tokenizer) if self._file.paths else None
        choices = [] if found is None else [os.fspath(found)]
        n_bytes = matrix_bytes(self._target.model)
        n_weights = sum(matrix.rows * matrix.cols for matrix in self._target.model.linears())
        if n_bytes >= AUTO_SELF_BYTES and 8 * n_bytes >= AUTO_SELF_BITS * n_weights:
            choices.append("self")
        for name in choices:
            try:
                drafter = self.load(name)
            except OxiLlamaError as error:
                log.info("%s: cannot draft: %s", name, error)
            else:
                log.info("speculate: auto takes %s", name)
                return drafter
        log.info("speculate: auto takes lookup")
        return self._lookup()

    def _lookup(self) -> LookupDrafter:
        return LookupDrafter(read_corpus(self._corpus_sources, self._tokenizer))

    def _of_file(self, name: str) -> Drafter:
        file = ModelFile.open(name)
        try:
            if file.metadata.get("general.architecture") in DRAFT_FAMILIES:
                return load_draft_file(name, file, self._target, self._tokenizer, self._config)
            spec, tokenizer = read_spec(file), Tokenizer.from_metadata(file.metadata)
            tokens = shared_tokens(name, tokenizer, self._tokenizer)
            context_size = min(self._context_size, spec.context_length)
            config = self._config  # `packed`, if a path, names the target's packed file
            named = config.packed not in ("auto", "make", "off")
            packed, note = packed_file(file, replace(config, packed="auto") if named else config)
            if note:
                log.warning("%s", note)
            kernels = self._target.model.kernels
            weights = load_weights(file, kernels, config, None, weight_store(packed, config))
            runner = self._runner(load_decoder(spec, weights, context_size, pack_now=True))
            ends = self._tokenizer.eog_ids
            if tokens is None:
                return ModelDrafter(name, runner, self._tokenizer.n_vocab, ends, context_size)
            log.info("%s: has %.0f%% of the model's text tokens", name, 100 * tokens.share)
            return MappedDrafter(name, runner, tokens, sorted(ends), context_size)
        except BaseException:
            file.close()
            raise

    def _of_itself(self) -> ModelDrafter:
        """A low-bit copy of the model as its drafter."""
        model = self._low_bits()
        for linear in model.linears():
            linear.pack()
        log.info("speculate: self takes %d bytes beside the model", matrix_bytes(model))
        runner, tokenizer = self._runner(model), self._tokenizer
        return ModelDrafter("self", runner, tokenizer.n_vocab, tokenizer.eog_ids, self._context_size)

    def _low_bits(self) -> Decoder:
        """The low-bit copy of the model, not yet packed. Raises ConfigError if no format is small enough."""
        target = self._target.model
        least, shares = matrix_bytes(target), []
        for name in SELF_FORMATS:
            weights = LowBitWeights(self._file, target.kernels, self._target.n_threads, FORMATS[name])
            model = Decoder(target.spec, weights, self._context_size)
            shares.append(matrix_bytes(model) / least)
            if shares[-1] <= MOST_OF_TARGET:
                return model
        raise ConfigError(
            f"speculate: self expects matrices that {SELF_FORMATS[-1]} shrinks to {MOST_OF_TARGET:.0%}, got "
            f"{min(shares):.0%}; a draft would not be faster"
        )

    def _runner(self, model: Decoder) -> Runner:
        return Runner(model, new_pool(model, self._config), self._target.n_threads)


def shared_tokens(name: str, draft: Tokenizer, target: Tokenizer) -> TokenMap | None:
    """The token map from a draft model to its target; None if their ids are the same.

    Raises ConfigError if the vocabularies have too little in common.
    """
    return None if same_tokens(draft, target) else TokenMap(name, draft, target)


def find_draft_model(path: Path, target: Tokenizer) -> Path | None:
    """The smallest model in the folder of ``path`` that can draft for it, or None.

    The file has at most half the bytes. Models with the same ids are preferred over other vocabularies. Only
    headers are read; the log says why a file is refused.
    """
    most = path.stat().st_size * MOST_OF_TARGET
    others = [p for p in path.parent.glob("*.gguf") if p.is_file() and not p.samefile(path)]
    second: Path | None = None
    for size, other in sorted((p.stat().st_size, p) for p in others):
        try:
            if size > most:
                raise ConfigError(f"expected at most {most:.0f} bytes, got {size}")
            with ModelFile.open(other) as file:
                spec = read_spec(file)
                tokens = shared_tokens(other.name, Tokenizer.from_metadata(file.metadata), target)
            if not spec.causal or spec.family.output == "none":
                raise ConfigError(f"{spec.family.name} is an encoder")
            if tokens is None:
                return other
            second = second or other
        except OxiLlamaError as error:
            log.info("%s: cannot draft: %s", other, error)
    return second


def read_corpus(sources: tuple[Texts, ...], tokenizer: Tokenizer) -> Corpus | None:
    """The index of text files, given as paths or bytes; None without any.

    Raises ConfigError if a text cannot be read, is not UTF-8, or cannot be encoded by the tokenizer.
    """
    texts = []
    for source in sources:
        name = "a text" if isinstance(source, bytes) else os.fspath(source)
        try:
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            texts.append(tokenizer.encode(data.decode("utf-8-sig"), add_special=False))
        except (OSError, UnicodeDecodeError, TokenizerError) as error:
            raise ConfigError(f"draft_corpus: expected a text in UTF-8, got {name}: {error}") from error
    if not texts:
        return None
    corpus = Corpus(texts)
    log.info("draft_corpus: %d tokens, indexed in %d bytes", corpus.n_tokens, corpus.nbytes)
    return corpus
