"""A decoder-only transformer, in the shape both CAFL papers use.

Learnt positions, pre-norm blocks, biases in the linear layers, an untied head without bias.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention with all heads in one product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, nh, T, hs)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(B, T, C))
        return mixed


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return out


class GPT(nn.Module):
    """Token ids (B, T) -> next-token logits (B, T, vocabulary).

    >>> model = GPT(vocabulary=65, context=128, layers=8, width=128, heads=4)
    >>> sum(p.numel() for p in model.parameters())
    1619456
    """

    def __init__(
        self,
        vocabulary: int,
        context: int = 128,
        layers: int = 2,
        width: int = 128,
        heads: int = 4,
        dropout: float = 0.0,
        init: Callable[["GPT"], None] | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        (init or gpt2)(self)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@torch.no_grad()
def gpt2(model: GPT) -> None:
    """GPT-2's start: every matrix with a standard deviation of 0.02, whatever its size."""
    for name, p in model.named_parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.02 / _damping(name, model))
        elif name.endswith("bias"):
            nn.init.zeros_(p)


@torch.no_grad()
def scaled(model: GPT) -> None:
    """Each matrix by its inputs, positions as waves.

    0.02 is for widths near 1,000. A narrow model that starts so small first learns which character
    follows which and stays there; and positions that start as noise must be told apart before a head
    can look at the one before. Waves (Vaswani et al. 2017) can be from the first step: the longest
    here are 2 pi times the context.
    """
    for name, p in model.named_parameters():
        if p is model.tokens.weight:
            nn.init.normal_(p, std=EMBEDDED)
        elif p is model.positions.weight:
            p.copy_(EMBEDDED * math.sqrt(2) * waves(*p.shape))
        elif p.dim() == 2:
            nn.init.normal_(p, std=1 / math.sqrt(2 * p.shape[1]) / _damping(name, model))
        elif name.endswith("bias"):
            nn.init.zeros_(p)


EMBEDDED = 0.1
"""standard deviation of what tokens and positions put into the stream, where scaled"""


def waves(length: int, width: int) -> Tensor:
    """(length, width): sines, then cosines, from a wavelength of 2 pi to one of 2 pi length."""
    pairs = (width + 1) // 2
    rates = length ** -(torch.arange(pairs) / pairs)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


def _damping(name: str, model: GPT) -> float:
    """The residual stream grows with depth, so what writes to it starts smaller (GPT-2)."""
    writes = name.endswith(("attention.out.weight", "down.weight"))
    return math.sqrt(2 * len(model.blocks)) if writes else 1.0
