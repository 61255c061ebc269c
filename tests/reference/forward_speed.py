"""Measures PyTorch's forward of a few rows over a KV cache, for the GPT-2 shape of 124 M parameters: what one row takes,
and what N rows cost beside one. `nanospec bench` shows it beside its own.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers
    build/venv/bin/python tests/reference/forward_speed.py [--rounds 15] [--threads 2] [--device cpu|cuda] [--compile]
                                                           [--json FILE]

12 layers, 12 heads, 768 channels, block 1,024, vocabulary 50,257, random weights, fp32 and bf16 (weights, cache and
arithmetic). N rows are a root and N - 1 children of it: each sees the past, the root and itself. Logits are computed
for all rows; nothing is sampled. In every round all N run in an order that rotates; a cost is the time of N rows over
that of one row in the same round. Nothing else should run on the machine meanwhile. On a GPU a forward is a CUDA graph,
replayed 20 times a round, so that the host is not in its way, and fp32 is without TF32; --compile: it is compiled by
torch.compile first, and only 1 and 16 rows behind a past are measured, since compiling takes minutes.
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
REPLAYS = 20  # of a CUDA graph, in a round


class Cached(nn.Module):
    """The model with a cache (L, H, block_size, D) each for keys and values."""

    def __init__(self, model: GPT, dtype: torch.dtype):
        super().__init__()
        self.model = model.to(dtype).eval()
        c = self.config = model.config
        shape = (c.n_layer, c.n_head, c.block_size, c.n_embd // c.n_head)
        device = model.wte.weight.device
        self.k, self.v = (torch.randn(shape, device=device).to(dtype) for _ in range(2))

    @torch.no_grad()  # not inference_mode(): torch.compile does not take it
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


def tree(n: int, past: int, device: str):
    """Tokens, positions and mask of a root and its n - 1 children."""
    positions = torch.tensor([past] + [past + 1] * (n - 1), device=device)
    own = torch.eye(n, dtype=torch.bool, device=device)
    own[:, 0] = True
    mask = torch.cat([torch.ones(n, past, dtype=torch.bool, device=device), own], 1) if n > 1 else None
    return torch.zeros(n, dtype=torch.long, device=device), positions, past, mask


def work_of(rows, args: tuple, device: str):
    """A function that computes the forward `rows` of a tree, and returns the seconds that it took."""

    def on_cpu() -> float:
        begin = time.perf_counter()
        rows(*args)
        return time.perf_counter() - begin

    if device == "cpu":
        return on_cpu
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            rows(*args)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows(*args)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def on_gpu() -> float:
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / REPLAYS

    return on_gpu


def seconds_of(cached: Cached, past: int, row_counts: list, args) -> list:
    """Seconds by number of rows, one number a round."""
    rows = torch.compile(cached.rows, dynamic=False) if args.compile else cached.rows
    work = [work_of(rows, tree(n, past, args.device), args.device) for n in row_counts]
    seconds = [[] for _ in work]
    for r in range(-1, args.rounds):  # the first round warms up
        for k in range(len(work)):
            i = (k + r) % len(work)
            took = work[i]()
            if r >= 0:
                seconds[i].append(took)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="(default 15)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    args = parser.parse_args()
    rows, pasts = ([1, 16], [900]) if args.compile else (ROWS, PASTS)
    place = f"{args.threads} threads" if args.device == "cpu" else torch.cuda.get_device_name()

    torch.manual_seed(1337)
    torch.set_num_threads(args.threads)
    result = {"torch": torch.__version__, "place": place, "rows": rows, "runs": []}
    print(f"PyTorch {torch.__version__}, {place}, {args.rounds} rounds{', compiled' * args.compile}")
    print(f"{'dtype':5} {'past':>5} {'ms':>8} {'GB/s':>6}   cost of {', '.join(map(str, rows[1:]))} rows (medians)")
    model = GPT(CONFIG).to(args.device)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        cached = Cached(model, dtype)
        for past in pasts:
            seconds = seconds_of(cached, past, rows, args)
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
