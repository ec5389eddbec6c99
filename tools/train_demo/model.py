"""A small llama in PyTorch: RMS norm, rotary grouped-query attention, SwiGLU, tied embeddings.

Every weight has the name of its GGUF tensor, so the export is a loop over `named_parameters`. RoPE rotates
adjacent pairs (2i, 2i+1), as the `llama` architecture in GGUF files does, so q and k need no permutation. A
`Linear` may have a low-rank adapter; its weight is then frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters of a model, named as in GGUF metadata."""

    n_vocab: int = 1024
    n_ctx: int = 512
    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 8
    n_head_kv: int = 2
    n_ff: int = 768
    rope_base: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


class Linear(nn.Module):
    """``x @ weight.T``, plus ``scale * (x @ lora_a.T) @ lora_b.T`` if an adapter was added."""

    def __init__(self, n_in: int, n_out: int, std: float = 0.02) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * std)
        self.lora_a: nn.Parameter | None = None  # (rank, n_in)
        self.lora_b: nn.Parameter | None = None  # (n_out, rank)
        self.scale = 0.0

    def add_lora(self, rank: int, alpha: float) -> None:
        """Freezes the weight and adds an adapter, zero at first (Hu et al. 2021, arXiv:2106.09685)."""
        n_out, n_in = self.weight.shape
        self.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, n_in) / n_in**0.5)
        self.lora_b = nn.Parameter(torch.zeros(n_out, rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight)
        if self.lora_a is not None and self.lora_b is not None:
            y = y + self.scale * functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return y


class Norm(nn.Module):
    """RMS norm with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates adjacent pairs of ``x`` (batch, heads, tokens, head_dim) by angles (tokens, head_dim / 2)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """A decoder layer. Its attributes have the names of the GGUF tensors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.n_embd, shape.n_head_kv * shape.head_dim
        residual_std = 0.02 / (2 * shape.n_layer) ** 0.5
        self.attn_norm = Norm(width, shape.rms_eps)
        self.attn_q = Linear(width, width)
        self.attn_k = Linear(width, kv_width)
        self.attn_v = Linear(width, kv_width)
        self.attn_output = Linear(width, width, residual_std)
        self.ffn_norm = Norm(width, shape.rms_eps)
        self.ffn_gate = Linear(width, shape.n_ff)
        self.ffn_up = Linear(width, shape.n_ff)
        self.ffn_down = Linear(shape.n_ff, width, residual_std)

    def linears(self) -> list[Linear]:
        """The seven weight matrices, in order."""
        return [module for module in self.children() if isinstance(module, Linear)]

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attend(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def _attend(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = h.shape

        def heads(
            y: Tensor,
        ) -> Tensor:  # (batch, tokens, heads * head_dim) -> (batch, heads, tokens, head_dim)
            return y.view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)

        q = rotate(heads(self.attn_q(h)), cos, sin)
        k = rotate(heads(self.attn_k(h)), cos, sin)
        v = heads(self.attn_v(h))
        group = self.shape.n_head // self.shape.n_head_kv
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_output(y.transpose(1, 2).reshape(batch, tokens, width))


class Llama(nn.Module):
    """The model: token ids (batch, tokens) to logits (batch, tokens, n_vocab)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = Norm(shape.n_embd, shape.rms_eps)
        freqs = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.n_ctx).float(), freqs)  # (n_ctx, head_dim / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def add_lora(self, rank: int, alpha: float) -> None:
        """Freezes the model and adds a low-rank adapter to every matrix of every block."""
        self.requires_grad_(False)
        for block in self.blk:
            for linear in block.linears():
                linear.add_lora(rank, alpha)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return functional.linear(self.output_norm(x), self.token_embd.weight)

    def n_params(self, embeddings: bool = True) -> int:
        """Number of parameters, with or without the (tied) token embeddings."""
        total = sum(p.numel() for p in self.parameters())
        return total if embeddings else total - self.token_embd.weight.numel()
