"""Trains a light multi-branch network that finds the same person again in pictures of other cameras."""

import math
import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

PEOPLE = 64
PICTURES_EACH = 8
PEOPLE_PER_BATCH = 4 if SMALL else 8
PICTURES_PER_PERSON = 2 if SMALL else 4
HEIGHT, WIDTH = (64, 32) if SMALL else (384, 128)
CHANNELS = 16 if SMALL else 64
EMBEDDING = 64 if SMALL else 512
LOG_EVERY = 200


class Gallery:
    """Pictures of all people, kept on the device as bytes; made up from one pattern for each person."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        patterns = torch.rand(PEOPLE, 3, HEIGHT // 8, WIDTH // 8, generator=generator)
        patterns = F.interpolate(patterns, size=(HEIGHT, WIDTH), mode="bilinear")
        pictures = []
        for _ in range(PICTURES_EACH):
            light = 0.7 + 0.3 * torch.rand(PEOPLE, 3, 1, 1, generator=generator)
            pictures.append((patterns * light * 255).to(torch.uint8))
        self.pictures = torch.stack(pictures, dim=1).to(device)

    def fetch(self, people, views):
        """The pictures asked for, as floats around zero."""
        return self.pictures[people, views].float().div_(127.5).sub_(1.0)


class IdentitySampler:
    """Draws some people, and some pictures of each of them, for each batch."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            people = torch.randperm(PEOPLE, generator=self.generator)[:PEOPLE_PER_BATCH]
            views = torch.stack(
                [
                    torch.randperm(PICTURES_EACH, generator=self.generator)[:PICTURES_PER_PERSON]
                    for _ in range(PEOPLE_PER_BATCH)
                ]
            )
            yield people.repeat_interleave(PICTURES_PER_PERSON), views.flatten()


class LightConv(nn.Module):
    """A pointwise and a depthwise convolution, as in the omni-scale blocks."""

    def __init__(self, channels):
        super().__init__()
        self.point = nn.Conv2d(channels, channels, 1, bias=False)
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.norm(self.depth(self.point(x))))


class OmniBlock(nn.Module):
    """Two streams of different reach, added to the input."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.enter = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.near = LightConv(channels_out)
        self.far = nn.Sequential(LightConv(channels_out), LightConv(channels_out))
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        x = self.enter(x)
        return F.relu(self.norm(x + self.near(x) + self.far(x)))


class BranchNetwork(nn.Module):
    """A shared trunk, a branch for the whole body and a branch for its upper half."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stage1 = OmniBlock(CHANNELS, 2 * CHANNELS)
        self.stage2 = OmniBlock(2 * CHANNELS, 4 * CHANNELS)
        self.whole = nn.Linear(4 * CHANNELS, EMBEDDING)
        self.upper = nn.Linear(4 * CHANNELS, EMBEDDING)
        self.classify_whole = nn.Linear(EMBEDDING, PEOPLE)
        self.classify_upper = nn.Linear(EMBEDDING, PEOPLE)

    def forward(self, x):
        x = F.avg_pool2d(self.stage1(self.stem(x)), 2)
        x = F.avg_pool2d(self.stage2(x), 2)
        whole = self.whole(x.mean(dim=(2, 3)))
        upper = self.upper(x[:, :, : x.shape[2] // 2].mean(dim=(2, 3)))
        return [whole, upper], [self.classify_whole(whole), self.classify_upper(upper)]


class MultiSimilarityLoss(nn.Module):
    """Pulls pictures of one person together and pushes other people away, with mined pairs."""

    def __init__(self, margin=0.1, threshold=0.5, scale_positive=2.0, scale_negative=40.0):
        super().__init__()
        self.margin = margin
        self.threshold = threshold
        self.scale_positive = scale_positive
        self.scale_negative = scale_negative
        self.epsilon = 1e-5

    def forward(self, features, labels):
        features = F.normalize(features, dim=1)
        similarity = features @ features.t()
        if VARIANT == "a":
            return self.pair_loss(similarity, labels)
        return self.table_loss(similarity, labels)

    def pair_loss(self, similarity, labels):
        losses = []
        for i in range(similarity.shape[0]):
            positive = similarity[i][labels == labels[i]]
            positive = positive[positive < 1 - self.epsilon]
            negative = similarity[i][labels != labels[i]]
            hard_negative = negative[negative + self.margin > min(positive)]
            hard_positive = positive[positive - self.margin < max(negative)]
            if len(hard_negative) < 1 or len(hard_positive) < 1:
                continue
            pull = torch.exp(-self.scale_positive * (hard_positive - self.threshold)).sum()
            push = torch.exp(self.scale_negative * (hard_negative - self.threshold)).sum()
            pull, push = torch.log(1 + pull) / self.scale_positive, torch.log(1 + push) / self.scale_negative
            losses.append(pull + push)
        if not losses:
            return similarity.sum() * 0.0
        return sum(losses) / similarity.shape[0]

    def table_loss(self, similarity, labels):
        same = labels[:, None] == labels[None, :]
        positive = same & (similarity < 1 - self.epsilon)
        weakest = similarity.masked_fill(~positive, math.inf).amin(dim=1, keepdim=True)
        strongest = similarity.masked_fill(same, -math.inf).amax(dim=1, keepdim=True)
        hard_negative = ~same & (similarity + self.margin > weakest)
        hard_positive = positive & (similarity - self.margin < strongest)
        pull = (torch.exp(-self.scale_positive * (similarity - self.threshold)) * hard_positive).sum(dim=1)
        push = (torch.exp(self.scale_negative * (similarity - self.threshold)) * hard_negative).sum(dim=1)
        counted = hard_negative.any(dim=1) & hard_positive.any(dim=1)
        each = torch.log(1 + pull) / self.scale_positive + torch.log(1 + push) / self.scale_negative
        return (each * counted).sum() / similarity.shape[0]


@torch.no_grad()
def rank_one(model, gallery):
    """Share of people whose second picture lies nearest to their first one."""
    model.eval()
    people = torch.arange(PEOPLE)
    first = F.normalize(model(gallery.fetch(people, torch.zeros_like(people)))[0][0], dim=1)
    second = F.normalize(model(gallery.fetch(people, torch.ones_like(people)))[0][0], dim=1)
    hits = ((first @ second.t()).argmax(dim=1) == people.to(device)).float().mean()
    model.train()
    return hits.item()


def main():
    torch.manual_seed(0)
    gallery = Gallery()
    model = BranchNetwork().to(device)
    metric_loss = MultiSimilarityLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-4, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    batches = iter(IdentitySampler(seed=1))
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        people, views = next(batches)
        labels = people.to(device)
        features, logits = model(gallery.fetch(people, views))
        loss = sum(F.cross_entropy(scores, labels, label_smoothing=0.1) for scores in logits)
        loss = loss + sum(metric_loss(branch, labels) for branch in features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        last = loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {last.item():.4f}, rank-1 {rank_one(model, gallery):.3f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
