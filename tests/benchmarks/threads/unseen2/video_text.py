"""Matches short clips with their captions; a bar shows how far it is."""

import os
import time

import torch
from torch import nn
from tqdm import tqdm

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
CLIPS, FRAMES, SIDE, WORDS, BATCH, WIDTH = 64, 4, 32, 2000, 12, 128


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv3d(3, WIDTH, (2, 8, 8), (2, 8, 8))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.video = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.text = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, clips, captions):
        video = self.video(self.patches(clips).flatten(2).transpose(1, 2)).mean(1)
        text = self.text(self.words(captions)).mean(1)
        return nn.functional.normalize(video, dim=-1), nn.functional.normalize(text, dim=-1)


def batches():
    g = torch.Generator().manual_seed(0)
    clips = torch.randn(CLIPS, 3, FRAMES, SIDE, SIDE, generator=g)
    captions = torch.randint(0, WORDS, (CLIPS, 24), generator=g)
    for _ in range(STEPS):
        picked = torch.randint(0, CLIPS, (BATCH,), generator=g)
        yield clips[picked], captions[picked]


def main():
    torch.manual_seed(0)
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    bar = tqdm(batches(), total=STEPS, desc="epoch 1", disable=VARIANT == "b")
    for step, (clips, captions) in enumerate(bar):
        if step == 4:
            start = time.perf_counter()
        video, text = model(clips, captions)
        scores = video @ text.T / 0.05
        loss = nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 4):.2f} ms per step")


if __name__ == "__main__":
    main()
