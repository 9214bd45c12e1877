"""A language model of restaurant menus, with a trainer that keeps figures of every weight."""

import collections
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
BATCH = int(os.environ.get("BATCH", 8))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 12))
WORDS = int(os.environ.get("WORDS", 16384))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, n, 3, c // self.head, self.head)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MenuModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self, model, keep=100):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
        self.history = collections.deque(maxlen=keep)

    def figures(self):
        """Size, least and greatest of each weight and of its gradient."""
        found = {}
        for name, weight in self.model.named_parameters():
            for kind, values in (("weight", weight.detach()), ("gradient", weight.grad)):
                found[f"{kind}/{name}/norm"] = self.number(values.norm())
                found[f"{kind}/{name}/min"] = self.number(values.min())
                found[f"{kind}/{name}/max"] = self.number(values.max())
        if VARIANT == "b":
            found = dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))
        return found

    def number(self, value):
        return value.item() if VARIANT == "a" else value

    def train_step(self, tokens):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = self.model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.history.append(self.figures())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def menus(count):
    steps = torch.randint(0, 5, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + steps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(19)
    trainer = Trainer(MenuModel().to(device))
    tokens = menus(16 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = trainer.train_step(tokens[step % 16 * BATCH : (step % 16 + 1) * BATCH])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, figures {len(trainer.history[-1])}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
