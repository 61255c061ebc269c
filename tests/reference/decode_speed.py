"""Compares the speed of plain decoding with the best KV-cached PyTorch loops that we could write, in turn.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers
    build/venv/bin/python tests/reference/decode_speed.py SMALL_DIR [MEDIUM_DIR] [--rounds 5] [--tokens 0 500]
        [--json FILE]

A folder is one that train_gpt wrote. One sequence, temperature 1, from a prompt of one character. Two lengths: what
the window holds (block_size - 1 tokens; --tokens 0), and 500 tokens, where the window slides as nanospec's does: by
half its size, the new half prefilled afresh. Sampling is part of both sides' time, the prompt's prefill of neither.

PyTorch runs in the ways of WAYS, on one thread and on two; a trial picks the fastest eager and the fastest compiled
one for each length. In every round these and `nanospec generate --drafter none` (the faster of one and two threads)
each generate several times, in an order that rotates; a round's figure is the median. Each of nanospec's is a process
of its own, cold but for the file cache; PyTorch stays warm. A ratio is ours / PyTorch in tokens per second within one
round; the table gives the median, lowest and highest over the rounds.
PyTorch calls one compiled graph for each token: embedding to sampled token, noise aside, which is drawn for all tokens
in one call. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt import GPT, load_model
from ours import spread, stats_of

# (compiled, product): the ways to run PyTorch. Which product is fastest depends on the machine and the size.
WAYS = [
    (False, "linear"),  # weights (out, in), as nn.Linear has them
    (False, "matmul"),  # weights (in, out)
    (True, "linear"),
    (True, "matmul"),
    (True, "sum"),  # (out, in), multiplied and summed: the compiler makes one loop of it
]
PRODUCTS = {
    "linear": lambda x, w: F.linear(x, w),
    "matmul": lambda x, w: x @ w,
    "sum": lambda x, w: (x * w).sum(-1, keepdim=True).t(),  # for x of one row
}


def window_start(n: int, block_size: int) -> int:
    """Where the window of a text of n tokens starts (window_start in decode.h)."""
    half = block_size // 2
    return 0 if n <= block_size else -(-(n - block_size) // half) * half


class Decoder(nn.Module):
    """A model with a KV cache of fixed size: (L, H, block_size, D) each for keys and values."""

    def __init__(self, model: GPT, compiled: bool, product: str):
        super().__init__()
        c = self.config = model.config
        self.model = model
        self.fixed_shapes = compiled
        self.product = PRODUCTS[product]
        stored = (lambda w: w.detach().t().contiguous()) if product == "matmul" else (lambda w: w.detach())
        self.weights = [
            [stored(b.attn["c_attn"].weight), stored(b.attn["c_proj"].weight),
             stored(b.mlp["c_fc"].weight), stored(b.mlp["c_proj"].weight)] for b in model.h
        ]  # fmt: skip
        self.head = stored(model.wte.weight)
        D = c.n_embd // c.n_head
        self.register_buffer("k", torch.zeros(c.n_layer, c.n_head, c.block_size, D))
        self.register_buffer("v", torch.zeros(c.n_layer, c.n_head, c.block_size, D))
        self.register_buffer("places", torch.arange(c.block_size))
        self.step = torch.compile(self.one_token, fullgraph=True, dynamic=False) if compiled else self.one_token
        self.refill = torch.compile(self.prefill, fullgraph=True, dynamic=False) if compiled else self.prefill

    def linear(self, x, layer: int, which: int):
        b = self.model.h[layer]
        bias = (b.attn["c_attn"], b.attn["c_proj"], b.mlp["c_fc"], b.mlp["c_proj"])[which].bias
        y = self.product(x, self.weights[layer][which])
        return y if bias is None else y + bias

    def mlp(self, x, layer: int):
        return self.linear(F.gelu(self.linear(self.model.h[layer].ln_2(x), layer, 2)), layer, 3)

    def attend(self, q, layer: int, position):
        """q: (H, 1, D) at `position` -> (H, 1, D). An eager step slices the cache; a compiled one masks the whole of
        it, written out, since the compiler fuses that and cannot look into scaled_dot_product_attention."""
        if not self.fixed_shapes:
            seen = slice(0, position + 1)
            k, v = self.k[layer][:, seen], self.v[layer][:, seen]
            return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        scores = (q * self.k[layer]).sum(-1) * q.shape[-1] ** -0.5  # (H, block_size)
        chances = scores.masked_fill(self.places > position, float("-inf")).softmax(-1)
        return (chances[..., None] * self.v[layer]).sum(1, keepdim=True)

    def one_token(self, token, position, noise):
        """token (1) at `position` (a number, or a tensor (1) for fixed shapes), noise (V) -> the next token (1)."""
        m, H = self.model, self.config.n_head
        x = F.embedding(token, m.wte.weight)  # (1, C)
        x = x + (F.embedding(position, m.wpe.weight) if self.fixed_shapes else m.wpe.weight[position])
        for layer, block in enumerate(m.h):
            q, k, v = self.linear(block.ln_1(x), layer, 0).view(3, H, 1, -1).unbind(0)
            if self.fixed_shapes:
                self.k[layer].index_copy_(1, position, k)
                self.v[layer].index_copy_(1, position, v)
            else:
                self.k[layer][:, position] = k[:, 0]
                self.v[layer][:, position] = v[:, 0]
            x = x + self.linear(self.attend(q, layer, position).reshape(x.shape), layer, 1)
            x = x + self.mlp(x, layer)
        return (self.product(m.ln_f(x), self.head) + noise).argmax(-1)

    def prefill(self, tokens):
        """Caches tokens (T) at positions 0 to T - 1. No logits; of the last layer only keys and values."""
        m, H, T = self.model, self.config.n_head, tokens.shape[0]
        x = F.embedding(tokens, m.wte.weight) + m.wpe.weight[:T]  # (T, C)
        for layer, block in enumerate(m.h):
            attn = block.attn
            q, k, v = attn["c_attn"](block.ln_1(x)).view(T, 3, H, -1).permute(1, 2, 0, 3)  # each (H, T, D)
            self.k[layer][:, :T] = k
            self.v[layer][:, :T] = v
            if layer + 1 == len(m.h):
                return
            y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            x = x + attn["c_proj"](y.transpose(0, 1).reshape(T, -1))
            x = x + block.mlp["c_proj"](F.gelu(block.mlp["c_fc"](block.ln_2(x))))

    @torch.inference_mode()
    def generate(self, first: int, n: int, noise=None):
        """n tokens after the token `first`, as a list, and the tokens per second. noise: (n, V), Gumbel; drawn here,
        within the time, if not given."""
        B = self.config.block_size
        text, positions = torch.full((n + 1,), first), self.places.split(1)
        begin = time.perf_counter()
        if noise is None:
            noise = -torch.empty(n, self.config.vocab_size).exponential_().log()
        rows = noise.unbind(0)
        token, start, written = text[:1], 0, []
        for length in range(1, n + 1):  # of the text so far, whose last token is the step's input
            if window_start(length, B) != start:
                start = window_start(length, B)
                text[length - len(written) : length] = torch.cat(written)
                written = []
                self.refill(text[start : length - 1].clone())  # always B / 2 tokens
            position = length - 1 - start
            token = self.step(token, positions[position] if self.fixed_shapes else position, rows[length - 1])
            written.append(token)
        text[n + 1 - len(written) :] = torch.cat(written)
        return text[1:].tolist(), n / (time.perf_counter() - begin)


class Torch:
    """One way to run PyTorch, on a number of threads."""

    def __init__(self, model: GPT, compiled: bool, product: str, threads: int):
        self.threads = threads
        self.name = f"PyTorch {'compiled' if compiled else 'eager'}"
        self.how = f"{product}, {threads} thread{'s' * (threads > 1)}"
        self.decoder = Decoder(model, compiled, product)

    def speed(self, first: int, n: int, repeats: int) -> float:
        torch.set_num_threads(self.threads)
        return statistics.median(self.decoder.generate(first, n)[1] for _ in range(repeats))


class Ours:
    name = "nanospec"

    def __init__(self, program: str, folder: str, prompt: str, threads: int):
        self.how = f"{threads} thread{'s' * (threads > 1)}"
        self.command = [program, "generate", "--model", folder, "--prompt", prompt, "--drafter", "none", "--quiet"]
        self.command += ["--temperature", 1, "--device", "cpu", "--threads", threads]
        self.seed = 0

    def speed(self, first: int, n: int, repeats: int) -> float:
        speeds = []
        for _ in range(repeats):
            self.seed += 1
            stats = stats_of([*self.command, "--max_new_tokens", n, "--seed", self.seed])
            assert stats["tokens"] == n, f"nanospec generated {stats['tokens']} tokens instead of {n}"
            speeds.append(stats["tokens_per_second"])
        return statistics.median(speeds)


def torch_runners(model: GPT, first: int, lengths: list, args) -> list:
    """Every way, warm and held to give the text that the first gives under the same noise."""
    runners, expected = [], None
    noise = -torch.empty(max(lengths), model.config.vocab_size).exponential_().log()
    for compiled, product in WAYS:
        if compiled and args.no_compile:
            continue
        for threads in args.threads:
            torch.set_num_threads(threads)
            runner = Torch(model, compiled, product, threads)
            try:
                text, _ = runner.decoder.generate(first, max(lengths), noise)
            except Exception as error:  # torch has many kinds of error for a missing compiler
                if not compiled:
                    raise
                reason = str(error).strip().splitlines()[0]
                print(f"torch.compile does not work here, left out: {reason}", file=sys.stderr)
                return runners
            expected = expected or text
            same = next((i for i, (a, b) in enumerate(zip(text, expected)) if a != b), len(text))
            if same < len(text):  # roundings differ; a wrong cache would show at once
                print(f"  {runner.name}, {runner.how}: another text from token {same} on", file=sys.stderr)
            runners.append(runner)
    return runners


def fastest(runners: list, first: int, n: int) -> list:
    """The fastest of each name in a short trial."""
    best = {}
    for runner in runners:
        runner.trial = runner.speed(first, n, 3)
        print(f"  trial, {n} tokens: {runner.name}, {runner.how}: {runner.trial:.0f} tok/s", file=sys.stderr)
        if runner.name not in best or runner.trial > best[runner.name].trial:
            best[runner.name] = runner
    return list(best.values())


def compare(folder: str, args) -> list:
    """Prints a model's rows; returns what they were made of, one entry a length."""
    runs = []
    model = load_model(folder).eval().requires_grad_(False)
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        first = json.load(f)["model"]["vocab"][args.prompt]
    lengths = [n or model.config.block_size - 1 for n in args.tokens]
    runners = torch_runners(model, first, lengths, args)
    if args.ours != "none":
        runners += [Ours(args.ours, folder, args.prompt, threads) for threads in args.threads]
    for n in lengths:
        chosen = fastest(runners, first, n)
        speeds = {runner.name: [] for runner in chosen}  # one number a round
        for r in range(args.rounds):
            turn = r % len(chosen)
            for runner in chosen[turn:] + chosen[:turn]:
                speeds[runner.name].append(runner.speed(first, n, args.repeats))
        name, ways = os.path.basename(os.path.normpath(folder)), []
        for runner in chosen:
            way = {"name": runner.name, "how": runner.how, "tokens_per_second": speeds[runner.name]}
            row = f"{name:12} {n:6}  {runner.name:17} {runner.how:18}"
            row += f"{statistics.median(speeds[runner.name]):9.0f}"
            if runner.name != "nanospec" and "nanospec" in speeds:
                way["ours_over_it"] = [a / b for a, b in zip(speeds["nanospec"], speeds[runner.name])]
                row += "   " + spread(way["ours_over_it"])
            print(row, flush=True)
            ways.append(way)
        runs.append({"model": name, "tokens": n, "ways": ways})
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a model's folder, as train_gpt writes it")
    parser.add_argument("--ours", default="build/nanospec", help="our program; `none` to time PyTorch alone")
    parser.add_argument("--prompt", default="\n", help="one character (default: a newline)")
    parser.add_argument("--tokens", nargs="+", type=int, default=[0, 500], help="lengths; 0: block_size - 1")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="numbers of threads to choose from")
    parser.add_argument("--rounds", type=int, default=5, help="(default 5)")
    parser.add_argument("--repeats", type=int, default=5, help="generations of each in a round (default 5)")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    args = parser.parse_args()

    torch.manual_seed(1337)
    torch._dynamo.config.recompile_limit = 64  # one graph for each way, number of threads and model
    print(f"PyTorch {torch.__version__}, {args.rounds} rounds of {args.repeats} generations")
    print(f"{'model':12} {'tokens':>6}  {'':17} {'':18}{'tok/s':>9}   ours / PyTorch: median (lowest to highest)")
    runs = [run for folder in args.folders for run in compare(folder, args)]
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"torch": torch.__version__, "runs": runs}, f)


if __name__ == "__main__":
    main()
