"""Drafts by a model with another vocabulary, translated token by token."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import numpy as np

from oxillama.engine.cache.radix import common_length
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.speculation.drafters import ModelDrafter
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.token_map import TokenMap


class MappedDrafter:
    """Drafts with a model whose vocabulary differs from the target's.

    The draft model reads the text in its own tokens. Its logits are mapped to the target's ids, and the
    request's sampler chooses among the tokens that both vocabularies share.

    Args:
        name: file name of the draft model.
        runner: runs the draft model.
        tokens: the map between the vocabularies.
        ends: target ids after which a draft ends.
        context_size: max tokens of a sequence of the draft model.

    Raises:
        ConfigError: the draft model is an encoder.
    """

    def __init__(
        self, name: str, runner: Runner, tokens: TokenMap, ends: Listed[int], context_size: int
    ) -> None:
        own_ends = {tokens.draft_of[id] for id in ends if id in tokens.draft_of}
        self.name = name
        self._drafter = ModelDrafter(name, runner, runner.model.spec.n_vocab, own_ends, context_size)
        self._pool = runner.pool
        self._tokens = tokens
        self._known: dict[Sequence, _Translation] = {}

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        translated = [self._translated(sequence) for sequence in sequences]
        asked = [i for i, sequence in enumerate(translated) if sequence.tokens]
        mapped = [MappedSampler(samplers[i], self._tokens, sequences[i].tokens) for i in asked]
        self._drafter.propose([translated[i] for i in asked], mapped, [counts[i] for i in asked])
        found: list[list[int]] = [[] for _ in sequences]
        for i, sampler in zip(asked, mapped):
            found[i] = sampler.sampled
        return found

    def forget(self, sequence: Sequence) -> None:
        known = self._known.pop(sequence, None)
        if known is not None:
            self._drafter.forget(known.sequence)

    def _translated(self, sequence: Sequence) -> Sequence:
        """The sequence in the draft model's tokens."""
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = _Translation(self._tokens, Sequence(self._pool))
        return known.follow(sequence.tokens)


class _Translation:
    """A text translated to the tokens of a draft model.

    Attributes:
        sequence: the translated tokens; never run. The drafter runs another sequence with the same tokens.
    """

    def __init__(self, tokens: TokenMap, sequence: Sequence) -> None:
        self.sequence = sequence
        self._tokens = tokens
        self._text: list[int] = []
        self._lengths = [0]  # [i]: length of the translation of the first i tokens

    def follow(self, text: list[int]) -> Sequence:
        """The translation of these target tokens; the common prefix is not translated again."""
        n = common_length(self._text, text)
        del self._text[n:], self._lengths[n + 1 :]
        spelled = self.sequence.tokens
        del spelled[self._lengths[-1] :]
        for token in text[n:]:
            spelled += self._tokens.spell(token)
            if len(self._lengths) == 1 and spelled[:1] != self._tokens.opening:
                spelled[:0] = self._tokens.opening
            self._lengths.append(len(spelled))
        self._text += text[n:]
        return self.sequence


class MappedSampler(DraftSampler):
    """Samples target tokens from the logits of a draft model with another vocabulary.

    Args:
        sampler: chooses the target tokens; the caller rewinds it.
        tokens: the map between the vocabularies.
        text: the target tokens so far.

    Attributes:
        sampled: the drafted target tokens.
    """

    def __init__(self, sampler: DraftSampler, tokens: TokenMap, text: Listed[int]) -> None:
        self.sampled: list[int] = []
        self.is_done = False
        self._sampler = sampler
        self._tokens = tokens
        self._history = list(text)

    def sample(self, row: np.ndarray, history: list[int], chance: float | None = None) -> int | None:
        """The draft model's id of the sampled token, None if it has none; ``row`` are the draft's logits."""
        token = self._sampler.sample(self._tokens.scattered(row), self._history, chance)
        self.is_done: bool = self._sampler.is_done
        if token is None or token not in self._tokens.draft_of:
            return None
        self.sampled.append(token)
        self._history.append(token)
        return self._tokens.draft_of[token]
