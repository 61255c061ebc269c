#!/usr/bin/env python3
"""Holds nanospec's SentencePiece BPE (files/bpe.h) against Hugging Face's `tokenizers` and against `sentencepiece`.

usage: pieces_check.py [--lines N] [--seed N] [--model FILE]    compares the ids of N random lines (100,000)
       pieces_check.py --store                                  makes tests/files/bpe_pieces.json

Compared are tokenizer.json files in Llama 2's form and in Mistral's, by `tokenizers`, of the small vocabulary of the
tests; and with --model, a tokenizer.model such as mistral_common/data/tokenizer.model.v1 of the package mistral-common,
that one too, and the same as a GGUF file, which merges by scores, by `sentencepiece`. Exit status 0 when all are equal.

  build/venv/bin/pip install tokenizers sentencepiece gguf mistral-common
  make build/dump_tokens && build/venv/bin/python tests/reference/pieces_check.py
"""
import argparse
import json
import os
import sys
import tempfile

from bpe_check import (
    ROOT, Tokenizer, Writer, compare, models, ours, pre_tokenizers, repaired, trainers, write_rows,
)  # fmt: skip

PIECES = os.path.join(ROOT, "tests/files/bpe_pieces.json")
MARK = "\u2581"
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK},
                                               {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
DECODERS = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": False}


# Where a space is put: the normalizer and the pre-tokenizer that do it.
FORMS = {"llama2": (PREPEND, None), "first": (None, metaspace("first")), "always": (None, metaspace("always")),
         "never": (None, metaspace("never"))}


def in_form(file, form):
    normalizer, pre = FORMS[form]
    decoders = DECODERS + ([] if form == "never" else [STRIP])
    return dict(file, normalizer=normalizer, pre_tokenizer=pre, decoder={"type": "Sequence", "decoders": decoders})


def tokenizer_json(vocab, merges, specials):
    added = [dict(id=vocab[t], content=t, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=t != "<tool>") for t in specials]
    model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
                 fuse_unk=True, byte_fallback=True, ignore_merges=False, vocab=vocab, merges=merges)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None,
                post_processor=None, decoder=None, model=model)


def from_sentencepiece(sp):
    """A merge for each cut of a piece into two, the best scores first, as Hugging Face's converter writes them."""
    vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    merges = []
    for piece, i in sorted(vocab.items(), key=lambda item: (-sp.get_score(item[1]), item[1])):
        if sp.is_byte(i) or sp.is_control(i) or sp.is_unknown(i):
            continue
        cuts = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab]
        merges += sorted(cuts, key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))
    return tokenizer_json(vocab, [list(m) for m in merges], ["<unk>", "<s>", "</s>"])


def write_gguf(sp, path):
    import gguf
    writer, n = gguf.GGUFWriter(path, "llama"), sp.get_piece_size()
    kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in range(n)])
    writer.add_token_scores([sp.get_score(i) for i in range(n)])
    writer.add_token_types([kind(i) for i in range(n)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class BySentencePiece:
    """What compare() asks of a tokenizer. A text's special tokens are plain text to sentencepiece."""

    def __init__(self, sp):
        self.sp = sp

    def id_to_token(self, i):
        return self.sp.id_to_piece(i)

    def encode_batch_fast(self, lines, add_special_tokens):
        class Encoded:
            pass
        all = []
        for line in lines:
            all.append(Encoded())
            all[-1].ids = self.sp.encode(line)
        return all


def check(args):
    files = {"small": json.load(open(PIECES, encoding="utf-8"))["tokenizer"]}
    wrong, turn, folder = 0, 50000, tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "tokenizer.json")
    sp = None
    if args.model:
        import sentencepiece
        sp = sentencepiece.SentencePieceProcessor(model_file=args.model)
        files[os.path.basename(args.model)] = from_sentencepiece(sp)
    for name, file in files.items():
        writer = Writer(args.seed, [t["content"] for t in file["added_tokens"]])
        writer.kinds.append(lambda: writer.r.choice([MARK, " " + MARK, "\n", "  \n "]))
        for form in FORMS if name == "small" else ["llama2", "first"]:
            with open(path, "w", encoding="utf-8") as out:
                json.dump(in_form(file, form), out)
            tokenizer = Tokenizer.from_file(path)
            for begin in range(0, args.lines, turn):
                lines = [writer.line() for _ in range(min(turn, args.lines - begin))]
                wrong += compare(f"{name}, {form}", path, tokenizer, lines, begin // turn % 2 == 1, form)
    if sp:
        path = os.path.join(folder.name, "tokenizer.gguf")
        write_gguf(sp, path)
        for begin in range(0, args.lines, turn):
            lines = [writer.line() for _ in range(min(turn, args.lines - begin))]
            lines = [line for line in lines if b"\0" not in line]  # sentencepiece ends a text there
            wrong += compare(f"{name}, GGUF, by sentencepiece", path, BySentencePiece(sp), lines, True, "gguf")
    print(f"{wrong} lines differ")
    return 1 if wrong else 0


def store():
    writer = Writer(4, ["<s>", "</s>", "<tool>"])
    with open(os.path.join(ROOT, "data/tinyshakespeare.txt"), encoding="utf-8") as file:
        text = file.read()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, limit_alphabet=90)
    tokenizer.train_from_iterator(text.split("\n") + ["         x", "  y", "\n", "\n\n", "\u00e9 \u4e16"] * 50, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    names += sorted(model["vocab"], key=model["vocab"].get) + ["<tool>"]
    file = tokenizer_json({name: i for i, name in enumerate(names)}, [list(m) for m in model["merges"]],
                          ["<unk>", "<s>", "</s>", "<tool>"])
    lines = ["", " ", "a", "  a", "Hello world", " Hello", "a\u2581b", "<s>Hello</s> there<tool>x", "\n\n", "\t<0x0A>",
             "\u4e16\u754c \u00e9\u00e8", "\U0001F600\u200d", "<s> a", "<s>", "   <tool>   "]
    while len(lines) < 60:
        line = repaired(writer.line())
        if len(line.encode()) < 40:
            lines.append(line)
    made = {form: Tokenizer.from_str(json.dumps(in_form(file, form))) for form in FORMS}
    rows = []
    for line in lines:
        rows.append(dict(text=line, **{form: tokenizer.encode(line).ids for form, tokenizer in made.items()}))
        rows[-1]["decoded"] = made["llama2"].decode(rows[-1]["llama2"], skip_special_tokens=False)
    write_rows(PIECES, file, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--lines", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model")
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    sys.exit(store() if arguments.store else check(arguments))
