"""Prompts with media: texts cut at markers, and what stands between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from oxillama.engine.features.media.input_embeddings import InputEmbeddings, Span, Use
from oxillama.errors import ConfigError, MediaError
from oxillama.models.media.decode import PREPROCESSING
from oxillama.models.media.encoder import Encoded, Planned
from oxillama.models.media.tiles import Name
from oxillama.text.chat.bridge import TokenizerBridge

MARKER = "<__media__>"
"""Stands in a text for a picture or a sound."""


@dataclass(frozen=True)
class MediaPrompt:
    """A prompt with media, as `InferenceEngine.stream` takes it.

    Attributes:
        tokens: ids; 0 where an embedding is given.
        embeddings: the embeddings, and where they stand.
    """

    tokens: list[int]
    embeddings: InputEmbeddings

    def __len__(self) -> int:
        return len(self.tokens)

    def without(self, opening: Sequence[int]) -> MediaPrompt:
        """The prompt without the tokens ``opening``, if it begins with them."""
        n = len(opening)
        if not n or self.tokens[:n] != [*opening] or any(span.start < n for span in self.embeddings.spans):
            return self
        return MediaPrompt(self.tokens[n:], self.embeddings.behind(None, -n))

    def behind(self, n: int) -> MediaPrompt | list[int]:
        """The prompt behind its first ``n`` tokens, which end outside of media."""
        tokens, embeddings = self.tokens[n:], self.embeddings.rest(n)
        return tokens if embeddings is None else MediaPrompt(tokens, embeddings)


@dataclass
class Layout:
    """The tokens of a prompt with media, before the media are encoded.

    Attributes:
        tokens: ids; 0 where an embedding will be given.
        starts: of each medium, the first token of each of its tiles or pieces.
    """

    tokens: list[int]
    starts: list[tuple[int, ...]]

    def filled(
        self, media: Sequence[Encoded], axes: np.ndarray | None, projector: Callable[[], bytes]
    ) -> MediaPrompt:
        """The prompt, with the embeddings in their places."""
        spans = [
            Span(start, rows)
            for starts, medium in zip(self.starts, media, strict=True)
            for start, rows in zip(starts, medium.rows, strict=True)
        ]
        uses = tuple(map(Use, [medium.digest for medium in media], self.starts))
        return MediaPrompt(self.tokens, InputEmbeddings(spans, axes, uses, projector, PREPROCESSING))


def layout(
    tokenizer: TokenizerBridge,
    texts: Sequence[str],
    media: Sequence[Planned | Encoded],
    places: Sequence[str],
    encode: Callable[[str], list[int]],
    *,
    closes: bool,
) -> Layout:
    """The places of texts with a medium between each two, behind the tokens that stand before every text.

    Args:
        places: what the caller calls each medium, for errors.
        encode: tokenizes each text, without added tokens.
        closes: adds the tokens that the vocabulary puts after every text.

    Raises:
        MediaError: a picture has more tiles than the vocabulary has names for.
        TokenizerError: a text is not valid unicode.
    """
    tokens, starts = [*encode(texts[0])], []
    for medium, text, place in zip(media, texts[1:], places, strict=True):
        with placed(place):
            check_names(tokenizer, medium.texts)
        found = []
        for around, n in zip(medium.texts, [*medium.counts, 0], strict=True):
            for each in around:
                tokens += tokens_of(tokenizer, each)
            found.append(len(tokens))
            tokens += [0] * n
        starts.append(found[:-1])
        tokens += encode(text)
    opening = tokenizer.encode_rendered("")
    if closes:
        tokens += tokenizer.encode("")[len(opening) :]
    is_open = tokens[: len(opening)] == opening and all(at[0] >= len(opening) for at in starts if at)
    n = 0 if is_open else len(opening)
    return Layout([*opening[:n], *tokens], [tuple(start + n for start in each) for each in starts])


def tokens_of(tokenizer: TokenizerBridge, text: str) -> list[int]:
    """The tokens of a text. A `Name` that is no token of the vocabulary is written as text."""
    if isinstance(text, Name) and (token := token_named(tokenizer, text)) is not None:
        return [token]
    return tokenizer.encode(text, add_special=False, parse_special=True)


def token_named(tokenizer: TokenizerBridge, name: str) -> int | None:
    """The id of the token whose text is ``name``; None if the vocabulary has no such token."""
    found = tokenizer.token_id(name)
    if found is None:
        pieces, wanted = tokenizer.vocab_bytes(), name.encode()
        found = pieces.index(wanted) if wanted in pieces else None
    return found


NUMBERED = re.compile(r"row_(\d+)_col_(\d+)")
"""The numbers in the name of a tile."""


def check_names(tokenizer: TokenizerBridge, texts: Sequence[Sequence[str]]) -> None:
    """Raises MediaError if the vocabulary has names of tiles, but not of so many rows or columns."""
    names = [text for each in texts for text in each if isinstance(text, Name) and NUMBERED.search(text)]
    if not names or token_named(tokenizer, NUMBERED.sub("row_1_col_1", names[0])) is None:
        return  # without names of tiles, names are texts

    def is_named(row: int, column: int) -> bool:
        return token_named(tokenizer, NUMBERED.sub(f"row_{row}_col_{column}", names[0])) is not None

    (rows, columns), *_ = [map(int, found) for found in NUMBERED.findall(names[-1])]
    if not all(is_named(y, x) for y in range(1, rows + 1) for x in range(1, columns + 1)):
        most = (
            sum(is_named(y, 1) for y in range(1, rows + 1)),
            sum(is_named(1, x) for x in range(1, columns + 1)),
        )
        raise MediaError(
            f"picture: expected at most {most[0]} x {most[1]} tiles (rows x columns), "
            f"for which the vocabulary has names, got {rows} x {columns}"
        )


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Errors of media that are raised inside the block name the place where the caller gave the medium."""
    try:
        yield
    except (MediaError, ConfigError) as error:
        kind = MediaError if isinstance(error, MediaError) else ConfigError
        raise kind(f"{where}: {error}") from error


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
