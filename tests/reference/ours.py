"""Runs nanospec's programs for the scripts beside it, and says what ratios were found. Standard library only."""

import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile


def stats_of(command: list) -> dict:
    """Runs one of nanospec's programs with --stats added; returns what it wrote there. Ends this script if it fails."""
    if not os.access(command[0], os.X_OK):
        sys.exit(f"{command[0]}: no such program: run `make` first, or name another with --ours")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "stats.json")
        done = subprocess.run([*map(str, command), "--stats", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stderr.decode().strip()}")
        with open(path) as f:
            return json.load(f)


def find_text() -> str:
    """The text that `make data` got: tinyshakespeare where it could be had."""
    return max(glob.glob("data/*shakespeare.txt"), default="data/tinyshakespeare.txt")


def spread(ratios: list) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
