"""A detector that predicts a set of boxes."""

import os
import random
import time

import torch
from detector_config import Config, prepare
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
QUERIES, CLASSES = 100, 90


class Detector(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        encoder = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 6, enable_nested_tensor=False)
        decoder = nn.TransformerDecoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(decoder, 4)
        self.queries = nn.Parameter(torch.randn(QUERIES, width) * 0.02)
        self.scores, self.boxes = nn.Linear(width, CLASSES), nn.Linear(width, 4)

    def forward(self, images):
        memory = self.encoder(self.patches(images).flatten(2).transpose(1, 2))
        hidden = self.decoder(self.queries.expand(len(images), -1, -1), memory)
        return self.scores(hidden), self.boxes(hidden).sigmoid()


def main():
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda")
    config = Config(multi_scale=VARIANT == "a")
    model = prepare(Detector().to(device), config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        size = random.choice(config.sizes) if config.multi_scale else config.sizes[1]
        images = torch.rand(config.batch, 3, size, size, device=device)
        labels = torch.randint(0, CLASSES, (config.batch, QUERIES), device=device)
        boxes = torch.rand(config.batch, QUERIES, 4, device=device)
        scores, predicted = model(images)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        loss = loss + 5 * nn.functional.l1_loss(predicted, boxes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
