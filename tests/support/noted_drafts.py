"""Drafters that read hidden states: what they draft in a step, and what they draft of a text alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Listed
from typing import Any

import numpy as np

from oxillama import SamplerConfig
from oxillama.engine.sequence import Output, Sequence
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.speculator import features_of
from oxillama.speculation.state import SPECULATION, Speculation
from tests.support.serving import Recorded, Serving, check_as_alone, n_vocab_of, sampler_of
from tests.support.tiny_models import tokens_of

N_TOKENS = 24
"""Tokens of a text."""


class Noted:
    """Notes what a drafter drafted after which texts."""

    needs_hidden = True

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.name, self.tapped = drafter, drafter.name, getattr(drafter, "tapped", ())
        self.notes: list[tuple[list[int], list[int]]] = []
        self.observe, self.forget = drafter.observe, drafter.forget

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        texts = [list(sequence.tokens) for sequence in sequences]
        found: list[list[int]] = self.drafter.propose(sequences, samplers, counts)
        self.notes += zip(texts, found)
        return found


def greedy_draft(name: str, drafter: Any, text: Sequence, n: int) -> list[int]:
    """The tokens that a drafter proposes for a greedy text of a model."""
    (found,) = drafter.propose([text], [DraftSampler(sampler_of(name, SamplerConfig.greedy()))], [n])
    return list(found)


def submit(serving: Serving, drafter: Noted, prompt: list[int], **options: Any) -> Recorded:
    request = serving.request(prompt, max_tokens=N_TOKENS, **options)
    request.parts[SPECULATION] = Speculation(drafter, 4)
    serving.loop.add(request)
    return request


def drafted(serving: Serving, drafter: Noted, text: list[int], n: int = 4) -> list[int]:
    """What the drafter drafts after a text that it sees for the first time, and all at once."""
    whole, seen = Sequence(serving.pool, text), list[np.ndarray]()
    whole.schedule(len(text) - 1)

    def hook(start: int, hidden: np.ndarray, inputs: Mapping[int, np.ndarray]) -> None:
        seen.append(features_of(drafter, hidden, inputs))

    serving.runner.run([whole], [Output.LAST_LOGITS], None, [hook])
    whole.commit()
    drafter.observe(whole, 0, seen[0])
    found = greedy_draft(serving.name, drafter.drafter, whole, n)
    drafter.forget(whole)
    whole.release()
    return found


def check_drafts(serving: Serving, drafter: Noted, n: int) -> None:
    """Drafts follow from the text alone, however its states came: in chunks, with other texts (one of ``n``
    tokens), behind drafts that were right or wrong."""
    n_vocab = n_vocab_of(serving.name)
    prompts = [tokens_of(40, n_vocab), tokens_of(n, n_vocab, seed=2), [5]]
    requests = [submit(serving, drafter, prompt, key=bytes([i])) for i, prompt in enumerate(prompts)]
    serving.run(*requests)
    check_as_alone(serving, *requests)
    assert len(drafter.notes) > 20
    assert any(len(found) > 1 for _, found in drafter.notes)
    for text, found in drafter.notes:
        assert found == drafted(serving, drafter, text)[: len(found)]
    assert not vars(drafter.drafter).get("_known")
    serving.check_empty()
