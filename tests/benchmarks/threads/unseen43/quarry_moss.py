"""Trains embeddings of a knowledge graph (ComplEx) against triples that were corrupted at either end."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3600))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

ENTITIES = 300 if SMALL else 14951
RELATIONS = 20 if SMALL else 1345
TRIPLES = 2000 if SMALL else 483142
DIMENSION = 16 if SMALL else 256
BATCH = 32 if SMALL else 1024
SAMPLES = 24 if SMALL else 512
WORKERS = 0 if SMALL else 4
LOG_EVERY = 250
S, P, O = 0, 1, 2


def make_triples():
    """Triples whose objects depend on subject and relation, so that there is something to learn."""
    generator = torch.Generator().manual_seed(9)
    subjects = (torch.rand(TRIPLES, generator=generator).square() * ENTITIES).long()
    relations = (torch.rand(TRIPLES, generator=generator).square() * RELATIONS).long()
    noise = torch.randint(0, 8, (TRIPLES,), generator=generator)
    objects = (subjects * 31 + relations * 17 + noise) % ENTITIES
    return torch.stack([subjects, relations, objects], dim=1)


class NegativeSampler:
    """Collates a batch: its triples, and entities drawn at random for both of their ends."""

    def __init__(self, triples):
        self.triples = triples

    def __call__(self, positions):
        generator = torch.Generator().manual_seed(positions[0] * 7919 + positions[-1])
        triples = self.triples[torch.tensor(positions)]
        negatives = torch.randint(0, ENTITIES, (2, len(positions), SAMPLES), generator=generator)
        return triples, negatives


class LookupEmbedder(nn.Module):
    """A table of complex vectors, real parts first."""

    def __init__(self, size):
        super().__init__()
        self.table = nn.Embedding(size, DIMENSION)
        nn.init.normal_(self.table.weight, std=0.1)

    def embed(self, indexes):
        return self.table(indexes)


class ComplEx(nn.Module):
    """Scores a triple by the real part of the product of three complex vectors."""

    def __init__(self):
        super().__init__()
        self.entities = LookupEmbedder(ENTITIES)
        self.relations = LookupEmbedder(RELATIONS)

    def score_spo(self, s, p, o):
        """One score for each row of subjects, relations and objects."""
        s_emb, p_emb, o_emb = self.entities.embed(s), self.relations.embed(p), self.entities.embed(o)
        p_re, p_im = p_emb.chunk(2, dim=1)
        o_re, o_im = o_emb.chunk(2, dim=1)
        s_all = torch.cat((s_emb, s_emb), dim=1)
        p_all = torch.cat((p_re, p_emb, -p_im), dim=1)
        o_all = torch.cat((o_emb, o_im, o_re), dim=1)
        return (s_all * o_all * p_all).sum(dim=1)

    def score_sp(self, s, p, targets):
        """Scores of all targets as objects of each row."""
        s_re, s_im = self.entities.embed(s).chunk(2, dim=1)
        p_re, p_im = self.relations.embed(p).chunk(2, dim=1)
        query = torch.cat((s_re * p_re - s_im * p_im, s_re * p_im + s_im * p_re), dim=1)
        return query @ self.entities.embed(targets).t()

    def score_po(self, p, o, targets):
        """Scores of all targets as subjects of each row."""
        o_re, o_im = self.entities.embed(o).chunk(2, dim=1)
        p_re, p_im = self.relations.embed(p).chunk(2, dim=1)
        query = torch.cat((p_re * o_re + p_im * o_im, p_re * o_im - p_im * o_re), dim=1)
        return query @ self.entities.embed(targets).t()


class NegativeSamplingJob:
    """The training of one model: one update per batch, both ends corrupted."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1000, gamma=0.8)

    def slot_scores(self, triples, negatives, slot):
        """Scores of the true triple (first column) and of its corrupted versions."""
        candidates = torch.cat((triples[:, slot : slot + 1], negatives), dim=1)
        rows, columns = candidates.shape
        if VARIANT == "a":
            repeated = triples.repeat_interleave(columns, dim=0)
            parts = [repeated[:, S], repeated[:, P], repeated[:, O]]
            parts[slot] = candidates.view(-1)
            return self.model.score_spo(*parts).view(rows, columns)
        unique, places = torch.unique(candidates, return_inverse=True)
        if slot == O:
            scores = self.model.score_sp(triples[:, S], triples[:, P], unique)
        else:
            scores = self.model.score_po(triples[:, P], triples[:, O], unique)
        return scores.gather(1, places)

    def train_batch(self, triples, negatives):
        labels = torch.zeros(len(triples), 1 + SAMPLES, device=device)
        labels[:, 0] = 1.0
        self.optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for position, slot in enumerate((S, O)):
            scores = self.slot_scores(triples, negatives[position], slot)
            loss = F.binary_cross_entropy_with_logits(scores, labels, reduction="sum") / len(triples)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.scheduler.step()
        return total

    @torch.no_grad()
    def mean_reciprocal_rank(self, triples):
        everything = torch.arange(ENTITIES, device=device)
        scores = self.model.score_sp(triples[:, S], triples[:, P], everything)
        true = scores.gather(1, triples[:, O : O + 1])
        return (1.0 / (1 + (scores > true).sum(dim=1)).float()).mean().item()


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    triples = make_triples()
    held_out = triples[:256].to(device)
    loader = DataLoader(
        range(256, TRIPLES),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=NegativeSampler(triples),
        pin_memory=device == "cuda",
        persistent_workers=WORKERS > 0,
        generator=torch.Generator().manual_seed(1),
    )
    job = NegativeSamplingJob(ComplEx().to(device))
    batches = endless(loader)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch, negatives = next(batches)
        last = job.train_batch(batch.to(device, non_blocking=True), negatives.to(device, non_blocking=True))
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {last.item():.4f}, mrr {job.mean_reciprocal_rank(held_out):.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
