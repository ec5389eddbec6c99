"""Measures the exported models: held-out perplexity, and how often draft and story model agree.

    python evaluate.py --models ../../oxillama/apps/demo [--write]

The weights of the GGUF files are dequantized to float32. With ``--write`` the held-out texts and
`perplexity.json` are written to the folder of the models; without it the recorded numbers are checked.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path

import corpus
import torch
from export import read_model
from model import Llama
from torch.nn import functional
from train import BOS, EOS, read_tokenizer

SEPARATOR = "\n\n* * *\n\n"
HELDOUT = {"heldout.txt": ("plain", 18), "heldout_pirate.txt": ("pirate", 12)}
RUNS = (  # model, adapter, text
    ("story.gguf", None, "heldout.txt"),
    ("draft.gguf", None, "heldout.txt"),
    ("story.gguf", None, "heldout_pirate.txt"),
    ("story.gguf", "pirate.gguf", "heldout_pirate.txt"),
)
METHOD = (
    "Split the text at the separator; each part is one document. Encode a document alone, as ids = [bos] + "
    "tokens + [eos], without special tokens parsed from the text. Run each document by itself from an empty "
    "context (all are shorter than the context length of 512). Score every id but the bos, the eos included: "
    "nll = -log softmax(logits given all ids before it)[id], natural logarithm. mean_nll is the sum over all "
    "documents divided by scored_tokens; perplexity = exp(mean_nll). Recorded with float32 arithmetic on the "
    "dequantized weights, adapter scale 1."
)


@torch.no_grad()
def mean_nll(model: Llama, documents: Iterable[list[int]]) -> tuple[float, int]:
    """Mean negative log likelihood of all ids but the first of each document, and the number of these ids."""
    total, count = 0.0, 0
    for ids in documents:
        row = torch.tensor([ids])
        logits = model(row[:, :-1])[0].double()
        total += functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
        count += len(ids) - 1
    return total / count, count


@torch.no_grad()
def continue_greedily(model: Llama, prompts: list[list[int]], n_new: int) -> torch.Tensor:
    """Prompts of equal length, continued greedily: int64 (prompts, length + n_new)."""
    ids = torch.tensor(prompts)
    for _ in range(n_new):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


@torch.no_grad()
def agreement(story: Llama, draft: Llama, documents: Iterable[list[int]], first: int = 0) -> float:
    """The share of positions, from ``first`` to EOS, at which both models have the same likeliest token."""
    same, count = 0, 0
    for ids in documents:
        end = ids.index(EOS) if EOS in ids else len(ids) - 1
        row = torch.tensor([ids[:end]])
        equal = (story(row).argmax(-1) == draft(row).argmax(-1))[0, first:]
        same, count = same + int(equal.sum()), count + equal.numel()
    return same / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = read_tokenizer(args.models / "story.gguf")
    documents = {}
    for name, (style, count) in HELDOUT.items():
        texts = list(corpus.stories(corpus.HELDOUT_SEED, count, style))
        documents[name] = [[BOS, *tokenizer.encode(text).ids, EOS] for text in texts]
        if args.write:
            (args.models / name).write_text(SEPARATOR.join(texts), encoding="utf-8", newline="\n")
        elif (args.models / name).read_text(encoding="utf-8") != SEPARATOR.join(texts):
            raise SystemExit(f"{name}: is not what corpus.py draws")
    results = []
    for model_name, adapter, text in RUNS:
        model = read_model(args.models / model_name, args.models / adapter if adapter else None)
        nll, count = mean_nll(model, documents[text])
        result = {
            "model": model_name, "adapter": adapter, "text": text, "documents": len(documents[text]),
            "scored_tokens": count, "mean_nll": round(nll, 6), "perplexity": round(math.exp(nll), 5),
        }  # fmt: skip
        results.append(result)
        print(result)
    recorded = {"method": METHOD, "separator": SEPARATOR, "bos": BOS, "eos": EOS, "results": results}
    path = args.models / "perplexity.json"
    if args.write:
        path.write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8", newline="\n")
    elif json.loads(path.read_text(encoding="utf-8")) != recorded:
        raise SystemExit("perplexity.json: the recorded numbers differ")
    story, draft = (read_model(args.models / f"{name}.gguf") for name in ("story", "draft"))
    plain = documents["heldout.txt"]
    print(f"draft agrees on held-out text: {agreement(story, draft, plain):.3f}")
    prompts = [ids[:12] for ids in plain[:8]]
    written = continue_greedily(story, prompts, 240).tolist()
    print(f"draft agrees on the story model's own text: {agreement(story, draft, written, first=11):.3f}")


if __name__ == "__main__":
    main()
