"""Compare the exported models with llama.cpp: tokens, logits, and text. Needs llama-cpp-python.

    python check_llama_cpp.py --models DIR --write-reference FILE    (with torch)
    python check_llama_cpp.py --models DIR --reference FILE          (with llama-cpp-python)

Two steps, so that the two engines may live in different environments.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = (
    "Once upon a time, there was a little fox named",
    "The Lost Red Kite\n\n",
    "My name is Zoe. I am a tiny owl, and I am 9 years old… é ünïcode 123\n\n",
)
RUNS = (("story.gguf", None), ("draft.gguf", None), ("story.gguf", "pirate.gguf"))
N_NEW = 60


def write_reference(folder: Path, path: Path) -> None:
    """Tokens, logits of the prompt, and greedy continuation by PyTorch."""
    import torch
    from evaluate import continue_greedily
    from export import read_model
    from train import BOS, read_tokenizer

    torch.set_num_threads(1)
    tokenizer = read_tokenizer(folder / "story.gguf")
    arrays: dict[str, Any] = {}
    for run, (name, adapter) in enumerate(RUNS):
        model = read_model(folder / name, folder / adapter if adapter else None)
        for i, prompt in enumerate(PROMPTS):
            ids = [BOS, *tokenizer.encode(prompt).ids]
            with torch.no_grad():
                arrays[f"logits.{run}.{i}"] = model(torch.tensor([ids]))[0].numpy()
            arrays[f"ids.{run}.{i}"] = continue_greedily(model, [ids], N_NEW)[0].numpy()
    np.savez(path, **arrays)


def compare(folder: Path, reference: Path) -> None:
    """The same with llama.cpp; prints the differences."""
    import llama_cpp

    arrays = np.load(reference)
    for run, (name, adapter) in enumerate(RUNS):
        path = str(folder / adapter) if adapter else None
        llama = llama_cpp.Llama(
            str(folder / name), lora_path=path, n_ctx=512, n_threads=1, logits_all=True, verbose=False, seed=0
        )
        for i, prompt in enumerate(PROMPTS):
            ids, wanted = arrays[f"ids.{run}.{i}"], arrays[f"logits.{run}.{i}"]
            n = len(wanted)
            tokens = llama.tokenize(prompt.encode())
            assert tokens == ids[:n].tolist(), (tokens, ids[:n])
            llama.reset()
            llama.eval(tokens)
            logits = np.array(llama.scores[:n])
            text = list(tokens)
            while len(text) < len(ids):
                text.append(int(llama.scores[len(text) - 1].argmax()))
                llama.eval(text[-1:])
            same = next((k for k in range(n, len(ids)) if text[k] != ids[k]), len(ids)) - n
            row = {
                "run": f"{name} + {adapter}", "tokens": n,
                "max_logit_difference": round(float(np.abs(logits - wanted).max()), 5),
                "logit_std": round(float(wanted.std()), 3), "greedy_tokens_equal": f"{same}/{N_NEW}",
            }  # fmt: skip
            print(json.dumps(row))
            print(
                "   ",
                llama.detokenize(text[n:], prev_tokens=text[:n])
                .decode(errors="replace")[:150]
                .replace("\n", "\\n"),
            )


def main() -> None:
    """One of the two steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--write-reference", type=Path)
    parser.add_argument("--reference", type=Path)
    args = parser.parse_args()
    if args.write_reference:
        write_reference(args.models, args.write_reference)
    if args.reference:
        compare(args.models, args.reference)


if __name__ == "__main__":
    main()
