"""What a snapshot holds, as Python values, which agree with each other; they may not fit a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._version import __version__
from oxillama.atomic_file import replaced_file
from oxillama.cache.kv_pool import KvLayout
from oxillama.cache.positions import position_bytes
from oxillama.config import checks
from oxillama.config.engine import MAX_CONTEXT
from oxillama.errors import SnapshotIncompatible
from oxillama.formats import KV_TYPES
from oxillama.gguf.fingerprint import DIGEST_BYTES, ModelFingerprint
from oxillama.models.page_groups import PageGroup, Reach
from oxillama.sampling.logprobs import SampledToken
from oxillama.sessions.chain import START
from oxillama.sessions.container import Buffer, Container, pieces
from oxillama.sessions.values import (
    Reader,
    array_of,
    json_bytes,
    read_logprobs,
    refusals,
    stored,
    stored_logprobs,
)

KINDS = ("engine", "session", "generation")
MOST_DIM = 1 << 24
MOST_REACH = 2**31 - 1
LINK_BYTES = len(START)


@dataclass(frozen=True)
class ModelFacts:
    """The model that a snapshot is of.

    Attributes
    ----------
    architecture, name, path : as its file says; the path is where it was, "" for one from bytes.
    fingerprint : of the file and of the options that decide bits.
    tokenizer : hexadecimal BLAKE3 of a tokenizer.json that took the place of its vocabulary; "" without.
    n_vocab : rows of its logits.
    kv_type : how keys and values are kept.
    page_groups : the layers that have keys, their sizes, and how far back they see.
    state_floats : size of its recurrent state.
    """

    architecture: str
    name: str
    path: str
    fingerprint: ModelFingerprint
    tokenizer: str
    n_vocab: int
    kv_type: str
    page_groups: tuple[PageGroup, ...]
    state_floats: int

    def kv_bytes(self, n_tokens: int) -> list[int]:
        """Of each group, bytes of the keys and values that a row behind ``n_tokens`` tokens sees."""
        return [
            (n_tokens - group.reach.first_seen(n_tokens))
            * position_bytes(KvLayout(*group.sizes, self.kv_type))
            for group in self.page_groups
        ]

    def plain(self) -> dict[str, Any]:
        """For the header."""
        found = asdict(self)
        found["page_groups"] = [
            {**asdict(group), "layers": list(group.layers), "reach": list(group.reach)}
            for group in self.page_groups
        ]
        found["fingerprint"] = {
            "display": self.fingerprint.display(),
            "content": self.fingerprint.content.hex(),
            "settings": [list(pair) for pair in self.fingerprint.settings],
        }
        return found

    @classmethod
    def of(cls, plain: Any) -> ModelFacts:
        """The facts of a header. Raises ConfigError."""
        read = Reader("model", plain)
        stated = Reader("fingerprint", read.value("fingerprint"))
        pairs = checks.instance("settings", stated.value("settings"), list)
        settings = tuple(checks.texts("settings", pair, empty=True) for pair in pairs)
        if any(len(pair) != 2 for pair in settings):
            raise checks.refuse("settings", "pairs of name and value", pairs)
        for pair in settings:
            for text in pair:
                checks.encodable("settings", text)  # they are hashed
        content = stated.bytes("content", DIGEST_BYTES)
        return cls(
            architecture=read.text("architecture"),
            name=read.text("name"),
            path=read.path("path"),
            fingerprint=ModelFingerprint(content, settings),  # type: ignore[arg-type]
            tokenizer=read.text("tokenizer"),
            n_vocab=read.integer("n_vocab", 1, 2**31 - 1),
            kv_type=checks.one_of("kv_type", read.value("kv_type"), KV_TYPES),
            page_groups=tuple(_page_group(item) for item in read.items("page_groups")),
            state_floats=read.integer("state_floats", 0, 2**40),
        )


def _page_group(plain: Any) -> PageGroup:
    """A page group of a header. Raises ConfigError."""
    read = Reader("page_groups", plain)
    layers = tuple(checks.integer("layers", n, 0, MOST_DIM) for n in read.items("layers"))
    reach = [checks.integer("reach", n, 0, MOST_REACH) for n in read.items("reach")]
    if not layers or len(reach) != 2:
        raise checks.refuse("page_groups", "layers and two numbers of a reach", plain)
    n_heads, key_dim, value_dim = (
        read.integer(name, least, MOST_DIM)
        for name, least in (("n_heads", 1), ("key_dim", 1), ("value_dim", 0))
    )
    return PageGroup(layers, n_heads, key_dim, value_dim, Reach(*reach))


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter of a sequence, or of an engine.

    Attributes
    ----------
    fingerprint : hexadecimal digits, of `LoadedLora.fingerprint`.
    scale, start : how strong, and from which token on.
    name, path : of its file; the path is where it was, "" for one from bytes.
    everywhere : as it was loaded.
    """

    fingerprint: str
    scale: float
    start: int
    name: str
    path: str
    everywhere: bool

    @classmethod
    def of(cls, plain: Any) -> AdapterFacts:
        """An adapter of a header. Raises ConfigError."""
        read = Reader("adapter", plain)
        return cls(
            read.bytes("fingerprint", DIGEST_BYTES).hex(),
            read.number("scale"),
            read.integer("start", 0, MAX_CONTEXT),
            read.text("name"),
            read.path("path"),
            checks.boolean("everywhere", read.value("everywhere")),
        )


@dataclass(frozen=True, eq=False)
class RequestFacts:
    """A request in the middle of its text.

    Attributes
    ----------
    options : as `plain_options` gives them.
    n_prompt : tokens of the prompt, of all.
    n_known : tokens of the prompt that the prefix cache had.
    limit : most tokens of the text.
    n_read, read : tokens and text that its reader had; ``unread`` is text that its reader had not.
    held : text that may begin a stop string.
    undecoded : bytes of a character that is not whole.
    seconds_left : until its timeout; None without one.
    seed, random, mu : of the sampler; before : the last two before each token, uint64 (n,), float64 (n,).
    grammar : digest of the grammar, "" without one.
    speculation : "random" of the rejection rule or None, and the counts of `SpeculationStats`; or None.
    logprobs : of each token of the text; None if they were not asked for.
    logits : float32 (n, vocab) that the tokens were chosen from; None if they were not asked for.
    receipt_context : the context size that its receipt names; None without one.
    links : of each token, of the chain of its receipt (`LogitsChain`), 32 bytes each; None without one.
    """

    options: dict[str, Any]
    n_prompt: int
    n_known: int
    limit: int
    n_read: int
    read: str
    unread: str
    held: str
    undecoded: bytes
    seconds_left: float | None
    seed: int
    random: int
    mu: float
    before: tuple[np.ndarray, np.ndarray]
    grammar: str
    speculation: dict[str, int | None] | None
    logprobs: list[SampledToken] | None
    logits: np.ndarray | None
    receipt_context: int | None
    links: list[bytes] | None

    ARRAYS = ("before", "logprobs", "logits", "links")

    def plain(self) -> dict[str, Any]:
        """All but the arrays, for JSON."""
        found = {k: v for k, v in vars(self).items() if k not in self.ARRAYS}
        return found | {
            "undecoded": self.undecoded.hex(),
            "has_logprobs": self.logprobs is not None,
            "has_logits": self.logits is not None,
        }

    def sections(self) -> dict[str, Buffer]:
        """The arrays, as they are stored."""
        random, mu = self.before
        found = {"random": stored(random, "<u8"), "mu": stored(mu, "<f8")}
        if self.logprobs is not None:
            found["logprobs"] = stored_logprobs(self.logprobs)
        if self.logits is not None:
            found["logits"] = stored(self.logits, "<f4")
        if self.links is not None:
            found["links"] = b"".join(self.links)
        return found

    @classmethod
    def of(cls, container: Container, tokens: np.ndarray, n_vocab: int) -> RequestFacts:
        """The request of a snapshot. Raises ConfigError, SnapshotIncompatible."""
        read = Reader("request", container.json("request"))
        n_prompt = read.integer("n_prompt", 1, len(tokens))
        n = len(tokens) - n_prompt
        left = read.value("seconds_left")
        logprobs = logits = None
        if checks.boolean("has_logprobs", read.value("has_logprobs")):
            most = n * (1 + n_vocab) * 2 * 12 + 8 * n
            logprobs = read_logprobs(container.bytes("logprobs", most), tokens[n_prompt:], n_vocab)
        if checks.boolean("has_logits", read.value("has_logits")):
            logits = array_of(container, "logits", "<f4", None, 4 * n * n_vocab)
            if n and len(logits) % n:
                raise checks.refuse("logits", f"as many numbers for each of {n} tokens", len(logits))
            logits = logits.reshape(n, len(logits) // n if n else 0)
        links, context = None, read.value("receipt_context")
        if context is not None:
            context = checks.integer("receipt_context", context, 1, MAX_CONTEXT)
            data = array_of(container, "links", "u1", n * LINK_BYTES).tobytes()
            links = [data[at : at + LINK_BYTES] for at in range(0, len(data), LINK_BYTES)]
        mu = array_of(container, "mu", "<f8", n)
        if not np.isfinite(mu).all():
            raise checks.refuse("mu", "finite numbers", mu)
        drafts = read.value("speculation")
        if drafts is not None:
            drafts = Reader("speculation", drafts)
            random = drafts.value("random")
            drafts = {
                "random": None if random is None else checks.integer("random", random, 1, 2**64 - 1),
                **{name: drafts.integer(name, 0, 2**62) for name in ("drafted", "accepted", "passes")},
            }
        return cls(
            options=checks.instance("options", read.value("options"), dict),
            n_prompt=n_prompt,
            n_known=read.integer("n_known", 0, n_prompt),
            limit=read.integer("limit", 0, MAX_CONTEXT),
            n_read=read.integer("n_read", 0, n),
            read=read.text("read"),
            unread=read.text("unread"),
            held=read.text("held"),
            undecoded=read.bytes("undecoded", None),
            seconds_left=None if left is None else checks.number("seconds_left", left),
            seed=read.integer("seed", 0, 2**64 - 1),
            random=read.integer("random", 1, 2**64 - 1),
            mu=read.number("mu"),
            before=(array_of(container, "random", "<u8", n), mu),
            grammar=read.text("grammar"),
            speculation=drafts,
            logprobs=logprobs,
            logits=logits,
            receipt_context=context,
            links=links,
        )


@dataclass(frozen=True, eq=False)
class EngineSnapshot:
    """A sequence with what is needed to go on with it elsewhere.

    Attributes
    ----------
    kind : "engine" (with its own session), "session" or "generation".
    model : of which it is.
    engine : options of the engine, as `plain_engine` gives them.
    tokens : int32 (n,) ids.
    n_cached : tokens that were run.
    kv : uint8, their keys and values, by position (`cache.positions`).
    state : float32 (state_floats,), the recurrent state after them; None where there is none.
    adapters : of the sequence. engine_adapters : of requests that name none.
    request : of kind "generation"; None otherwise.
    notes : what the caller wants to keep with it, as what JSON can hold.
    """

    kind: str
    model: ModelFacts
    engine: dict[str, Any]
    tokens: np.ndarray
    n_cached: int
    kv: np.ndarray
    state: np.ndarray | None
    adapters: tuple[AdapterFacts, ...] = ()
    engine_adapters: tuple[AdapterFacts, ...] = ()
    request: RequestFacts | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def pieces(self, compress: bool = False) -> Iterator[Buffer]:
        """The bytes of it, one after another."""
        header = {
            "kind": self.kind,
            "library": __version__,
            "model": self.model.plain(),
            "n_tokens": len(self.tokens),
            "n_cached": self.n_cached,
            "adapters": [asdict(adapter) for adapter in self.adapters],
            "engine_adapters": [asdict(adapter) for adapter in self.engine_adapters],
        }
        contents: dict[str, Buffer] = {
            "engine": json_bytes(self.engine),
            "tokens": stored(self.tokens, "<i4"),
            "kv": stored(self.kv, "u1"),
        }
        if self.state is not None:
            contents["state"] = stored(self.state, "<f4")
        if self.request is not None:
            contents["request"] = json_bytes(self.request.plain())
            contents |= self.request.sections()
        if self.notes:
            contents["notes"] = json_bytes(self.notes)
        return pieces(header, contents, compress)

    def serialize(self, *, compress: bool = False) -> bytes:
        """The bytes of a snapshot, in the format ``OXISNAP1``."""
        return b"".join(self.pieces(compress))

    def write(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Writes the bytes to a file, which others see whole or not at all. Raises ModelFileError."""
        with replaced_file(Path(path)) as file:
            for piece in self.pieces(compress):
                file.write(piece)

    @classmethod
    def deserialize(cls, data: bytes | bytearray | memoryview) -> EngineSnapshot:
        """A snapshot from its bytes. Raises SnapshotIncompatible if they are damaged, or are none."""
        with refusals():
            return cls._read(Container.parse(data))

    @classmethod
    def _read(cls, container: Container) -> EngineSnapshot:
        read = Reader("header", container.header)
        kind = checks.one_of("kind", read.value("kind"), KINDS)
        model = ModelFacts.of(read.value("model"))
        n_tokens = read.integer("n_tokens", 0, MAX_CONTEXT)
        n_cached = read.integer("n_cached", 0, n_tokens)
        tokens = array_of(container, "tokens", "<i4", n_tokens).astype(np.int32)
        if n_tokens and not 0 <= tokens.min() <= tokens.max() < model.n_vocab:
            raise checks.refuse("tokens", f"ids below {model.n_vocab}", int(tokens.max()))
        has_state = model.state_floats > 0 and n_cached > 0
        found = cls(
            kind,
            model,
            container.json("engine"),
            tokens,
            n_cached,
            array_of(container, "kv", "u1", sum(model.kv_bytes(n_cached))),
            array_of(container, "state", "<f4", model.state_floats) if has_state else None,
            tuple(AdapterFacts.of(item) for item in read.items("adapters")),
            tuple(AdapterFacts.of(item) for item in read.items("engine_adapters")),
            RequestFacts.of(container, tokens, model.n_vocab) if kind == "generation" else None,
            container.json("notes") if "notes" in container.sections else {},
        )
        known = {"engine", "tokens", "kv", "notes"} | ({"state"} if has_state else set())
        if found.request is not None:
            known |= {"request", *found.request.sections()}
        unknown = container.sections.keys() - known
        if unknown:
            raise SnapshotIncompatible(f"expected sections that are known, got {sorted(unknown)[0]!r}")
        return found
