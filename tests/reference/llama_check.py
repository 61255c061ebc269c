#!/usr/bin/env python3
"""Holds nanospec against llama.cpp on the same GGUF files: greedy continuations, and perplexity.

    make peers                                  # once: llama.cpp, into build/peers
    tests/reference/llama_check.py greedy models/F32.gguf
    tests/reference/llama_check.py perplexity models/*.gguf --text data/*shakespeare.txt --windows 20

greedy: ten prompts, 100 tokens each, fp32 on both sides, without flash attention. The bytes must be llama.cpp's up to
the first step whose two best logits lie within 1e-3 of each other: there rounding decides. It shows how far that was.

perplexity: the same windows of the same text (`nanospec perplexity` cuts them as llama.cpp does), with caches in fp32.
Ours computes in --dtype. llama.cpp rounds activations to 8 bits where the weights have 8 or 4, so only a file of F32
can agree closely: at most --percent (0.1) apart, or the exit status is 1. Others are shown.

It needs no package.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from ours import find_text, stats_of

PEERS = "build/peers/bin/"
NEAR = 1e-3  # of two logits: either may be called the greater
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "The three primary colours are",
    "#include <stdio.h>\n\nint main(void) {\n",
    '{"name": "Ada", "born": 1815, "languages": [',
    "Water boils at 100 degrees Celsius because",
    "Der schnelle braune Fuchs springt über den",
    "1, 1, 2, 3, 5, 8, 13,",
    "<|im_start|>user\nWrite a haiku about autumn.<|im_end|>\n<|im_start|>assistant\n",
]


def output_of(command: list, errors: bool = False) -> bytes:
    """What a program prints, or with errors says on standard error. Ends this script with one line if it fails."""
    if not os.access(command[0], os.X_OK):
        sys.exit(f"{command[0]}: no such program: run `make` and `make peers` first")
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}: {''.join(last)}")
    return done.stderr if errors else done.stdout


def certain_bytes(theirs: dict) -> tuple:
    """The bytes that rounding cannot change, how many tokens they are, and why they end."""
    for step, gap in enumerate(theirs["gaps"]):
        if gap < NEAR:
            return bytes.fromhex("".join(theirs["pieces"][:step])), step, f"two logits {gap:.1e} apart"
    n = len(theirs["pieces"]) - theirs["ended"]
    return bytes.fromhex("".join(theirs["pieces"][:n])), n, "end of text" if theirs["ended"] else "length"


def our_continuation(model: str, prompt: str, args) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(prompt.encode())
        file.flush()
        text = output_of([args.ours, "generate", "--model", model, "--prompt_file", file.name, "--dtype", "fp32",
                          "--cache_dtype", "fp32", "--temperature", 0, "--drafter", "none", "--max_new_tokens",
                          args.tokens, "--ignore_eos", "--context", 1024, "--threads", args.threads, "--quiet"])
    if not text.startswith(prompt.encode()):
        sys.exit(f"{model}: nanospec does not print the prompt first: {prompt!r}")
    return text[len(prompt.encode()):]


def greedy(args) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
        file.flush()
        lines = output_of([PEERS + "llama_greedy", args.models[0], file.name, args.tokens, args.threads]).splitlines()
    same = 0
    for prompt, line in zip(PROMPTS, lines):
        certain, n, why = certain_bytes(json.loads(line))
        ours = our_continuation(args.models[0], prompt, args)
        equal = ours.startswith(certain)
        same += equal
        print(f"{'equal' if equal else 'OTHER'}  {n:3} tokens ({why}): {prompt[:40]!r}", flush=True)
        if not equal:
            print(f"       llama.cpp: {certain!r}\n       nanospec:  {ours!r}")
    print(f"{same} of {len(PROMPTS)} continuations are llama.cpp's")
    return same == len(PROMPTS)


def their_perplexity(model: str, args) -> float:
    text = output_of([PEERS + "llama-perplexity", "-m", model, "-f", args.text, "-c", args.window, "-b", args.window,
                      "--chunks", args.windows, "-t", args.threads, "-fa", "off", "-ctk", "f32", "-ctv", "f32"],
                     errors=True)
    found = re.search(rb"Final estimate: PPL = ([0-9.]+)", text)
    return float(found.group(1)) if found else sys.exit(f"{model}: llama-perplexity names no figure")


def perplexity(args) -> bool:
    held = True
    print(f"{'file':44} {'nanospec ' + args.dtype:>14} {'llama.cpp':>10} {'apart':>9}  tokens")
    for model in args.models:
        ours = stats_of([args.ours, "perplexity", "--model", model, "--text", args.text, "--window", args.window,
                         "--max_windows", args.windows, "--dtype", args.dtype, "--threads", args.threads, "--quiet"])
        theirs = their_perplexity(model, args)
        percent = 100 * (ours["perplexity"] / theirs - 1)
        exact = "F32" in os.path.basename(model) and args.dtype == "fp32"
        held = held and not (exact and abs(percent) > args.percent)
        print(f"{os.path.basename(model):44} {ours['perplexity']:14.4f} {theirs:10.4f} {percent:+8.3f}%  "
              f"{ours['tokens']}", flush=True)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["greedy", "perplexity"])
    parser.add_argument("models", nargs="+", metavar="FILE.gguf")
    parser.add_argument("--ours", default="build/nanospec")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=100, help="of a continuation")
    parser.add_argument("--text", default=find_text())
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--dtype", default="fp32", help="of ours")
    parser.add_argument("--percent", type=float, default=0.1, help="that a file of F32 may lie apart")
    args = parser.parse_args()
    return 0 if {"greedy": greedy, "perplexity": perplexity}[args.what](args) else 1


if __name__ == "__main__":
    sys.exit(main())
