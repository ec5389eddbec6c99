"""What the benchmark of speculation drafts with, and the texts that it copies."""

from __future__ import annotations

import time
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama import demo
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import Sequence
from oxillama.speculation.sampling import DraftSampler
from oxillama.speculation.speculator import Speculator, room
from oxillama.speculation.state import Speculation
from oxillama.text.chat.bridge import TokenizerBridge


class Oracle:
    """A drafter that knows the texts, and says each token right with a fixed probability. It takes no time.

    Args:
        acceptance: that probability.
        most: tokens of a draft.

    Attributes:
        texts: prompts and what the model says after them.
    """

    def __init__(self, name: str, acceptance: float, most: int) -> None:
        self.name = name
        self.texts: list[tuple[list[int], list[int]]] = []
        self._acceptance, self._most = acceptance, most
        self._random = np.random.default_rng(1)

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        return [
            sampler.copied(self._guess(sequence, min(n, self._most)))
            for sequence, sampler, n in zip(sequences, samplers, counts)
        ]

    def _guess(self, sequence: Sequence, n: int) -> list[int]:
        tokens = sequence.tokens
        prompt, text = next(pair for pair in self.texts if tokens[: len(pair[0])] == pair[0])
        at = len(tokens) - len(prompt)
        right = self._random.random(n) < self._acceptance
        return [token if good else token ^ 1 for token, good in zip(text[at : at + n], right)]

    def forget(self, sequence: Sequence) -> None:
        pass


class FixedLengths(Speculator):
    """Drafts as many tokens as a request may, whatever they cost."""

    def _lengths(self, n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> list[int]:
        return [room(request, speculation.most) for request, speculation in asking]


class Forced:
    """A stage that leaves one token: the next of a text. For this library, and as llama.cpp's processor.

    On random weights no model copies. So both engines are told what the model chooses; they do not know it
    before they have the logits of the token.
    """

    def __init__(self, n_prompt: int, text: Listed[int]) -> None:
        self._n_prompt, self._text = n_prompt, text
        self._at = 0

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        kept = ids == self._text[len(history) - self._n_prompt]
        logits[~kept] = -np.inf

    def process(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The same by llama-cpp-python's interface, which shows drafted tokens among the ids."""
        scores[:] = -np.inf
        scores[self._text[self._at]] = 0.0
        self._at += 1
        return scores


@dataclass(frozen=True)
class Work:
    """A prompt, and a continuation that copies most of it."""

    name: str
    prompt: list[int]
    text: list[int]


def copying_work(n: int, n_vocab: int) -> list[Work]:
    """Extracting, rewriting and editing a story of the demo model's held-out texts, ``n`` tokens each.

    The story has the demo model's token ids behind the control tokens; what is not copied are ids of the
    other half of the vocabulary.
    """
    half = n_vocab // 2
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    stories = demo.HELDOUT.read_text(encoding="utf-8").split(demo.SEPARATOR)
    story = [3 + token % (half - 3) for token in tokenizer.encode("\n\n".join(stories[:3]))][: 2 * n]
    fresh = iter(range(half, n_vocab))
    head = [1, *(next(fresh) for _ in range(15))]
    extracted: list[int] = []
    for start in (n, n // 3, 3 * n // 2, 0):  # sentences from here and there, each behind a heading
        extracted += [next(fresh), next(fresh), *story[start : start + n // 4]]
    rewritten = [next(fresh) if i % 16 == 15 else token for i, token in enumerate(story)]
    renamed = {token: next(fresh) for token in frequent(story)}
    edited = [renamed.get(token, token) for token in story]
    texts = {"extract": extracted, "rewrite": rewritten, "edit": edited}
    return [Work(name, head + story, text[:n]) for name, text in texts.items()]


def frequent(story: Listed[int]) -> list[int]:
    """Two tokens that make about a twentieth of a story, as names do."""
    ids, counts = np.unique(story, return_counts=True)
    near = np.argsort(np.abs(counts - len(story) / 40), kind="stable")
    return [int(id) for id in ids[near[:2]]]


class LlamaCppLookup:
    """llama.cpp with the look-up of llama-cpp-python."""

    def __init__(self, model: Any, threads: int, context: int, n_drafts: int) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._api = llama_cpp
        self.n_drafts = n_drafts
        self._llama = llama_cpp.Llama(
            str(model),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            verbose=False,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=n_drafts) if n_drafts else None,
        )

    def decode(self, work: Work) -> dict[str, float]:
        """Tokens a second behind the first one."""
        forced = Forced(len(work.prompt), work.text)
        tokens = self._llama.generate(
            work.prompt,
            temp=0.0,
            logits_processor=self._api.LogitsProcessorList([forced.process]),
        )
        said = [next(tokens)]
        started = time.perf_counter()
        while len(said) < len(work.text):
            said.append(next(tokens))
        taken = time.perf_counter() - started
        tokens.close()
        assert said == work.text
        return {"decode": (len(said) - 1) / taken}

    def close(self) -> None:
        """Frees the model."""
        self._llama.close()
