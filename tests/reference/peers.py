"""Holds nanospec against other engines on the same work: tables on standard output, and every sample as JSON.

    python3 tests/reference/peers.py torch|llama|batch|kinds [--ours build] [--device cpu|cuda] [--threads 2]
              [--rounds 5] [--data FILE] [--model DIR] [--kinds KINDS.json] [--quick] [--json FILE]

torch: PyTorch's forwards, training and decoding, by the scripts beside this one. llama: llama.cpp's llama-bench, which
`make peers` builds, on every GGUF file in models/ that nanospec loads; in each round both do all of the work, and who
begins takes turns. batch: in the same way, llama-batched-bench beside `nanospec bench --only batch`: many texts side by
side. kinds: llama_speculate, which `make peers` builds too, answers three questions of each kind of those that
`nanospec bench --only kinds` has answered. What is not there is left out, and a line says how to get it. Ctrl-C ends
it, and what was measured whole by then is shown and written. Standard library only; PyTorch runs in the other scripts.
"""

import argparse
import glob
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT_SECONDS, LLAMA_SECONDS, OUR_SECONDS, ANSWER_SECONDS = 130, 120, 360, 600  # at most, for one process
FLAGS = (["-p", "8,16", "-n", "0", "-r", "16"], ["-p", "512", "-n", "64", "-r", "1"],
         ["-p", "0", "-n", "32", "-d", "1900", "-r", "1"])  # of llama-bench: all of the work
# Of each work: llama-bench's test (prompt, generated, depth); our rows; and the place, among the pasts that `bench --only
# forward` measures, of the one that they come after, None for a prefill.
WORK = {"one row": ((0, 64, 0), 1, 0), "8 rows": ((8, 0, 0), 8, 0), "16 rows": ((16, 0, 0), 16, 0),
        "prefill": ((512, 0, 0), 512, None), "one row, deep": ((0, 32, 1900), 1, 1)}
TEXT_TOKENS = 64  # of each text that `bench --only batch` decodes
QUESTIONS = 3  # of a kind, that llama.cpp answers by each of its methods


class Failed(Exception):
    pass


def left_out(why: str):
    print(f"left out: {why}\n")


def output_of(command: list, seconds: float, log: bool = False) -> str:
    """Runs it; what it printed, and then its log, if asked. Throws Failed with its last line."""
    name = next((os.path.basename(w) for w in map(str, command) if w.endswith(".py")), os.path.basename(command[0]))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(list(map(str, command)), text=True, start_new_session=True, **pipes)
    except OSError as error:
        raise Failed(f"{name} does not start: {error.strerror}: {command[0]}")
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as reason:  # too late, or Ctrl-C
        os.killpg(process.pid, signal.SIGTERM)  # and all that it started
        process.communicate()
        if isinstance(reason, subprocess.TimeoutExpired):
            raise Failed(f"{name} took more than {seconds} seconds")
        raise
    if process.returncode != 0:
        status = f"exit status {process.returncode}"
        if process.returncode < 0:
            status = signal.Signals(-process.returncode).name
        raise Failed(f"{name} failed: {((out + err).strip().splitlines() or [status])[-1]}")
    return out + log * err


def table(rows: list, align: str):
    """Prints rows of cells as aligned columns, the first one a head with a rule below."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for k, row in enumerate(rows):
        cells = [c.ljust(w) if a == "l" else c.rjust(w) for c, w, a in zip(row, widths, align)]
        print("  ".join(cells).rstrip())
        if k == 0:
            print("  ".join("-" * w for w in widths))
    print()


def spread(values: list) -> list:
    return [f"{x:.2f}" for x in (statistics.median(values), min(values), max(values))]


# PyTorch


def torch_work(args) -> list:
    """Names, scripts and flags."""
    ours = ["--threads", args.threads, "--rounds", 1 if args.quick else 2]
    suffix, cpu = ("-cuda" if args.device == "cuda" else ""), args.device == "cpu"

    def training(preset: str, iters: int, *more):
        return (f"train {preset}", "train_speed.py", ["--ours", f"{args.ours}/train_gpt{suffix}", "--device",
                args.device, "--data", args.data, "--presets", preset, "--iters", iters, *ours, *more])

    rounds = ["--threads", args.threads, "--rounds", 2 if args.quick else 7]
    work = [("forward", "forward_speed.py", ["--device", args.device, *rounds])]
    if args.quick:
        return work + [training("small", 3, "--no-compile")]
    work += [training("small", 60 if cpu else 200), training("medium", 4 if cpu else 100)]
    if cpu and os.path.exists(f"{args.model}/model.safetensors"):
        decoding = [args.model, "--ours", f"{args.ours}/nanospec", "--repeats", 3, "--tokens", 0]
        work.append(("decode", "decode_speed.py", decoding + ours))
    return work


def torch(args, result: dict):
    cuda = args.device == "cuda"
    try:
        output_of([sys.executable, "-c", "import torch" + ("; torch.zeros(1).cuda()" if cuda else "")], SCRIPT_SECONDS)
    except Failed as failed:
        if not cuda and "No module named 'torch'" not in str(failed):
            return left_out(f"PyTorch does not load: {failed}")
        where = " that finds the GPU" if cuda else ""
        return left_out(f"there is no PyTorch{where}: {sys.executable}: python3 -m venv build/venv && "
                        "build/venv/bin/pip install torch numpy transformers")
    with tempfile.TemporaryDirectory() as folder:
        for name, script, flags in torch_work(args):
            path = os.path.join(folder, "result.json")
            if "--data" in flags and not os.path.exists(args.data):
                left_out(f"{name}: there is no text: {args.data or 'data'}: get it with make data, or name one with "
                         "--data")
                continue
            try:
                command = [sys.executable, f"{HERE}/{script}", "--json", path, *flags]
                print(output_of(command, SCRIPT_SECONDS), flush=True)
            except Failed as failed:
                left_out(f"{name}: {failed}")
                continue
            with open(path) as f:
                result[name] = json.load(f)


# Rounds of llama.cpp and ours


def peer_program(args, name: str) -> str:
    """Its path; "" where it is not built, and a line says so."""
    program = f"{args.ours}/peers/bin/{name}"
    if os.access(program, os.X_OK):
        return program
    left_out(f"there is no llama.cpp: {program}: build it with make peers")
    return ""


def our_bench(args, only: str, file: str, repeat: int, *more) -> dict:
    """What our bench writes of one section."""
    with tempfile.TemporaryDirectory() as folder:
        output_of([f"{args.ours}/study", "bench", "--only", only, "--model", file, "--threads", args.threads,
                   "--repeat", repeat, "--quiet", "--out", folder, *more], OUR_SECONDS)
        with open(f"{folder}/{only}.json") as f:
            return json.load(f)


def in_turns(args, file: str, ours, theirs) -> tuple:
    """What both found in each round. Theirs is also given what ours found in the first."""
    found, peer_found = [], []
    for r in range(args.rounds):
        for turn in (ours, theirs) if r % 2 == 0 else (theirs, ours):
            if turn is ours:
                found.append(ours(args, file))
            else:
                peer_found.append(theirs(args, file, found[0]))
    return found, peer_found


def measure_files(args, program: str, measure, result: dict):
    """measure(args, file, result) of each file in models/, the largest first; --quick: of the smallest that loads."""
    if not peer_program(args, program):
        return
    files = sorted(glob.glob("models/*.gguf"), key=lambda f: (-os.path.getsize(f), f))
    if not files:
        return left_out("there is no GGUF file in models/ that loads: sh data/get_model.sh gets one")
    for file in files[::-1] if args.quick else files:
        try:
            measure(args, file, result)
        except Failed as failed:
            print(f"left out: {failed}" + (f": {file}" if file not in str(failed) else ""))
            continue
        if args.quick:
            return


# llama-bench


def their_round(args, file: str, _) -> dict:
    """Seconds of one forward by the work's name; and the build and the processor."""
    program, tests = f"{args.ours}/peers/bin/llama-bench", []
    for flags in FLAGS:
        text = output_of([program, "-m", file, "-t", args.threads, "-fa", 0, "-o", "json", *flags], LLAMA_SECONDS)
        try:
            tests += json.loads(text[max(text.find("\n["), 0) : text.rindex("\n]") + 2])
            found = {"build": tests[0]["build_commit"], "cpu": tests[0]["cpu_info"]}
        except (ValueError, LookupError):
            raise Failed("llama-bench printed what is not its -o json")
    for name, ((prompt, generated, depth), _, _) in WORK.items():
        same = [t for t in tests if (t["n_prompt"], t["n_gen"], t["n_depth"]) == (prompt, generated, depth)]
        if not same:
            raise Failed(f"llama-bench did not run the test of {prompt} and {generated} tokens at {depth}")
        found[name] = statistics.mean(same[0]["samples_ns"]) / 1e9 / max(generated, 1)
    return found


def our_round(args, file: str) -> dict:
    """The same of ours, as `bench --only forward` measures it; and the type and the bytes of the weights."""
    measured = our_bench(args, "forward", file, 3)["configurations"][0]
    pasts, prefill = measured["pasts"], measured["prefill"]
    if (pasts[1]["past"], prefill["tokens"]) != (1900, 512):
        raise Failed("it sees fewer than 2,048 tokens")
    found = {"type": measured["dtype"], "weight_bytes": measured["weight_bytes"]}
    for name, (_, rows, past) in WORK.items():
        same = [prefill] if past is None else [one for one in pasts[past]["rows"] if one["rows"] == rows]
        found[name] = statistics.median(same[0]["seconds"])
    found["prefill"] += found["one row"]  # which has the logits of the last token
    return found


def held_against(file: str, ours: list, theirs: list) -> dict:
    """One file's entry, of as many rounds of each."""
    entry = {"file": os.path.basename(file), "type": ours[0]["type"], "weight_bytes": ours[0]["weight_bytes"], "work": []}
    for name, ((_, _, depth), rows, _) in WORK.items():
        seconds, peer = [r[name] for r in ours], [r[name] for r in theirs]
        one, peer_one = [r["one row"] for r in ours], [r["one row"] for r in theirs]
        cost, peer_cost = ([a / b for a, b in zip(*two)] for two in ((seconds, one), (peer, peer_one)))
        times = [b / a for a, b in zip(seconds, peer)]
        entry["work"].append({"name": name, "rows": rows, "depth": depth, "times_as_fast": statistics.median(times),
                              "cost": statistics.median(cost), "peer_cost": statistics.median(peer_cost),
                              "seconds": seconds, "peer_seconds": peer})
    return entry


def llama_file(args, file: str, result: dict):
    ours, theirs = in_turns(args, file, our_round, their_round)
    found = {"build": theirs[0]["build"], "cpu": theirs[0]["cpu"], "files": []}
    result.setdefault("llama_cpp", found)["files"].append(held_against(file, ours, theirs))


def llama_table(build: str, cpu: str, files: list):
    rows = [["file", "work", "ms", "over one row", "llama.cpp, ms", "over one row", "times as fast", "lowest", "highest"]]
    for entry in files:
        for work in entry["work"]:
            times = [b / a for a, b in zip(work["seconds"], work["peer_seconds"])]
            rows.append([entry["type"] if work is entry["work"][0] else "", work["name"],
                         f"{1e3 * statistics.median(work['seconds']):.2f}", f"{work['cost']:.2f}",
                         f"{1e3 * statistics.median(work['peer_seconds']):.2f}", f"{work['peer_cost']:.2f}",
                         *spread(times)])
    print(f"llama.cpp of {build}, on {cpu}\n")
    table(rows, "llrrrrrrr")
    print("One forward of each, in the same minutes: one row after 0 to 64 tokens (ours: after 32); 8 and 16 rows; 512\n"
          "tokens (ours: and one row more, for their logits); one row after 1,900. Of several rows llama.cpp computes the\n"
          "logits of the last alone, nanospec those of all, but in a prefill. Its cache has 16 bits; ours too with weights\n"
          "of 8 and 4 bits, and else 32. Its flash attention is off (-fa 0).")


def llama(args, result: dict):
    try:
        measure_files(args, "llama-bench", llama_file, result)
    finally:  # where it was ended, those that are whole
        if "llama_cpp" in result:
            llama_table(**result["llama_cpp"])


# Many texts side by side


def our_batch(args, file: str) -> list:
    """One entry for each number of texts."""
    return our_bench(args, "batch", file, 1, *["--quick"] * args.quick)["batches"]


def their_batch(args, file: str, ours: list) -> list:
    """The same of theirs, after prompts of the mean length of ours."""
    found = []
    for texts, prompt in ((one["texts"], round(one["prompt_tokens"] / one["texts"])) for one in ours):
        text = output_of([f"{args.ours}/peers/bin/llama-batched-bench", "-m", file, "-t", args.threads, "-fa", 0,
                          "-c", texts * (prompt + TEXT_TOKENS), "-npp", prompt, "-ntg", TEXT_TOKENS, "-npl", texts,
                          "--output-format", "jsonl", "-lv", 4], ANSWER_SECONDS, log=True)
        cache, lines = re.search(r"size = +([0-9.]+) MiB \(.* cells", text), re.findall(r"^{.*}$", text, re.M)
        try:
            one = json.loads(lines[0])
            found.append({"prefill": one["t_pp"], "decoding": one["t_tg"], "kept_bytes": float(cache[1]) * 2**20})
        except (ValueError, LookupError, TypeError):
            raise Failed("llama-batched-bench printed what is not its jsonl")
    return found


def batch_file(args, file: str, result: dict):
    rounds, peer_rounds = in_turns(args, file, our_batch, their_batch)
    entry = {"file": os.path.basename(file), "batches": []}
    for ours, theirs in zip(zip(*rounds), zip(*peer_rounds)):  # of one number of texts, by round
        one = {key: ours[0][key] for key in ("texts", "prompt_tokens", "kept_bytes")}
        for key in ("plain_tokens_per_second", "drafted_tokens_per_second"):
            one[key] = [r[key][0] for r in ours]
        tokens = TEXT_TOKENS * one["texts"]
        one["peer_tokens_per_second"] = [tokens / (r["prefill"] + r["decoding"]) for r in theirs]
        one["peer_prefill_seconds"] = [r["prefill"] for r in theirs]
        one["peer_decoding_seconds"] = [r["decoding"] for r in theirs]
        one["peer_kept_bytes"] = theirs[0]["kept_bytes"]
        entry["batches"].append(one)
    result.setdefault("batch", []).append(entry)


def batch_table(file: str, batches: list):
    rows = [["texts", "plain", "suffix auto", "llama.cpp", "plain over it", "lowest", "highest", "suffix over it",
             "lowest", "highest", "cache, MB", "its"]]
    for one in batches:
        speeds = [one[f"{who}_tokens_per_second"] for who in ("plain", "drafted", "peer")]
        over = [[a / b for a, b in zip(ours, speeds[2])] for ours in speeds[:2]]
        rows.append([str(one["texts"]), *(f"{statistics.median(speed):.0f}" for speed in speeds), *spread(over[0]),
                     *spread(over[1]), *(f"{one[key] / 1e6:.1f}" for key in ("kept_bytes", "peer_kept_bytes"))])
    print(f"{file}: tokens a second\n")
    table(rows, "r" * len(rows[0]))


def batch(args, result: dict):
    try:
        measure_files(args, "llama-batched-bench", batch_file, result)
    finally:  # where it was ended, those that are whole
        for entry in result.get("batch", []):
            batch_table(**entry)
        if "batch" in result:
            print("Tokens of all texts over the whole time: the prefill of all prompts, then 64 tokens for each text.\n"
                  "llama.cpp's prompts have the mean length of ours. Its tokens are random, and none is sampled; ours\n"
                  "are sampled at temperature 1. Its cache has 16 bits, ours 32. Its flash attention is off (-fa 0).\n"
                  "Cache: what our texts hold at their end; all that llama.cpp has room for.")


# Kinds of questions


def geometric_mean(values: list) -> float:
    return math.exp(statistics.mean(map(math.log, values))) if values else 0.0


def answers_of(args, study: dict) -> list:
    """llama.cpp's answers to the first questions, a dict for each question and method."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "questions.jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps({"prompt": asked}) + "\n" for asked in study["asked"][:QUESTIONS])
        text = output_of([f"{args.ours}/peers/bin/llama_speculate", study["model"], path, study["max_new_tokens"],
                          args.threads, study["temperature"]], ANSWER_SECONDS)
    try:
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [{key: line[key] for key in ("prompt", "method", "tokens", "seconds")} for line in lines]
    except (ValueError, KeyError) as error:
        raise Failed(f"not what llama_speculate prints: {error}")


def our_speed(method: dict, prompt: int) -> float:
    """Tokens a second, the median of the repeats; a sample has tokens, forwards, nodes, seconds."""
    return statistics.median(repeat[prompt][0] / repeat[prompt][3] for repeat in method["samples"])


def held_against_best(study: dict, theirs: list) -> dict:
    """The best of llama.cpp's ways for questions of one kind, and our speed over it; {} where it answered none."""
    speeds, over = {}, {}
    for a in theirs:
        if a["seconds"] > 0:
            speeds.setdefault(a["method"], []).append(a["tokens"] / a["seconds"])
    if not speeds:
        return {}
    best = max(speeds, key=lambda method: geometric_mean(speeds[method]))
    speed, plain = geometric_mean(speeds[best]), geometric_mean(speeds.get("plain", []))
    for method in study["methods"]:
        ours = [our_speed(method, p) for p in range(min(QUESTIONS, len(study["asked"])))]
        over[method["drafter"]] = geometric_mean(ours) / speed
    return {"best": best, "speed": speed, "plain": plain, "over": over, "answers": theirs}


def kinds(args, result: dict):
    if not peer_program(args, "llama_speculate"):
        return
    if not os.path.exists(args.kinds):
        return left_out(f"there is no {args.kinds}: bench --only kinds writes it: name it with --kinds")
    with open(args.kinds) as f:
        result["studies"] = json.load(f)["studies"]
    rows = [["file", "T", "kind", "llama.cpp's best", "tok/s", "its plain", "ours over its best"]]
    try:
        for study in result["studies"]:
            found = study["llama_cpp"] = held_against_best(study, answers_of(args, study))
            if found:
                over = ", ".join(f"{drafter} {ratio:.2f}" for drafter, ratio in found["over"].items())
                rows.append([os.path.basename(study["model"]), f"{study['temperature']:g}", study["text"],
                             found["best"], f"{found['speed']:.1f}", f"{found['plain']:.1f}", over])
    except Failed as failed:
        left_out(str(failed))
    finally:  # where it was ended, those that are whole
        if len(rows) > 1:
            table(rows, "lrllrrl")


def first_there(*paths: str) -> str:
    return next((path for path in paths if os.path.exists(path)), "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", nargs="+", choices=["torch", "llama", "batch", "kinds"])
    parser.add_argument("--ours", default="build", help="the folder of our programs (default build)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of llama.cpp and ours (default 5)")
    parser.add_argument("--data", default=first_there("data/tinyshakespeare.txt", "data/shakespeare.txt"),
                        help="the training text (default: that of `make data`)")
    parser.add_argument("--model", default=first_there("runs/medium", "runs/small"),
                        help="a trained model's folder (default runs/medium, else runs/small)")
    parser.add_argument("--kinds", default="build/bench/kinds.json", metavar="FILE",
                        help="what `bench --only kinds` wrote (default build/bench/kinds.json)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    result, status = {}, 0
    try:
        for work in args.work:
            {"torch": torch, "llama": llama, "batch": batch, "kinds": kinds}[work](args, result)
    except KeyboardInterrupt:
        print("stopped; what was not whole is left out")
        status = 128 + signal.SIGINT
    if args.json:
        os.makedirs(os.path.dirname(args.json) or ".", exist_ok=True)
        with open(args.json, "w") as f:
            json.dump(result, f)
    sys.exit(status)


if __name__ == "__main__":
    main()
