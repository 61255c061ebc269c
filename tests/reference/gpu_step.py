"""Reckons how long a decoding step takes on a GPU, kernel by kernel: computed, not measured.

    python3 tests/reference/gpu_step.py [--device H200|H100] [--gap US] [--kernels] [--check] [--devices]

A kernel ends when two things have come: the last of its weights, and its longest chain of instructions that wait for
one another, which begins when the kernel before has ended. In a product's chain either the instructions count or the
bytes that L2 must bring after the wait: W for each tile of rows, x for each block of outputs. Weights are asked for
when a kernel's blocks start, which is when the blocks of the kernel before have started; memory serves one kernel after
the other. What is counted follows cuda/: the number of steps of a warp, the order of a sum, what is asked for early.
What is assumed stands first. Blocks are taken to find room beside those of the kernel before. A device will say what
is wrong with this.

--gap is the time from a kernel's end to the next one's first instruction. 0.5 us is a guess of what is left of it where
kernels begin early. Without that, in a graph on an H100, 1.3 us were measured: Hazy Research, "Look Ma, No Bubbles!",
https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles. --devices prints one row of the 124 M model on both
devices with both gaps, and what one persistent kernel would take.

--check holds the lines "// Estimate" above kernels in cuda/ against what is reckoned here, for the 124 M model, an H200
and a gap of 0.5 us.
"""

import argparse
import glob
import math
import os
import re
import sys
from dataclasses import dataclass

GHZ = 1.755  # the clock
PROCESSORS, SCHEDULERS = 132, 4
MEMORY_BYTES = {"H200": 4.8e12 / 1e6, "H100": 3.35e12 / 1e6}  # a us; in all else the two are the same
L2_BYTES = 5.5e12 / 1e6  # a us, into all processors
L2_BYTES_OF_ONE = 64  # a clock, into one
L1_KEEPS = 128 << 10  # bytes of x, for a processor's next blocks: weights are not kept in L1
MEMORY, L2, L1 = 0.8, 0.16, 35 / GHZ / 1e3  # us until a load has come
SHUFFLE, ADD, SHARED, BARRIER, EXP, MMA, MMA_EACH = 25, 4, 30, 30, 40, 35, 13  # clocks; MMA_EACH: of one tensor core
GAP, GAP_OF_GRAPHS = 0.5, 1.3  # us from the end of a kernel to the next's first instruction: see above
GRAPH = 1.5  # us from graph to graph
ATOMIC, FENCE = 0.35, 0.4  # us
SHARED_BYTES = 200 << 10  # of a processor, for weights on their way, in a persistent kernel


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
    blocks: int = 0
    work: float = 0  # us of the chain for instructions, and
    brought: float = 0  # us for bytes from L2: the longer one counts


# Instructions of a warp, counted in the machine code for sm_90 (build/nanospec.sass): of the innermost loop, less those
# that a branch skips. bf16: for each 16 k, by (tiles, octets), and of one octet's norm; fp32: for each k, by rows.
OF_TILE, OF_NORM = {(1, 1): 55, (2, 2): 97, (2, 4): 175}, 28
OF_ROWS = {1: 12.4, 4: 25.2, 8: 46, 16: 82.5}
# 8 bits: of a row for 32 k, and of a row to add 16 times 32 k.
OF_INTEGERS, OF_ADDING = 23, 131


def from_l2(blocks, resident, weights, x, early):
    """us to bring a product's operands from L2 into the processors, less what was asked for early: in bytes a block"""
    on_one = math.ceil(blocks / PROCESSORS)
    at_once = min(blocks, PROCESSORS * resident)
    with_x = min(blocks, PROCESSORS) if x <= L1_KEEPS else blocks
    one = on_one * weights + (1 if x <= L1_KEEPS else on_one) * x - min(on_one, resident) * early
    return max(us(one / L2_BYTES_OF_ONE), (blocks * weights + with_x * x - at_once * early) / L2_BYTES)


def product_bf16(name, rows, k, n, norm=False, epilogue=40):
    few = rows <= 16 and math.ceil(rows / 8) * math.ceil(n / 16) <= PROCESSORS
    tiles, octets, depth = (1, 1, 8) if few else (2, 4, 1) if rows > 16 else (2, 2, 2) if rows > 8 else (1, 1, 4)
    resident = 1 if few else 2
    row_tiles = math.ceil(rows / (8 * octets))
    blocks = row_tiles * math.ceil(n / (16 * tiles))
    on_one = math.ceil(blocks / PROCESSORS)
    turns = math.ceil(on_one / resident)
    steps = math.ceil(k / 16 / 8)
    first = L2 + (us(2 * warp_sum(k) + 40 + BARRIER + SHARED) + L1 if norm else 0)
    sums = tiles * octets
    chain = 3 * max(MMA, sums * MMA_EACH) + (35 + 4 * ADD if norm else 0)  # the norm's weight comes from L1
    issued = 2 * on_one * max(OF_TILE[tiles, octets] + (octets * OF_NORM if norm else 0), 3 * sums * MMA_EACH)
    work = us(steps * max(turns * chain, issued))
    waits = turns * max(0, math.ceil(steps / depth) - 2) * max(0, L2 / 2 - us(depth * chain))  # for weights in L2
    weights, early = 32 * tiles * k, min(32 * tiles * k, 2 * depth * tiles * 16 * 256)
    brought = from_l2(blocks, resident, weights, 4 * k * min(rows, 8 * octets), early)
    tail = us(SHARED + BARRIER + 8 * ADD + 60 + epilogue)
    return [Kernel(name, 2 * k * n, first + max(work + waits, brought) + tail, tail, blocks, work + waits, brought)]


def product_fp32(name, rows, k, n, norm=False, epilogue=40):
    panels = math.ceil(n / 16)
    each = 1 if rows == 1 else 4 if rows <= 4 else 8 if rows <= 8 or math.ceil(rows / 8) * panels <= PROCESSORS else 16
    resident = 2
    blocks = math.ceil(rows / each) * panels
    on_one = math.ceil(blocks / PROCESSORS)
    turns = math.ceil(on_one / resident)
    length = math.ceil(k / 256) * 4
    first = L2 + (us(2 * (warp_sum(8 * k) / 8 + warp_sum(k) + 3 * BARRIER) + 60) + L1 if norm else 0)
    chunk = 4 if each > 4 else 8
    work = us(length * max(turns * ADD, 2 * on_one * OF_ROWS[each]))
    waits = turns * max(0, math.ceil(length / chunk) - 2) * max(0, L2 / 2 - work / length * chunk)
    weights, early = 64 * k, min(64 * k, 2 * chunk * 16 * 256)
    brought = from_l2(blocks, resident, weights, 4 * k * min(rows, each), early)
    tail = us(math.ceil(each / 8) * (2 * BARRIER + SHARED + 64 * ADD) + epilogue)
    return [Kernel(name, 4 * k * n, first + max(work + waits, brought) + tail, tail, blocks, work + waits, brought)]


def product_q8(name, rows, k, n, norm=False, epilogue=40):
    each, resident = min(rows, 16), 2
    blocks = math.ceil(rows / 16) * math.ceil(n / 32)
    on_one = math.ceil(blocks / PROCESSORS)
    turns = math.ceil(on_one / resident)
    multiply = each * (L2 * GHZ * 1e3 + 8 * 5 + 15)  # a row's codes come from L2, one row after the other
    add = L2 * GHZ * 1e3 + SHARED + 16 * ADD + 20  # its scales too
    issued = 4 * on_one * each * (OF_INTEGERS + OF_ADDING / 16)
    work = us(math.ceil(k / 512) * max(turns * (multiply + add + 2 * BARRIER), issued))
    brought = from_l2(blocks, resident, 34 * k, each * k * 40 / 32, min(34 * k, 2 * 36 * 512))
    tail = us(epilogue + 20)
    to_integers = Kernel("to integers", 0, L2 + us(5 * SHUFFLE + 100))
    return [to_integers, Kernel(name, 34 / 32 * k * n, max(work, brought) + tail, tail, blocks, work, brought)]


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
    product = {"bf16": product_bf16, "fp32": product_fp32, "q8": product_q8}[dtype]
    inside = rows <= {"bf16": 16, "fp32": 1, "q8": 0}[dtype]  # the norm is the product's own
    D = m.C // m.heads
    small = lambda name, chain: Kernel(name, 0, chain)
    norm = [] if inside else [small("norm", L2 + us(2 * (warp_sum(m.C) + 3 * BARRIER) + 60))]
    layer = norm + product("qkv", rows, m.C, (m.heads + 2 * m.kv_heads) * D, inside)
    if m.llama:
        layer.append(small("rotate, cache", 2 * L2 + us(60)))
    layer.append(attention(rows, m.past, D, m.kv_heads, m.heads // m.kv_heads, 4))
    layer += product("projection", rows, m.heads * D, m.C)
    layer += norm + product("MLP in", rows, m.C, (2 if m.llama else 1) * m.F, inside, 40 if m.llama else 120)
    if m.llama:
        layer.append(small("SwiGLU", L2 + us(120)))
    layer += product("MLP out", rows, m.F, m.C)
    ends = norm + product("head", rows, m.C, m.V, inside) + [small("sample", 2 * L2 + us(4 * 120 + 5 * SHUFFLE + 90))]
    ends += [small("walk", 3 * L2 + us(5 * SHUFFLE)), small("gather", 3 * L2)]
    return [small("embedding", 2 * L2)], layer, ends


def run(m, rows, dtype, device="H200", gap=GAP):
    """(us, {name: (kernel, us)} of each kernel, of the last layer where layers have it, bytes)"""
    first, layer, ends = step_of(m, rows, dtype)
    kernels = first + layer * m.layers + ends
    memory = end = started = 0.0
    lasted = {}
    for kernel in kernels:
        memory = max(memory, started + MEMORY) + kernel.bytes / MEMORY_BYTES[device]  # its last byte is there
        begin = end + gap
        started = begin  # the next one's blocks start now
        after = max(begin + kernel.chain, memory + kernel.tail if kernel.bytes else 0)
        lasted[kernel.name] = kernel, after - end
        end = after
    return end + GRAPH, lasted, sum(k.bytes for k in kernels)


def run_persistent(m, rows, dtype, device, hand_over=FENCE + L2):
    """us of one kernel that stays for the whole step. Its processors share a product's outputs evenly. Weights come
    through shared memory without a stop, as far ahead as there is room. hand_over, us: from step to step a counter
    goes up behind a fence, and who waits for it reads it."""
    first, layer, ends = step_of(m, rows, dtype)
    came = end = read = 0.0  # us; us; bytes
    done = [(0.0, 0.0)]  # (bytes, us): so many were read, and used, by then
    for kernel in first + layer * m.layers + ends:
        read += kernel.bytes
        room = next(at for used, at in done if used >= min(read - PROCESSORS * SHARED_BYTES, done[-1][0]))
        came = max(came, room) + kernel.bytes / MEMORY_BYTES[device]
        uneven = math.ceil(kernel.blocks / PROCESSORS) * PROCESSORS / kernel.blocks if kernel.blocks > PROCESSORS else 1
        chain = kernel.chain - kernel.work * (1 - 1 / uneven)
        end = max(end + hand_over + chain, MEMORY + came + kernel.tail if kernel.bytes else 0)
        done.append((read, end))
    return end + GRAPH


MODELS = [
    (Model("124 M", 12, 768, 12, 12, 3072, 50257), ["bf16", "fp32", "q8"]),
    (Model("medium", 6, 384, 6, 6, 1536, 65, past=200), ["bf16", "fp32", "q8"]),
    (Model("Llama, 1.1 B", 22, 2048, 32, 4, 5632, 32000, True), ["bf16", "fp32", "q8"]),
]


PRODUCTS = ["qkv", "projection", "MLP in", "MLP out", "head"]
KERNELS = [("decode_bf16", "bf16", PRODUCTS), ("decode_fp32", "fp32", PRODUCTS),
           ("multiply_integers", "q8", PRODUCTS)] + [
    (kernel + "_kernel", "fp32", [kernel]) for kernel in ("norm", "attention", "sample", "walk", "gather")]


def estimate(dtype, names):
    """The line above a kernel that a step launches by these names."""
    one, many = (run(MODELS[0][0], rows, dtype)[1] for rows in (1, 16))
    lasted = lambda step, name: f"{step[name][1]:.1f}" if name in step else "none"
    each = [(name + " " if len(names) > 1 else "") + lasted(one, name) + " " + lasted(many, name) for name in names]
    return "// Estimate, us of 1 row and 16: " + ", ".join(each) + "."


def check():
    """Prints the lines of kernels that are not as reckoned here; returns how many."""
    wrong = 0
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cuda")
    text = "".join(open(file).read() for file in glob.glob(os.path.join(folder, "*.cuh")))
    for kernel, dtype, names in KERNELS:
        line = estimate(dtype, names)
        if not re.search(re.escape(line) + r"\n(?:// Budget.*\n)?(?:template.*\n)?__global__[^;{]*\b" + kernel, text):
            print(f"above {kernel} this line is missing:\n{line}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", action="store_true", help="the kernels too: us from the end of the one before")
    parser.add_argument("--check", action="store_true", help="no table: whether the kernels' comments say the same")
    parser.add_argument("--device", choices=sorted(MEMORY_BYTES), default="H200")
    parser.add_argument("--gap", type=float, default=GAP, help="us between two kernels")
    parser.add_argument("--devices", action="store_true", help="no table: one row, on each device, with each gap")
    args = parser.parse_args()
    if args.check:
        sys.exit(1 if check() else 0)
    if args.devices:
        for device in sorted(MEMORY_BYTES):
            for dtype in ("bf16", "fp32"):
                one, other = (run(MODELS[0][0], 1, dtype, device, gap) for gap in (GAP, GAP_OF_GRAPHS))
                kept, at_once = (run_persistent(MODELS[0][0], 1, dtype, device, t) for t in (FENCE + L2, 0))
                print(f"{device} {dtype}: gap {GAP} {one[0]:.0f} us, gap {GAP_OF_GRAPHS} {other[0]:.0f}, persistent "
                      f"{kept:.0f}, with hand-overs of no time {at_once:.0f}, bytes {one[2] / MEMORY_BYTES[device]:.0f}")
        return
    print(f"{'model':14}{'weights':9}{'rows':>5}{'us':>8}{'MB':>8}{'bound us':>10}{'of one row':>12}")
    for model, dtypes in MODELS:
        for dtype in dtypes:
            one = run(model, 1, dtype, args.device, args.gap)[0]
            memory = MEMORY_BYTES[args.device]
            for rows in (1, 8, 16):
                total, kernels, read = run(model, rows, dtype, args.device, args.gap)
                print(f"{model.name:14}{dtype:9}{rows:5}{total:8.0f}{read / 1e6:8.0f}{read / memory:10.0f}"
                      f"{total / one:12.2f}")
                for kernel, lasted in kernels.values() if args.kernels and rows != 8 else ():
                    product = f", blocks {kernel.blocks:4}, instructions {kernel.work:5.2f}, L2 {kernel.brought:5.2f}"
                    print(f"    {kernel.name:16}{lasted:6.2f}: chain {kernel.chain:5.2f}, memory "
                          f"{kernel.bytes / memory:5.2f}{product if kernel.blocks else ''}")


if __name__ == "__main__":
    main()
