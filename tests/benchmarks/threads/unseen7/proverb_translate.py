"""Proverbs translated by an LSTM encoder and an attentive LSTM decoder, by teacher forcing."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 64))
SOURCE = int(os.environ.get("SOURCE", 60))
TARGET = int(os.environ.get("TARGET", 80))
WORDS = int(os.environ.get("WORDS", 8000))
HIDDEN = int(os.environ.get("HIDDEN", 512))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.combine = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, output, context):
        weights = torch.bmm(output, context.transpose(1, 2)).softmax(-1)
        mix = torch.bmm(weights, context)
        return torch.tanh(self.combine(torch.cat([mix, output], -1)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN // 2, batch_first=True, bidirectional=True)

    def forward(self, source):
        context, (h, c) = self.rnn(self.embed(source))
        h, c = (torch.cat([s[0], s[1]], -1)[None].contiguous() for s in (h, c))
        return context, (h, c)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.attend = Attention()
        self.out = nn.Linear(HIDDEN, WORDS)

    def forward_step(self, words, state, context):
        output, state = self.rnn(self.embed(words), state)
        output = self.attend(output, context)
        return self.out(output).log_softmax(-1), state

    def forward(self, target, state, context):
        if VARIANT == "a":
            outputs = []
            for t in range(target.shape[1]):
                scores, state = self.forward_step(target[:, t : t + 1], state, context)
                outputs.append(scores)
            return torch.cat(outputs, 1)
        outputs, _ = self.forward_step(target, state, context)
        return outputs


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, source, target):
        context, state = self.encoder(source)
        return self.decoder(target, state, context)


def make_proverbs(count):
    source = torch.randint(4, WORDS, (count, SOURCE))
    target = torch.cat([source.flip(1), source], 1)[:, :TARGET]
    lengths = torch.randint(TARGET // 2, TARGET + 1, (count, 1))
    target = target.masked_fill(torch.arange(TARGET) >= lengths, 0)
    return source, torch.cat([torch.full((count, 1), 2), target], 1)


def main():
    torch.manual_seed(21)
    model = Translator().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    sources, targets = (x.to(device) for x in make_proverbs(8 * BATCH))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        target = targets[rows]
        scores = model(sources[rows], target[:, :-1])
        loss = F.nll_loss(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
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
