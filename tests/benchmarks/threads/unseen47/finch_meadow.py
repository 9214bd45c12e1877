"""Trains a convolutional speech recogniser of separable blocks with CTC on synthetic recordings.

Recordings of a batch are of different lengths; each convolution of the encoder blanks what lies
behind the end of a recording, so that nothing of the padding reaches the frames before it.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1900))
UTTERANCES = 384
BANDS = 64
LETTERS = 28
BATCH = 16
WIDTH = 160


class Recordings(Dataset):
    """Spectrograms in which each letter sounds for some frames, with their texts."""

    def __init__(self, rng):
        sounds = rng.standard_normal((LETTERS + 1, BANDS)).astype(np.float32)
        self.items = []
        for _ in range(UTTERANCES):
            text = rng.integers(1, LETTERS + 1, rng.integers(12, 31))
            frames = np.repeat(sounds[text], rng.integers(8, 14, len(text)), axis=0)
            frames = frames + 0.5 * rng.standard_normal(frames.shape).astype(np.float32)
            self.items.append((torch.from_numpy(frames), torch.from_numpy(text)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(samples):
    """Pads the spectrograms to the longest of the batch and joins the texts."""
    frames = nn.utils.rnn.pad_sequence([frames for frames, _ in samples], batch_first=True)
    lengths = torch.tensor([len(frames) for frames, _ in samples])
    texts = torch.cat([text for _, text in samples])
    return frames.transpose(1, 2).contiguous(), lengths, texts, torch.tensor([len(t) for _, t in samples])


class MaskedConv(nn.Module):
    """A convolution over time that looks at nothing behind the end of a recording."""

    def __init__(self, inputs, outputs, kernel, stride=1, groups=1, longest=2000):
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.register_buffer("places", torch.arange(longest), persistent=False)
        self.same = stride == 1

    def new_lengths(self, lengths):
        conv = self.conv
        return (lengths + 2 * conv.padding[0] - conv.kernel_size[0]) // conv.stride[0] + 1

    def forward(self, x, lengths):
        if VARIANT == "a":
            longest = x.shape[2]
            mask = torch.arange(longest).to(lengths.device).expand(
                len(lengths), longest
            ) >= lengths.unsqueeze(1)
            x = x.masked_fill(mask.unsqueeze(1).to(x.device), 0)
            lengths = self.new_lengths(lengths)
        else:
            mask = self.places[: x.shape[2]] < lengths.unsqueeze(1)
            x = x * mask.unsqueeze(1).to(x.dtype)
            lengths = lengths if self.same else self.new_lengths(lengths)
        return self.conv(x), lengths


class Excite(nn.Module):
    """Weighs the channels by what the whole recording holds."""

    def __init__(self, width, part=8):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, width // part), nn.ReLU(), nn.Linear(width // part, width))

    def forward(self, x):
        return x * torch.sigmoid(self.gate(x.mean(2))).unsqueeze(2)


class Block(nn.Module):
    """Repeated separable convolutions with a path around them."""

    def __init__(self, inputs, outputs, kernel, repeat, stride=1):
        super().__init__()
        self.parts = nn.ModuleList()
        for number in range(repeat):
            width = inputs if number == 0 else outputs
            depth = MaskedConv(width, width, kernel, stride if number == 0 else 1, groups=width)
            self.parts.append(nn.ModuleList([depth, MaskedConv(width, outputs, 1), nn.BatchNorm1d(outputs)]))
        self.excite = Excite(outputs)
        self.around = None
        if stride == 1:
            self.around = nn.ModuleList([MaskedConv(inputs, outputs, 1), nn.BatchNorm1d(outputs)])

    def forward(self, x, lengths):
        start, start_lengths = x, lengths
        for number, (depth, point, norm) in enumerate(self.parts):
            x, lengths = depth(x, lengths)
            x, lengths = point(x, lengths)
            x = norm(x)
            if number + 1 < len(self.parts):
                x = torch.relu(x)
        x = self.excite(x)
        if self.around is not None:
            x = x + self.around[1](self.around[0](start, start_lengths)[0])
        return torch.relu(x), lengths


class Recogniser(nn.Module):
    """The encoder and a linear layer for the letters."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                Block(BANDS, WIDTH, 5, 1),
                Block(WIDTH, WIDTH, 5, 1, stride=2),
                Block(WIDTH, WIDTH, 7, 3),
                Block(WIDTH, WIDTH, 9, 3),
            ]
        )
        self.letters = nn.Conv1d(WIDTH, LETTERS + 1, 1)

    def forward(self, x, lengths):
        for block in self.blocks:
            x, lengths = block(x, lengths)
        return torch.log_softmax(self.letters(x), dim=1), lengths


@torch.no_grad()
def letter_errors(model, batch):
    """The share of texts whose best path has not the right number of letters."""
    frames, lengths, _, sizes = batch
    model.eval()
    scores, lengths = model(frames, lengths)
    path = scores.argmax(1)
    fresh = (path[:, 1:] != path[:, :-1]) & (path[:, 1:] != 0)
    model.train()
    return (fresh.sum(1) != sizes).float().mean().item()


def main():
    torch.manual_seed(0)
    data = Recordings(np.random.default_rng(0))
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True, collate_fn=collate, generator=generator)
    model = Recogniser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 100)
    held = collate([data[number] for number in range(BATCH)])
    warm = min(10, STEPS // 2)
    step = 0
    while step < STEPS:
        for frames, lengths, texts, sizes in loader:
            if step == warm:
                start = time.perf_counter()
            scores, out_lengths = model(frames, lengths)
            scores = scores.permute(2, 0, 1)
            loss = nn.functional.ctc_loss(scores, texts, out_lengths, sizes, zero_infinity=True)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 250 == 0:
                print(f"step {step} loss {loss.item():.4f} wrong {letter_errors(model, held):.3f}")
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
