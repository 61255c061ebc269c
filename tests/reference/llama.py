"""The Llama of nanospec in PyTorch, for train_speed.py: what `train_gpt --arch llama` trains, at gpt.py's sizes.

Rotary positions (theta 10000; channels d and d + D / 2 of a head are a pair), RMSNorm (eps 1e-5), causal multi-head
attention, SwiGLU of 8/3 the channels rounded up to 16, no biases, head tied to the embedding. Queries, keys and values
are one matrix, and so are gates and ups: PyTorch runs one product faster than two or three.
This file is imported only; the scripts' heads say how to make the Python environment.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt import Config, dropped


def inner(n_embd: int) -> int:
    """Channels between the matrices of the MLP."""
    return (8 * n_embd // 3 + 15) // 16 * 16


def rotate(x, cos, sin):  # x: (..., T, D); cos, sin: (T, D / 2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.n_head, self.dropout = c.n_head, c.dropout
        self.ln_1 = nn.RMSNorm(c.n_embd, eps=1e-5)
        self.attn = nn.ModuleDict(
            {
                "c_attn": nn.Linear(c.n_embd, 3 * c.n_embd, bias=False),
                "c_proj": nn.Linear(c.n_embd, c.n_embd, bias=False),
            }
        )
        self.ln_2 = nn.RMSNorm(c.n_embd, eps=1e-5)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(c.n_embd, 2 * inner(c.n_embd), bias=False),
                "c_proj": nn.Linear(inner(c.n_embd), c.n_embd, bias=False),
            }
        )

    def forward(self, x, cos, sin):  # x: (B, T, C)
        B, T, C = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        q, k = rotate(qkv[:2], cos, sin)
        y = F.scaled_dot_product_attention(q, k, qkv[2], dropout_p=self.dropout, is_causal=True)
        x = x + dropped(self.attn["c_proj"](y.transpose(1, 2).reshape(B, T, C)), self.dropout)
        gate, up = self.mlp["c_fc"](self.ln_2(x)).chunk(2, dim=-1)
        return x + dropped(self.mlp["c_proj"](F.silu(gate) * up), self.dropout)


class Llama(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.RMSNorm(config.n_embd, eps=1e-5)
        half = config.n_embd // config.n_head // 2
        angle = torch.outer(torch.arange(config.block_size).double(), 10000.0 ** -(torch.arange(half).double() / half))
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # (block, D / 2)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, p in self.named_parameters():  # nanoGPT's initialization
            if p.dim() == 2:
                deep = name.endswith("c_proj.weight")
                nn.init.normal_(p, std=0.02 / ((2 * config.n_layer) ** 0.5 if deep else 1))

    def forward(self, tokens, targets):  # both (B, T); returns the mean cross-entropy in nats
        x, T = dropped(self.wte(tokens), self.config.dropout), tokens.shape[1]
        for block in self.h:
            x = block(x, self.cos[:T], self.sin[:T])
        logits = F.linear(self.ln_f(x), self.wte.weight)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flops_per_iteration(config: Config, batch_size: int) -> float:
    """As in gpt.py: 6 for each weight and token, and 12 L C T for attention."""
    C, L, T = config.n_embd, config.n_layer, config.block_size
    weights = config.vocab_size * C + L * (4 * C * C + 3 * C * inner(C) + 2 * C) + C
    return batch_size * T * (6.0 * weights + 12.0 * L * C * T)
