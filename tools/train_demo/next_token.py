"""Trains an MTP block for the story model, whose weights do not change.

    python next_token.py train --story STORY.gguf --out DIR
    python next_token.py export --story STORY.gguf --out DIR --to next.gguf [--wider 4]

The block has the layout of GLM 4.5's (DeepSeek-V3, arXiv:2412.19437). At position p its inputs are the
embedding of token p and the model's normed hidden state of position p - 1; it predicts token p + 1. It learns
the model's distribution. For each further token of a draft its own normed state replaces the model's state.
The training does the same to depth `DEPTH`: row p of depth d attends to itself, to rows p - 1 ... p - d + 1
of the depths d - 1 ... 1, and to all earlier rows of depth 1.

The exported file is a `glm4moe` whose layers are all dense. The architecture rotates halves instead of pairs,
so the rows of q and k are permuted.

``--wider N`` writes a model of N times the width and N^2 times the size with the same outputs (Net2Net, Chen
et al. 2016, arXiv:1511.05641): every channel and head is repeated N times, and the weights that read N equal
channels are divided by N. So drafts can be measured at sizes that would take days to train.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before tokenizers is imported: one core

import gguf
import torch
from export import DESCRIPTIONS, add_shape, add_vocabulary, finish, read_model
from gguf import GGMLQuantizationType as Type, quants
from model import Block, Linear, Llama, Norm, Shape, rotate
from torch import Tensor, nn
from torch.nn import functional
from train import LONG, NOTHING, SHORT, documents, read_tokenizer, run, separate

DEPTH = 4
FADING = 0.8
"""Weight of a depth's loss relative to the depth before."""


class NextToken(nn.Module):
    """The MTP block of a model with a shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.enorm, self.hnorm = Norm(shape.n_embd, shape.rms_eps), Norm(shape.n_embd, shape.rms_eps)
        self.eh_proj = Linear(2 * shape.n_embd, shape.n_embd)
        self.layer = Block(shape)
        self.shared_head_norm = Norm(shape.n_embd, shape.rms_eps)

    def forward(self, model: Llama, ids: Tensor, hidden: Tensor) -> list[Tensor]:
        """Normed states of depths 1 to `DEPTH`, each (batch, tokens, width).

        ``hidden`` : the model's states after its last norm, (batch, tokens, width).
        """
        tokens = ids.shape[1]
        cos, sin = model.cos[:tokens], model.sin[:tokens]
        embedded, before, keys, values, found = model.token_embd(ids), hidden, [], [], []
        for depth in range(1, DEPTH + 1):
            before = functional.pad(before, (0, 0, 1, 0))[:, :-1]  # the states of p - 1; zeros at 0
            x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(before)), dim=-1))
            h = self.layer.attn_norm(x)
            projections = self.layer.attn_q, self.layer.attn_k, self.layer.attn_v
            q, k, v = (self._heads(project(h)) for project in projections)
            keys.append(rotate(k, cos, sin))
            values.append(v)
            x = x + self._attend(rotate(q, cos, sin), keys, values, visible(depth, tokens))
            h = self.layer.ffn_norm(x)
            x = x + self.layer.ffn_down(functional.silu(self.layer.ffn_gate(h)) * self.layer.ffn_up(h))
            before = self.shared_head_norm(x)
            found.append(before)
        return found

    def _heads(self, y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], -1, self.shape.head_dim).transpose(1, 2)

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor) -> Tensor:
        group = self.shape.n_head // self.shape.n_head_kv
        k, v = (torch.cat(part, dim=2).repeat_interleave(group, dim=1) for part in (keys, values))
        y = functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        return self.layer.attn_output(y.transpose(1, 2).flatten(2))


def visible(depth: int, tokens: int) -> Tensor:
    """bool (tokens, depth * tokens): which rows a row of a depth attends to, the rows of depth 1 first."""
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    return torch.cat([apart >= depth - 1, *(apart == depth - d for d in range(2, depth + 1))], dim=1)


def hidden_states(model: Llama, ids: Tensor) -> Tensor:
    """The model's states after its last norm, (batch, tokens, width)."""
    x, cos, sin = model.token_embd(ids), model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
    for block in model.blk:
        x = block(x, cos, sin)
    return model.output_norm(x)


def train(story: Path, out: Path, steps: int) -> None:
    """Trains a block for a model and saves it as ``next.pt``."""
    out.mkdir(parents=True, exist_ok=True)
    read_tokenizer(story).save(str(out / "tokenizer.json"))
    model = read_model(story).requires_grad_(False)
    block = NextToken(model.shape)
    trunk, head = torch.compile(hidden_states), torch.compile(block)

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                hidden = trunk(model, ids)
                wanted = functional.linear(hidden, model.token_embd.weight).float().softmax(-1)
            states = head(model, ids, hidden)
        total, scale = torch.zeros(()), 0.0
        for depth, state in enumerate(states, 1):
            real = targets != NOTHING
            real[:, : depth - 1] = False
            with torch.autocast("cpu", torch.bfloat16):
                logits = functional.linear(state[real], model.token_embd.weight)
            total = total + FADING**depth * functional.cross_entropy(logits.float(), wanted[real])
            scale += FADING**depth
        return total / scale

    phases = ((steps, separate(documents(out, "plain", 600_000), (SHORT, LONG))),)
    run("next", block, loss_of, phases, 3e-3)  # type: ignore[arg-type]
    torch.save(block.state_dict(), out / "next.pt")


@torch.no_grad()
def agreement(model: Llama, block: NextToken, rows: list[Tensor]) -> list[float]:
    """The share of right likeliest tokens by depth, among positions at which smaller depths are right."""
    right, tried = [0] * DEPTH, [0] * DEPTH
    for ids in rows:
        hidden = hidden_states(model, ids[None])
        wanted = functional.linear(hidden, model.token_embd.weight)[0].argmax(-1)
        so_far = torch.ones(len(ids), dtype=torch.bool)
        for depth, state in enumerate(block(model, ids[None], hidden)):
            same = functional.linear(state, model.token_embd.weight)[0].argmax(-1) == wanted
            so_far = functional.pad(so_far, (1, 0), value=False)[:-1] if depth else so_far
            tried[depth] += int(so_far.sum())
            so_far &= same
            right[depth] += int(so_far.sum())
    return [a / max(b, 1) for a, b in zip(right, tried)]


def wider(name: str, tensor: Tensor, n: int) -> Tensor:
    """The tensor of a model ``n`` times as wide with the same outputs; not for the output matrix."""
    if tensor.ndim == 1:
        return tensor.repeat(n)
    if name == "token_embd.weight":
        return tensor.repeat(1, n)
    if "eh_proj" in name:
        return torch.cat([part.repeat(n, n) / n for part in tensor.chunk(2, dim=1)], dim=1)
    return tensor.repeat(n, n) / n


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k for a rotation of halves instead of pairs: the even rows of each head come first."""
    return rows.view(-1, head_dim // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def export(story: Path, out: Path, to: Path, matrix_type: Type, times: int) -> None:
    """Writes model and block as one file, ``times`` as wide."""
    model = read_model(story)
    block = NextToken(model.shape)
    block.load_state_dict(torch.load(out / "next.pt"))
    n, sizes = model.shape.n_layer, vars(model.shape)
    grown = {name: times * sizes[name] for name in ("n_embd", "n_head", "n_head_kv", "n_ff")}
    shape = Shape(**{**sizes, **grown, "n_layer": n + 1})
    writer = gguf.GGUFWriter(to, "glm4moe")
    writer.add_type("model")
    writer.add_name("oxillama demo story with a block for next-token prediction")
    writer.add_description(DESCRIPTIONS["story"])
    writer.add_license("MIT")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_shape(writer, shape)
    writer.add_uint32("glm4moe.nextn_predict_layers", 1)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_leading_dense_block_count(n + 1)
    writer.add_expert_count(1)  # the architecture requires experts, but no layer has experts
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_expert_shared_count(0)
    add_vocabulary(writer, out / "tokenizer.json")
    tensors = dict(model.state_dict())
    for name, tensor in block.state_dict().items():
        own = name.removeprefix("layer.")
        tensors[f"blk.{n}.{own}" if own != name else f"blk.{n}.nextn.{name}"] = tensor
    tensors = {name: wider(name, tensor, times) for name, tensor in tensors.items()}
    if times > 1:
        tensors["output.weight"] = tensors["token_embd.weight"] / times
    for name, tensor in tensors.items():
        name = name.replace("ffn_norm", "post_attention_norm")
        if "attn_q." in name or "attn_k." in name:
            tensor = halves(tensor, shape.head_dim)
        data = tensor.float().numpy()
        if data.ndim == 1:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, quants.quantize(data, matrix_type), raw_dtype=matrix_type)
    finish(writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("train", "evaluate", "export"))
    parser.add_argument("--story", type=Path, required=True, help="GGUF file of the model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--to", type=Path, default=Path("story-next.gguf"))
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--wider", type=int, default=1, help="how many times as wide the exported model is")
    parser.add_argument("--f32", action="store_true", help="full precision, to compare engines")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.step == "train":
        train(args.story, args.out, args.steps)
    elif args.step == "export":
        export(args.story, args.out, args.to, Type.F32 if args.f32 else Type.Q8_0, args.wider)
    else:
        model, tokenizer = read_model(args.story), read_tokenizer(args.story)
        block = NextToken(model.shape)
        block.load_state_dict(torch.load(args.out / "next.pt"))
        import corpus
        from train import BOS

        texts = corpus.stories(corpus.HELDOUT_SEED, 18)
        rows = [torch.tensor([BOS, *tokenizer.encode(text).ids]) for text in texts]
        print([round(share, 3) for share in agreement(model, block, rows)])


if __name__ == "__main__":
    main()
