"""Verifies a receipt with the code of this package only."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.base.config import SamplerConfig
from oxillama.base.config.sampler import CONSTRAINTS
from oxillama.base.version import __version__
from oxillama.errors import ConfigError, GrammarError, ReceiptError, SamplingError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.adapters import Adapter, fingerprints, invocation_start
from oxillama.reference.decoder import ReferenceModel
from oxillama.reference.gbnf import ROOT, Productions, Reader, text_way
from oxillama.reference.grammar import Recogniser
from oxillama.reference.sampling import ReferenceSampler
from oxillama.reference.source import Unsupported
from oxillama.sessions.chain import LogitsChain
from oxillama.sessions.receipt import POINT_DIGITS, Receipt
from oxillama.sessions.verdict import Difference, Verification
from oxillama.text.tokenizer.tokenizer import Tokenizer
from oxillama.text.tokenizer.vocabulary import HIDDEN, UNUSED


def verify(
    file: ModelFile, receipt: Receipt, adapters: Sequence[ModelFile] = (), rules: str | None = None
) -> Verification:
    """Run prompt and text as one sequence, hash each row of logits, and choose each token again.

    Args:
        adapters: files of LoRA adapters, which must include the receipt's.
        rules: GBNF that replaces a constraint other than GBNF or choices, such as a JSON schema. The result
            then holds for these rules, and its message says so.

    Raises:
        Unsupported: the model, the sampler or an option is not implemented here; the message names it.
        LoadError: an adapter of the receipt does not fit the model.
        ConfigError: ``rules`` is given, but replaces nothing.
        GrammarError: ``rules`` is not GBNF.
        ReceiptError: the sampler's options are invalid, or a token is not in the vocabulary.
    """
    found, text = Difference("", 0, f"verified: {len(receipt.tokens)} tokens"), Text(file, receipt)
    try:
        check_model(file, receipt)
        grammar = grammar_of(receipt, text.tokenizer, rules)
        sampler = ReferenceSampler(sampler_of(receipt), text.ends, text.tokenizer, grammar)
        model = ReferenceModel(
            file, receipt.compute, receipt.kv_type, adapters_of(receipt, adapters), receipt.context_size
        )
        replay(model, receipt, sampler, text)
    except Difference as difference:
        found = difference
        if receipt.library != __version__:
            found.message += f" (oxillama {receipt.library} made the receipt, this is {__version__})"
    if rules is not None and not found.cause:
        found.message += ", with the rules that were given for the constraint"
    at = found.at if found.cause else None
    return Verification(len(receipt.tokens), found.cause, at, found.message, text.shown())


def check_model(file: ModelFile, receipt: Receipt) -> None:
    """Raise Difference for another model, Unsupported for options that the reference cannot run."""
    content = ModelFingerprint.compute(file).content.hex()
    if receipt.model != content:
        raise Difference("model", 0, f"another model: expected {receipt.model}, got {content}")
    if receipt.quantize is not None:
        raise Unsupported("reference: quantize: no statement of quantization while a model is loaded")


def adapters_of(receipt: Receipt, files: Sequence[ModelFile]) -> list[Adapter]:
    """The adapters of a receipt. Raises Difference if one is missing, or applies from another position."""
    known = {name: (file, anywhere) for file in files for name, anywhere in fingerprints(file).items()}
    found = []
    for use in receipt.adapters:
        if use.fingerprint not in known:
            raise Difference("adapters", 0, f"another adapter: expected {use.fingerprint}")
        file, everywhere = known[use.fingerprint]
        if not use.scale or invocation_start(file, receipt.prompt) != use.start:
            raise Difference("adapters", 0, "the adapters would not apply from where the receipt says")
        found.append(Adapter(file, use.scale, use.start, everywhere))
    return found


def sampler_of(receipt: Receipt) -> SamplerConfig:
    """The sampler's options without its grammar. Raises ReceiptError; Unsupported for a Python stage."""
    plain: dict[str, Any] = {
        name: value for name, value in receipt.sampler.items() if name not in CONSTRAINTS
    }
    if any(isinstance(stage, dict) for stage in plain.get("order", ())):
        raise Unsupported("reference: order: no statement of stages in Python")
    try:
        pairs = plain.pop("logit_bias", [])
        biases = {token: -math.inf if bias == "-inf" else bias for token, bias in pairs}
        breakers = tuple(plain.pop("dry_sequence_breakers", ()))
        breakers = tuple(tuple(each) if isinstance(each, list) else each for each in breakers)
        if plain.get("seed") is None:
            raise ReceiptError("receipt: seed: expected an integer, got none")
        return SamplerConfig(**plain, logit_bias=biases, dry_sequence_breakers=breakers)
    except (ConfigError, TypeError, ValueError) as error:
        raise ReceiptError(f"receipt: sampler: {error}") from None


def grammar_of(receipt: Receipt, tokenizer: Tokenizer, rules: str | None) -> Recogniser | None:
    """The grammar of a receipt; None without one. Raises as `verify`."""
    given = {name: receipt.sampler[name] for name in CONSTRAINTS if receipt.sampler.get(name) is not None}
    for pair in given.items():
        text = json.dumps(pair, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if blake3(text.encode()).hexdigest() != receipt.grammar:
            raise ReceiptError("receipt: grammar: expected the hash of the grammar, got another one")
    if len(given) != (receipt.grammar is not None):
        raise ReceiptError(
            f"receipt: grammar: expected one constraint or none, got {', '.join(given) or 'none'}"
        )
    choices, gbnf = given.get("choices"), given.get("grammar")
    if not isinstance(gbnf, str) or gbnf.lstrip().startswith(("%llguidance", "{")):
        gbnf = None
    if rules is not None and (not given or choices or gbnf):
        raise ConfigError("rules: expected none, as the receipt states its grammar or has none")
    gbnf = gbnf if rules is None else rules
    if not given:
        return None
    if choices:
        productions: Productions = {ROOT: [text_way(text) for text in choices]}
    elif gbnf is None:
        raise Unsupported(
            f"reference: {min(given)}: no statement of it but rules in GBNF, which were not given"
        )
    else:
        spelled = partial(tokenizer.encode, add_special=False, parse_special=True)
        try:
            productions = Reader(gbnf, spelled).productions
        except GrammarError as error:
            raise error if rules is not None else ReceiptError(f"receipt: {error}") from None
    kinds, strings = tokenizer.vocab.types, tokenizer.vocab_bytes()
    texts = [b"" if kind & (HIDDEN | UNUSED) else string for kind, string in zip(kinds, strings)]
    return Recogniser(productions, texts, tokenizer.eog_ids)


class Text:
    """The text of a receipt, token by token, and the checks for its end."""

    def __init__(self, file: ModelFile, receipt: Receipt) -> None:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        self.tokenizer: Tokenizer = tokenizer
        self.ends: frozenset[int] = tokenizer.eog_ids
        self.n_vocab: int = tokenizer.n_vocab
        self.limit: int = receipt.limit
        self._stops = list(receipt.stop)
        self._stop_tokens = tokenizer.hidden_ids(receipt.stop)
        self._decoder = tokenizer.stream_decoder(continuing=True)
        self._text = ""
        self._n = 0
        self._is_stopped = False

    def add(self, token: int) -> str | None:
        """Add a token; returns the finish reason if the text ends with it."""
        self._n += 1
        if token in self.ends or token in self._stop_tokens:
            return "stop"
        self._text += self._decoder.push(token)
        places = [self._text.find(stop) for stop in self._stops if stop in self._text]
        if places:
            self._text, self._is_stopped = self._text[: min(places)], True
            return "stop"
        return self.reason

    @property
    def reason(self) -> str | None:
        """ "length" if no further token may follow, else None."""
        return "length" if self._n >= self.limit else None

    def shown(self) -> str:
        """The text of the tokens added so far."""
        if not self._is_stopped:
            self._text += self._decoder.flush()
            self._is_stopped = True
        return self._text


def replay(model: ReferenceModel, receipt: Receipt, sampler: ReferenceSampler, text: Text) -> None:
    """Choose every token again. Raises Difference at the first that differs."""
    prompt, tokens, n_vocab = receipt.prompt, receipt.tokens, model.n_vocab
    if max(prompt) >= n_vocab:
        raise ReceiptError(f"receipt: prompt: expected token ids below {n_vocab}, got {max(prompt)}")
    known = next((i for i, token in enumerate(tokens) if token >= n_vocab), len(tokens) - 1)
    rows = (
        model.logits(np.array([*prompt, *tokens[: max(known, 0)]]), slice(len(prompt) - 1, None))
        if tokens
        else ()
    )
    chain, history, reason, n = LogitsChain(), list(prompt), text.reason, len(tokens)
    for i, (token, point, row) in enumerate(zip(tokens, receipt.points, rows)):
        if reason is not None:
            raise Difference("end", i, f"token {i}: the text should have ended before it ({reason})")
        row = row[: text.n_vocab]
        link = chain.add(row).hex()
        if link[:POINT_DIGITS] != point or (i == n - 1 and link != receipt.chain):
            raise Difference("logits", i, f"token {i}: the logits differ from here on")
        try:
            chosen = sampler.sample(row, history)
        except SamplingError as error:
            raise Difference(
                "token", i, f"token {i}: expected {token}, none can be chosen: {error}"
            ) from None
        if chosen != token:
            raise Difference("token", i, f"token {i}: expected {token}, the sampler chooses {chosen}")
        history.append(token)
        reason = text.add(token)
    if not n and receipt.chain != chain.digest.hex():
        raise Difference("logits", 0, "the chain of no logits differs")
    if receipt.finish_reason in ("stop", "length") and reason != receipt.finish_reason:
        told = "goes on" if reason is None else f"ends with {reason}"
        raise Difference("end", n, f"token {n}: expected the end ({receipt.finish_reason}), the text {told}")
