"""Compares the speed of training with PyTorch's: the same model, batch and text, on the same machine, in turn.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers
    build/venv/bin/python tests/reference/train_speed.py [--arch gpt|llama] [--presets small medium] [--rounds 5]
                                                         [--threads 2] [--dropout 0] [--device cpu|cuda]
                                                         [--json FILE]

In every round PyTorch (eager, then compiled) and build/train_gpt each train for some iterations (--iters), in an
order that rotates, so that drift of the machine hits all alike. An iteration is: a batch, forward, backward, clipping
to norm 1, AdamW; its time is the median within the run. A ratio is ours / PyTorch within one round, below 1 where
nanospec is faster; the table gives the median, lowest and highest over the rounds. PyTorch does its best here: scaled_dot_product_attention, the
fastest of its AdamWs, whole-graph compilation. GFLOP/s are counted alike for all (gpt.py, llama.py). Nothing else
should run on the machine meanwhile.
With --json every sample is written, and the peak memory: train_gpt's, and that of a process that only trains in
PyTorch (eager: the compiler would add its own), PyTorch itself included. With --device cuda (--ours
build/train_gpt-cuda) all train on the GPU, in fp32 without TF32, and PyTorch's memory is what its tensors take there.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import gpt
import llama
from gpt import PRESETS, Config, decay_groups
from ours import find_text, spread, stats_of

ARCHS = {"gpt": (gpt.GPT, gpt.flops_per_iteration), "llama": (llama.Llama, llama.flops_per_iteration)}
BATCH_SIZE = 12
ITERS = {"small": 150, "medium": 12}


class Training:
    """One model in training by PyTorch; `run` continues it."""

    def __init__(self, arch: str, config: Config, text: torch.Tensor, compiled: bool, adamw: dict):
        torch.manual_seed(1337)
        self.config = config
        self.text = text
        self.model = ARCHS[arch][0](config).to(text.device)
        self.loss = torch.compile(self.model, fullgraph=True) if compiled else self.model
        self.optimizer = torch.optim.AdamW(decay_groups(self.model, 0.1), lr=1e-3, betas=(0.9, 0.99), **adamw)

    def iteration(self):
        T = self.config.block_size
        starts = torch.randint(len(self.text) - T, (BATCH_SIZE, 1), device=self.text.device)
        tokens = self.text[starts + torch.arange(T + 1, device=self.text.device)]  # (B, T + 1)
        loss = self.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def run(self, iterations: int) -> float:
        """Milliseconds per iteration, the median."""
        times = []
        for _ in range(iterations):
            begin = time.perf_counter()
            self.iteration()
            if self.text.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return 1e3 * statistics.median(times)


def fastest_adamw(arch: str, config: Config, text: torch.Tensor, iterations: int) -> dict:
    trials = {}
    for name in ("fused", "foreach"):
        training = Training(arch, config, text, False, {name: True})
        training.run(2)
        trials[name] = training.run(max(3, iterations // 5))
    return {min(trials, key=trials.get): True}


def compiled_training(arch: str, config: Config, text: torch.Tensor, adamw: dict):
    """Or None, with a word, where torch.compile finds no compiler."""
    training = Training(arch, config, text, True, adamw)
    try:
        training.iteration()
        return training
    except Exception as error:  # torch has many kinds of error for this one thing
        print(f"torch.compile does not work here, left out: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return None


def peak_bytes(device: str) -> int:
    """Of the GPU's memory; or of this process since it became this program: getrusage would count its parent too."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def eager_peak(preset: str, args) -> dict:
    """Peak memory of a process of its own that trains for a few iterations, and what it had before the model."""
    command = [sys.executable, __file__, "--memory-of", preset, "--data", args.data, "--threads", str(args.threads)]
    command += ["--arch", args.arch, "--device", args.device, "--dropout", str(args.dropout)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def ours(preset: str, iterations: int, args) -> dict:
    """What train_gpt says of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [args.ours, "--arch", args.arch, "--preset", preset, "--data", args.data, "--out", folder]
        command += ["--threads", args.threads, "--device", args.device, "--max_iters", iterations]
        command += ["--dropout", args.dropout, "--eval_interval", iterations + 1, "--eval_iters", 1, "--quiet"]
        return stats_of(command)


def compare(preset: str, iterations: int, config: Config, text: torch.Tensor, args) -> dict:
    """Prints a preset's rows; returns what they were made of."""
    adamw = fastest_adamw(args.arch, config, text, iterations)
    runners = {"PyTorch eager": Training(args.arch, config, text, False, adamw)}
    if not args.no_compile and (compiled := compiled_training(args.arch, config, text, adamw)):
        runners["PyTorch compiled"] = compiled
    for training in runners.values():
        training.run(3)

    names = list(runners) + ([] if args.ours == "none" else ["nanospec"])
    ms = {name: [] for name in names}  # one number a round
    ours_peak = 0
    for r in range(args.rounds):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            if name in runners:
                ms[name].append(runners[name].run(iterations))
            else:
                stats = ours(preset, iterations, args)
                ms[name].append(stats["ms_per_iter"])
                ours_peak = max(ours_peak, stats["peak_bytes"])

    flops = ARCHS[args.arch][1](config, BATCH_SIZE)
    ways = []
    for name in names:
        median = statistics.median(ms[name])
        way = {"name": name, "ms": ms[name]}
        row = f"{preset:8} {name:17} {median:10.2f} {flops / median / 1e6:9.1f}"
        if name in runners and "nanospec" in ms:
            way["ours_over_it"] = [mine / theirs for mine, theirs in zip(ms["nanospec"], ms[name])]
            row += "   " + spread(way["ours_over_it"])
        print(row, flush=True)
        ways.append(way)
    if args.json:
        ways[0].update(eager_peak(preset, args))
        if "nanospec" in ms:
            ways[-1]["peak_bytes"] = ours_peak
    return {"preset": preset, "iterations": iterations, "flops": flops, "ways": ways}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ours", default="build/train_gpt", help="our program; `none` to time PyTorch alone")
    parser.add_argument("--data", default=find_text())
    parser.add_argument("--arch", default="gpt", choices=list(ARCHS), help="train_gpt's (default gpt)")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--rounds", type=int, default=5, help="(default 5)")
    parser.add_argument("--iters", nargs="+", type=int, default=[], help="per round, a number for each preset")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0, help="train_gpt's (default 0)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write every sample, and peak memory")
    parser.add_argument("--memory-of", choices=list(PRESETS), help=argparse.SUPPRESS)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    with open(args.data, encoding="utf-8") as f:
        characters = f.read()
    symbols = sorted(set(characters))
    ids = {symbol: i for i, symbol in enumerate(symbols)}
    text = torch.tensor([ids[c] for c in characters[: len(characters) * 9 // 10]], device=args.device)

    sizes = {"vocab_size": len(symbols), "dropout": args.dropout}
    config = {preset: dataclasses.replace(PRESETS[preset], **sizes) for preset in PRESETS}
    if args.memory_of:
        before = peak_bytes(args.device)
        Training(args.arch, config[args.memory_of], text, False, {"fused": True}).run(5)
        print(json.dumps({"peak_bytes": peak_bytes(args.device), "bytes_before_model": before}))
        return

    place = f"{args.threads} threads" if args.device == "cpu" else torch.cuda.get_device_name()
    what = f"{args.arch}, dropout {args.dropout:g}, PyTorch {torch.__version__}, {place}"
    print(f"{what}, batch {BATCH_SIZE}, {args.rounds} rounds")
    print(f"{'preset':8} {'':17} {'ms/iter':>10} {'GFLOP/s':>9}   ours / PyTorch: median (lowest to highest)")
    iters = args.iters or [ITERS[preset] for preset in args.presets]
    presets = [compare(preset, n, config[preset], text, args) for preset, n in zip(args.presets, iters)]
    if args.json:
        with open(args.json, "w") as f:
            facts = {"arch": args.arch, "torch": torch.__version__, "threads": args.threads, "dropout": args.dropout}
            json.dump({**facts, "presets": presets}, f)


if __name__ == "__main__":
    main()
