#!/usr/bin/env python3
"""Holds a model's folder against Hugging Face's own loaders.

usage: hf_check.py DIR TEXT LOGITS
  DIR     a folder that train_gpt wrote
  TEXT    at most block_size characters of the model's vocabulary
  LOGITS  a file of float32 (T, V), row-major: nanospec's logits after each of TEXT's T tokens

transformers must load the model and the tokenizer without a warning, cut TEXT into one token a character, give it
back, refuse a character outside the vocabulary, and agree with LOGITS to 1e-4. Exit status 0 when all of that holds.
Needs torch and transformers.
"""
import logging
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy
import torch
import transformers

said = []  # every warning, by whatever way it comes


class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


def main(folder, text, logits_path):
    transformers.logging.disable_progress_bar()
    logging.captureWarnings(True)
    warnings.simplefilter("always")
    listener = Listener(logging.WARNING)
    for name in (None, "transformers", "py.warnings"):
        logging.getLogger(name).addHandler(listener)

    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(text)
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([ids])).logits[0].double().numpy()
    ours = numpy.fromfile(logits_path, dtype="<f4").astype("f8")

    failures = [f"a warning: {message}" for message in said]
    failures += [f"{kind}: {sorted(keys)}" for kind, keys in info.items() if keys]
    if len(ids) != len(text) or tokenizer.decode(ids) != text:
        failures.append(f"{len(text)} characters became {len(ids)} tokens and then {tokenizer.decode(ids)!r}")
    stranger = next(c for c in map(chr, range(0x2600, 0x110000)) if c not in tokenizer.get_vocab())
    try:
        failures.append(f"{stranger!r}, not in the vocabulary, became {tokenizer.encode(stranger)}")
    except Exception:  # as it should
        pass
    if ours.size != theirs.size:
        failures.append(f"{logits_path} holds {ours.size} numbers, expected {theirs.shape[0]} x {theirs.shape[1]}")
    else:
        difference = float(numpy.abs(ours.reshape(theirs.shape) - theirs).max())
        print(f"transformers {transformers.__version__}: {theirs.shape[0]} tokens, largest logit "
              f"{numpy.abs(theirs).max():.3f}, largest difference {difference:.2e}")
        if not difference <= 1e-4:
            failures.append(f"logits differ by {difference:.2e}, more than 1e-4")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
