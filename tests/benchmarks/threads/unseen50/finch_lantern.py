"""Train a translator of short sentences: a bidirectional encoder and a decoder with attention.

The decoder is taught with the right words.  It also reports the words that it would have chosen and where its
own sentences would have ended; the loss and the accuracy are taken over the words of the target.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 8000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

PAD, SOS, EOS = 0, 1, 2
WORDS = 60 if SMALL else 2000
SENTENCES = 200 if SMALL else 30000
LONGEST = 8 if SMALL else 32
BATCH = 8 if SMALL else 128
WIDTH = 16 if SMALL else 512
PRINT_EVERY = 10 if SMALL else 100
VALIDATE_EVERY = 20 if SMALL else 1000


class Corpus:
    """Pairs of sentences; the target is the source in reverse order, with the words renamed."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(LONGEST // 2, LONGEST - 1, (count,), generator=g)
        words = (torch.rand(count, LONGEST, generator=g) ** 2 * (WORDS - 3)).long() + 3
        place = torch.arange(LONGEST)
        inside = place < lengths.unsqueeze(1)
        self.source = torch.where(inside, words, PAD)
        back = (lengths.unsqueeze(1) - 1 - place).clamp(min=0)
        renamed = (torch.gather(words, 1, back) * 7) % (WORDS - 3) + 3
        target = torch.where(inside, renamed, PAD).scatter(1, lengths.unsqueeze(1), EOS)
        self.target = torch.cat([torch.full((count, 1), SOS), target], dim=1)
        self.lengths = lengths

    def batches(self, seed):
        """Yield batches of sentences of like length, the longest first within each batch."""
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.lengths), generator=g)
        pools = order.split(BATCH * 20)
        for pool in pools:
            pool = pool[self.lengths[pool].argsort(descending=True, stable=True)]
            for chosen in pool.split(BATCH):
                if len(chosen) == BATCH:
                    longest = int(self.lengths[chosen[0]])
                    source = self.source[chosen, :longest]
                    target = self.target[chosen, : longest + 2]
                    yield source.to(device), self.lengths[chosen], target.to(device)


class Encoder(nn.Module):
    """Bidirectional GRU over the source."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.rnn = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def forward(self, source, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(source), lengths, batch_first=True)
        states, last = self.rnn(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        return states, torch.cat([last[0], last[1]], dim=-1).unsqueeze(0)


class Attention(nn.Module):
    """Dot products of the decoder's state with those of the encoder."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, output, states):
        weight = torch.softmax(torch.bmm(output, states.transpose(1, 2)), dim=-1)
        return torch.tanh(self.mix(torch.cat([torch.bmm(weight, states), output], dim=-1)))


class Decoder(nn.Module):
    """GRU with attention that is given the right word at each place."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.attention = Attention()
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, states, hidden, target):
        output, _ = self.rnn(self.words(target[:, :-1]), hidden)
        scores = F.log_softmax(self.out(self.attention(output, states)), dim=-1)
        return scores, self.ends(scores.detach())

    def ends(self, scores):
        """The chosen words, and the length of each sentence up to its first end mark."""
        rows, places = scores.shape[:2]
        if VARIANT == "a":
            lengths = torch.full((rows,), places, dtype=torch.long)
            symbols = []
            for place in range(places):
                chosen = scores[:, place].topk(1)[1]
                symbols.append(chosen)
                ended = chosen.eq(EOS).view(-1).cpu()
                update = (lengths > place) & ended
                lengths[update] = len(symbols)
            return torch.cat(symbols, dim=1), lengths.to(device)
        symbols = scores.argmax(dim=-1)
        marks = torch.arange(1, places + 1, device=device).expand(rows, places)
        return symbols, torch.where(symbols == EOS, marks, places).min(dim=1).values


class WordLoss:
    """Mean negative log likelihood of the words of the target."""

    def __init__(self):
        self.criterion = nn.NLLLoss(ignore_index=PAD, reduction="sum")

    def __call__(self, scores, target):
        right = target[:, 1:]
        count = (right != PAD).sum()
        if VARIANT == "a":
            total = 0
            for row in range(len(right)):
                total = total + self.criterion(scores[row], right[row])
            return total / count
        return self.criterion(scores.flatten(0, 1), right.flatten()) / count


class Statistics:
    """Accuracy of the words and mean length of the sentences, on the device until printed."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.sums = torch.zeros(4, device=device)

    def update(self, loss, symbols, lengths, target):
        right = target[:, 1:]
        real = right != PAD
        hits = ((symbols == right) & real).sum()
        rows = torch.ones((), device=device)
        self.sums += torch.stack([loss.detach(), hits / real.sum(), lengths.float().mean(), rows])

    def show(self, title):
        loss, accuracy, length, count = self.sums.tolist()
        print(f"{title} loss {loss / count:.4f} words {accuracy / count:.4f} length {length / count:.2f}")
        self.reset()


class Translator(nn.Module):
    """Encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, source, lengths, target):
        states, hidden = self.encoder(source, lengths)
        return self.decoder(states, hidden, target)


def validate(model, corpus, loss_of):
    """Print the loss and the accuracy on other sentences."""
    statistics = Statistics()
    model.eval()
    with torch.no_grad():
        for source, lengths, target in corpus.batches(0):
            scores, (symbols, ended) = model(source, lengths, target)
            statistics.update(loss_of(scores, target), symbols, ended, target)
    model.train()
    statistics.show("validation")


def main():
    corpus, other = Corpus(SENTENCES, 1), Corpus(4 * BATCH, 2)
    model, loss_of, statistics = Translator().to(device), WordLoss(), Statistics()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    step, epoch, last, begin = 0, 0, torch.zeros(()), 0.0
    while step < STEPS:
        epoch += 1
        for source, lengths, target in corpus.batches(epoch):
            if step == warm:
                if device == "cuda":
                    torch.cuda.synchronize()
                begin = time.perf_counter()
            scores, (symbols, ended) = model(source, lengths, target)
            last = loss_of(scores, target)
            optimizer.zero_grad()
            last.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            statistics.update(last, symbols, ended, target)
            step += 1
            if step % PRINT_EVERY == 0:
                statistics.show(f"epoch {epoch} step {step}")
            if step % VALIDATE_EVERY == 0:
                validate(model, other, loss_of)
            if step == STEPS:
                break
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
