"""A decoder-only transformer, in the shape both CAFL papers use.

Learnt positions, pre-norm blocks, biases in the linear layers, an untied head without bias.
"""

import math

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
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # the residual stream grows with depth, so what writes to it starts smaller (GPT-2)
                residual = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
