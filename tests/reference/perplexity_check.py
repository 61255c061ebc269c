#!/usr/bin/env python3
"""Perplexity in plain Python, without packages, against `nanospec perplexity`, on a small model of train_gpt.

    tests/reference/perplexity_check.py [MODEL] [TEXT] [WINDOWS]

It reads MODEL (runs/small), computes the network in doubles, as its paper has it, and the losses window by window. Both
means must agree to 1e-6. A window of 64 tokens takes seconds. Models without biases only.
"""
import json
import math
import struct
import subprocess
import sys
import tempfile

from ours import find_text

model, text_file, windows = (sys.argv[1:] + ["runs/small", find_text(), "3"][len(sys.argv) - 1:])[:3]
config = json.load(open(model + "/config.json"))
L, H, C, W = (config[key] for key in ("n_layer", "n_head", "n_embd", "n_positions"))
D = C // H

data = open(model + "/model.safetensors", "rb").read()
start = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:start])


def tensor(name):
    """A tensor as rows; a vector as one list."""
    entry = header["transformer." + name]
    begin, end = entry["data_offsets"]
    flat = list(struct.unpack("<%df" % ((end - begin) // 4), data[start + begin:start + end]))
    columns = entry["shape"][-1]
    return flat if len(entry["shape"]) == 1 else [flat[i:i + columns] for i in range(0, len(flat), columns)]


def transposed(name):
    return [list(column) for column in zip(*tensor(name))]


def dot(a, b):
    return sum(map(float.__mul__, a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def norm(x, weight):
    mean = sum(x) / C
    scale = 1 / math.sqrt(sum((a - mean) ** 2 for a in x) / C + 1e-5)
    return [(a - mean) * scale * w for a, w in zip(x, weight)]


def gelu(a):
    return 0.5 * a * (1 + math.erf(a / math.sqrt(2)))


wte, wpe, ln_f = tensor("wte.weight"), tensor("wpe.weight"), tensor("ln_f.weight")
layers = [(tensor(f"h.{l}.ln_1.weight"), transposed(f"h.{l}.attn.c_attn.weight"), transposed(f"h.{l}.attn.c_proj.weight"),
           tensor(f"h.{l}.ln_2.weight"), transposed(f"h.{l}.mlp.c_fc.weight"), transposed(f"h.{l}.mlp.c_proj.weight"))
          for l in range(L)]


def head_output(qkv, place, head):
    """What one head says at one place, of the places up to it."""
    part = slice(head * D, head * D + D)
    scores = [dot(qkv[place][part], qkv[i][C:2 * C][part]) / math.sqrt(D) for i in range(place + 1)]
    weights = [math.exp(s - max(scores)) for s in scores]
    values = [qkv[i][2 * C:][part] for i in range(place + 1)]
    return [sum(w * v[k] for w, v in zip(weights, values)) / sum(weights) for k in range(D)]


def logits(tokens):
    rows = [[a + b for a, b in zip(wte[token], wpe[place])] for place, token in enumerate(tokens)]
    for ln_1, attn, proj, ln_2, fc, fc_proj in layers:
        qkv = [times(attn, norm(x, ln_1)) for x in rows]
        for place, x in enumerate(rows):
            out = times(proj, sum((head_output(qkv, place, head) for head in range(H)), []))
            x[:] = [a + b for a, b in zip(x, out)]
            out = times(fc_proj, [gelu(a) for a in times(fc, norm(x, ln_2))])
            x[:] = [a + b for a, b in zip(x, out)]
    return [times(wte, norm(x, ln_f)) for x in rows]


vocabulary = json.load(open(model + "/tokenizer.json"))["model"]["vocab"]
tokens = [vocabulary[c] for c in open(text_file, encoding="utf-8", newline="").read()[:int(windows) * W]]
losses = []
for begin in range(0, len(tokens), W):
    window = tokens[begin:begin + W]
    for place, row in enumerate(logits(window)[:-1]):
        if place >= W // 2:
            most = max(row)
            losses.append(most + math.log(sum(math.exp(a - most) for a in row)) - row[window[place + 1]])
loss = sum(losses) / len(losses)

with tempfile.NamedTemporaryFile(suffix=".json") as stats:
    subprocess.run(["build/nanospec", "perplexity", "--model", model, "--text", text_file, "--max_windows", windows,
                    "--stats", stats.name, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    ours = json.load(open(stats.name))
print(f"plain Python {loss:.9f}, nanospec {ours['loss']:.9f} nats, {len(losses)} and {ours['tokens']} tokens")
sys.exit(0 if abs(loss - ours["loss"]) < 1e-6 and len(losses) == ours["tokens"] else 1)
