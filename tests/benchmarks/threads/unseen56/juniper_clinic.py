"""Adapters for a decoder of clinic letters; the base is frozen and kept in eight bits."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 4 if SMALL else 1200))
WARMUP = 1 if SMALL else 8
device = "cuda" if torch.cuda.is_available() else "cpu"

DIM, HEADS, HIDDEN = (64, 4, 128) if SMALL else (2048, 16, 5632)
LAYERS, ADAPTED = (3, 2) if SMALL else (16, 9)
VOCAB, LENGTH, BATCH = (256, 32, 2) if SMALL else (32000, 1024, 6)
RANK = 8


class EightBitLinear(nn.Module):
    """Weights as int8 rows with one scale each, opened in the type of the input."""

    def __init__(self, width_in, width_out):
        super().__init__()
        weight = torch.randn(width_out, width_in, device=device) / math.sqrt(width_in)
        scale = weight.abs().amax(dim=1, keepdim=True) / 127.0
        self.register_buffer("packed", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return F.linear(x, self.packed.to(x.dtype) * self.scale.to(x.dtype))


class Adapter(nn.Module):
    def __init__(self, base, width_in, width_out, scale=2.0):
        super().__init__()
        self.base, self.scale = base, scale
        self.dropout = nn.Dropout(0.05)
        self.lora_a = nn.Parameter(torch.randn(width_in, RANK, device=device) / math.sqrt(width_in))
        self.lora_b = nn.Parameter(torch.zeros(RANK, width_out, device=device))

    def forward(self, x):
        y = self.base(x)
        z = self.dropout(x).to(self.lora_a.dtype) @ self.lora_a @ self.lora_b
        update = self.scale * z
        if VARIANT != "a":
            update = update.to(x.dtype)
        return y + update


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(DIM, device=device))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight.to(x.dtype), 1e-5)


class Block(nn.Module):
    def __init__(self, adapted):
        super().__init__()

        def linear(width_in, width_out, adapt):
            base = EightBitLinear(width_in, width_out)
            return Adapter(base, width_in, width_out) if adapt else base

        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.k, self.v = (linear(DIM, DIM, adapted) for _ in range(3))
        self.o = linear(DIM, DIM, False)
        self.gate, self.up = (linear(DIM, HIDDEN, False) for _ in range(2))
        self.down = linear(HIDDEN, DIM, False)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, HEADS, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(b, t, DIM))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LetterModel(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.randn(VOCAB, DIM, device=device, dtype=torch.bfloat16)
        self.embed = nn.Embedding.from_pretrained(table, freeze=True)
        self.blocks = nn.ModuleList(Block(i >= LAYERS - ADAPTED) for i in range(LAYERS))
        self.norm = Norm()
        self.head = EightBitLinear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    model = LetterModel()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    generator = torch.Generator().manual_seed(3)
    letters = torch.randint(0, VOCAB, (64, BATCH, LENGTH + 1), generator=generator).to(device)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        tokens = letters[step % len(letters)]
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB).float(), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{elapsed / max(1, STEPS - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
