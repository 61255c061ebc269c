#!/usr/bin/env python3
"""Holds files/gguf.h against the Python package `gguf`: metadata, tensors, and every number, bit for bit.

usage: gguf_check.py [--stored | FILE ...]
  FILE      GGUF files to compare too: a real model, say
  --stored  only print the files, and their numbers' bits, that tests/files/test_gguf.cpp has in its text

First it writes files of its own with the package, versions 2 and 3: every kind of metadata; all 65,536 halves and
bfloat16 numbers; blocks that the package quantized, where it can, and blocks of random bits, scales that are not finite
among them; and a small Llama model. Exit status 0 when all are equal; numbers that are not finite must be so
in both, and infinities of one sign. Needs numpy and gguf (PyPI), and build/dump_gguf (make build/dump_gguf).
"""
import hashlib
import os
import subprocess
import sys
import tempfile

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

DUMP = "build/dump_gguf"
BLOCKS = {Type.Q8_0: 34, Type.Q4_0: 18, Type.Q4_1: 20}  # bytes of a block
MORE_BLOCKS = {Type.Q5_0: 22, Type.Q5_1: 24, Type.Q3_K: 110, Type.Q4_K: 144, Type.Q5_K: 176, Type.Q6_K: 210}
FLOATS = {Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
chance = numpy.random.default_rng(16)


def add(writer, name, kind, shape):
    """A tensor of that shape, quantized by the package."""
    values = chance.normal(size=shape).astype("f4")
    if kind == Type.F32:
        writer.add_tensor(name, values)
    elif kind == Type.F16:
        writer.add_tensor(name, values.astype("f2"))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_types(path):
    writer = gguf.GGUFWriter(path, "test")
    writer.add_custom_alignment(64)
    for kind, least, most in (
        (Kind.UINT8, 0, 255), (Kind.INT8, -128, 127), (Kind.UINT16, 0, 65535), (Kind.INT16, -32768, 32767),
        (Kind.UINT32, 0, 2**32 - 1), (Kind.INT32, -(2**31), 2**31 - 1), (Kind.UINT64, 0, 2**64 - 1),
        (Kind.INT64, -(2**63), 2**63 - 1), (Kind.FLOAT32, -0.1, 1e38), (Kind.FLOAT64, -0.1, 1e308),
        (Kind.BOOL, False, True), (Kind.STRING, "", "caf\u00e9 \u4e16")):
        writer.add_key_value(f"test.{kind.name}.least", least, kind)
        writer.add_key_value(f"test.{kind.name}.most", most, kind)
        writer.add_key_value(f"test.{kind.name}.list", [least, most, least], Kind.ARRAY, sub_type=kind)
    sixteen = numpy.arange(65536, dtype="u2").reshape(256, 256)
    writer.add_tensor("halves", sixteen.view("f2"))
    writer.add_tensor("bfloat16", sixteen.view("u1").reshape(256, 512), raw_dtype=Type.BF16)
    writer.add_tensor("floats", numpy.frombuffer(chance.bytes(4 * 4096), dtype="f4").reshape(2, 32, 64))
    for kind, width in (BLOCKS | MORE_BLOCKS).items():
        if not kind.name.endswith("K"):
            add(writer, f"quantized.{kind.name}", kind, (48, 96))
        random = numpy.frombuffer(chance.bytes(4096 * 3 * width), dtype="u1").reshape(4096, 3 * width)
        writer.add_tensor(f"random.{kind.name}", random, raw_dtype=kind)
    add(writer, "line", Type.F32, (7,))
    finish(writer)


def write_llama(path):
    V, C, F, H, KV, D = 40, 64, 96, 4, 2, 16
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(C)
    writer.add_block_count(2)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(KV)
    writer.add_key_length(D)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(D)
    writer.add_vocab_size(V)
    writer.add_token_list([f"t{i}" for i in range(V)])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(2)
    add(writer, "token_embd.weight", Type.Q8_0, (V, C))
    add(writer, "output_norm.weight", Type.F32, (C,))
    add(writer, "output.weight", Type.BF16, (V, C))
    for n in range(2):
        kind = (Type.Q4_0, Type.Q4_1)[n]
        for name, shape in (("attn_q", (H * D, C)), ("attn_k", (KV * D, C)), ("attn_v", (KV * D, C)),
                            ("attn_output", (C, H * D)), ("ffn_gate", (F, C)), ("ffn_up", (F, C)),
                            ("ffn_down", (C, F))):
            add(writer, f"blk.{n}.{name}.weight", kind, shape)
        add(writer, f"blk.{n}.attn_norm.weight", Type.F32, (C,))
        add(writer, f"blk.{n}.ffn_norm.weight", Type.F16, (C,))
    finish(writer)


def print_stored(path):
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("test.words", ["a", "bc"])
    writer.add_float32("test.third", 1 / 3)
    wave = (numpy.arange(32, dtype="f4") - 11) ** 3 / 700
    for kind in BLOCKS:
        writer.add_tensor(kind.name, gguf.quants.quantize(wave.reshape(1, 32), kind), raw_dtype=kind)
    writer.add_tensor("F16", wave[:6].reshape(2, 3).astype("f2"))
    writer.add_tensor("BF16", gguf.quants.quantize(wave[:4].reshape(1, 4), Type.BF16), raw_dtype=Type.BF16)
    writer.add_tensor("F32", wave[:2])
    finish(writer)
    data = open(path, "rb").read().hex()
    for at in range(0, len(data), 112):
        print(f'    "{data[at:at + 112]}"')
    for tensor in gguf.GGUFReader(path).tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("f4", copy=False).reshape(-1)
        print(tensor.name + ":", ", ".join(f"0x{bits:08x}" for bits in numbers.view("u4")))


def print_digests():
    """Of more types: SHA-256 of what 64 blocks become, made by a formula that test_gguf.cpp has too."""
    for kind, width in MORE_BLOCKS.items():
        state, data = numpy.uint32(kind.value), []
        for _ in range(64 * width):
            state = numpy.uint32(state * numpy.uint32(1664525) + numpy.uint32(1013904223))
            data.append(int(state) >> 24)
        blocks = numpy.array(data, dtype="u1").reshape(64, width)
        for at in FLOATS[kind]:  # the high byte of a half: below 2
            blocks[:, at + 1] &= 0xBF
        numbers = gguf.quants.dequantize(blocks, kind).astype("f4", copy=False)
        assert numpy.isfinite(numbers).all()
        print(kind.name, hashlib.sha256(numpy.ascontiguousarray(numbers).tobytes()).hexdigest(),
              ", ".join(f"0x{bits:08x}" for bits in numbers.reshape(-1)[:3].view("u4")))


def as_version_2(path):
    """The same file with the other version: nothing else differs in a little-endian file."""
    data = bytearray(open(path, "rb").read())
    assert data[4:8] == b"\x03\0\0\0"
    data[4] = 2
    other = path.replace(".gguf", "-2.gguf")
    open(other, "wb").write(data)
    return other


def shown(field):
    """A value as dump_gguf prints it; None for what it prints in another way (escapes, long texts)."""
    value, kind = field.contents(), field.types[-1]
    integers = (Kind.UINT8, Kind.INT8, Kind.UINT16, Kind.INT16, Kind.UINT32, Kind.INT32, Kind.UINT64, Kind.INT64)
    if field.types[0] == Kind.ARRAY:
        noun = {Kind.STRING: "text", Kind.FLOAT32: "float", Kind.FLOAT64: "float", Kind.BOOL: "flag"}
        return f"a list of {len(value)} {noun.get(kind, 'whole number')}{'' if len(value) == 1 else 's'}"
    if kind in integers:
        return str(value)
    if kind == Kind.BOOL:
        return "true" if value else "false"
    if kind == Kind.STRING:
        return f'"{value}"' if len(value) <= 60 and value.isprintable() else None
    return "%.9g" % value if kind == Kind.FLOAT32 else "%.17g" % value


def equal(ours, theirs):
    """Whether all bits are equal; a NaN is as good as another."""
    if numpy.array_equal(ours.view("u4"), theirs.view("u4")):
        return True
    same = (ours.view("u4") == theirs.view("u4")) | (numpy.isnan(ours) & numpy.isnan(theirs))
    return bool(same.all())


def compare(path):
    """What differs between our reading of a file and that of the package."""
    reader = gguf.GGUFReader(path)
    with tempfile.TemporaryDirectory() as folder:
        floats = os.path.join(folder, "floats")
        run = subprocess.run([DUMP, path, floats], capture_output=True, text=True)
        if run.returncode != 0:
            return [run.stderr.strip()]
        lines = [line.split("\t") for line in run.stdout.split("\n")]
        wrong = []
        values = {line[1]: line[2] for line in lines if line[0] == "key"}
        expected = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        if set(values) != set(expected):
            wrong.append(f"keys differ: {set(values) ^ set(expected)}")
        for name, field in expected.items():
            want = shown(field)
            if want is not None and values.get(name) != want:
                wrong.append(f"{name} is {values.get(name)}, expected {want}")
        tensors = [line[1:] for line in lines if line[0] == "tensor"]
        theirs = [[t.name, t.tensor_type.name, ",".join(str(n) for n in reversed(t.shape.tolist()))]
                  for t in reader.tensors]
        if tensors != theirs:
            return wrong + [f"tensors differ: {tensors[:3]} ..., expected {theirs[:3]} ..."]
        ours = numpy.memmap(floats, dtype="f4", mode="r")
        at = 0
        for tensor in reader.tensors:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("f4", copy=False).reshape(-1)
            if not equal(numpy.array(ours[at:at + numbers.size]), numpy.ascontiguousarray(numbers)):
                wrong.append(f"{tensor.name} ({tensor.tensor_type.name}) differs")
            at += numbers.size
        if at != ours.size:
            wrong.append(f"{ours.size} numbers, expected {at}")
        if not wrong:
            kinds = sorted({t.tensor_type.name for t in reader.tensors})
            print(f"{os.path.basename(path)}: {len(values)} keys, {len(tensors)} tensors of {', '.join(kinds)}, "
                  f"{at:,} numbers: equal")
        return wrong


def main(paths):
    failed = []
    numpy.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        if paths == ["--stored"]:
            print_stored(os.path.join(folder, "stored.gguf"))
            print_digests()
            return 0
        types, llama = os.path.join(folder, "types.gguf"), os.path.join(folder, "llama.gguf")
        write_types(types)
        write_llama(llama)
        for path in [types, as_version_2(types), llama, as_version_2(llama)] + paths:
            failed += [f"{os.path.basename(path)}: {wrong}" for wrong in compare(path)]
    for line in failed:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
