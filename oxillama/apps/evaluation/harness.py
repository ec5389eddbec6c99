"""A model for lm-evaluation-harness: `lm_eval` finds it as "oxillama" once this module is imported.

Results depend only on the model and the task, not on batch size, threads or instruction set.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from oxillama.apps.evaluation.score_receipt import ScoreReceipt
from oxillama.apps.evaluation.scoring import BATCH_SIZE, Score, scores
from oxillama.base.config import EngineConfig, checks
from oxillama.base.config.checks import NO_DECODE_WAIT
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, PromptError
from oxillama.models.media.decode import read_sound

if TYPE_CHECKING:
    from oxillama.engine.features.media.prompt import MediaPrompt

NAME = "oxillama"

PLACES = {"<image>": "visual", "<audio>": "audio"}
"""Placeholders of media in a text, and the harness's names for the lists of media."""

MAX_GEN_TOKS = 256
"""Max tokens of an answer if the task sets none; the same as in the harness's own models."""


@register_model(NAME)
class OxillamaLM(TemplateLM):  # type: ignore[misc]  # a base class without types
    """A GGUF model.

    Args:
        model: path of the file, or an engine, which stays open.
        batch_size: sequences run at a time; "auto": as many as an engine admits.
        truncate: whether to cut the beginning of a prompt that exceeds the context, as the harness's own
            models do; otherwise such a prompt is an error.
        receipts: folder for a receipt of each item, or None.
        seed: seed of sampled answers; a repeated request uses the next seed.
        max_batch_size, device: arguments of the harness; must be None, and None or "cpu".
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: an option is out of range. Also the errors of loading a model.
    """

    def __init__(
        self,
        model: str | InferenceEngine,
        *,
        batch_size: int | str = BATCH_SIZE,
        truncate: bool = False,
        receipts: str | Path | None = None,
        seed: int = 0,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise ConfigError("max_batch_size: expected none; batch_size says how many sequences are run")
        if device not in (None, "cpu"):
            raise ConfigError(f"device: expected cpu, got {device}")
        size = BATCH_SIZE if batch_size == "auto" else int(batch_size)
        self.batch_size: int = checks.integer("batch_size", size, 1)
        self.truncate: bool = checks.boolean("truncate", truncate)
        self.receipts: Path | None = None if receipts is None else Path(receipts)
        self.seed = seed
        self.is_own = not isinstance(model, InferenceEngine)
        if isinstance(model, InferenceEngine):
            if options:
                raise ConfigError(f"{next(iter(options))}: expected no options of an engine that is given")
            self.engine = model
        else:
            self.engine = InferenceEngine(EngineConfig(model_path=model, **options))

    MULTIMODAL = True
    """Tasks may have pictures and sounds; a model without an encoder for them raises an error."""

    # --- tokens ---------------------------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """The context size in tokens."""
        return self.engine.context_size

    @property
    def eot_token_id(self) -> int:
        special = self.engine.tokenizer
        found = special.eos_id if special.eos_id is not None else special.eot_id
        if found is None:
            raise ConfigError("model: expected a token that ends texts, the vocabulary has none")
        return found

    @property
    def prefix_token_id(self) -> int:
        bos = self.engine.tokenizer.bos_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """A name that identifies the model's content, for the harness's cache of requests."""
        return f"{NAME}-{self.engine.model.fingerprint.content.hex()[:16]}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; names of control tokens are parsed, and at most one BOS is added."""
        if add_special_tokens is False:
            return self.engine.tokenizer.encode(string, add_special=False, parse_special=True)
        return self.engine.tokenizer.encode_rendered(string)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if chat_template is False:
            return None
        name = chat_template if isinstance(chat_template, str) else "default"
        return self.engine.tokenizer.chat_template_source(name)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        render = self.engine.tokenizer.apply_chat_template
        if add_generation_prompt:
            return render(chat_history)
        *before, last = chat_history  # the last message is the beginning of the answer
        if last["role"] != "assistant":
            raise ConfigError(
                f"chat_history: expected an answer to go on with, got a message of {last['role']}"
            )
        return render(before) + last["content"]

    # --- requests -------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._items = list(requests)
        try:
            found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        finally:
            self._items = []
        return found

    _items: Sequence[Any] = ()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [
            self._fitting(context, continuation, f"request {number}")
            for number, (_, context, continuation) in enumerate(requests)
        ]
        found = self._scores(pairs)
        for number, (item, pair, score) in enumerate(zip(self._items, pairs, found)):
            self._save(item, number, 0, *pair, score)
        results = [(score.logprob, score.is_greedy) for score in found]
        for (text, _, _), result in zip(requests, results):
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, result)
        return results

    def _scores(self, pairs: list[tuple[list[int], list[int]]]) -> list[Score]:
        hashes = self.receipts is not None
        return scores(self.engine, pairs, batch_size=self.batch_size, hashes=hashes)

    def _fitting(self, context: list[int], continuation: list[int], name: str) -> tuple[list[int], list[int]]:
        """The pair, cut to the context. Raises PromptError if it must not be cut, or is empty."""
        n, most = len(context) + len(continuation), self.max_length + 1
        if n > most and not self.truncate:
            raise PromptError(
                f"{name}: expected at most {most} tokens for the context, got {n}; truncate=True cuts them"
            )
        if not continuation or len(continuation) >= most:
            raise PromptError(
                f"{name}: expected a continuation of 1 to {most - 1} tokens, got {len(continuation)}"
            )
        return context[max(0, n - most) :], continuation

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        owners: list[int] = []
        pairs: list[tuple[list[int], list[int]]] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1):
                pairs.append(make_disjoint_window(window))
                owners.append(number)
        totals, parts = [0.0] * len(requests), Counter[int]()
        for number, pair, score in zip(owners, pairs, self._scores(pairs)):
            totals[number] += score.logprob
            self._save(requests[number], number, parts[number], *pair, score)
            parts[number] += 1
        for request, total in zip(requests, totals):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        found: list[str] = []
        repeats: Counter[str] = Counter()
        for start in range(0, len(requests), self.batch_size):
            batch = requests[start : start + self.batch_size]
            running = []
            for number, request in enumerate(batch, start):
                context, given, *media = request.args
                repeated = repr((context, given, getattr(request, "doc_id", None) if media else None))
                options = generation_options(given, self.seed + repeats[repeated])
                repeats[repeated] += 1
                name = f"request {number}"
                prompt: Any = self._prompt(context, options["max_tokens"], name, *media)
                options["receipt"] = self.receipts is not None
                running += self.engine.stream_batch([prompt], **options)
            for number, (request, generation) in enumerate(zip(batch, running), start):
                completion = generation.result()
                if completion.receipt is not None:
                    completion.receipt.save(self._receipt_path(request, number, 0))
                self.cache_hook.add_partial("generate_until", request.args, completion.text)
                found.append(completion.text)
        return found

    def _prompt(
        self, context: str, n_new: int, name: str, media: Mapping[str, Any] | None = None
    ) -> list[int] | MediaPrompt:
        """The tokens of a prompt with room for an answer. Raises PromptError if it is too long and must not
        be cut; a prompt with media is never cut."""
        prompt = self._media_prompt(context, media, name) if media else None
        tokens = self.tok_encode(context) if prompt is None else prompt.tokens
        room = self.max_length - n_new
        if len(tokens) <= room:
            return tokens if prompt is None else prompt
        if room < 1 or not self.truncate or prompt is not None:
            raise PromptError(
                f"{name}: expected at most {room} tokens, which leave room for an answer of {n_new}, got "
                f"{len(tokens)}; truncate=True cuts them"
            )
        return tokens[-room:]

    def _media_prompt(self, context: str, media: Mapping[str, Any], name: str) -> MediaPrompt:
        """A prompt with media at the `PLACES` of a text. Raises ConfigError unless the numbers match."""
        texts = re.split(f"({'|'.join(PLACES)})", context)
        given = {place: listed(media.get(kind)) for place, kind in PLACES.items()}
        for place, some in given.items():
            if texts[1::2].count(place) != len(some):
                wanted = f"{len(some)} {place}, one for each of its media"
                raise ConfigError(f"{name}: expected {wanted}, got {texts[1::2].count(place)}")
        found = [medium_of(given[place].pop(0)) for place in texts[1::2]]
        marker = f"<__media {secrets.token_hex(12)}__>"  # random, so that no text contains it
        prompt: MediaPrompt = self.engine.model.feature("media").prompt(
            marker.join(texts[::2]), found, marker
        )
        return prompt

    # --- receipts -------------------------------------------------------------------------------------

    def _save(
        self, item: Any, number: int, part: int, context: list[int], continuation: list[int], score: Score
    ) -> None:
        if self.receipts is not None:
            receipt = ScoreReceipt.of(self.engine, context, continuation, score)
            receipt.save(self._receipt_path(item, number, part))

    def _receipt_path(self, item: Any, number: int, part: int) -> Path:
        """TASK/DOCUMENT-REQUEST-PART.json; without a task, DOCUMENT is the number of the request."""
        assert self.receipts is not None
        task = re.sub(r"[^\w.-]+", "_", str(getattr(item, "task_name", None) or "requests"))
        document = getattr(item, "doc_id", None)
        document = number if document is None else document
        folder = self.receipts / task
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{document}-{getattr(item, 'idx', None) or 0}-{part}.json"

    def close(self) -> None:
        """Close the engine, unless the caller supplied it."""
        if self.is_own:
            self.engine.close()


def listed(media: Any) -> list[Any]:
    """The media of a request as a list."""
    return [] if media is None else list(media) if isinstance(media, (list, tuple)) else [media]


def medium_of(medium: Any) -> Any:
    """A medium for the engine: pictures unchanged, sounds converted from `datasets`' samples and rate."""
    if not isinstance(medium, Mapping):
        return medium
    return read_sound(np.asarray(medium["array"], np.float32), int(medium["sampling_rate"]))


def generation_options(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """Convert a task's generation arguments to fields of `GenerationOptions`."""
    plain = dict(normalize_gen_kwargs(given, MAX_GEN_TOKS))
    plain.pop("do_sample", None)
    options = {
        "stop": [text for text in plain.pop("until") if text],
        "max_tokens": plain.pop("max_gen_toks"),
        "temperature": plain.pop("temperature", 0.0),
        "seed": seed,
        "max_decode_wait_ms": NO_DECODE_WAIT,
    }
    return {**options, **plain}
