"""Makes the reference values that the tests of the model and of AdamW read: loss, gradients and two updates of a
fixed tiny GPT (2 layers, 2 heads, 32 channels, block 16, vocabulary 23), by PyTorch in double precision.

    python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers
    build/venv/bin/python tests/reference/make_values.py

Writes values_nobias.safetensors and values_bias.safetensors beside itself. They are kept in git: run this again only
when the model changes. Before it writes, it holds its own model against transformers' GPT2LMHeadModel.

In a file (all F32; matrices as (in, out)):
    weights.NAME   exact in float32
    tokens, targets  (3, 16); a target is the next token
    loss           (1), the mean cross-entropy of the batch
    grads.NAME     its gradient. The key bias (channels 32 to 63 of c_attn.bias) has gradient zero but for rounding.
    after.NAME     the weights after one update of AdamW (below), *from the stored grads*, clipped to norm 1
    after2.NAME    the same after a second update, whose gradients are -0.5 times the stored ones (clipped likewise).
                   In a first update beta1 and beta2 cancel out; here they show. Only the tensors of AFTER2.
The metadata's `settings` repeat the configuration and AdamW's settings as JSON. Start from grads.NAME to test AdamW:
it divides by the gradient's size, so the rounding of a tiny gradient would come out at full size.
"""

import json
import os

import torch
from safetensors.torch import save
from transformers import GPT2Config, GPT2LMHeadModel

from gpt import GPT, Config, decay_groups, file_layout

ADAMW = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8}
WEIGHT_DECAY, GRAD_CLIP = 0.1, 1.0
AFTER2 = {"wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.1.attn.c_proj.weight"}


class Draw:
    """Numbers drawn by x <- 1664525 x + 1013904223 mod 2^32 (Numerical Recipes), from x = 1; the upper bits count."""

    def __init__(self):
        self.x = 1

    def bits(self, n: int) -> int:
        self.x = (1664525 * self.x + 1013904223) % 2**32
        return self.x >> (32 - n)

    def weight(self) -> float:
        """Uniform on the middles of 256 equal intervals of (-0.5, 0.5): standard deviation 0.289."""
        return (self.bits(8) + 0.5) / 256 - 0.5


def draw_model(config: Config, draw: Draw) -> GPT:
    """Every weight and bias from draw.weight(), in the files' order and layout; the norms' weights 1 above that."""
    model = GPT(config).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            stored = file_layout(name, p)
            centre = 1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0
            values = torch.tensor([centre + draw.weight() for _ in range(p.numel())], dtype=torch.float64)
            p.copy_(file_layout(name, values.view(stored.shape)))
    return model


def transformers_loss_and_grads(model: GPT, tokens, targets):
    """The same by transformers: a model that is not ours."""
    c = model.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.vocab_size, n_positions=c.block_size, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head,
            activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
    ).double()
    with torch.no_grad():
        for name, p in theirs.transformer.named_parameters():
            ours = dict(model.named_parameters()).get(name)
            p.copy_(torch.zeros_like(p) if ours is None else file_layout(name, ours))
    logits = theirs(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in theirs.transformer.named_parameters()}


def make(config: Config, path: str):
    draw = Draw()
    model = draw_model(config, draw)
    text = torch.tensor([[draw.bits(16) % config.vocab_size for _ in range(config.block_size + 1)] for _ in range(3)])
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    loss = model(tokens, targets)
    loss.backward()
    their_loss, their_grads = transformers_loss_and_grads(model, tokens, targets)
    worst = abs(their_loss - loss.item())
    for name, p in model.named_parameters():
        worst = max(worst, (file_layout(name, p.grad) - their_grads[name]).norm().item() / p.grad.norm().item())
    assert worst < 1e-12, f"our model and transformers' differ by {worst:.1e}"

    out = {"tokens": tokens.float(), "targets": targets.float(), "loss": loss.detach().float().view(1)}

    def keep(prefix, tensors, only=None):
        for name, tensor in tensors:
            if only is None or name in only:
                out[f"{prefix}.{name}"] = file_layout(name, tensor.detach()).float()

    grads = {name: p.grad.float().double() for name, p in model.named_parameters()}
    keep("weights", model.named_parameters())
    keep("grads", grads.items())

    optimizer = torch.optim.AdamW(decay_groups(model, WEIGHT_DECAY), **ADAMW)
    norms = []
    for factor, prefix, only in ((1.0, "after", None), (-0.5, "after2", AFTER2)):
        for name, p in model.named_parameters():
            p.grad = factor * grads[name]
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP).item())
        optimizer.step()
        keep(prefix, model.named_parameters(), only)

    settings = {**vars(config), **ADAMW, "weight_decay": WEIGHT_DECAY, "grad_clip": GRAD_CLIP}
    settings["torch"] = torch.__version__
    with open(path, "wb") as f:
        f.write(save(out, metadata={"settings": json.dumps(settings)}))  # one key: several come in any order
    print(f"{os.path.relpath(path)}: {os.path.getsize(path):,} bytes, loss {loss.item():.6f}")
    print(f"  gradient norms before clipping {norms[0]:.4f} and {norms[1]:.4f}; transformers' differ by {worst:.1e}")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for bias in (False, True):
        config = Config(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=23, bias=bias)
        make(config, os.path.join(here, f"values_{'bias' if bias else 'nobias'}.safetensors"))


if __name__ == "__main__":
    main()
