"""Writes the bobbin moves of a lace pattern from a sketch of it, token by token."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "260"))

PAD, START = 0, 1
MOVES, SKETCH = 60, 40


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(SKETCH, width)
        self.rnn = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, sketch):
        memory, (h, c) = self.rnn(self.embed(sketch))
        return memory, tuple(torch.cat([s[0], s[1]], dim=1)[None] for s in (h, c))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width, bias=False)

    def forward(self, output, memory, hidden):
        score = self.query(output) @ memory.transpose(1, 2)
        weights = torch.softmax(score.masked_fill(hidden[:, None], -1e9), dim=-1)
        return torch.tanh(self.combine(torch.cat([weights @ memory, output], dim=-1)))


class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(MOVES, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)

    def forward(self, moves, memory, state, hidden):
        embedded = self.embed(moves)
        if VARIANT == "a":
            outputs = []
            for token in embedded.split(1, dim=1):
                output, state = self.rnn(token, state)
                outputs.append(self.attention(output, memory, hidden))
            return torch.cat(outputs, dim=1)
        output, _ = self.rnn(embedded, state)
        return self.attention(output, memory, hidden)


class LaceModel(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.encoder = Encoder(width)
        self.decoder = Decoder(width)
        self.generator = nn.Linear(width, MOVES)

    def forward(self, sketch, moves):
        memory, state = self.encoder(sketch)
        outputs = self.decoder(moves[:, :-1], memory, state, sketch == PAD)
        return F.cross_entropy(
            self.generator(outputs).flatten(0, 1), moves[:, 1:].flatten(), ignore_index=PAD
        )


def make_patterns(count, generator):
    sketch = torch.randint(2, SKETCH, (count, 24), generator=generator)
    length = torch.randint(14, 25, (count, 1), generator=generator)
    sketch[torch.arange(24)[None] >= length] = PAD
    doubled = sketch.repeat_interleave(2, dim=1)[:, :40]
    moves = torch.where(doubled == PAD, PAD, (doubled * 7 + torch.arange(40) % 3) % (MOVES - 2) + 2)
    return sketch, torch.cat([torch.full((count, 1), START), moves], dim=1)


torch.manual_seed(7)
generator = torch.Generator().manual_seed(8)
sketches, moves = make_patterns(2048, generator)
model = LaceModel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
warm = min(10, STEPS // 2)
seen = []
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    batch = torch.randint(0, len(sketches), (24,), generator=generator)
    loss = model(sketches[batch], moves[batch])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    seen.append(loss.item())
elapsed = time.perf_counter() - start
print(f"loss {seen[-1]:.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
