"""Trains a recogniser of spoken letters on made-up spectra that are partly blanked in time and pitch."""

import os
import random
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))

PITCHES = 64
LETTERS = 28
BATCH = 16
FRAMES = 320
EVALUATE_EVERY = 200


class SpectrumBlanker(nn.Module):
    """Blanks bands of pitch and spans of time; the spans grow with the length of the recording."""

    def __init__(self, time_masks=2, time_share=0.05, pitch_width=12, seed=17):
        super().__init__()
        self.time_masks = time_masks
        self.time_share = time_share
        self.pitch_width = pitch_width
        self.random = random.Random(seed)

    def spans(self, lengths):
        """Begin and size of each span, inside of each recording. Out: two (batch, masks) tensors."""
        widths = (lengths * self.time_share).int().clamp(min=1)
        if VARIANT == "a":
            begins, sizes = [], []
            for index in range(len(lengths)):
                width = int(widths[index])
                latest = max(int(lengths[index]) - width, 1)
                begins.append([self.random.randrange(latest) for _ in range(self.time_masks)])
                sizes.append([self.random.randrange(width + 1) for _ in range(self.time_masks)])
            return torch.tensor(begins), torch.tensor(sizes)
        latest = (lengths - widths).clamp(min=1)[:, None]
        shape = (len(lengths), self.time_masks)
        return (torch.rand(shape) * latest).long(), (torch.rand(shape) * (widths[:, None] + 1)).long()

    @torch.no_grad()
    def forward(self, spectra, lengths):
        """In: spectra (batch, pitches, frames). Out: the same with blanks."""
        if not self.training:
            return spectra
        begins, sizes = self.spans(lengths)
        frames = torch.arange(spectra.shape[2])
        inside = (frames >= begins[..., None]) & (frames < (begins + sizes)[..., None])
        low = self.random.randrange(PITCHES - self.pitch_width)
        blanked = spectra.masked_fill(inside.any(1)[:, None, :], 0.0)
        blanked[:, low : low + self.random.randrange(self.pitch_width + 1)] = 0.0
        return blanked


class SeparableBlock(nn.Module):
    """Depthwise convolution over time, a pointwise one, norm and a way around."""

    def __init__(self, width, kernel):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.pointwise = nn.Conv1d(width, width, 1)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.norm(self.pointwise(self.depthwise(x)))))


class LetterRecogniser(nn.Module):
    """Blanks, a strided convolution, blocks, and scores of the letters for each frame."""

    def __init__(self, width=160, depth=4):
        super().__init__()
        self.blanker = SpectrumBlanker()
        self.first = nn.Conv1d(PITCHES, width, 11, stride=2, padding=5)
        self.blocks = nn.Sequential(*(SeparableBlock(width, 2 * i + 9) for i in range(depth)))
        self.last = nn.Conv1d(width, LETTERS, 1)

    def forward(self, spectra, lengths):
        """Out: log probabilities (frames, batch, letters) and the lengths."""
        x = self.blanker(spectra, lengths)
        scores = self.last(self.blocks(torch.relu(self.first(x))))
        return scores.permute(2, 0, 1).log_softmax(-1), (lengths + 1) // 2


class SpokenLetters:
    """Recordings made of one pattern of pitches for each letter."""

    def __init__(self, count=300, longest=24):
        self.patterns = torch.randn(LETTERS, PITCHES)
        self.items = [self.make(longest) for _ in range(count)]

    def make(self, longest):
        letters = torch.randint(1, LETTERS, (int(torch.randint(8, longest + 1, (1,))),))
        repeated = self.patterns[letters].repeat_interleave(FRAMES // longest, dim=0).T
        return repeated + 0.5 * torch.randn_like(repeated), letters


def collate(items):
    """Pad spectra and letters. Out: spectra, lengths, letters, letter counts."""
    lengths = torch.tensor([spectrum.shape[1] for spectrum, _ in items])
    spectra = torch.zeros(len(items), PITCHES, int(lengths.max()))
    for index, (spectrum, _) in enumerate(items):
        spectra[index, :, : spectrum.shape[1]] = spectrum
    spectra = (spectra - spectra.mean()) / spectra.std()
    letters = nn.utils.rnn.pad_sequence([letters for _, letters in items], batch_first=True)
    return spectra, lengths, letters, torch.tensor([len(letters) for _, letters in items])


class NoviceSchedule:
    """Warm-up, then a long decay."""

    def __init__(self, optimizer, peak=1e-3, warm_up=100):
        self.optimizer, self.peak, self.warm_up, self.count = optimizer, peak, warm_up, 0

    def step(self):
        self.count += 1
        share = min(self.count / self.warm_up, (self.warm_up / self.count) ** 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * share


def edit_distance(first, second):
    """Number of letters to change, drop or add."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first):
        above, row[0] = row[0], i + 1
        for j, b in enumerate(second):
            above, row[j + 1] = row[j + 1], min(above + (a != b), row[j] + 1, row[j + 1] + 1)
    return row[-1]


@torch.no_grad()
def evaluate(model, items, criterion):
    """Loss and share of wrong letters, greedily read."""
    model.eval()
    spectra, lengths, letters, counts = collate(items)
    scores, sizes = model(spectra, lengths)
    loss = criterion(scores, letters, sizes, counts)
    wrong = 0
    for index, (_, wanted) in enumerate(items):
        best = scores[: sizes[index], index].max(-1).indices.unique_consecutive()
        wrong += edit_distance(best[best > 0].tolist(), wanted.tolist())
    model.train()
    return loss, wrong / int(counts.sum())


def main():
    torch.manual_seed(0)
    data = SpokenLetters()
    aside, items = data.items[:BATCH], data.items[BATCH:]
    model = LetterRecogniser()
    criterion = nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = NoviceSchedule(optimizer)
    order = random.Random(5)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        spectra, lengths, letters, counts = collate(order.sample(items, BATCH))
        schedule.step()
        scores, sizes = model(spectra, lengths)
        loss = criterion(scores, letters, sizes, counts)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            value, wrong = evaluate(model, aside, criterion)
            print(f"step {step + 1}: loss aside {value.item():.4f}, letters wrong {wrong:.3f}")
    elapsed = time.perf_counter() - start
    loss, _ = evaluate(model, aside, criterion)
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
