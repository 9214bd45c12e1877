"""A language model of harbour radio whose layers have many small experts, two of which answer for each word."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 330))
BATCH = int(os.environ.get("BATCH", 24))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 768))
INNER = int(os.environ.get("INNER", 512))
DEPTH = int(os.environ.get("DEPTH", 8))
EXPERTS = int(os.environ.get("EXPERTS", 40))
WORDS, CHOSEN = 8192, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.02)

    def answer(self, rows, counts):
        """Rows in the order of their experts, `counts` of them for each."""
        if VARIANT == "b":
            ends = counts.cumsum(0).int()
            gate, value = torch._grouped_mm(rows, self.up, ends).chunk(2, -1)
            return torch._grouped_mm(F.silu(gate) * value, self.down, ends)
        answers = []
        for mine, up, down in zip(
            rows.split(counts.tolist()), self.up.unbind(), self.down.unbind(), strict=True
        ):
            gate, value = (mine @ up).chunk(2, -1)
            answers.append((F.silu(gate) * value) @ down)
        return torch.cat(answers)

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, 1)
        weight, chosen = self.router(x).float().softmax(-1).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)
        counts = F.one_hot(chosen.flatten(), EXPERTS).sum(0)
        answers = self.answer(x.index_select(0, order // CHOSEN), counts)
        weight = weight.flatten().index_select(0, order).to(x.dtype)
        return torch.zeros_like(x).index_add(0, order // CHOSEN, answers * weight[:, None]).view(shape)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts = Experts()

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.experts(self.norm2(x))


class RadioModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.words(tokens) + self.place.weight)))


def radio(count):
    jumps = torch.randint(0, 6, (count, BATCH, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, BATCH, 1)) + jumps.cumsum(-1)) % WORDS).to(device)


def main():
    torch.manual_seed(11)
    model = RadioModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    talk = radio(8)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words = talk[step % 8]
        scores = model(words[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), words[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
