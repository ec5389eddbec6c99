"""A map between the tokens of two vocabularies, so that a model may draft for a target with other tokens.

Two tokens are the same if they have the same bytes and kind: text, control, or byte token. A byte token
counts as the text of its byte if one of the vocabularies has no such text token (a line break in
SentencePiece). Control tokens with different names are the same if they have the same role (``<s>`` and
``<|begin_of_text|>``).
"""

from __future__ import annotations

import numpy as np

from oxillama.errors import ConfigError
from oxillama.text.tokenizer.tokenizer import Tokenizer
from oxillama.text.tokenizer.vocabulary import BYTE, CONTROL, HIDDEN, NORMAL, USER_DEFINED

LEAST_SHARE = 0.5
"""The minimum share of the smaller vocabulary's text tokens that the other vocabulary must have.

Among the vocabularies of ten published models (Llama 2 and 3, Qwen 2 and 3.5, Gemma 4, Command R, DeepSeek,
Falcon, GPT-2, Phi 3) the share is 0.56 to 1, and 81 to 100 % of the draft's tokens of an English text with
code are also the target's.
"""

TEXT = NORMAL | USER_DEFINED

USUAL_BYTES = frozenset(b"\n") | {*range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xE0)}
"""Bytes that a draft model must be able to spell: the bytes of printable characters. Published vocabularies
lack some other bytes; the draft model skips these."""


class TokenMap:
    """The tokens that a draft model and its target share, and spellings for all other target tokens.

    Args:
        name: the draft model's name, for errors.
        draft, target: the two vocabularies.

    Attributes:
        draft_ids, target_ids: int64 (n,), the ids of each shared token.
        draft_of: maps the target id of a shared token to the draft id.
        share: shared text tokens, relative to the text tokens of the smaller vocabulary.
        n_target: number of target tokens.

    Raises:
        ConfigError: the share is below `LEAST_SHARE`, or the draft model has no token for some byte.
    """

    def __init__(self, name: str, draft: Tokenizer, target: Tokenizer) -> None:
        theirs, ours = _meanings(draft), _meanings(target)
        pairs = {ours[meaning]: id for meaning, id in theirs.items() if meaning in ours}
        n_same = sum(bool(target.token_type(id) & TEXT) for id in pairs)
        n_text = min(sum(meaning[0] == TEXT for meaning in known) for known in (theirs, ours))
        self.share: float = n_same / max(1, n_text)
        _pair_bytes(pairs, theirs, ours)
        _pair_roles(pairs, draft, target)
        if self.share < LEAST_SHARE:
            raise ConfigError(
                f"speculate: expected at least {LEAST_SHARE:.0%} of the text tokens of {name} and the model "
                f"to be the same, got {self.share:.0%}"
            )
        self._pieces = {piece: id for (kind, piece), id in theirs.items() if kind == BYTE}
        self._pieces |= {piece: id for (kind, piece), id in theirs.items() if kind == TEXT and piece}
        missing = USUAL_BYTES & {byte for kind, piece in ours if kind != CONTROL for byte in piece}
        missing -= {piece[0] for piece in self._pieces if len(piece) == 1}
        if missing:
            raise ConfigError(
                f"speculate: expected {name} to have a token for every byte of the model's tokens, got none "
                f"for {len(missing)}, such as 0x{min(missing):02X}"
            )
        self.draft_of = pairs
        self.target_ids: np.ndarray = np.array(list(pairs), np.int64)
        self.draft_ids: np.ndarray = np.array(list(pairs.values()), np.int64)
        self.n_target: int = target.n_vocab
        self._target = target
        self._longest = max(map(len, self._pieces))
        self._opening = [draft.bos_id] if draft.add_bos and draft.bos_id is not None else []
        self._spelled: dict[int, list[int]] = {}

    @property
    def opening(self) -> list[int]:
        """Draft tokens that every text must begin with (the BOS token, or none)."""
        return self._opening

    def spell(self, token: int) -> list[int]:
        """Translate a target token to draft tokens: the shared token, or the longest draft tokens that its
        bytes split into.

        Empty for a BOS token that the draft model does not have, and for ids without a token.
        """
        known = self.draft_of.get(token)
        if known is not None:
            return [known]
        if token not in self._spelled:
            self._spelled[token] = self._cut(token)
        return self._spelled[token]

    def _cut(self, token: int) -> list[int]:
        if token >= self.n_target or token == self._target.bos_id:
            return []
        piece, found, at = self._target.token_bytes(token), [], 0
        while at < len(piece):
            for end in range(min(len(piece), at + self._longest), at, -1):
                id = self._pieces.get(piece[at:end])
                if id is not None:
                    found.append(id)
                    break
            else:
                end = at + 1
            at = end
        return found

    def scattered(self, row: np.ndarray) -> np.ndarray:
        """float32 (n_target,): the draft's logits ``row`` at the target's ids; -inf for tokens not shared."""
        out = np.full(self.n_target, -np.inf, np.float32)
        out[self.target_ids] = row[self.draft_ids]
        return out


def same_tokens(draft: Tokenizer, target: Tokenizer) -> bool:
    """Whether every id of the target is the same token in the draft, which may have more tokens."""
    tokens = target.vocab.tokens
    return draft.vocab.tokens[: len(tokens)] == tokens


def _meanings(vocabulary: Tokenizer) -> dict[tuple[int, bytes], int]:
    """The ids by (kind, bytes), the first of duplicates. Tokens without a meaning are left out."""
    found: dict[tuple[int, bytes], int] = {}
    for id, (kind, piece) in enumerate(zip(vocabulary.vocab.types, vocabulary.vocab_bytes())):
        for bits, group in ((HIDDEN, CONTROL), (BYTE, BYTE), (TEXT, TEXT)):
            if kind & bits:
                found.setdefault((group, piece), id)
                break
    return found


def _pair_bytes(
    pairs: dict[int, int], theirs: dict[tuple[int, bytes], int], ours: dict[tuple[int, bytes], int]
) -> None:
    """Pair bytes that are a text token in one vocabulary, but only a byte token in the other."""
    for piece in (bytes([byte]) for byte in range(256)):
        draft, target = ((known.get((TEXT, piece)), known.get((BYTE, piece))) for known in (theirs, ours))
        if draft[0] is None and draft[1] is not None and target[0] is not None:
            pairs.pop(-1 if target[1] is None else target[1], None)
            pairs[target[0]] = draft[1]
        elif target[0] is None and target[1] is not None and draft[0] is not None:
            pairs[target[1]] = draft[0]


def _pair_roles(pairs: dict[int, int], draft: Tokenizer, target: Tokenizer) -> None:
    """Pair control tokens of the same role."""
    taken = set(pairs.values())
    for role, id in target.special_ids.items():
        other = draft.special_ids.get(role)
        if other is not None and other not in taken and id not in pairs:
            pairs[id] = other
            taken.add(other)
