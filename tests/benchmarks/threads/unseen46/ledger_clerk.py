"""Named entities: a bidirectional LSTM tagger with a conditional random field on top."""

import os
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 8000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

WORDS, TAGS, START, END = 20_000, 19, 17, 18
SHORTEST, LONGEST = (4, 9) if SMALL else (24, 64)
BATCH, SENTENCES = (3, 60) if SMALL else (32, 8_000)
EMBEDDED, HIDDEN = (16, 12) if SMALL else (200, 256)
FAR = -1e4


class Field(nn.Module):
    """Linear-chain conditional random field; scores are [time, batch, tags]."""

    def __init__(self, tags, start, end):
        super().__init__()
        self.tags, self.start, self.end = tags, start, end
        self.transitions = nn.Parameter(0.1 * torch.randn(tags, tags))
        allowed = torch.zeros(tags, tags)
        allowed[start, :] = FAR
        allowed[:, end] = FAR
        self.register_buffer("constraint", allowed)

    def neg_log_loss(self, unary, tags, lengths, shortest):
        trans = self.transitions + self.constraint
        total = self.partition(unary, trans, lengths, shortest)
        if VARIANT == "a":
            gold = self.score_sentence(unary, trans, tags, lengths, shortest)
        else:
            gold = self.score_sentence_again(unary, trans, tags, lengths)
        return (total - gold).mean()

    def partition(self, unary, trans, lengths, shortest):
        """Logarithm of the sum over all paths, by the forward algorithm."""
        alphas = torch.full((unary.size(1), self.tags), FAR, device=unary.device)
        alphas[:, self.start] = 0.0
        for t, unary_t in enumerate(unary):
            scores = alphas.unsqueeze(1) + trans + unary_t.unsqueeze(2)
            new_alphas = torch.logsumexp(scores, 2)
            if t >= shortest:
                new_alphas = torch.where((t < lengths).unsqueeze(1), new_alphas, alphas)
            alphas = new_alphas
        return torch.logsumexp(alphas + trans[self.end], 1)

    def score_sentence(self, unary, trans, tags, lengths, shortest):
        """Score of the path that was annotated."""
        batch_size = lengths.size(0)
        batch_range = torch.arange(batch_size, device=unary.device)
        begin = torch.full((1, batch_size), self.start, dtype=torch.long, device=unary.device)
        tags = torch.cat([begin, tags], 0)
        scores = torch.zeros(batch_size, device=unary.device)
        for i, unary_t in enumerate(unary):
            new_scores = trans[tags[i + 1], tags[i]] + unary_t[batch_range, tags[i + 1]]
            if i >= shortest:
                new_scores = torch.where(i < lengths, new_scores, torch.zeros_like(new_scores))
            scores = scores + new_scores
        return scores + trans[self.end, tags[lengths, batch_range]]

    def score_sentence_again(self, unary, trans, tags, lengths):
        """Score of the path that was annotated."""
        batch_size = lengths.size(0)
        begin = torch.full((1, batch_size), self.start, dtype=torch.long, device=unary.device)
        tags = torch.cat([begin, tags], 0)
        pairs = tags.unfold(0, 2, 1)
        moves = torch.gather(trans.reshape(-1), 0, (pairs[..., 1] * self.tags + pairs[..., 0]).reshape(-1))
        seen = torch.gather(unary, 2, tags[1:].unsqueeze(-1)).squeeze(-1)
        inside = torch.arange(unary.size(0), device=unary.device).unsqueeze(1) < lengths
        scores = ((moves.view_as(seen) + seen) * inside).sum(0)
        last_tags = torch.gather(tags, 0, lengths.unsqueeze(0)).squeeze(0)
        return scores + torch.gather(trans[self.end], 0, last_tags)

    @torch.no_grad()
    def decode(self, unary, lengths):
        """Best path of each sentence (Viterbi)."""
        trans = self.transitions + self.constraint
        best = torch.full((unary.size(1), self.tags), FAR, device=unary.device)
        best[:, self.start] = 0.0
        pointers = []
        for t, unary_t in enumerate(unary):
            value, pointer = (best.unsqueeze(1) + trans).max(2)
            inside = (t < lengths).unsqueeze(1)
            best = torch.where(inside, value + unary_t, best)
            same = torch.arange(self.tags, device=unary.device).expand_as(pointer)
            pointers.append(torch.where(inside, pointer, same))
        tag = (best + trans[self.end]).argmax(1)
        path = [tag]
        for pointer in reversed(pointers[1:]):
            tag = pointer.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1])


class Tagger(nn.Module):
    """Embedding, two LSTM layers in both directions, a projection and the field."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, EMBEDDED, padding_idx=0)
        self.dropout = nn.Dropout(0.0)
        self.lstm = nn.LSTM(EMBEDDED, HIDDEN, num_layers=2, bidirectional=True)
        self.projection = nn.Linear(2 * HIDDEN, TAGS)
        self.field = Field(TAGS, START, END)

    def unary(self, words, lengths_cpu):
        packed = pack_padded_sequence(self.dropout(self.embedding(words)), lengths_cpu)
        states, _ = pad_packed_sequence(self.lstm(packed)[0])
        return self.projection(self.dropout(states))

    def forward(self, words, tags, lengths_cpu, lengths, shortest):
        return self.field.neg_log_loss(self.unary(words, lengths_cpu), tags, lengths, shortest)


class Corpus:
    """Sentences whose tags follow from the words; batches of similar lengths, sorted."""

    def __init__(self, sentences, seed):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(SHORTEST, LONGEST + 1, (sentences,), generator=generator)
        self.words = torch.randint(1, WORDS, (sentences, LONGEST), generator=generator)
        inside = torch.arange(LONGEST) < self.lengths.unsqueeze(1)
        self.words = self.words * inside
        self.tags = ((self.words + self.words.roll(1, 1)) % START) * inside
        self.generator = generator

    def batches(self):
        while True:
            order = torch.randperm(len(self.lengths), generator=self.generator)
            for i in range(0, len(order) - BATCH + 1, BATCH):
                rows = order[i : i + BATCH]
                lengths, sorting = self.lengths[rows].sort(descending=True)
                rows, longest = rows[sorting], int(lengths[0])
                words = self.words[rows, :longest].t().contiguous()
                tags = self.tags[rows, :longest].t().contiguous()
                yield words.to(device), tags.to(device), lengths, lengths.to(device), int(lengths[-1])


@torch.no_grad()
def token_accuracy(model, corpus, batches=4):
    model.eval()
    right, counted = 0, 0
    source = corpus.batches()
    for _ in range(batches):
        words, tags, lengths_cpu, lengths, _ = next(source)
        found = model.field.decode(model.unary(words, lengths_cpu), lengths)
        right += ((found == tags) & (words > 0)).sum().item()
        counted += int(lengths_cpu.sum())
    model.train()
    return right / counted


def main():
    model = Tagger().to(device)
    corpus, held_out = Corpus(SENTENCES, 1), Corpus(max(4 * BATCH, 8), 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = corpus.batches()
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words, tags, lengths_cpu, lengths, shortest = next(source)
        optimizer.zero_grad()
        loss = model(words, tags, lengths_cpu, lengths, shortest)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        last = loss.detach()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {last.item():.4f}", flush=True)
        if (step + 1) % 1000 == 0:
            print(f"token accuracy {token_accuracy(model, held_out):.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
