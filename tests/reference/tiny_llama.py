"""Makes the tiny Llamas that tests/files/test_tiny_llama.cpp reads: models with random weights by `transformers`, as
GGUF files by the package `gguf`, and the logits that `transformers` computes with the numbers of those files.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy safetensors transformers gguf accelerate
    build/venv/bin/python tests/reference/tiny_llama.py

Writes into tests/files, and they are kept in git: run this again only when the models change.
    llama_NAME.gguf         the model, with the tokenizer of bpe_small.json and a ChatML template
    llama_NAME.safetensors  tokens (T), logits (T, V): F32
    llama_folder            llama_plain again, as save_pretrained() writes it, in bfloat16; its logits are the same

A file's numbers are those of its types (Q4_0, Q8_0 and so on): `transformers` computes with what `gguf` makes of them
again. Before a model is stored, `transformers` also reads the GGUF file by its own loader, and must find the same
logits: so neither the order of rotary rows nor a key of the metadata is this script's word alone.
"""

import json
import os
import shutil
import tempfile

import gguf
import numpy
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.normpath(os.path.join(HERE, "..", "files"))
TOKENS, CONTEXT = 32, 256  # with logits; of the window
MOST_BYTES = 400_000  # of a stored file

# Each has its own way to be unlike GPT, and its own types, which are spread over the tensors in turn.
MODELS = {
    "grouped": {  # query heads share keys in pairs; tied; blocks of 32 numbers
        "sizes": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=True),
        "theta": 10000.0, "ends": [Type.Q8_0], "types": [Type.Q4_0, Type.Q4_1, Type.Q8_0],
    },
    "single": {  # all heads share one key; heads are wider than C / H; untied
        "sizes": dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                      num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=False),
        "theta": 500000.0, "ends": [Type.F16, Type.Q4_1],
        "types": [Type.F16, Type.Q8_0, Type.BF16, Type.Q4_0, Type.Q4_1],
    },
    "plain": {  # every head has its own key; positions turn fast; all numbers are bfloat16's
        "sizes": dict(hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=4, head_dim=24, rms_norm_eps=1e-3, tie_word_embeddings=False),
        "theta": 100.0, "ends": [Type.BF16, Type.F32], "types": [Type.F32, Type.BF16], "bfloat16": True,
    },
}  # fmt: skip

# GGUF's names of a layer's tensors, and what transformers calls them.
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def small_tokenizer():
    """Texts, types and merges of bpe_small.json, by id, as tokenizer.ggml.* wants them."""
    with open(os.path.join(FILES, "bpe_small.json")) as file:
        parts = json.load(file)
    texts = {i: text for text, i in parts["model"]["vocab"].items()}
    types = {i: gguf.TokenType.NORMAL for i in texts}
    for token in parts["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in parts["model"]["merges"]]
    return [texts[i] for i in range(len(texts))], [types[i] for i in range(len(texts))], merges


def random_model(description, vocab):
    """Weights so large that attention looks at single places and every part of the model counts."""
    torch.manual_seed(16)
    config = transformers.LlamaConfig(
        vocab_size=vocab, max_position_embeddings=CONTEXT, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        rope_theta=description["theta"], **description["sizes"])  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            if description.get("bfloat16"):
                p.copy_(p.bfloat16().float())
    return model


def gguf_names(model):
    """Pairs of a tensor's name in GGUF and in transformers, in GGUF's usual order."""
    yield "token_embd", "model.embed_tokens"
    for n in range(model.config.num_hidden_layers):
        for ours, theirs in LAYER.items():
            yield f"blk.{n}.{ours}", f"model.layers.{n}.{theirs}"
    yield "output_norm", "model.norm"
    if not model.config.tie_word_embeddings:
        yield "output", "lm_head"


def interleaved(rows, heads):
    """Rows of queries or keys as llama.cpp's converter orders them: the two channels that turn together side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_metadata(writer, model):
    c = model.config
    texts, types, merges = small_tokenizer()
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(theta_of(c))
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_quantization_version(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def theta_of(config):
    """Where it stands depends on the version of transformers."""
    return getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]


def convert(model, description, path):
    """Writes the GGUF file; the model gets the numbers that the file has."""
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, model)
    weights, turn = model.state_dict(), 0
    for ours, theirs in gguf_names(model):
        values = weights[theirs + ".weight"]
        kind = Type.F32
        if values.ndim == 2:
            kinds = description["types" if ours.startswith("blk.") else "ends"]
            kind, turn = kinds[turn % len(kinds)], turn + 1
        packed = gguf.quants.quantize(values.numpy(), kind)
        with torch.no_grad():
            values.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind).copy()))
        heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
        if ours.split(".")[-1] in heads:
            packed = interleaved(packed, heads[ours.split(".")[-1]])
        writer.add_tensor(ours + ".weight", numpy.ascontiguousarray(packed), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0]


def hold_against_loader(path, tokens, logits):
    """transformers' own reading of the file; and double precision, which says what rounding alone may do."""
    folder, name = os.path.split(path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    largest = logits.abs().max().item()
    apart = (logits_of(theirs, tokens) - logits).abs().max().item() / largest
    rounding = (logits_of(theirs.double(), tokens) - logits).abs().max().item() / largest
    assert apart < 1e-6, f"{name}: by transformers' loader the logits differ by {apart:.1e}"
    assert rounding < 3e-6, f"{name}: in double precision the logits differ by {rounding:.1e}"
    print(f"{name}: largest logit {largest:.2f}; by transformers' own loader {apart:.1e} apart, in double {rounding:.1e}")


def store_folder(model):
    """config.json and model.safetensors as they come from transformers, without what only generate() wants."""
    folder = os.path.join(FILES, "llama_folder")
    with tempfile.TemporaryDirectory() as scratch:
        model.bfloat16().save_pretrained(scratch)
        os.makedirs(folder, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(scratch, name), os.path.join(folder, name))
    return [os.path.join(folder, name) for name in ("config.json", "model.safetensors")]


def main():
    transformers.logging.set_verbosity_error()
    vocab = len(small_tokenizer()[0])
    stored = []
    for name, description in MODELS.items():
        path = os.path.join(FILES, f"llama_{name}.gguf")
        model = random_model(description, vocab)
        convert(model, description, path)
        tokens = torch.randint(vocab, (TOKENS,), generator=torch.Generator().manual_seed(17))
        logits = logits_of(model, tokens)
        hold_against_loader(path, tokens, logits)
        values = path.replace(".gguf", ".safetensors")
        save_file({"tokens": tokens.float(), "logits": logits.contiguous()}, values)
        stored += [path, values]
        if description.get("bfloat16"):
            stored += store_folder(model)
    for path in stored:
        size = os.path.getsize(path)
        print(f"{os.path.relpath(path)}: {size:,} bytes")
        assert size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES:,} bytes"


if __name__ == "__main__":
    main()
