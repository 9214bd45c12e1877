"""A decoder of object queries over image features."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
WIDTH, HEADS, QUERIES, CELLS, BATCH = 96, 8, 300, 400, 4


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.linear1 = nn.Linear(WIDTH, 2 * WIDTH)
        self.linear2 = nn.Linear(2 * WIDTH, WIDTH)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, tgt, memory, query_pos):
        options = {"need_weights": False} if VARIANT == "b" else {}
        q = k = tgt + query_pos
        tgt2, _ = self.self_attn(q, k, value=tgt, **options)
        tgt = self.norm1(tgt + tgt2)
        tgt2, _ = self.cross_attn(tgt + query_pos, memory, value=memory, **options)
        tgt = self.norm2(tgt + tgt2)
        return self.norm3(tgt + self.linear2(torch.relu(self.linear1(tgt))))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_pos = nn.Parameter(torch.randn(QUERIES, WIDTH))
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(2))
        self.boxes = nn.Linear(WIDTH, 4)

    def forward(self, memory):
        query_pos = self.query_pos.expand(len(memory), -1, -1)
        tgt = torch.zeros_like(query_pos)
        for layer in self.layers:
            tgt = layer(tgt, memory, query_pos)
        return self.boxes(tgt).sigmoid()


def main():
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    features = torch.randn(BATCH * 10, CELLS, WIDTH)
    targets = torch.rand(BATCH * 10, QUERIES, 4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(features), (BATCH,))
        loss = nn.functional.l1_loss(model(features[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
