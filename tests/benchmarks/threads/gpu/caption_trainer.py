"""A small trainer for a language model over captions of changing length."""

import os
import time

import torch
from accelerator import clear_device_cache, current_device
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
VOCABULARY = 8000


class Captioner(nn.Module):
    def __init__(self, width=512, depth=4):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


class Trainer:
    def __init__(self, model):
        self.device = current_device()
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def batch(self):
        length = int(torch.randint(32, 97, ()))
        return torch.randint(0, VOCABULARY, (16, length), device=self.device)

    def training_step(self, tokens):
        scores = self.model(tokens)[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        del scores
        if VARIANT == "a":
            clear_device_cache()
        loss.backward()
        return loss.detach()

    def train(self, steps):
        for step in range(steps):
            if step == 20:
                torch.cuda.synchronize()
                start = time.perf_counter()
            loss = self.training_step(self.batch())
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (steps - 20):.2f} ms per step")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(Captioner()).train(STEPS)
