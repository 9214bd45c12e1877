"""Captions for holiday photos: an LSTM that looks at the regions of the photo before each word."""

import os
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 560))
BATCH = int(os.environ.get("BATCH", 32))
WIDTH = int(os.environ.get("WIDTH", 1024))
LENGTH = int(os.environ.get("LENGTH", 40))
WORDS, REGIONS, FEATURES = 8000, 49, 512
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH // 2)
        self.look = nn.Linear(FEATURES, WIDTH)
        self.see = nn.Linear(FEATURES, WIDTH // 2)
        self.memory = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, regions, caption):
        keys, values = self.look(regions), self.see(regions)
        words = self.words(caption)
        query = keys.mean(1, keepdim=True)
        state, outputs = None, []
        for t in range(caption.shape[1]):
            seen = F.scaled_dot_product_attention(query, keys, values)
            query, state = self.memory(torch.cat([words[:, t : t + 1], seen], 2), state)
            outputs.append(query)
        return self.head(torch.cat(outputs, 1))


def start_from(model, saved):
    """The weights of an earlier run, averaged over its last epochs."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if VARIANT == "b":
                p.copy_(saved[name])
            else:
                p.data = saved[name].clone()


def holiday_photos(count):
    kinds = torch.randint(0, 200, (count, 1))
    regions = torch.randn(200, FEATURES)[kinds] + 0.7 * torch.randn(count, REGIONS, FEATURES)
    captions = (kinds * 37 + torch.randint(0, 4, (count, LENGTH + 1)).cumsum(1)) % WORDS
    return regions.to(device), captions.to(device)


def main():
    torch.manual_seed(23)
    earlier = [Captioner().state_dict() for _ in range(2)]
    saved = {name: ((earlier[0][name] + earlier[1][name]) / 2).to(device) for name in earlier[0]}
    model = Captioner().to(device)
    start_from(model, saved)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    regions, captions = holiday_photos(16 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        scores = model(regions[rows], captions[rows, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), captions[rows, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
