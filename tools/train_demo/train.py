"""Train the demo models, one core each: the vocabulary, the story model, its draft, its pirate adapter.

    python train.py vocabulary|story|draft|pirate --out DIR

Each step reads what the one before wrote to DIR. Everything is seeded: the same torch on the same machine
gives the same weights. The draft learns the story model's distribution instead of the text (Hinton et al.
2015, arXiv:1503.02531), which is what speculative decoding rewards.
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

Phase = tuple[int, int, int]
"""Steps, rows of a batch, tokens of a row."""
STORY_PHASES: tuple[Phase, ...] = ((2300, 8, 256), (1450, 4, 512))
DRAFT_PHASES: tuple[Phase, ...] = ((1400, 8, 256), (600, 4, 512))
PIRATE_PHASES: tuple[Phase, ...] = ((550, 4, 512),)


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


def documents(out: Path, style: str, start: int) -> Iterator[list[int]]:
    """Stories of the training seed from number ``start`` on, as ``BOS ... EOS``."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    while True:
        for encoding in tokenizer.encode_batch(list(corpus.stories(corpus.TRAIN_SEED, 256, style, start))):
            yield [BOS, *encoding.ids, EOS]
        start += 256


def rows(docs: Iterator[list[int]], length: int, aligned: bool) -> Iterator[list[int]]:
    """Rows of ``length + 1`` tokens of joined documents; ``aligned`` rows begin with a document's BOS."""
    buffer: list[int] = []
    for doc in docs:
        buffer += doc
        while len(buffer) > length:
            yield buffer[: length + 1]
            buffer = [] if aligned else buffer[length:]


def run(
    name: str, model: Llama, loss_of: Callable[[Tensor, Tensor], Tensor], docs: Iterator[list[int]],
    phases: tuple[Phase, ...], peak_rate: float, decay: float = 0.1,
) -> None:  # fmt: skip
    """AdamW with a warm-up and a cosine down to a twentieth; ``loss_of`` takes ids, next ids (rows, tokens).

    Early phases read the stream cut anywhere, the last one reads stories from their beginning.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim == 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95), fused=True)
    total, warm_up, step, begin, mean = sum(phase[0] for phase in phases), 100, 0, time.time(), 0.0
    for phase, (steps, n_rows, length) in enumerate(phases):
        source = rows(docs, length, aligned=phase == len(phases) - 1)
        for _ in range(steps):
            progress = max(0.0, (step - warm_up) / (total - warm_up))
            rate = peak_rate * min(
                (step + 1) / warm_up, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = torch.tensor([next(source) for _ in range(n_rows)])
            loss = loss_of(batch[:, :-1], batch[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean += (loss.item() - mean) * max(0.02, 1 / step)
            if step % 50 == 0 or step == total:
                print(
                    f"{name} {step}/{total} loss {mean:.4f} rate {rate:.1e} {time.time() - begin:.0f}s",
                    flush=True,
                )


def cross_entropy(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The usual loss: mean over tokens of -log p(next token)."""

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return loss_of


def distillation(
    model: Callable[[Tensor], Tensor], teacher: Callable[[Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean over tokens of the cross entropy with the teacher's distribution."""

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        del targets
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(ids).float().softmax(-1)
            logits = model(ids)
        return functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(0, 1))

    return loss_of


def save(model: Llama, path: Path) -> None:
    """Write the shape and the weights."""
    torch.save({"shape": model.shape, "weights": model.state_dict()}, path)


def load(path: Path, lora: bool = False) -> Llama:
    """Read what `save` wrote."""
    saved = torch.load(path, weights_only=False)
    model = Llama(saved["shape"])
    if lora:
        model.add_lora(LORA_RANK, LORA_ALPHA)
    model.load_state_dict(saved["weights"])
    return model


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("vocabulary", "story", "draft", "pirate"))
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints, outside the repository"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.step == "vocabulary":
        train_vocabulary(args.out)
        return
    if args.step == "story":
        model = Llama(STORY_SHAPE)
        loss_of, docs = cross_entropy(torch.compile(model)), documents(args.out, "plain", 0)
        run(args.step, model, loss_of, docs, STORY_PHASES, 2e-3)
    elif args.step == "draft":
        model, teacher = Llama(DRAFT_SHAPE), load(args.out / "story.pt")
        loss_of = distillation(torch.compile(model), torch.compile(teacher))
        run(args.step, model, loss_of, documents(args.out, "plain", 200_000), DRAFT_PHASES, 3e-3)
    else:
        model = load(args.out / "story.pt")
        model.add_lora(LORA_RANK, LORA_ALPHA)
        loss_of, docs = cross_entropy(torch.compile(model)), documents(args.out, "pirate", 400_000)
        run(args.step, model, loss_of, docs, PIRATE_PHASES, 2e-3, decay=0.0)
    save(model, args.out / f"{args.step}.pt")


if __name__ == "__main__":
    main()
