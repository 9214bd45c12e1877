"""Tags names in sentences: an LSTM below a conditional random field."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
WORDS, TAGS, WIDTH, BATCH, LENGTH = 3000, 9, 64, 10, 20


class CRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(TAGS, TAGS))

    def forward_algorithm(self, unary):
        alpha = unary[0]
        for scores in unary[1:]:
            alpha = torch.logsumexp(alpha[:, None] + self.transitions, 0) + scores
        return torch.logsumexp(alpha, 0)

    def score(self, unary, tags):
        emitted = unary[torch.arange(len(tags)), tags].sum()
        return emitted + self.transitions[tags[:-1], tags[1:]].sum()

    def forward_batched(self, unary, tags):
        alpha = unary[:, 0]
        for t in range(1, unary.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + unary[:, t]
        emitted = unary.gather(2, tags[..., None]).sum((1, 2))
        moved = self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(alpha, 1) - emitted - moved).mean()

    def neg_log_loss(self, unary, tags):
        if VARIANT == "b":
            return self.forward_batched(unary, tags)
        losses = []
        for sentence, gold in zip(unary, tags, strict=True):
            losses.append(self.forward_algorithm(sentence) - self.score(sentence, gold))
        return torch.stack(losses).mean()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)
        self.project = nn.Linear(2 * WIDTH, TAGS)
        self.crf = CRF()

    def compute_loss(self, words, tags):
        unary = self.project(self.rnn(self.embed(words))[0])
        return self.crf.neg_log_loss(unary, tags)


def main():
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.015)
    words = torch.randint(0, WORDS, (400, LENGTH))
    tags = words % TAGS
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(words), (BATCH,))
        loss = model.compute_loss(words[rows], tags[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
