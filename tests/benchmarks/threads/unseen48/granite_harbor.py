"""Zero-shot learning: features of seen classes are generated from attributes and embedded."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

SEEN, UNSEEN, ATTRIBUTES = (12, 4, 20) if SMALL else (150, 50, 312)
FEATURES, EMBEDDING, HIDDEN = (64, 48, 64) if SMALL else (2048, 2048, 4096)
PROJECTION = 16 if SMALL else 512
BATCH = 8 if SMALL else 48
SAMPLES = 200 if SMALL else 7000
INSTANCE_TEMPERATURE, CLASS_TEMPERATURE = 0.1, 0.1
INSTANCE_WEIGHT, CLASS_WEIGHT, PENALTY = 0.001, 0.001, 10.0


class Generator(nn.Module):
    """Noise and attributes of a class to a visual feature."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2 * ATTRIBUTES, HIDDEN)
        self.out = nn.Linear(HIDDEN, FEATURES)

    def forward(self, noise, attributes):
        x = F.leaky_relu(self.hidden(torch.cat([noise, attributes], dim=1)), 0.2)
        return F.relu(self.out(x))


class Critic(nn.Module):
    """Scores a feature, given the attributes of its class."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES + ATTRIBUTES, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x, attributes):
        return self.out(F.leaky_relu(self.hidden(torch.cat([x, attributes], dim=1)), 0.2))


class Embedder(nn.Module):
    """Maps features to embeddings, and these to a small space for the contrast of instances."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, EMBEDDING)
        self.second = nn.Linear(EMBEDDING, PROJECTION)

    def forward(self, x):
        embedding = F.relu(self.first(x))
        return embedding, F.normalize(self.second(embedding), dim=1)


class Comparator(nn.Module):
    """How well embeddings and attributes agree."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(EMBEDDING + ATTRIBUTES, EMBEDDING)
        self.second = nn.Linear(EMBEDDING, 1)

    def forward(self, x):
        return self.second(F.leaky_relu(self.first(x), 0.2))


class Features:
    """Visual features of the seen classes, with one vector of attributes per class."""

    def __init__(self):
        rng = np.random.default_rng(5)
        attributes = rng.random((SEEN + UNSEEN, ATTRIBUTES), dtype=np.float32)
        attributes /= np.linalg.norm(attributes, axis=1, keepdims=True)
        mixing = rng.standard_normal((ATTRIBUTES, FEATURES), dtype=np.float32)
        labels = rng.integers(0, SEEN, SAMPLES)
        clean = attributes @ mixing
        noise = rng.standard_normal((SAMPLES, FEATURES), dtype=np.float32)
        self.features = torch.from_numpy(np.maximum(clean[labels] + 0.3 * noise, 0.0))
        self.labels = torch.from_numpy(labels)
        self.attributes = torch.from_numpy(attributes)
        self.attributes_seen = self.attributes[:SEEN]
        self.generator = torch.Generator().manual_seed(6)

    def next_batch(self, count):
        chosen = torch.randperm(len(self.labels), generator=self.generator)[:count]
        labels = self.labels[chosen]
        batch = (self.features[chosen], labels, self.attributes[labels])
        return [tensor.to(device) for tensor in batch]


def instance_contrast(projected, labels):
    """Pulls projections of one class together, pushes the others away."""
    same = labels.unsqueeze(0).eq(labels.unsqueeze(1)).float()
    itself = torch.eye(len(labels), device=device)
    scores = projected @ projected.t() / INSTANCE_TEMPERATURE
    scores = scores - scores.max(dim=1, keepdim=True)[0].detach()
    log_total = torch.log((scores.exp() * (1 - itself)).sum(1, keepdim=True))
    positive = same * (1 - itself)
    return -((positive * (scores - log_total)).sum(1) / positive.sum(1).clamp(min=1)).mean()


def class_scores(embedding, data, comparator):
    """Agreement of each embedding with the attributes of each seen class."""
    count = embedding.shape[0]
    if VARIANT == "a":
        scores = torch.zeros(count, SEEN, device=device)
        for i, one in enumerate(embedding):
            repeated = one.repeat(SEEN, 1)
            pairs = torch.cat((repeated, data.attributes_seen.to(device)), dim=1)
            scores[i] = comparator(pairs).div(CLASS_TEMPERATURE).squeeze(1)
        return scores
    repeated = embedding.unsqueeze(1).repeat(1, SEEN, 1).reshape(count * SEEN, -1)
    attributes = data.attributes_seen.to(device).unsqueeze(0).repeat(count, 1, 1).reshape(count * SEEN, -1)
    pairs = torch.cat((repeated, attributes), dim=1)
    return comparator(pairs).div(CLASS_TEMPERATURE).reshape(count, SEEN)


def class_contrast(embedding, labels, data, comparator):
    """Loss of the class of each embedding among all seen classes."""
    scores = class_scores(embedding, data, comparator)
    scores = scores - scores.max(dim=1, keepdim=True)[0].detach()
    mask = F.one_hot(labels, num_classes=SEEN).float()
    log_scores = scores - torch.log(scores.exp().sum(1, keepdim=True))
    return -((mask * log_scores).sum(1) / mask.sum(1)).mean()


def gradient_penalty(critic, real, fake, attributes):
    """Keeps the slope of the critic near one between real and generated features."""
    share = torch.rand(real.shape[0], 1, device=device)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    score = critic(between, attributes).sum()
    slope = torch.autograd.grad(score, between, create_graph=True)[0]
    return PENALTY * (slope.norm(2, dim=1) - 1).pow(2).mean()


def nearest_class(embedder, comparator, data):
    """Accuracy on a few features of the training set."""
    with torch.no_grad():
        x, labels, _ = data.next_batch(32 if not SMALL else 4)
        scores = class_scores(embedder(x)[0], data, comparator)
        return scores.argmax(1).eq(labels).float().mean().item()


def main():
    torch.manual_seed(0)
    data = Features()
    generator, critic = Generator().to(device), Critic().to(device)
    embedder, comparator = Embedder().to(device), Comparator().to(device)
    judges = [p for module in (critic, embedder, comparator) for p in module.parameters()]
    optimizer = torch.optim.Adam(judges, lr=1e-4, betas=(0.5, 0.999))
    optimizer_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.999))
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        real, labels, attributes = data.next_batch(BATCH)
        embedding, projected = embedder(real)
        contrast = INSTANCE_WEIGHT * instance_contrast(projected, labels)
        contrast = contrast + CLASS_WEIGHT * class_contrast(embedding, labels, data, comparator)
        fake = generator(torch.randn_like(attributes), attributes)
        distance = critic(fake.detach(), attributes).mean() - critic(real, attributes).mean()
        penalty = gradient_penalty(critic, real, fake.detach(), attributes)
        optimizer.zero_grad()
        (distance + penalty + contrast).backward()
        optimizer.step()

        embedding, projected = embedder(fake)
        contrast_fake = INSTANCE_WEIGHT * instance_contrast(projected, labels)
        contrast_fake = contrast_fake + CLASS_WEIGHT * class_contrast(embedding, labels, data, comparator)
        last = contrast_fake - critic(fake, attributes).mean()
        optimizer_generator.zero_grad()
        last.backward()
        optimizer_generator.step()
        if step % 500 == 499:
            accuracy = nearest_class(embedder, comparator, data)
            print(f"step {step + 1}: distance {-distance.item():.4f}, accuracy {accuracy:.3f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
