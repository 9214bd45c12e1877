"""Finds answers in paragraphs: two-way attention between question and text."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 100))
WORDS, WIDTH, BATCH, TEXT, QUESTION = 20_000, 200, 40, 300, 25


class Bidaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.read = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.model = nn.LSTM(8 * WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)
        self.span = nn.Linear(2 * WIDTH, 2)

    def forward(self, text, question):
        text, question = self.read(self.embed(text))[0], self.read(self.embed(question))[0]
        alike = text @ question.transpose(1, 2) / WIDTH**0.5
        asked = alike.softmax(2) @ question
        told = (alike.amax(2).softmax(1)[:, None] @ text).expand_as(text)
        return self.span(self.model(torch.cat([text, asked, text * asked, text * told], 2))[0])


def instances():
    g = torch.Generator().manual_seed(0)
    while True:
        text = torch.randint(0, WORDS, (BATCH, TEXT), generator=g)
        question = torch.randint(0, WORDS, (BATCH, QUESTION), generator=g)
        yield text, question, torch.randint(0, TEXT, (BATCH, 2), generator=g)


def to_device(batch, device):
    if VARIANT == "b":
        return [each.pin_memory().to(device, non_blocking=True) for each in batch]
    return [each.to(device) for each in batch]


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Bidaf().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step, batch in enumerate(instances()):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        if step == STEPS:
            break
        text, question, span = to_device(batch, device)
        loss = nn.functional.cross_entropy(model(text, question), span)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
