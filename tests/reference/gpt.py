"""The GPT of nanospec in PyTorch, for the scripts beside it: the reference of values, and the opponent in speed.

Learned positions, pre-LayerNorm (eps 1e-5), causal multi-head attention, GELU by erf, head tied to the embedding,
dropout where train_gpt has it: the embedding, attention's weights, both branches. A model has it for training alone: a
loaded one drops nothing. Parameter names are Hugging Face's GPT-2 names without the prefix "transformer."; nn.Linear
keeps a matrix as (out, in), the files keep it as (in, out), and `file_layout` turns one into the other.
This file is imported only; the scripts' heads say how to make the Python environment.
"""

import json
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


@dataclass(frozen=True)
class Config:
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    block_size: int = 64
    vocab_size: int = 65
    bias: bool = False
    dropout: float = 0.0


PRESETS = {"small": Config(), "medium": Config(6, 6, 384, 256)}  # train_gpt's, on tinyshakespeare


def dropped(x, rate: float):
    return F.dropout(x, rate) if rate > 0 else x  # at 0 it would copy


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.n_head, self.dropout = c.n_head, c.dropout
        self.ln_1 = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.attn = nn.ModuleDict(
            {
                "c_attn": nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias),
                "c_proj": nn.Linear(c.n_embd, c.n_embd, bias=c.bias),
            }
        )
        self.ln_2 = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias),
                "c_proj": nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias),
            }
        )

    def forward(self, x):  # x: (B, T, C)
        B, T, C = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + dropped(self.attn["c_proj"](y.transpose(1, 2).reshape(B, T, C)), self.dropout)
        return x + dropped(self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)))), self.dropout)


class GPT(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        for name, p in self.named_parameters():  # nanoGPT's initialization
            if p.dim() == 2:
                deep = name.endswith("c_proj.weight")
                nn.init.normal_(p, std=0.02 / ((2 * config.n_layer) ** 0.5 if deep else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):  # both (B, T); returns the mean cross-entropy in nats
        x = dropped(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]], self.config.dropout)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def file_layout(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The matrices of nn.Linear transposed, all else as it is. Its own inverse."""
    return tensor.t().contiguous() if ".c_" in name and tensor.dim() == 2 else tensor.contiguous()


def decay_groups(model: nn.Module, weight_decay: float):
    """AdamW's parameter groups: decay on matrices (embeddings included), none on norms and biases."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def load_model(folder: str) -> GPT:
    """The model in a folder written by train_gpt. Missing or surplus tensors raise."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    config = Config(c["n_layer"], c["n_head"], c["n_embd"], c["n_positions"], c["vocab_size"], True)
    model = GPT(config)  # with biases: the file always has them, zero where the model was trained without
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    names = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    model.load_state_dict({name: file_layout(name, tensor) for name, tensor in names.items()})
    return model if c.get("bias", True) else without_biases(model)


def without_biases(model: GPT) -> GPT:
    """The same model, rid of biases that are all zero."""
    c = model.config
    bare = GPT(Config(c.n_layer, c.n_head, c.n_embd, c.block_size, c.vocab_size, False))
    full = model.state_dict()
    zero = not any(full[name].any() for name in full if name.endswith(".bias"))
    assert zero, "config.json says that there are no biases, model.safetensors has some"
    bare.load_state_dict({name: full[name] for name in bare.state_dict()})
    return bare


def flops_per_iteration(config: Config, batch_size: int) -> float:
    """Operations of one training iteration, counted as nanoGPT does (PaLM's appendix B): 6 for each weight and token,
    positions excepted, and 12 L C T for attention, forward and backward, as if it were not causal."""
    C, L, T = config.n_embd, config.n_layer, config.block_size
    weights = config.vocab_size * C + L * (12 * C * C + 2 * C) + C
    return batch_size * T * (6.0 * weights + 12.0 * L * C * T)
