#!/usr/bin/python3
"""Trains the kit's character models, and computes the numbers that the C code is compared with.

Needed only by whoever retrains: everything that it makes is shipped. See data/README.md.
    data/train.py train NAME --text FILE     data/models/NAME.safetensors
    data/train.py golden NAME                data/golden/NAME.safetensors
    data/train.py sample NAME                data/measure.txt: a text by the model, to measure others on
    data/train.py prompts NAME               what comes next after the two prompts that figures use
Leaves out: reading model files made elsewhere, and everything that the C code does with a model.
"""
import argparse
import ctypes
import json
import math
import os
import struct
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
import numpy
import torch
from torch import nn
from torch.nn import functional

# Keep freed memory: by default the C library returns each large buffer to the system, and clearing its pages anew at
# the next step costs three quarters of the time. The numbers are M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h.
for option in (-3, -1):
    ctypes.CDLL(None).mallopt(option, 2 ** 31 - 1)

HERE = os.path.dirname(os.path.abspath(__file__))

# One entry a model: its shape, as written to the file, and how it is trained.
# Letters below: B batch, T tokens, D d_model, H heads, V vocabulary.
GPT = dict(norm="layer_norm", bias=True, n_layer=2, n_head=4, n_kv_head=4, d_model=64)
LLAMA = dict(norm="rms_norm", bias=False, n_head=4, n_kv_head=2, activation="swiglu", position="rotary")
MODELS = {
    "sinusoidal": dict(GPT, position="sinusoidal", activation="gelu_tanh", d_ff=288, output="tied"),
    "learned": dict(GPT, position="learned", activation="gelu_exact", d_ff=208, output="untied"),
    "rotary": dict(LLAMA, n_layer=2, d_model=64, d_ff=216, output="tied"),
    "shakespeare": dict(LLAMA, n_layer=4, d_model=128, d_ff=384, output="tied"),
}
COMMON = dict(n_ctx=256, norm_eps=1e-5, rope_base=10000.0)
RECIPE = dict(steps=5000, batch=16, rate=8e-3, decay=0.05, seed=1)
RECIPES = {name: dict(RECIPE) for name in MODELS}
RECIPES["shakespeare"] = dict(RECIPE, steps=4500, rate=4e-3, decay=0.1)


def sinusoids(n_ctx, d):
    """[n_ctx][D]: column 2i is sin, 2i+1 is cos, of pos / 10000^(2i/D) (Vaswani et al. 2017, section 3.5)."""
    angle = torch.arange(n_ctx).double()[:, None] / 10000.0 ** (torch.arange(0, d, 2).double() / d)
    return torch.stack([angle.sin(), angle.cos()], -1).reshape(n_ctx, d)


def rotate(x, base):
    """Turns neighbouring pairs of x [B][H][T][d_head] by pos * base^(-2i/d_head) (Su et al. 2021, eq. 34)."""
    d = x.shape[-1]
    angle = torch.arange(x.shape[-2]).double()[:, None] * base ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Norm(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.eps, self.is_layer_norm = shape["norm_eps"], shape["norm"] == "layer_norm"
        self.weight = nn.Parameter(torch.ones(shape["d_model"]))
        if self.is_layer_norm:
            self.bias = nn.Parameter(torch.zeros(shape["d_model"]))

    def forward(self, x):
        if self.is_layer_norm:
            return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    """One pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, s):
        super().__init__()
        self.s, d, bias = s, s["d_model"], s["bias"]
        d_kv = d // s["n_head"] * s["n_kv_head"]
        self.attention_norm, self.mlp_norm = Norm(s), Norm(s)
        self.query, self.output = nn.Linear(d, d, bias), nn.Linear(d, d, bias)
        self.key, self.value = nn.Linear(d, d_kv, bias), nn.Linear(d, d_kv, bias)
        self.up, self.down = nn.Linear(d, s["d_ff"], bias), nn.Linear(s["d_ff"], d, bias)
        if s["activation"] == "swiglu":
            self.gate = nn.Linear(d, s["d_ff"], bias)

    def heads(self, x, n):
        return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)

    def attention(self, x):
        s, t = self.s, x.shape[1]
        q, k = self.heads(self.query(x), s["n_head"]), self.heads(self.key(x), s["n_kv_head"])
        v = self.heads(self.value(x), s["n_kv_head"])
        if s["position"] == "rotary":
            q, k = rotate(q, s["rope_base"]), rotate(k, s["rope_base"])
        if s["n_kv_head"] < s["n_head"]:  # query head h uses key/value head h / (n_head / n_kv_head)
            k, v = (a.repeat_interleave(s["n_head"] // s["n_kv_head"], 1) for a in (k, v))
        hidden = torch.full((t, t), -math.inf, dtype=x.dtype).triu(1)
        weights = (q / math.sqrt(q.shape[-1]) @ k.transpose(-1, -2) + hidden).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).flatten(-2))

    def mlp(self, x):
        kind = self.s["activation"]
        if kind == "swiglu":
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x), approximate="tanh" if kind == "gelu_tanh" else "none"))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """tokens [B][T] to logits [B][T][V]."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.token_embedding = nn.Parameter(torch.randn(s["n_vocab"], s["d_model"]) * 0.1)
        if s["position"] == "learned":
            self.position_embedding = nn.Parameter(torch.randn(s["n_ctx"], s["d_model"]) * 0.02)
        self.layers = nn.ModuleList([Layer(s) for _ in range(s["n_layer"])])
        self.final_norm = Norm(s)
        if s["output"] == "untied":
            self.unembedding = nn.Linear(s["d_model"], s["n_vocab"], bias=False)
        for layer in self.layers:
            for linear in (m for m in layer.modules() if isinstance(m, nn.Linear)):
                nn.init.normal_(linear.weight, std=linear.in_features ** -0.5)
                if s["bias"]:
                    nn.init.zeros_(linear.bias)
            for last in (layer.output, layer.down):
                last.weight.data *= (2 * s["n_layer"]) ** -0.5

    def forward(self, tokens):
        x, t = functional.embedding(tokens, self.token_embedding), tokens.shape[1]
        if self.s["position"] == "learned":
            x = x + self.position_embedding[:t]
        if self.s["position"] == "sinusoidal":
            x = x + sinusoids(t, self.s["d_model"]).to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x)
        return self.unembedding(x) if self.s["output"] == "untied" else x @ self.token_embedding.T


def write_safetensors(path, tensors, metadata):
    """An 8-byte little-endian header length, a JSON header, then the raw data, as the safetensors format says."""
    header, offset = {"__metadata__": metadata}, 0
    for name, a in tensors.items():
        header[name] = dict(dtype={"float32": "F32", "float64": "F64"}[a.dtype.name], shape=list(a.shape),
                            data_offsets=[offset, offset + a.nbytes])
        offset += a.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in tensors.values():
            f.write(numpy.ascontiguousarray(a).tobytes())


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    metadata, kinds = header.pop("__metadata__"), {"F32": "<f4", "F64": "<f8"}
    return {name: numpy.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}, metadata


def as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def load(name):
    tensors, metadata = read_safetensors(f"{HERE}/models/{name}.safetensors")
    vocabulary = metadata["vocabulary"]
    model = Model(dict(MODELS[name], **COMMON, n_vocab=len(vocabulary) + 1))
    model.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()})
    return model, vocabulary


def encode(text, vocabulary):
    return torch.tensor([vocabulary.index(c) for c in text])


def speeches(path):
    """The text as token ids: one a character, and an end-of-text token after each speech (they stand between blank
    lines), in the place of the blank line."""
    text = open(path, encoding="utf-8").read()
    vocabulary = "".join(sorted(set(text)))
    ids = {c: i for i, c in enumerate(vocabulary)}
    stream = []
    for speech in text.split("\n\n"):
        stream += [ids[c] for c in speech.rstrip("\n") + "\n"] + [len(vocabulary)]
    return torch.tensor(stream), vocabulary


@torch.no_grad()
def validation_loss(model, stream):
    """Mean nats per token over the whole validation part, in windows of n_ctx tokens."""
    n = model.s["n_ctx"]
    rows = stream[: (len(stream) - 1) // n * n]
    inputs, targets = rows.view(-1, n), stream[1: len(rows) + 1].view(-1, n)
    total = sum(functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
                for x, y in zip(inputs.split(32), targets.split(32)))
    return total / targets.numel()


def train(name, text, steps=None):
    recipe, (stream, vocabulary) = RECIPES[name], speeches(text)
    steps = steps or recipe["steps"]
    torch.manual_seed(recipe["seed"])
    shape = dict(MODELS[name], **COMMON, n_vocab=len(vocabulary) + 1)
    model, split = Model(shape), len(stream) * 9 // 10
    n_parameters = sum(p.numel() for p in model.parameters())
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=recipe["decay"]),
                                   dict(params=others, weight_decay=0.0)], betas=(0.9, 0.98))
    start, n = time.process_time(), shape["n_ctx"]
    for step in range(steps):
        for group in optimizer.param_groups:
            warm, left = min(1, (step + 1) / 200), (1 + math.cos(math.pi * step / steps)) / 2
            group["lr"] = recipe["rate"] * warm * left
        at = torch.randint(split - n - 1, (recipe["batch"],))
        rows = torch.stack([stream[i: i + n + 1] for i in at])
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 499 or step == steps - 1:
            print(f"{name}: step {step + 1} of {steps}, training loss {loss.item():.3f}, validation loss "
                  f"{validation_loss(model, stream[split:]):.4f}, {(time.process_time() - start) / 60:.1f} minutes", flush=True)
    tokens = steps * recipe["batch"] * n
    trained = dict(parameters=n_parameters, training_tokens=tokens, validation_loss=f"{validation_loss(model, stream[split:]):.4f}",
                   minutes=f"{(time.process_time() - start) / 60:.1f}", seed=recipe["seed"])
    metadata = {k: as_text(v) for k, v in dict(shape, **trained, vocabulary=vocabulary).items()}
    write_safetensors(f"{HERE}/models/{name}.safetensors",
                      {k: v.numpy() for k, v in model.state_dict().items()}, metadata)
    print(f"{name}: {n_parameters} parameters, {tokens} tokens, {trained}")


GOLDEN_TEXT = "Who goes there, and by what name"  # 32 characters, one token each


@torch.no_grad()
def golden(name):
    """float64 logits [32][V] of GOLDEN_TEXT at every position, and the ids that they belong to."""
    model, vocabulary = load(name)
    tokens = encode(GOLDEN_TEXT, vocabulary)
    logits = model.double()(tokens[None])[0].numpy()
    metadata = dict(text=GOLDEN_TEXT, tokens=" ".join(map(str, tokens.tolist())), torch=torch.__version__)
    write_safetensors(f"{HERE}/golden/{name}.safetensors", dict(logits=logits), metadata)


@torch.no_grad()
def sample(name, n=4000, seed=1):
    """n characters at temperature 1 behind a line break, in a window of n_ctx tokens; the end of text is banned."""
    model, vocabulary = load(name)
    tokens, random = encode("\n", vocabulary), torch.Generator().manual_seed(seed)
    for _ in range(n):
        logits = model(tokens[None, -model.s["n_ctx"]:])[0, -1, :-1]
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=random)])
    with open(f"{HERE}/measure.txt", "w", encoding="utf-8") as f:
        f.write("".join(vocabulary[i] for i in tokens[1:]))


PROMPTS = ["First Citi", "I will "]  # one that the model is sure about, and an open one


@torch.no_grad()
def prompts(name):
    model, vocabulary = load(name)
    for prompt in PROMPTS:
        p, ids = model(encode(prompt, vocabulary)[None])[0, -1].softmax(-1).sort(descending=True)
        names = [repr((vocabulary + "\0")[i]) for i in ids[:10]]
        needed = (p.cumsum(0) < 0.9).sum().item() + 1
        print(f"{prompt!r}: {needed} characters needed to reach 0.9; " +
              ", ".join(f"{c} {q:.3f}" for c, q in zip(names, p)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "golden", "sample", "prompts"])
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("--text", help="the training text (see data/README.md)")
    parser.add_argument("--steps", type=int, help="fewer steps, to try something out")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)  # masked scores underflow, and arithmetic on denormal numbers is slow
    if arguments.command != "train":
        globals()[arguments.command](arguments.name)
    elif arguments.text:
        train(arguments.name, arguments.text, arguments.steps)
    else:
        parser.error("train needs --text")


if __name__ == "__main__":
    main()
