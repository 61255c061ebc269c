"""Penalizes rows of logits with transformers, and writes tests/files/penalties.json, to which
tests/core/test_decode.cpp holds rules/penalties.h.

    python3 -m venv build/venv && build/venv/bin/pip install torch transformers
    build/venv/bin/python tests/reference/penalties.py
"""

import json
import os

import torch
from transformers import RepetitionPenaltyLogitsProcessor

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "files", "penalties.json")
VOCAB = 12


def main():
    torch.manual_seed(1)
    cases = []
    for penalty in (1.2, 1.05, 0.8, 3.0):
        for length in (1, 5, 30):
            tokens = torch.randint(VOCAB, (1, length))
            logits = 4 * torch.randn(1, VOCAB)
            result = RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
            rows = {"tokens": tokens, "logits": logits, "penalized": result}
            cases.append({"penalty": penalty, **{name: row[0].tolist() for name, row in rows.items()}})
    with open(FILE, "w") as f:
        f.write("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
    print(f"{len(cases)} rows in tests/files/penalties.json")


if __name__ == "__main__":
    main()
