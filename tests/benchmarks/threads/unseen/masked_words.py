"""Fills in masked words; the norms of the gradients are kept for the records."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 45))
WORDS, WIDTH, LENGTH, BATCH, MASK = 3000, 160, 128, 12, 1


class Encoder(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.layers(self.embed(tokens) + self.place)


class GradientRecord:
    def __init__(self):
        self.rows = []

    @torch.no_grad()
    def take(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        l1 = torch.stack([g.norm(1) for g in grads])
        l2 = torch.stack([g.norm(2) for g in grads])
        self.rows.append({"l1": l1.sum().item(), "l2": l2.norm(2).item()})


def main():
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    record = GradientRecord()
    text = torch.randint(2, WORDS, (2000, LENGTH))
    for step in range(STEPS):
        if step == 3:
            start = time.perf_counter()
        tokens = text[torch.randint(0, len(text), (BATCH,))]
        hidden = torch.rand(tokens.shape) < 0.3
        states = model(tokens.masked_fill(hidden, MASK))
        loss = nn.functional.cross_entropy(model.head(states[hidden]), tokens[hidden])
        optimizer.zero_grad()
        loss.backward()
        if VARIANT == "a":
            record.take(model)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 3):.2f} ms per step")


if __name__ == "__main__":
    main()
