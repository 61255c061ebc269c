"""Counts the cache lines that one update of training fetches from beyond a last-level cache of 2 MB, and sets them
beside the least: each operation's inputs, weights and outputs once.

    make BUILD=build/v3 ARCH=x86-64-v3 CXXFLAGS="-include tests/reference/rounded_twice.h" build/v3/train_gpt
    python3 tests/reference/cache_lines.py [--batch_size 12] [--whole] [--top 12]

It needs valgrind (apt-get install valgrind), no network and no package. The build is for AVX2, which is what valgrind
knows, and without fused multiply-adds, which it computes slowly. train_gpt runs on one thread under cachegrind, which
plays the caches; prefetches are not counted as fetches, nor lines that are written back. A run of two iterations less
a run of one is one update. All layers are alike, so the preset's are reckoned from runs with one and with two:
one + (layers - 1) * (two - one); --whole runs all of them, which takes twice as long. cachegrind takes forty times as
long as the program: some minutes.

With T tokens a sequence, R rows, C channels, F = 4 C, Q = 3 C, V tokens of the vocabulary, H heads, P parameters, M
numbers in matrices, the least is, in floats:
  products   each three times: forward, weight's gradient, input's gradient: R in + in out + R out; qkv, proj, fc,
             fc_proj in each layer, the head once
  attention  forward R (Q + C + H), backward R (2 Q + 2 C + H): queries, keys and values, outputs, their gradients
  norms      forward 2 R C, again in the backward but for the last; backward 3 R C; sums 2 R C
  GELU       forward 2 R F, backward 4 R F (from pre and dact to dpre and act); residual joins 2 R C, two in each layer
  the rest   embedding and its backward R C + (V + T) C each; loss R V; the gradients of both halves of the
             batch, zeroed and added, 2 P + R C + 3 P;
             clipping and AdamW 5 P; packing 3 M
That is what study/update.cpp reckons for `bench --only train`. Operations that keep what they pass on in the cache
fetch less than that; one that reads its input again for every block of its output fetches more.
"""

import argparse
import collections
import concurrent.futures
import os
import subprocess
import sys
import tempfile

from ours import find_text

PRESETS = {"small": (4, 4, 128, 64), "medium": (6, 6, 384, 256)}  # layers, heads, channels, block
LINE = 64
CHARACTERS = 6000


def floor_bytes(layers: int, heads: int, C: int, T: int, V: int, sequences: int) -> float:
    R, F, Q = sequences * T, 4 * C, 3 * C
    matrices = C * Q + C * C + 2 * C * F
    P = layers * (matrices + 2 * C) + (V + T + 1) * C

    def product(inputs, outputs):
        return 3 * (R * inputs + inputs * outputs + R * outputs)

    layer = product(C, Q) + product(C, C) + product(C, F) + product(F, C)
    layer += R * (Q + C + heads) + R * (2 * Q + 2 * C + heads)
    layer += 2 * (2 + 2 + 3 + 2) * R * C + (2 + 4) * R * F + 2 * 2 * R * C
    rest = product(C, V) + (2 + 3 + 2) * R * C + 2 * (R * C + (V + T) * C) + R * V
    rest += 2 * P + R * C + 3 * P + 5 * P + 3 * (layers * matrices + V * C)
    return 4.0 * (layers * layer + rest)


def fetched(file: str) -> tuple[int, int, dict]:
    """Lines read and written that came from beyond the last level, and of each function their sum."""
    functions = collections.Counter()
    name = ""
    with open(file) as lines:
        for line in lines:
            if line.startswith("events:"):
                events = line.split()[1:]
                read, write = events.index("DLmr"), events.index("DLmw")
            elif line.startswith("fn="):
                name = line[3:].strip()
            elif line[0].isdigit():
                counts = [int(count) for count in line.split()[1:]]
                functions[name] += counts[read] + counts[write]
            elif line.startswith("summary:"):
                totals = [int(count) for count in line.split()[1:]]
    return totals[read], totals[write], functions


def run(args, scratch: str, layers: int, iterations: int) -> tuple[int, int, dict]:
    name = f"{scratch}/{layers}-{iterations}"
    heads, channels, block = PRESETS[args.preset][1:]
    words = ["valgrind", "--tool=cachegrind", f"--cachegrind-out-file={name}.counts", f"--LL={args.cache},16,{LINE}",
             f"--D1=49152,12,{LINE}", f"--I1=32768,8,{LINE}", args.program, "--data", f"{scratch}/text", "--out", name,
             "--preset", args.preset, "--n_layer", str(layers), "--batch_size", str(args.batch_size), "--max_iters",
             str(iterations), "--eval_iters", "1", "--eval_interval", "1000", "--threads", "1", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr[-600:]}")
    return fetched(f"{name}.counts")


def less(a, b):
    return a[0] - b[0], a[1] - b[1], {name: count - b[2].get(name, 0) for name, count in a[2].items()}


def main():
    parser = argparse.ArgumentParser(description="Counts cache lines fetched in one update of train_gpt.")
    parser.add_argument("--program", default="build/v3/train_gpt")
    parser.add_argument("--data", default=find_text())
    parser.add_argument("--preset", default="medium", choices=PRESETS)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--cache", type=int, default=2 << 20, help="bytes of the last level")
    parser.add_argument("--whole", action="store_true", help="run all layers, not one and two")
    parser.add_argument("--top", type=int, default=12, help="functions to list")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs at a time")
    args = parser.parse_args()
    with open(args.data, encoding="utf-8") as file:
        text = file.read(CHARACTERS)  # the loss over the validation part, at the end, is to be short
    layers, heads, channels, block = PRESETS[args.preset]
    depths = [layers] if args.whole else [1, 2]
    with tempfile.TemporaryDirectory() as scratch:
        with open(f"{scratch}/text", "w", encoding="utf-8") as file:
            file.write(text)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            jobs = {(depth, n): pool.submit(run, args, scratch, depth, n) for depth in reversed(depths) for n in (2, 1)}
            counts = {key: job.result() for key, job in jobs.items()}
    updates = [less(counts[depth, 2], counts[depth, 1]) for depth in depths]
    total = updates[0]
    if not args.whole:
        each = less(updates[1], updates[0])
        names = set(total[2]) | set(each[2])
        total = (total[0] + (layers - 1) * each[0], total[1] + (layers - 1) * each[1],
                 {name: total[2].get(name, 0) + (layers - 1) * each[2].get(name, 0) for name in names})
    read, written, functions = total
    least = floor_bytes(layers, heads, channels, block, len(set(text)), args.batch_size)
    bytes_fetched = (read + written) * LINE
    print(f"one update of {args.preset}, {args.batch_size} x {block} tokens, vocabulary {len(set(text))}, one thread, "
          f"last level {args.cache:,} bytes")
    print(f"lines fetched to read {read:,}, to write {written:,}: {bytes_fetched / 1e6:,.0f} MB")
    print(f"least {least / 1e6:,.0f} MB; ratio {bytes_fetched / least:.2f}")
    print(f"\n{'MB':>8}  function")
    for name, count in sorted(functions.items(), key=lambda item: -item[1])[: args.top]:
        print(f"{count * LINE / 1e6:8,.1f}  {name[:110]}")


if __name__ == "__main__":
    main()
