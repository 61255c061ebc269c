#!/usr/bin/env python3
"""Holds the logits of a GGUF model against transformers, which expands the same weights to fp32.

usage: real_check.py FILE.gguf TEXT_FILE LOGITS
  LOGITS  a file of float32 (T, V): `build/dump_logits FILE.gguf "$(cat TEXT_FILE)" LOGITS`

Every one of the T positions must agree to 1e-3, and have the same likeliest token. Exit status 0 when it does. Needs
torch, transformers, gguf and accelerate.
"""
import os
import sys

import numpy
import torch
import transformers


def main(model_path, text_path, logits_path):
    folder, name = os.path.split(os.path.abspath(model_path))
    with open(text_path) as file:
        text = file.read().rstrip("\n")  # as the shell's $(...) gives it
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    ours = numpy.fromfile(logits_path, dtype=numpy.float32).reshape(len(ids), -1)
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    apart = abs(theirs - ours).max()
    others = int((theirs.argmax(1) != ours.argmax(1)).sum())
    print(f"{len(ids)} positions, largest logit {abs(theirs).max():.1f}, largest difference {apart:.1e}, "
          f"another likeliest token at {others}")
    return 0 if apart < 1e-3 and others == 0 else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
