"""Measures PyTorch's forward of a few rows over a KV cache, for the GPT-2 shape of 124 M parameters: what one row takes,
and what N rows cost beside one. `nanospec bench` shows it beside its own.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers
    build/venv/bin/python tests/reference/forward_speed.py [--rounds 15] [--threads 2] [--json FILE]

12 layers, 12 heads, 768 channels, block 1,024, vocabulary 50,257, random weights, fp32 and bf16 (weights, cache and
arithmetic). N rows are a root and N - 1 children of it: each sees the past, the root and itself. Logits are computed
for all rows; nothing is sampled. In every round all N run in an order that rotates; a cost is the time of N rows over
that of one row in the same round. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt import GPT, Config

CONFIG = Config(12, 12, 768, 1024, 50257)
PASTS = [0, 900]
ROWS = [1, 2, 4, 8, 16]


class Cached(nn.Module):
    """The model with a cache (L, H, block_size, D) each for keys and values."""

    def __init__(self, model: GPT, dtype: torch.dtype):
        super().__init__()
        self.model = model.to(dtype).eval()
        c = self.config = model.config
        shape = (c.n_layer, c.n_head, c.block_size, c.n_embd // c.n_head)
        self.k, self.v = (torch.randn(shape).to(dtype) for _ in range(2))

    @torch.inference_mode()
    def rows(self, tokens, positions, past: int, mask):
        """tokens, positions: (N); mask: (N, past + N) of booleans, or None for one row -> logits (N, V)."""
        m, c, N = self.model, self.config, len(tokens)
        x = m.wte(tokens) + m.wpe(positions)
        for layer, block in enumerate(m.h):
            qkv = block.attn["c_attn"](block.ln_1(x)).view(N, 3, c.n_head, -1)
            q, k, v = qkv.permute(1, 2, 0, 3)  # each (H, N, D)
            self.k[layer][:, past : past + N] = k
            self.v[layer][:, past : past + N] = v
            keys, values = self.k[layer][:, : past + N], self.v[layer][:, : past + N]
            y = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]
            x = x + block.attn["c_proj"](y.transpose(0, 1).reshape(N, -1))
            x = x + block.mlp["c_proj"](F.gelu(block.mlp["c_fc"](block.ln_2(x))))
        return F.linear(m.ln_f(x), m.wte.weight)

    def bytes_read(self, past: int) -> int:
        """Weights and cache that one row needs; of the embeddings the head alone is read whole."""
        item = self.k.element_size()
        positions = self.model.wpe.weight.numel()
        weights = sum(p.numel() for p in self.model.parameters()) - positions
        return item * (weights + 2 * past * self.config.n_embd * self.config.n_layer)


def tree(n: int, past: int):
    """Tokens, positions and mask of a root and its n - 1 children."""
    positions = torch.tensor([past] + [past + 1] * (n - 1))
    own = torch.eye(n, dtype=torch.bool)
    own[:, 0] = True
    mask = torch.cat([torch.ones(n, past, dtype=torch.bool), own], 1) if n > 1 else None
    return torch.zeros(n, dtype=torch.long), positions, past, mask


def seconds_of(cached: Cached, past: int, rounds: int) -> list:
    """Seconds by number of rows (as ROWS), one number a round."""
    trees = [tree(n, past) for n in ROWS]
    seconds = [[] for _ in ROWS]
    for r in range(-1, rounds):  # the first round warms up
        for k in range(len(ROWS)):
            i = (k + r) % len(ROWS)
            begin = time.perf_counter()
            cached.rows(*trees[i])
            if r >= 0:
                seconds[i].append(time.perf_counter() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="(default 15)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    args = parser.parse_args()

    torch.manual_seed(1337)
    torch.set_num_threads(args.threads)
    result = {"torch": torch.__version__, "threads": args.threads, "rows": ROWS, "runs": []}
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    print(f"{'dtype':5} {'past':>5} {'ms':>8} {'GB/s':>6}   cost of {', '.join(map(str, ROWS[1:]))} rows (medians)")
    model = GPT(CONFIG)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        cached = Cached(model, dtype)
        for past in PASTS:
            seconds = seconds_of(cached, past, args.rounds)
            run = {"dtype": name, "past": past, "bytes": cached.bytes_read(past), "seconds": seconds}
            result["runs"].append(run)
            one = statistics.median(seconds[0])
            costs = [statistics.median(a / b for a, b in zip(row, seconds[0])) for row in seconds[1:]]
            shown = "  ".join(f"{cost:.2f}" for cost in costs)
            print(f"{name:5} {past:5} {1e3 * one:8.2f} {run['bytes'] / one / 1e9:6.1f}   {shown}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f)


if __name__ == "__main__":
    main()
