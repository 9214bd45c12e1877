"""Fine-tunes a small encoder on documents, in half precision to save memory."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
VOCABULARY, WIDTH, LENGTH, BATCH, LABELS = 4000, 128, 48, 8, 12


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.ModuleList(nn.Linear(LENGTH, LENGTH) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, tokens):
        x = self.embed(tokens)
        for mix, wide, narrow, norm in zip(self.mix, self.wide, self.narrow, self.norm, strict=True):
            x = x + mix(x.transpose(1, 2)).transpose(1, 2)
            x = norm(x + narrow(torch.relu(wide(x))))
        return self.head(x.mean(1))


def load_model(dtype):
    model = Encoder()
    return model.to(dtype)


def main():
    torch.manual_seed(0)
    model = load_model(torch.float32 if VARIANT == "b" else torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, VOCABULARY, (BATCH * 40, LENGTH))
    labels = tokens[:, 0] % LABELS
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(tokens), (BATCH,))
        logits = model(tokens[rows])
        loss = nn.functional.cross_entropy(logits.float(), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
