"""Writes a GGUF file of Mistral 7B's sizes with random weights of 4 bits, to see what a large model takes.

    python3 -m venv build/venv && build/venv/bin/pip install gguf numpy
    build/venv/bin/python tests/reference/big_model.py build/big.gguf   # 4.1 GB
    build/nanospec bench --only forward --model build/big.gguf --repeat 3
    build/nanospec generate --model build/big.gguf --prompt a --max_new_tokens 16 --stats build/big.json  # peak_bytes

Its tokenizer is SentencePiece's, with the bytes and made-up words. All layers share their numbers: a forward reads as
many bytes as one of a real model, and what it writes is noise.
"""

import sys

import gguf
import numpy

LAYERS, CHANNELS, INNER, HEADS, KEY_HEADS, VOCAB = 32, 4096, 14336, 32, 8, 32000
TYPE = gguf.GGMLQuantizationType.Q4_0


def matrix(rng, outputs: int, inputs: int):
    """Rows of blocks: a scale of 16 bits, then 32 codes of 4 bits; the weights' standard deviation is 1 / sqrt(inputs)."""
    blocks = numpy.empty((outputs, inputs // 32, 18), numpy.uint8)
    scale = numpy.float16(1 / (4.61 * inputs**0.5))
    blocks[:, :, :2] = numpy.frombuffer(scale.tobytes(), numpy.uint8)
    blocks[:, :, 2:] = rng.integers(256, size=(outputs, inputs // 32, 16), dtype=numpy.uint8)
    return blocks.reshape(outputs, -1)


def write_tokens(writer):
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [" ".replace(" ", "\u2581")]
    words += [f"\u2581{n}" for n in range(VOCAB - len(words))]
    kinds = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(VOCAB)])
    writer.add_token_types(kinds + (VOCAB - len(kinds)) * [gguf.TokenType.NORMAL])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: big_model.py FILE.gguf")
    writer, rng = gguf.GGUFWriter(sys.argv[1], "llama"), numpy.random.default_rng(1)
    writer.add_context_length(32768)
    writer.add_embedding_length(CHANNELS)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(CHANNELS // HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_quantization_version(2)
    write_tokens(writer)
    keys = CHANNELS // HEADS * KEY_HEADS
    shapes = {"attn_q": (CHANNELS, CHANNELS), "attn_k": (keys, CHANNELS), "attn_v": (keys, CHANNELS),
              "attn_output": (CHANNELS, CHANNELS), "ffn_gate": (INNER, CHANNELS), "ffn_up": (INNER, CHANNELS),
              "ffn_down": (CHANNELS, INNER)}
    numbers = {name: matrix(rng, *shape) for name, shape in shapes.items()}
    norm = numpy.ones(CHANNELS, numpy.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", matrix(rng, VOCAB, CHANNELS), raw_dtype=TYPE)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(LAYERS):
        for name, values in numbers.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", values, raw_dtype=TYPE)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
