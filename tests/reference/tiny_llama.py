"""Makes the tiny models that tests/files/test_tiny_llama.cpp reads: Llamas and models of the other families, with
random weights by `transformers`, as GGUF files by the package `gguf`, and the logits that `transformers` computes with
the numbers of those files.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy safetensors transformers gguf accelerate
    build/venv/bin/python tests/reference/tiny_llama.py

Writes into tests/files, and they are kept in git: run this again only when the models change.
    llama_NAME.gguf         the model, with the tokenizer of bpe_small.json, or its first 280 tokens and <tool>, and a
                            ChatML template
    llama_NAME.safetensors  tokens (T), logits (T, V): F32
    llama_folder            llama_plain again, as save_pretrained() writes it, in bfloat16; its logits are the same
    folder_NAME             likewise the other families

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
        "theta": 100.0, "ends": [Type.BF16, Type.F32], "types": [Type.F32, Type.BF16], "bfloat16": "llama_folder",
    },
}  # fmt: skip
SMALL = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             rms_norm_eps=1e-5, tie_word_embeddings=True)  # fmt: skip
for family, kind, more in (
    ("llama3", "Llama", dict(head_dim=16, rope_scaling=dict(  # pairs of each kind: not scaled, in between, all scaled
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64))),
    ("mistral", "Mistral", dict(sliding_window=5)),
    ("qwen2", "Qwen2", dict()),
    ("qwen3", "Qwen3", dict(head_dim=16)),
    ("gpt2", "GPT2", dict()),
):  # fmt: skip
    MODELS[family] = {
        "class": kind, "sizes": dict(SMALL, **more), "theta": 1000.0, "ends": [Type.BF16], "types": [Type.BF16],
        "bfloat16": f"folder_{family}", "tokens": 8, "ids": 280,
    }  # fmt: skip
GPT2_SIZES = dict(n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)

# GGUF's names of a layer's tensors, and what transformers calls them.
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
MORE = {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}  # a Qwen3's, in self_attn
GPT2_LAYER = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def small_tokenizer(most=None):
    """Texts, types and merges of bpe_small.json, by id, as tokenizer.ggml.* wants them; of its first, and <tool>."""
    with open(os.path.join(FILES, "bpe_small.json")) as file:
        parts = json.load(file)
    texts = {i: text for text, i in parts["model"]["vocab"].items() if most is None or i < most}
    tool = parts["added_tokens"][-1]
    tool["id"] = len(texts)
    types = {i: gguf.TokenType.NORMAL for i in texts}
    for token in parts["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in parts["model"]["merges"]]
    known = set(texts.values())
    merges = [m for m in merges if m.replace(" ", "") in known]
    return [texts[i] for i in range(len(texts))], [types[i] for i in range(len(texts))], merges


def random_model(description, vocab):
    """Weights so large that attention looks at single places and every part of the model counts."""
    torch.manual_seed(16)
    kind, sizes = description.get("class", "Llama"), dict(description["sizes"], max_position_embeddings=CONTEXT)
    if kind == "GPT2":
        sizes = dict(GPT2_SIZES, n_positions=CONTEXT)
    else:
        sizes["rope_theta"] = description["theta"]
        if "rope_scaling" in sizes:
            sizes["rope_scaling"]["rope_theta"] = description["theta"]
    config = getattr(transformers, kind + "Config")(
        vocab_size=vocab, initializer_range=0.2, bos_token_id=1, eos_token_id=2, **sizes)  # fmt: skip
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(float("bias" not in name) + 0.3 * torch.randn_like(p))
            if description.get("bfloat16"):
                p.copy_(p.bfloat16().float())
    return model


def gguf_names(model):
    """Pairs of a tensor's name in GGUF and in transformers, in GGUF's usual order."""
    names = dict(model.named_parameters())

    def with_bias(ours, theirs):
        for ending in (".weight", ".bias"):
            if theirs + ending in names:
                yield ours + ending, theirs + ending

    gpt2 = model.config.model_type == "gpt2"
    yield from with_bias("token_embd", "transformer.wte" if gpt2 else "model.embed_tokens")
    if gpt2:
        yield from with_bias("position_embd", "transformer.wpe")
    for n in range(model.config.num_hidden_layers):
        for ours, theirs in (GPT2_LAYER if gpt2 else LAYER).items():
            yield from with_bias(f"blk.{n}.{ours}", f"transformer.h.{n}.{theirs}" if gpt2 else f"model.layers.{n}.{theirs}")
        for theirs, ours in MORE.items():
            yield from with_bias(f"blk.{n}.{ours}", f"model.layers.{n}.self_attn.{theirs}")
    yield from with_bias("output_norm", "transformer.ln_f" if gpt2 else "model.norm")
    if not model.config.tie_word_embeddings:
        yield from with_bias("output", "lm_head")


def interleaved(rows, heads):
    """Rows of queries or keys as llama.cpp's converter orders them: the two channels that turn together side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_metadata(writer, model):
    c = model.config
    texts, types, merges = small_tokenizer(c.vocab_size - 1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    if c.model_type == "gpt2":
        writer.add_feed_forward_length(4 * c.n_embd)
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        writer.add_feed_forward_length(c.intermediate_size)
        writer.add_head_count_kv(c.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(theta_of(c))
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
        if getattr(c, "sliding_window", None):
            writer.add_sliding_window(c.sliding_window)
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


def rope_type(config):
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")


def rope_factors(config):
    """By how much transformers slows each pair, as llama.cpp's converter stores it."""
    inverse, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (theta_of(config) ** -(torch.arange(len(inverse)) / len(inverse)) / inverse).numpy()


def convert(model, description, path):
    """Writes the GGUF file; the model gets the numbers that the file has."""
    kind = {"mistral": "llama"}.get(model.config.model_type, model.config.model_type)
    writer = gguf.GGUFWriter(path, kind)
    write_metadata(writer, model)
    if rope_type(model.config) == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(model.config).astype(numpy.float32))
    weights, turn = model.state_dict(), 0
    for ours, theirs in gguf_names(model):
        values = weights[theirs]
        if values.ndim == 2 and kind == "gpt2" and ours.startswith("blk."):
            values = values.T.contiguous()  # transformers' Conv1D has (in, out)
        kinds, kind_of = description["types" if ours.startswith("blk.") else "ends"], Type.F32
        if values.ndim == 2:
            kind_of, turn = kinds[turn % len(kinds)], turn + 1
        packed = gguf.quants.quantize(values.numpy(), kind_of)
        with torch.no_grad():
            values.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind_of).copy()))
        part = ours.split(".")[-2]
        if kind == "llama" and part in ("attn_q", "attn_k"):
            c = model.config
            packed = interleaved(packed, c.num_attention_heads if part == "attn_q" else c.num_key_value_heads)
        writer.add_tensor(ours, numpy.ascontiguousarray(packed), raw_dtype=kind_of)
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
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    largest = logits.abs().max().item()
    apart = (logits_of(theirs, tokens) - logits).abs().max().item() / largest
    rounding = (logits_of(theirs.double(), tokens) - logits).abs().max().item() / largest
    assert apart < 1e-6, f"{name}: by transformers' loader the logits differ by {apart:.1e}"
    assert rounding < 3e-6, f"{name}: in double precision the logits differ by {rounding:.1e}"
    print(f"{name}: largest logit {largest:.2f}; by transformers' own loader {apart:.1e} apart, in double {rounding:.1e}")


def store_folder(model, name):
    """config.json and model.safetensors as they come from transformers, without what only generate() wants."""
    folder = os.path.join(FILES, name)
    with tempfile.TemporaryDirectory() as scratch:
        model.bfloat16().save_pretrained(scratch)
        os.makedirs(folder, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(scratch, name), os.path.join(folder, name))
    return [os.path.join(folder, name) for name in ("config.json", "model.safetensors")]


def main():
    transformers.logging.set_verbosity_error()
    stored = []
    for name, description in MODELS.items():
        path = os.path.join(FILES, f"llama_{name}.gguf")
        vocab = len(small_tokenizer(description.get("ids"))[0])
        model = random_model(description, vocab)
        convert(model, description, path)
        count = description.get("tokens", TOKENS)
        tokens = torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(17))
        logits = logits_of(model, tokens)
        if name not in ("llama3", "mistral", "qwen3", "gpt2"):  # of these the loader does not read all sizes
            hold_against_loader(path, tokens, logits)
        values = path.replace(".gguf", ".safetensors")
        save_file({"tokens": tokens.float(), "logits": logits.contiguous()}, values)
        stored += [path, values]
        if description.get("bfloat16"):
            stored += store_folder(model, description["bfloat16"])
    for path in stored:
        size = os.path.getsize(path)
        print(f"{os.path.relpath(path)}: {size:,} bytes")
        assert size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES:,} bytes"


if __name__ == "__main__":
    main()
