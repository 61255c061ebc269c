"""Reckons how long a decoding step takes on a GPU, kernel by kernel: computed, not measured.

    python3 tests/reference/gpu_step.py [--kernels]

A kernel ends when two things have come: the last of its weights, and its longest chain of instructions that wait for
one another, which begins when the kernel before has ended. Weights are asked for when a kernel's blocks start, which is
when the blocks of the kernel before have started; memory serves one kernel after the other. What is counted follows
cuda/: the number of steps of a warp, the order of a sum, what is asked for early. What is assumed stands first.
Blocks are taken to find room beside those of the kernel before. A device will say what is wrong with this.
"""

import argparse
import math
from dataclasses import dataclass

GHZ = 1.755  # an H200's clock
PROCESSORS, SCHEDULERS = 132, 4
MEMORY_BYTES = 4.8e12 / 1e6  # a us
MEMORY, L2, L1 = 0.8, 0.16, 35 / GHZ / 1e3  # us until a load has come
SHUFFLE, ADD, SHARED, BARRIER, EXP, MMA, MMA_EACH = 25, 4, 30, 30, 40, 35, 13  # clocks; MMA_EACH: of one tensor core
GAP, GRAPH = 0.5, 1.5  # us from the end of a kernel to the next's first instruction; from graph to graph
ATOMIC, FENCE = 0.35, 0.4  # us


def us(clocks):
    return clocks / GHZ / 1e3


def warp_sum(n):  # n numbers, 32 lanes
    return math.ceil(n / 32) * ADD + 5 * (SHUFFLE + ADD)


@dataclass
class Kernel:
    name: str
    bytes: float  # that no kernel before has read
    chain: float  # us after the kernel before has ended
    tail: float = 0.3  # of it, what follows the last weight


def product_bf16(name, rows, k, n, norm=False, epilogue=40):
    few = n <= 16 * 128 and rows <= 16
    tiles, octets, depth = (1, 1, 8) if few else (2, 4, 1) if rows > 16 else (2, 2, 2) if rows > 8 else (1, 1, 4)
    blocks = math.ceil(rows / (8 * octets)) * math.ceil(n / (16 * tiles))
    warps = 2 * min(1 if few else 2, math.ceil(blocks / PROCESSORS))  # of a scheduler
    turns = math.ceil(blocks / (PROCESSORS * warps / 2))
    steps = math.ceil(k / 16 / 8)
    each_row = 2 * warp_sum(k) + 40
    first = L2 + (us(math.ceil(min(rows, 8 * octets) / 8) * each_row + BARRIER + SHARED) + L1 if norm else 0)
    sums = tiles * octets
    instructions = octets * (22 + (12 if norm else 0)) + 3 * (tiles + octets)
    step = max(3 * max(MMA, sums * MMA_EACH), warps * instructions, warps * 3 * sums * MMA_EACH)
    waits = max(0, math.ceil(steps / depth) - 2) * max(0, L2 / 2 - us(depth * step))  # for weights in L2
    tail = us(SHARED + BARRIER + 8 * ADD + 60 + epilogue)
    return Kernel(name, 2 * k * n, first + turns * (us(steps * step) + waits) + tail, tail)


def product_fp32(name, rows, k, n, norm=False, epilogue=40):
    each = 1 if rows == 1 else 4 if rows <= 4 else 8 if rows <= 8 else 16
    blocks = math.ceil(rows / each) * math.ceil(n / 16)
    warps = 2 * min(2, math.ceil(blocks / PROCESSORS))
    turns = math.ceil(blocks / (PROCESSORS * warps / 2))
    length = math.ceil(k / 256) * 4
    first = L2 + (us(2 * (warp_sum(8 * k) / 8 + warp_sum(k) + 3 * BARRIER) + 60) + L1 if norm else 0)
    chunk = 4 if each > 4 else 8
    work = max(length * ADD, warps * length * (4 * each + 1.5 * each / 4 + 3))
    waits = max(0, math.ceil(length / chunk) - 2) * max(0, L2 / 2 - us(work / length * chunk))
    tail = us(math.ceil(each / 8) * (2 * BARRIER + SHARED + 64 * ADD) + epilogue)
    return Kernel(name, 4 * k * n, first + turns * (us(work) + waits) + tail, tail)


def attention(rows, past, D, kv_heads, queries, number):
    pairs = rows * queries
    chunks = math.ceil((past + 1) / 64)
    find = L2 + L2 + us(BARRIER + SHARED)  # where its rows are; q
    copy = L2 + us(60)
    of_warp = min(4, math.ceil(pairs / 4)) if pairs > 4 else 1  # pairs whose chains run side by side
    tile = us(D / 4 * (SHARED / 4 + 4 * ADD) + EXP + 3 * SHUFFLE + 32 * ADD + 32 * ADD * (1 + 0.2 * of_warp))
    share = us(40) + FENCE + ATOMIC + us(2 * BARRIER)
    join = L2 + us(5 * (SHUFFLE + ADD) + 2 * EXP + chunks * 2 * ADD) + max(0, math.ceil(chunks / 8) - 1) * L2
    bytes = 2 * past * D * kv_heads * number
    return Kernel("attention", bytes, find + copy + 2 * tile + share + join + us(60), share + join)


@dataclass
class Model:
    name: str
    layers: int
    C: int
    heads: int
    kv_heads: int
    F: int
    V: int
    llama: bool = False
    past: int = 900


def step_of(m, rows, dtype):
    product, number = (product_bf16, 2) if dtype == "bf16" else (product_fp32, 4)
    inside = rows == 1 if dtype == "fp32" else rows <= 16  # the norm is the product's own
    D = m.C // m.heads
    small = lambda name, chain: Kernel(name, 0, chain)
    norm = [] if inside else [small("norm", L2 + us(2 * (warp_sum(m.C) + 3 * BARRIER) + 60))]
    layer = norm + [product("qkv", rows, m.C, (m.heads + 2 * m.kv_heads) * D, inside)]
    if m.llama:
        layer.append(small("rotate, cache", 2 * L2 + us(60)))
    layer.append(attention(rows, m.past, D, m.kv_heads, m.heads // m.kv_heads, 4))
    layer.append(product("projection", rows, m.heads * D, m.C))
    layer += norm + [product("MLP in", rows, m.C, (2 if m.llama else 1) * m.F, inside, 40 if m.llama else 120)]
    if m.llama:
        layer.append(small("SwiGLU", L2 + us(120)))
    layer.append(product("MLP out", rows, m.F, m.C))
    ends = norm + [product("head", rows, m.C, m.V, inside), small("sample", 2 * L2 + us(4 * 120 + 5 * SHUFFLE + 90))]
    ends += [small("walk", 3 * L2 + us(5 * SHUFFLE)), small("gather", 3 * L2)]
    return [small("embedding", 2 * L2)], layer, ends


def run(m, rows, dtype):
    """(us, us of each kernel of the second layer, bytes)"""
    first, layer, ends = step_of(m, rows, dtype)
    kernels = first + layer * m.layers + ends
    memory = end = started = 0.0
    lasted = []
    for kernel in kernels:
        memory = max(memory, started + MEMORY) + kernel.bytes / MEMORY_BYTES  # its last byte is there
        begin = end + GAP
        started = begin  # the next one's blocks start now
        after = max(begin + kernel.chain, memory + kernel.tail if kernel.bytes else 0)
        lasted.append(after - end)
        end = after
    return end + GRAPH, list(zip(kernels, lasted))[1 + len(layer) : 1 + 2 * len(layer)], sum(k.bytes for k in kernels)


MODELS = [
    (Model("124 M", 12, 768, 12, 12, 3072, 50257), ["bf16", "fp32"]),
    (Model("medium", 6, 384, 6, 6, 1536, 65, past=200), ["bf16", "fp32"]),
    (Model("Llama, 1.1 B", 22, 2048, 32, 4, 5632, 32000, True), ["bf16", "fp32"]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", action="store_true", help="the kernels of a layer too")
    args = parser.parse_args()
    print(f"{'model':14}{'weights':9}{'rows':>5}{'us':>8}{'MB':>8}{'bound us':>10}{'of one row':>12}")
    for model, dtypes in MODELS:
        for dtype in dtypes:
            one = run(model, 1, dtype)[0]
            for rows in (1, 8, 16):
                total, layer, read = run(model, rows, dtype)
                print(f"{model.name:14}{dtype:9}{rows:5}{total:8.0f}{read / 1e6:8.0f}{read / MEMORY_BYTES:10.0f}"
                      f"{total / one:12.2f}")
                if args.kernels and rows != 8:
                    for kernel, lasted in layer:
                        print(f"    {kernel.name:16}{lasted:6.2f} us, chain {kernel.chain:5.2f}, "
                              f"bytes {kernel.bytes / MEMORY_BYTES:5.2f}")


if __name__ == "__main__":
    main()
