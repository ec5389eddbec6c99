"""Prompts with media: texts cut at markers, and what stands between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.errors import ConfigError, LoadError, PromptError
from oxillama.media.encoder import Encoded
from oxillama.media.given import Given, Span, Use
from oxillama.media.tiles import Name
from oxillama.tokenizer.bridge import TokenizerBridge

MARKER = "<__media__>"
"""Stands in a text for a picture or a sound."""


@dataclass(frozen=True)
class MediaPrompt:
    """A prompt with media, as `InferenceEngine.stream` takes it.

    Attributes
    ----------
    tokens : ids; 0 where an embedding is given.
    given : the embeddings, and where they stand.
    """

    tokens: list[int]
    given: Given

    def __len__(self) -> int:
        return len(self.tokens)

    def without(self, opening: Sequence[int]) -> MediaPrompt:
        """The prompt without the tokens ``opening``, if it begins with them."""
        n = len(opening)
        if not n or self.tokens[:n] != [*opening] or any(span.start < n for span in self.given.spans):
            return self
        return MediaPrompt(self.tokens[n:], self.given.behind(None, -n))

    def behind(self, n: int) -> MediaPrompt | list[int]:
        """The prompt behind its first ``n`` tokens, which end outside of media."""
        tokens, given = self.tokens[n:], self.given.rest(n)
        return tokens if given is None else MediaPrompt(tokens, given)


class Builder:
    """Puts a prompt together, piece by piece."""

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.spans: list[Span] = []
        self.media: list[Use] = []

    def add_text(self, text: str) -> None:
        """Adds the tokens of a text, or of one token by its name. Raises LoadError, TokenizerError."""
        if isinstance(text, Name):
            self.tokens.append(token_named(self.tokenizer, text))
        elif text:
            self.tokens += self.tokenizer.encode(text, add_special=False, parse_special=True)

    def add(self, medium: Encoded) -> None:
        """Adds the embeddings of a medium and the text around them."""
        first = len(self.spans)
        for texts, rows in zip(medium.texts, [*medium.rows, None], strict=True):
            for text in texts:
                self.add_text(text)
            if rows is not None:
                self.spans.append(Span(len(self.tokens), rows))
                self.tokens += [0] * len(rows.values)
        self.media.append(Use(medium.digest, tuple(span.start for span in self.spans[first:])))

    def prompt(self, axes: np.ndarray | None, projector: Callable[[], bytes], closes: bool) -> MediaPrompt:
        """The prompt, with the tokens that the vocabulary puts before every text.

        ``closes`` adds those that it puts behind every text.
        """
        opening = self.tokenizer.encode_rendered("")
        if closes:
            self.tokens += self.tokenizer.encode("")[len(opening) :]
        begins_so = self.tokens[: len(opening)] == opening and not any(
            s.start < len(opening) for s in self.spans
        )
        n = 0 if begins_so else len(opening)
        given = Given(self.spans, axes, tuple(self.media), projector)
        return MediaPrompt([*(opening if n else []), *self.tokens], given.behind(None, n) if n else given)


def token_named(tokenizer: TokenizerBridge, name: str) -> int:
    """The id of the token whose text is ``name``. Raises LoadError if the vocabulary has none."""
    found = tokenizer.token_id(name)
    if found is None:
        pieces = tokenizer.vocab_bytes()
        found = pieces.index(name.encode()) if name.encode() in pieces else None
    if found is None:
        raise LoadError(f"tokenizer: expected a token {name!r}, which the projector file's pictures need")
    return found


def build(
    tokenizer: TokenizerBridge,
    texts: Sequence[str],
    media: Sequence[Encoded],
    axes: np.ndarray | None,
    projector: Callable[[], bytes],
    most: int,
    *,
    closes: bool,
) -> MediaPrompt:
    """A prompt of texts with a medium between each two.

    Each text is tokenized for itself; names of control tokens in it are these tokens. ``closes`` adds the
    tokens that the vocabulary puts behind every text.

    Raises
    ------
    PromptError : the prompt has more than ``most`` tokens.
    LoadError : the vocabulary has no token that stands between tiles.
    TokenizerError : a text is not valid unicode.
    """
    n_rows = sum(medium.n_tokens for medium in media)
    if n_rows > most:
        raise PromptError(
            f"prompt: expected at most {most} tokens for the context, got {n_rows} of media alone"
        )
    builder = Builder(tokenizer)
    builder.add_text(texts[0])
    for medium, text in zip(media, texts[1:], strict=True):
        builder.add(medium)
        builder.add_text(text)
    return builder.prompt(axes, projector, closes)


def cut_at(text: str, markers: Sequence[str]) -> list[str]:
    """The texts before, between and behind markers, each of which must come once and in order.

    Raises ConfigError otherwise.
    """
    found, rest = [], text
    for i, marker in enumerate(markers):
        before, is_there, rest = rest.partition(marker)
        if not is_there:
            raise ConfigError(
                f"messages: medium {i + 1} of {len(markers)} is not shown by the chat template, or moved"
            )
        found.append(before)
    if any(marker in rest or any(marker in part for part in found) for marker in markers):
        raise ConfigError("messages: the chat template shows a medium more than once")
    return [*found, rest]
