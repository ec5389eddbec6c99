"""Trains the demo models on one core: the vocabulary, the story model, its draft, its adapter.

    python train.py vocabulary|language|story|draft|pirate --out DIR

Each step reads from DIR what the steps before wrote. The story model first learns the language, from joined
documents. Then it learns to keep people apart, from portraits and single documents: a portrait's record
repeats every fact, so copying lowers the loss at once. The draft learns the story model's distribution
instead of the text (Hinton et al. 2015, arXiv:1503.02531), because speculative decoding accepts a draft token
if the two models agree. Everything is seeded: the same torch on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before tokenizers is imported: one core

import corpus
import gguf
import torch
from model import Llama, Shape
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

BOS, EOS = 0, 1
SPECIAL = ["<|bos|>", "<|eos|>"]
STORY_SHAPE = Shape(n_layer=4, n_head=4, n_head_kv=2, n_ff=768)
DRAFT_SHAPE = Shape(n_layer=1, n_head=4, n_head_kv=1, n_ff=256)
LORA_RANK, LORA_ALPHA = 8, 16.0

Batch = tuple[Tensor, Tensor]
"""Ids and the next ids, both int64 (rows, tokens). The next id of padding is `NOTHING`."""
NOTHING = -100

SHORT, LONG = (16, 128), (5, 448)
"""(rows, tokens) of batches with one document in each row, for portraits and for stories."""


def train_vocabulary(out: Path) -> None:
    """Byte-level BPE with GPT-2's pre-tokenizer: every byte is a token, so every text has one encoding.

    A sixth of the text is in the adapter's style, so that it costs about as many tokens as the plain one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=STORY_SHAPE.n_vocab, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    texts = [*corpus.stories(corpus.TRAIN_SEED, 10000), *corpus.stories(corpus.TRAIN_SEED, 2000, "pirate")]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    n_chars, n_tokens = sum(map(len, texts)), sum(len(e.ids) for e in tokenizer.encode_batch(texts))
    print(f"{tokenizer.get_vocab_size()} tokens, {n_chars / n_tokens:.2f} characters each")
    print(f"{n_tokens / len(texts):.0f} tokens a story")


def read_tokenizer(path: Path) -> Tokenizer:
    """The vocabulary of a GGUF file as a `tokenizers` object; it knows no special tokens."""
    reader = gguf.GGUFReader(path)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()  # type: ignore[union-attr]
    merges = reader.get_field("tokenizer.ggml.merges").contents()  # type: ignore[union-attr]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def documents(out: Path, style: str, start: int, max_chars: int = 1 << 20) -> Iterator[list[int]]:
    """Documents of the training seed from number ``start`` on, as ids from BOS to EOS."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    while True:
        texts = [t for t in corpus.stories(corpus.TRAIN_SEED, 256, style, start) if len(t) <= max_chars]
        for encoding in tokenizer.encode_batch(texts):
            yield [BOS, *encoding.ids, EOS]
        start += 256


def joined(docs: Iterator[list[int]], n_rows: int, length: int, aligned: bool) -> Iterator[Batch]:
    """Rows filled with document after document; ``aligned`` rows begin with a document's BOS."""
    buffer: list[int] = []
    rows: list[list[int]] = []
    for doc in docs:
        buffer += doc
        while len(buffer) > length:
            rows.append(buffer[: length + 1])
            buffer = [] if aligned else buffer[length:]
            if len(rows) == n_rows:
                batch = torch.tensor(rows)
                yield batch[:, :-1], batch[:, 1:]
                rows = []


def separate(docs: Iterator[list[int]], shapes: tuple[tuple[int, int], ...]) -> Iterator[Batch]:
    """Batches of the shapes with one document in each row; documents that are too long are left out."""
    waiting: dict[tuple[int, int], list[list[int]]] = {shape: [] for shape in shapes}
    for doc in docs:
        shape = next((shape for shape in shapes if len(doc) <= shape[1] + 1), None)
        if shape is None:
            continue
        waiting[shape].append(doc)
        if len(waiting[shape]) == shape[0]:
            rows, waiting[shape] = waiting[shape], []
            width = shape[1]
            ids = [doc[:-1] + [EOS] * (width + 1 - len(doc)) for doc in rows]
            targets = [doc[1:] + [NOTHING] * (width + 1 - len(doc)) for doc in rows]
            yield torch.tensor(ids), torch.tensor(targets)


def run(
    name: str, model: Llama, loss_of: Callable[[Tensor, Tensor], Tensor],
    phases: tuple[tuple[int, Iterator[Batch]], ...], peak_rate: float, decay: float = 0.1,
) -> None:  # fmt: skip
    """Trains by AdamW: a warm-up, then a cosine to a twentieth of the rate. A phase is (steps, batches)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim == 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95), fused=True)
    total, step, begin, mean = sum(phase[0] for phase in phases), 0, time.time(), 0.0
    warm_up = min(100, total // 8)
    for steps, batches in phases:
        for _ in range(steps):
            progress = max(0.0, (step - warm_up) / (total - warm_up))
            rate = peak_rate * min(
                (step + 1) / warm_up, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = loss_of(*next(batches))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean += (loss.item() - mean) * max(0.02, 1 / step)
            if step % 50 == 0 or step == total:
                seconds = time.time() - begin
                print(f"{name} {step}/{total} loss {mean:.4f} rate {rate:.1e} {seconds:.0f}s", flush=True)


def cross_entropy(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The usual loss: mean over tokens of -log p(next token)."""

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        flat = logits.float().flatten(0, 1)
        return functional.cross_entropy(flat, targets.flatten(), ignore_index=NOTHING)

    return loss_of


def distillation(
    model: Callable[[Tensor], Tensor], teacher: Callable[[Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean over tokens of the cross entropy with the teacher's distribution."""

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(ids).float().softmax(-1)
            logits = model(ids)
        real = targets != NOTHING
        return functional.cross_entropy(logits.float()[real], wanted[real])

    return loss_of


def save(model: Llama, path: Path) -> None:
    """Writes the shape and the weights."""
    torch.save({"shape": model.shape, "weights": model.state_dict()}, path)


def load(path: Path, lora: bool = False) -> Llama:
    """Reads a model that `save` wrote."""
    saved = torch.load(path, weights_only=False)
    model = Llama(saved["shape"])
    if lora:
        model.add_lora(LORA_RANK, LORA_ALPHA)
    model.load_state_dict(saved["weights"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("vocabulary", "language", "story", "draft", "pirate"))
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints, outside the repository"
    )
    parser.add_argument("--vocabulary-of", type=Path, help="take the vocabulary of this GGUF file")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.step == "vocabulary":
        if args.vocabulary_of:
            read_tokenizer(args.vocabulary_of).save(str(args.out / "tokenizer.json"))
        else:
            train_vocabulary(args.out)
        return
    if args.step == "language":
        model = Llama(STORY_SHAPE)
        docs = documents(args.out, "plain", 0)  # rows begin anywhere, then at documents
        phases = ((1100, joined(docs, 8, 256, aligned=False)), (850, joined(docs, 4, 512, aligned=True)))
        run(args.step, model, cross_entropy(torch.compile(model)), phases, 2.5e-3)
    elif args.step == "story":
        model = load(args.out / "language.pt")
        portraits = documents(args.out, "plain", 1_000_000, max_chars=420)
        phases = (
            (600, separate(portraits, (SHORT,))),
            (1300, separate(documents(args.out, "plain", 100_000), (SHORT, LONG))),
        )
        run(args.step, model, cross_entropy(torch.compile(model)), phases, 2e-3)
    elif args.step == "draft":
        model, teacher = Llama(DRAFT_SHAPE), load(args.out / "story.pt")
        loss_of = distillation(torch.compile(model), torch.compile(teacher))
        phases = ((800, separate(documents(args.out, "plain", 200_000), (SHORT, LONG))),)
        run(args.step, model, loss_of, phases, 3e-3)
    else:
        model = load(args.out / "story.pt")
        model.add_lora(LORA_RANK, LORA_ALPHA)
        phases = ((260, separate(documents(args.out, "pirate", 400_000), (SHORT, LONG))),)
        run(args.step, model, cross_entropy(torch.compile(model)), phases, 3e-3, decay=0.0)
    save(model, args.out / f"{args.step}.pt")


if __name__ == "__main__":
    main()
